"""SHA256SUMS: the hash of every file of a channel, as ``sha256sum -c`` reads it, and what was published under each name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import channel as channels
from . import files
from .digests import hash_file
from .errors import BadInput, CheckFailed

NAME = "SHA256SUMS"
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64}) [ *](?P<path>\S.*)")


def parse(data: bytes, where: str) -> dict[str, str]:
    """{path: sha256} of the bytes of a list of sums.

    :raises BadInput: a line is none.
    """
    found = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadInput(
                f"{where}, line {number}, is no sum: {line[:80]!r}.", fix="Take the list as it was published."
            )
        found[match["path"]] = match["sha256"]
    return found


def read(file: Path) -> dict[str, str]:
    """As :func:`parse`, of a file.

    :raises BadInput: it is not there, or no list of sums.
    """
    try:
        return parse(file.read_bytes(), str(file))
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error}.", fix="Name a channel's SHA256SUMS.") from error


def write(sums: Mapping[str, str]) -> bytes:
    """The bytes of a list of sums."""
    return "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(sums.items())).encode()


def is_fixed(path: str) -> bool:
    """Whether a file of a channel is never to change once it was published: archives and wheels, not the documents about them."""
    return path.endswith((*channels.ENDINGS, ".whl"))


def list_files(channel: Path) -> Iterator[str]:
    """The paths in a channel folder that its sums are of, with slashes: all but hidden ones and the list itself."""
    for file in sorted(channel.rglob("*")):
        path = file.relative_to(channel)
        if file.is_file() and path.as_posix() != NAME and not any(part.startswith(".") for part in path.parts):
            yield path.as_posix()


def find_replaced(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of archives and wheels that had other bytes before."""
    return [path for path, sha256 in now.items() if is_fixed(path) and before.get(path, sha256) != sha256]


def renew(channel: Path) -> None:
    """Write a channel folder's list of sums anew.

    :raises CheckFailed: an archive has other bytes than the list has under its name.
    """
    now = {path: hash_file(channel / path) for path in list_files(channel)}
    if replaced := find_replaced(read(channel / NAME), now):
        raise CheckFailed(
            f"{', '.join(replaced[:3])} {'has' if len(replaced) == 1 else 'have'} other bytes than {NAME} says: a published file "
            "name is never replaced.",
            fix="Put the published file back, and give the new build a new number.",
        )
    files.write_whole(channel / NAME, write(now))
