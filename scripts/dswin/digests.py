"""SHA-256, by which files and what things are made of are known."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def digest(value: object) -> str:
    """SHA-256 of a value that JSON can write, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    found = hashlib.sha256()  # hashlib.file_digest is of Python 3.11
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            found.update(chunk)
    return found.hexdigest()
