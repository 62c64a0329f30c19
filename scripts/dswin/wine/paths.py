"""Paths of Windows programs under Wine: each drive letter is a folder of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import BadInput

#: A drive's letter, in capitals, and the folder that it is.
Drives = Mapping[str, Path]

_FORBIDDEN = re.compile(r'[\\:*?"<>|\x00-\x1f]|[ .](?=/|$)')


def to_windows(path: Path, drives: Drives) -> str:
    """Return the name that Windows programs know a path by, on the drive whose folder is nearest above it.

    A relative path is taken from the current folder. Symbolic links stay as they are.

    :raises BadInput: a name in it is not one that Windows allows, or no drive holds it.
    """
    whole = Path(os.path.normpath(path.absolute()))
    if found := _FORBIDDEN.search(str(whole)):
        raise BadInput(
            f"{whole} cannot be named on Windows: {found[0]!r} is not allowed where it stands.",
            fix='Use a folder whose name has none of \\ : * ? " < > | and does not end in a space or a full stop.',
        )
    holding = [(letter, folder) for letter, folder in drives.items() if whole.is_relative_to(folder)]
    if not holding:
        raise BadInput(
            f"No drive holds {whole}.", fix=f"Use a folder below one of: {', '.join(map(str, drives.values()))}."
        )
    letter, folder = max(holding, key=lambda one: len(one[1].parts))
    return f"{letter}:\\" + "\\".join(whole.relative_to(folder).parts)


def to_linux(text: str, drives: Drives) -> Path:
    """Return where a path that a Windows program names is on this machine.

    Case is taken as Windows does: a name that is there in another case is found. A relative path stays relative.

    :raises BadInput: a network path, a path that depends on a drive's current folder, or an unknown drive.
    """
    plain = text.replace("/", "\\")
    if plain.startswith("\\\\?\\") and not plain[4:].upper().startswith("UNC\\"):
        plain = plain[4:]
    if plain.startswith("\\\\"):
        raise BadInput(
            f"{text} is a network path: Wine has none here.", fix="Use a path that starts with a drive, C:\\."
        )
    drive = re.match(r"([A-Za-z]):\\", plain)
    if drive is None:
        if plain.startswith("\\") or plain[1:2] == ":":
            raise BadInput(
                f"{text} depends on the current drive or its folder.", fix="Use a path that starts with a drive, C:\\."
            )
        return Path(*plain.split("\\"))
    folder = drives.get(drive[1].upper())
    if folder is None:
        raise BadInput(f"{text} is on a drive that is not there.", fix=f"The drives are: {', '.join(sorted(drives))}.")
    for name in plain[3:].split("\\"):
        if name not in ("", "."):
            folder = folder.parent if name == ".." else _match_case(folder, name)
    return folder


def _match_case(folder: Path, name: str) -> Path:
    exact = folder / name
    if exact.exists() or not folder.is_dir():
        return exact
    try:
        return next((one for one in folder.iterdir() if one.name.lower() == name.lower()), exact)
    except PermissionError:
        return exact
