"""Microsoft's compiler: a tree of the MSVC toolset and the Windows SDK that the user names.

dswin never downloads it and never ships it: it is Microsoft's, under Microsoft's licence.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, MachineLacks

VARIABLE = "DSWIN_MSVC"
TOOLSET_VARIABLE = "DSWIN_MSVC_TOOLSET"
HOW_TO_GET = (
    f"Name a folder that holds VC and Windows Kits, with --msvc or {VARIABLE}: a copy of both from a machine with Visual "
    "Studio 2022 and its C++ workload, or what msvc-wine's vsdownload.py or portablemsvc put there. They are Microsoft's, "
    "under the licence of Visual Studio: accept it yourself, and do not pass them on."
)

#: Machine of a PE file for x64 (IMAGE_FILE_MACHINE_AMD64).
_AMD64 = 0x8664
_PROGRAMS = ("cl.exe", "link.exe", "lib.exe", "dumpbin.exe", "ml64.exe")
_SDK_PROGRAMS = ("rc.exe", "mt.exe")


@dataclass(frozen=True)
class Msvc:
    """A toolset with its SDK, all of it x64 on x64.

    :param toolset: the version of the toolset, ``14.44.35207``.
    :param sdk: the version of the Windows SDK, ``10.0.26100.0``.
    """

    root: Path
    toolset: str
    sdk: str
    programs: tuple[Path, ...]
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]

    @property
    def compiler(self) -> str:
        """Major.minor of cl.exe: toolset 14.44 holds cl 19.44 (Microsoft's ``_MSC_VER`` page)."""
        return f"19.{self.toolset.split('.')[1]}"


def find(folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> Msvc:
    """Find the toolset and the SDK below a folder, and check that what a build needs is there.

    The newest of each is taken; the variable DSWIN_MSVC_TOOLSET, ``14.39`` or a whole version, picks another toolset.

    :param folder: the folder that the user names; without it, the one in the variable DSWIN_MSVC.
    :raises BadInput: the folder is not there, or holds no toolset of the version asked for.
    :raises MachineLacks: no folder is named, or parts are missing.
    """
    if folder is None:
        if not environment.get(VARIABLE):
            raise MachineLacks(
                "No MSVC tree is named: building for Windows takes Microsoft's compiler.", fix=HOW_TO_GET
            )
        folder = Path(environment[VARIABLE])
    root = folder.absolute()
    if not root.is_dir():
        raise BadInput(f"There is no folder {root}.", fix=HOW_TO_GET)
    toolset = _choose_toolset(root, environment.get(TOOLSET_VARIABLE, ""))
    kit = _find(root, "Windows Kits", "10") or _find(root, "kits", "10")
    sdk = _list_versions(kit and _find(kit, "Include"))[-1:]
    if kit is None or not sdk:
        raise MachineLacks(f"{root} holds no Windows SDK (Windows Kits/10/Include).", fix=HOW_TO_GET)
    return _check(root, toolset, kit, sdk[0].name)


def _choose_toolset(root: Path, wanted: str) -> Path:
    toolsets = _list_versions(_find(root, "VC", "Tools", "MSVC"))
    if not toolsets:
        raise MachineLacks(f"{root} holds no MSVC toolset (VC/Tools/MSVC).", fix=HOW_TO_GET)
    fitting = [one for one in toolsets if f"{one.name}.".startswith(f"{wanted}." if wanted else "")]
    if not fitting:
        raise BadInput(
            f"{root} holds no MSVC toolset {wanted}.",
            fix=f"Set {TOOLSET_VARIABLE} to one of: {', '.join(one.name for one in toolsets)}.",
        )
    return fitting[-1]


def _check(root: Path, toolset: Path, kit: Path, sdk: str) -> Msvc:
    missing: list[str] = []

    def need(base: Path, folder: str, *files: str) -> Path:
        """Return the folder; note which of its files are missing, or are programs for another processor."""
        found = _find(base, *folder.split("/"))
        for name in files:
            file = found and _find(found, name)
            if file is None:
                missing.append(f"{(base / folder / name).relative_to(root)}")
            elif name.endswith(".exe") and read_machine(file) != _AMD64:
                missing.append(f"{file.relative_to(root)} for x64 (it is for another processor)")
        return found or base / folder

    found = Msvc(
        root,
        toolset.name,
        sdk,
        programs=(
            need(toolset, "bin/Hostx64/x64", *_PROGRAMS),
            need(kit, f"bin/{sdk}/x64", *_SDK_PROGRAMS),
        ),
        includes=(
            need(toolset, "include", "vcruntime.h"),
            need(kit, f"Include/{sdk}/ucrt", "stdio.h"),
            need(kit, f"Include/{sdk}/um", "windows.h"),
            need(kit, f"Include/{sdk}/shared", "winerror.h"),
        ),
        libraries=(
            need(toolset, "lib/x64", "msvcrt.lib"),
            need(kit, f"Lib/{sdk}/ucrt/x64", "ucrt.lib"),
            need(kit, f"Lib/{sdk}/um/x64", "kernel32.lib"),
        ),
    )
    if missing:
        raise MachineLacks(
            f"{root} lacks {len(missing)} of the files that a build for Windows needs.",
            fix=HOW_TO_GET,
            log="\n".join(missing),
        )
    return found


def read_machine(program: Path) -> int | None:
    """Return the machine number of a PE file, 0x8664 for x64, or None when it is no such file (PE format, 3.1 to 3.3)."""
    with program.open("rb") as file:
        head = file.read(4096)
    if len(head) < 0x40 or head[:2] != b"MZ":
        return None
    (offset,) = struct.unpack_from("<I", head, 0x3C)
    if head[offset : offset + 4] != b"PE\0\0" or len(head) < offset + 6:
        return None
    return int(struct.unpack_from("<H", head, offset + 4)[0])


def _find(base: Path, *parts: str) -> Path | None:
    """Return a path below ``base`` whatever the case of its names is on this file system, or None."""
    for part in parts:
        exact = base / part
        if not exact.exists():
            names = (one for one in _list(base) if one.name.lower() == part.lower())
            if (other := next(names, None)) is None:
                return None
            exact = other
        base = exact
    return base


def _list(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def _list_versions(folder: Path | None) -> list[Path]:
    """Return the folders in ``folder`` that are named like a version, oldest first."""
    found = [one for one in (_list(folder) if folder else ()) if re.fullmatch(r"\d+(\.\d+)+", one.name)]
    return sorted(found, key=lambda one: tuple(map(int, one.name.split("."))))
