"""An MSVC tree that nvcc accepts: beside the tools it looks for Visual Studio's batch files, whoever has set the environment."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .wine import find_msvc

if TYPE_CHECKING:
    from .wine.msvc import Msvc

# nvcc 13.0 takes a cl.exe for a compiler for Windows only if VC/Auxiliary/Build/vcvarsall.bat is in a folder above it ("Host
# compiler targets unsupported OS" otherwise), and calls vcvars64.bat there unless VSCMD_VER is set.
_BUILD = Path("VC", "Auxiliary", "Build")
_SCRIPTS = ("vcvarsall.bat", "vcvars64.bat")
_TEXT = b"@rem Made by dswin for nvcc. Whoever starts nvcc has set the environment.\r\n"


def complete(msvc: Msvc, folder: Path) -> Msvc:
    """Return the tree if it has Visual Studio's batch files, or one in *folder* that has them and links to the tools.

    :param folder: is filled, unless it links to this tree already; what else it holds is replaced.
    """
    if all((msvc.root / _BUILD / name).is_file() for name in _SCRIPTS):
        return msvc
    folder = folder.absolute()
    tools = Path("VC", "Tools")
    if (folder / _BUILD / _SCRIPTS[-1]).is_file() and (folder / tools).resolve() == (msvc.root / tools).resolve():
        return find_msvc(folder, {"DSWIN_MSVC_TOOLSET": msvc.toolset})
    if folder.exists():
        shutil.rmtree(folder)
    (folder / _BUILD).mkdir(parents=True)
    for entry in msvc.root.iterdir():
        if entry.name.lower() != "vc":
            (folder / entry.name).symlink_to(entry)
    for entry in (msvc.root / "VC").iterdir():
        if entry.name.lower() != "auxiliary":
            (folder / "VC" / entry.name).symlink_to(entry)
    for name in _SCRIPTS:
        (folder / _BUILD / name).write_bytes(_TEXT)
    return find_msvc(folder, {"DSWIN_MSVC_TOOLSET": msvc.toolset})
