"""Makes the import library of the OpenMP runtime that torch itself loads (Windows).

Code compiled with /openmp:llvm calls __kmpc_* functions and asks for libomp.lib, which in a Visual Studio installation is
the library of libomp140, a DLL that nobody may redistribute and a second runtime beside torch's. torch_cpu.dll's import table
names the runtime it uses: libiomp5md.dll from the pytorch channel and PyPI, libomp.dll from conda-forge. Both export the same
functions, so that an import library made from that very DLL binds the ops to it.

    python openmp_library.py --into FOLDER      writes FOLDER/dswin_openmp.lib and prints the DLL's name
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

RUNTIME = re.compile(r"\b(libiomp5md|libomp\w*)\.dll\b", re.IGNORECASE)
#: Every OpenMP runtime of the LLVM family exports these; Microsoft's vcomp140 does not.
PROOF = "__kmpc_fork_call"


def dump(what: str, dll: Path) -> str:
    """Return what dumpbin prints of ``dll``."""
    done = subprocess.run(
        ["dumpbin", "/nologo", what, str(dll)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        sys.exit(f"ERROR: dumpbin {what} {dll} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def runtime_of(dependents: str) -> str:
    """Return the OpenMP DLL that ``dumpbin /dependents`` names.

    :raises SystemExit: when there is none or more than one.
    """
    found = sorted({match.group(0).lower() for match in RUNTIME.finditer(dependents)})
    if len(found) != 1:
        sys.exit(f"ERROR: expected one OpenMP runtime among torch_cpu.dll's imports, found {found or 'none'}")
    return found[0]


def exports_of(listing: str) -> list[str]:
    """Return the names that ``dumpbin /exports`` lists."""
    return re.findall(r"^ +\d+ +[0-9A-F]+ (?:[0-9A-F]{8}| {8}) ([^\s\[]\S*)", listing, re.MULTILINE)


def find(name: str, folders: list[Path]) -> Path:
    """Return the first file called ``name`` in ``folders``."""
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    sys.exit(f"ERROR: torch_cpu.dll imports {name}, which is in none of: " + ", ".join(map(str, folders)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, required=True)
    arguments = parser.parse_args()

    torch_lib = Path(os.environ["SP_DIR"]) / "torch" / "lib"
    prefix_bin = Path(os.environ["PREFIX"]) / "Library" / "bin"
    torch_cpu = find("torch_cpu.dll", [torch_lib, prefix_bin])
    runtime = find(runtime_of(dump("/dependents", torch_cpu)), [torch_lib, prefix_bin])
    names = exports_of(dump("/exports", runtime))
    if PROOF not in names:
        sys.exit(f"ERROR: {runtime} does not export {PROOF}; it cannot serve code compiled with /openmp:llvm")

    arguments.into.mkdir(parents=True, exist_ok=True)
    definition = arguments.into / "dswin_openmp.def"
    definition.write_text(
        f"LIBRARY {runtime.name}\nEXPORTS\n" + "".join(f"    {name}\n" for name in names), encoding="ascii"
    )
    library = arguments.into / "dswin_openmp.lib"
    done = subprocess.run(["lib", "/nologo", "/machine:x64", f"/def:{definition}", f"/out:{library}"], check=False)
    if done.returncode != 0:
        sys.exit(f"ERROR: lib.exe ended with {done.returncode}")
    print(f"OpenMP: {runtime.name} ({len(names)} exports), as torch_cpu.dll imports it")


if __name__ == "__main__":
    main()
