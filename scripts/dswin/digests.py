"""The hashes by which files and what things are made of are known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path


def digest(value: object) -> str:
    """SHA-256 of a value that JSON can write, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_bytes(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hash_pieces([data])


def hash_pieces(pieces: Iterable[bytes]) -> str:
    """SHA-256 of bytes that come in pieces, in hex."""
    whole = hashlib.sha256()
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hash_by(path, ["sha256"])["sha256"]


def hash_by(path: Path, kinds: Sequence[str]) -> dict[str, str]:
    """{kind: digest in hex} of a file, read once.

    :param kinds: of :mod:`hashlib`: sha256, md5.
    """
    digests = {kind: hashlib.new(kind) for kind in kinds}  # hashlib.file_digest is of Python 3.11
    with path.open("rb") as file:
        while piece := file.read(2**20):
            for digest in digests.values():
                digest.update(piece)
    return {kind: digest.hexdigest() for kind, digest in digests.items()}
