"""A zip file whose every byte follows from its members: nothing compressed, no times, no owners, nothing between.

The zip files of Python's own zipfile differ from one Python to the next. In these, what is no member's content can be computed,
so that a reader finds each altered byte, and the same members always give the same file. Any program opens them.
Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7, 4.3.12 to 4.3.16, 4.5.3.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: 1 January 1980, 0:00, the first moment that the format knows.
_DATE, _TIME = 0x21, 0
_VERSION = 45  # 4.5: sizes of 64 bits
_UNIX = 3 << 8
_REGULAR = 0o100644 << 16
#: The most that 16 and 32 bits hold means: look among the 64-bit fields.
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF

_NAME_FAULTS = tuple(
    (re.compile(pattern, re.IGNORECASE), words)
    for pattern, words in (
        (r"\A\Z", "is empty"),
        (r"[\x00-\x1f\x7f]", "has a control character in it"),
        (r"\\", "has a backslash in it"),
        (r"\A/", "is an absolute path"),
        (r"\A[a-z]:", "names a drive"),
        (r"(\A|/)\.\.?(/|\Z)", "leaves its folder"),
        (r"//|/\Z", "names a folder"),
        (r"[. ](/|\Z)", "has a part that ends in a dot or a space, which Windows leaves off"),
        (r"(\A|/)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.[^/]*)?(/|\Z)", "is a device of Windows"),
        (r"[^a-z0-9_.+!~/-]|[^\x00-\x7f]", "has a character in it that is not allowed"),
        (r".{200}", "is too long"),
    )
)


@dataclass(frozen=True)
class Member:
    """:param size: in bytes. :param crc: CRC-32 of the content."""

    name: str
    size: int
    crc: int


def find_name_fault(name: str) -> str | None:
    """What is wrong with a name for a member, in words that go on from it; nothing if every system unpacks it in its folder.

    >>> find_name_fault("../evil")
    'leaves its folder'
    """
    return next((words for pattern, words in _NAME_FAULTS if pattern.search(name)), None)


def find_collision(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that are one file on a system that does not tell capitals, or of which one is the other's folder."""
    seen: dict[str, str] = {}
    names = list(names)
    for name in names:
        if (other := seen.get(name.casefold())) is not None:
            return other, name
        seen[name.casefold()] = name
    for name in names:
        parts = name.casefold().split("/")
        for end in range(1, len(parts)):
            if other := seen.get("/".join(parts[:end])):
                return other, name
    return None


def head(member: Member) -> bytes:
    """What stands before a member's content; its length does not depend on the CRC."""
    name = member.name.encode("ascii")
    size, extra = member.size, b""
    if size >= _FULL_32:
        size, extra = _FULL_32, struct.pack("<HHQQ", 1, 16, member.size, member.size)
    fields = (_VERSION, 0, 0, _TIME, _DATE, member.crc, size, size, len(name), len(extra))
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", *fields) + name + extra


def tail(members: Sequence[Member]) -> bytes:
    """What stands after the last member's content: the directory of all, in the order in which they are written."""
    entries, offset = [], 0
    for member in members:
        entries.append(_entry(member, offset))
        offset += len(head(member)) + member.size
    directory = b"".join(entries)
    count, size = len(members), len(directory)
    end = b""
    if count >= _FULL_16 or size >= _FULL_32 or offset >= _FULL_32:
        made = (44, _UNIX | _VERSION, _VERSION, 0, 0, count, count, size, offset)
        end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", *made)
        end += struct.pack("<4sIQI", b"PK\x06\x07", 0, offset + size, 1)
    count, size, offset = min(count, _FULL_16), min(size, _FULL_32), min(offset, _FULL_32)
    return directory + end + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count, count, size, offset, 0)


def _entry(member: Member, offset: int) -> bytes:
    name = member.name.encode("ascii")
    size, extra = member.size, b""
    if size >= _FULL_32:
        size, extra = _FULL_32, struct.pack("<QQ", member.size, member.size)
    if offset >= _FULL_32:
        offset, extra = _FULL_32, extra + struct.pack("<Q", offset)
    if extra:
        extra = struct.pack("<HH", 1, len(extra)) + extra
    fields = (_UNIX | _VERSION, _VERSION, 0, 0, _TIME, _DATE, member.crc, size, size, len(name), len(extra))
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *fields, 0, 0, 0, _REGULAR, offset) + name + extra
