"""One process at a time in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


@contextmanager
def hold(folder: Path, waiting: str, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``folder``, which must exist. While another process holds it, say ``waiting`` once and wait."""
    with hold_file(folder / LOCK, waiting, progress):
        yield


@contextmanager
def hold_file(file: Path, waiting: str, progress: Callable[[str], None]) -> Iterator[None]:
    """As :func:`hold`, of a lock by its own name."""
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
