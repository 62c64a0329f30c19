"""Assembles one CUDA_HOME from the places that conda packages spread a CUDA toolkit over.

DeepSpeed starts CUDA_HOME/bin/nvcc and torch links from CUDA_HOME/lib/x64 (Windows) or CUDA_HOME/lib64 (Linux). conda-forge
keeps the compiler in the build prefix and the libraries in the host prefix, below Library on Windows and targets/ on Linux; the
nvidia channel keeps both at the top of a prefix, and Windows libraries in lib/x64. Files are copied on Windows, where links
need rights, and linked on Linux.

    python cuda_home.py --into FOLDER
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

WINDOWS = sys.platform == "win32"


def roots(prefixes: list[Path], windows: bool) -> list[Path]:
    """Return the folders in ``prefixes`` that may hold bin, include, lib and nvvm of a toolkit, best first."""
    below = ["Library", "."] if windows else [".", "targets/x86_64-linux"]
    return [folder for prefix in prefixes for b in below if (folder := prefix / b).is_dir()]


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if WINDOWS:
        shutil.copy2(source, target)
    else:
        target.symlink_to(source)


def merge(
    sources: list[Path], target: Path, wanted: Callable[[Path], bool] = lambda _: True, pattern: str = "**/*"
) -> int:
    """Bring the wanted files of ``sources`` to the same place below ``target``; the first source wins. Return how many."""
    count = 0
    for source in sources:
        for file in sorted(p for p in source.glob(pattern) if p.is_file() and wanted(p)):
            place = target / file.relative_to(source)
            if not os.path.lexists(place):
                link_or_copy(file, place)
                count += 1
    return count


def assemble(prefixes: list[Path], into: Path, windows: bool) -> None:
    """Fill ``into`` with bin, nvvm, include and lib/x64 or lib64 from ``prefixes`` (best first).

    :raises SystemExit: when nvcc or cudart is in none of them; says which folders were looked through.
    """
    found = roots(prefixes, windows)
    exe = ".exe" if windows else ""
    # Only the folder that nvcc itself lies in: bin of a prefix holds everything else of that prefix too.
    compilers = [root / "bin" for root in found if (root / "bin" / f"nvcc{exe}").is_file()]
    if not compilers:
        sys.exit(
            "ERROR: no nvcc in " + ", ".join(str(root / "bin") for root in found) + ". Is cuda-nvcc a build dependency?"
        )
    tools = ("nvcc", "cudafe++", "fatbinary", "ptxas", "nvlink", "bin2c", "cicc", "cuobjdump", "nvprune")
    merge(
        compilers[:1],
        into / "bin",
        lambda p: p.name.removesuffix(exe) in tools or p.name == "nvcc.profile" or p.parent.name == "crt",
    )
    merge([r / "nvvm" for r in found], into / "nvvm")
    merge([r / "include" for r in found], into / "include")
    if windows:
        libraries = [f for r in found for f in (r / "lib" / "x64", r / "lib")]
        merge(libraries, into / "lib" / "x64", pattern="*.lib")
        needed = into / "lib" / "x64" / "cudart.lib"
    else:
        libraries = [r / "lib" for r in found]
        merge(libraries, into / "lib64", lambda p: p.name.startswith(("libcu", "libnv")), pattern="*")
        needed = into / "lib64" / "libcudart.so"
    if not needed.exists():
        sys.exit(
            f"ERROR: no {needed.name} in " + ", ".join(map(str, libraries)) + ". Is cuda-cudart-dev a host dependency?"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, required=True)
    arguments = parser.parse_args()
    prefixes = [Path(os.environ[name]) for name in ("BUILD_PREFIX", "PREFIX", "CUDA_HOME") if os.environ.get(name)]
    assemble(prefixes, arguments.into, WINDOWS)
    print(f"CUDA_HOME: {arguments.into}")


if __name__ == "__main__":
    main()
