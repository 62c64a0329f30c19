"""Logs as they come: in any of several encodings, with colours and NUL bytes, of any size, with lines of any length."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

BLOCK = 2**20
#: Bytes at the end of a piece of a line that the next piece has too.
OVERLAP = 1024
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_COLOURS = re.compile(rb"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)?")
_LETTERS = re.compile(rb"[\x80-\xff]+")
#: Two bytes of a Chinese character in GB 2312, whose second byte is none of ASCII.
_CHINESE = re.compile(rb"(?:[\xa1-\xf7][\xa1-\xfe])+")


class Log:
    """A log that is read once, from its beginning.

    :ivar encoding: what it is written in, known from its first mebibyte; "ascii" where that has no other letters.
    :ivar lines: that were read so far.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._head = read_fully(stream)
        self.encoding = find_encoding(self._head)
        self.lines = 0
        self.size = 0

    def read_blocks(self) -> Iterator[tuple[bytes, int]]:
        """Yield whole lines, and the number of the first; a line longer than a block comes in pieces that overlap.

        Without colours and NUL bytes; UTF-16 as UTF-8.
        """
        rest, first = b"", 1
        for text in self._decode():
            block = _COLOURS.sub(b"", rest + text) if b"\x1b" in text or b"\x1b" in rest else rest + text
            end = block.rfind(b"\n") + 1
            if end:
                yield block[:end], first
                first += block.count(b"\n", 0, end)
                rest = block[end:]
            elif len(block) >= BLOCK:
                yield block, first
                rest = block[-OVERLAP:]
            else:
                rest = block
        if rest:
            yield rest, first
        self.lines = first - 1 + bool(rest)

    def _decode(self) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(self.encoding)("replace") if self.encoding.startswith("utf-16") else None
        chunk, mark = self._head, next((mark for mark, _ in _MARKS if self._head.startswith(mark)), b"")
        skip = len(mark)
        while chunk:
            self.size += len(chunk)
            text = chunk[skip:]
            if decoder:
                text = decoder.decode(text).encode("utf-8", "replace")
            yield text.replace(b"\0", b"") if b"\0" in text else text
            chunk, skip = read_fully(self._stream), 0

    def show(self, line: bytes) -> str:
        """Return a line's text: UTF-8, or else what the log is written in; without what a console would act on."""
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            known = self.encoding in ("gbk", "cp850", "cp1252")
            text = line.decode(self.encoding if known else find_code_page(line), "replace")
        return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def read_fully(stream: BinaryIO) -> bytes:
    """Return the next block; less only at the end, though a pipe gives it in pieces."""
    parts, missing = [], BLOCK
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def find_encoding(head: bytes) -> str:
    """Return the encoding of a text from its beginning: by its mark, its NUL bytes, or its letters beyond ASCII."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    half = len(head) // 2
    # ASCII letters in UTF-16 have a NUL as every second byte.
    for name, zeros in (("utf-16-le", head[1::2].count(0)), ("utf-16-be", head[::2].count(0))):
        if zeros > half * 0.3 and head.count(0) - zeros < half * 0.1:
            return name
    if head.isascii():
        return "ascii"
    odd = [line for line in head.splitlines()[: -1 if len(head) >= BLOCK else None] if not _is_utf8(line)]
    return find_code_page(b"\n".join(odd)) if odd else "utf-8"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def find_code_page(text: bytes) -> str:
    """Return the code page that a text which is no UTF-8 is most likely written in: gbk, cp850 or cp1252.

    In Chinese the bytes beyond ASCII come in pairs; in the others alone, for western letters below 0xA6 in cp850 and above
    0xBF in cp1252.
    """
    letters = b"".join(_LETTERS.findall(text))
    paired = sum(len(run) - len(run) % 2 for run in _CHINESE.findall(text))
    if paired >= 0.8 * len(letters):
        return "gbk"
    return "cp850" if sum(byte < 0xA6 for byte in letters) * 2 >= len(letters) else "cp1252"
