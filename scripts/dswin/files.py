"""Files that are there whole or not at all, and JSON as it is written into them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from .errors import naming


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that there is the old one or the new one, never a part. Text becomes UTF-8 as it stands.

    :raises OSError: it cannot be written; its ``filename`` is ``path``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # another run may be writing it too
    try:
        with naming(path):
            part.write_bytes(content.encode() if isinstance(content, str) else content)
        replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def replace(source: Path, target: Path) -> None:
    """As :func:`os.replace`. Windows refuses while someone reads the target; readers are soon done."""
    for wait in (0.05, 0.2, 1, 3) if os.name == "nt" else ():
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(wait)
    return os.replace(source, target)


def to_json(document: object) -> bytes:
    """Bytes of JSON, always the same for one document."""
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
