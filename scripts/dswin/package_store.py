"""Every package ever made for a deps channel, by what it was made of."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .digests import digest
from .wheels import CONVERTER_VERSION, Source


def keep(store: Path, source: Source, scratch: Path, progress: Callable[[str], None]) -> Path:
    """The package made from *source*, made now if the store lacks it."""
    name = digest([source.name, source.identity, CONVERTER_VERSION])
    home = store / f"{source.name}-{name[:16]}"
    if not home.is_dir():
        progress(source.title)
        work = Path(tempfile.mkdtemp(dir=scratch))
        made = source.make(work, name)
        ready = work / "ready"
        ready.mkdir()
        made.replace(ready / made.name)
        home.parent.mkdir(exist_ok=True)
        ready.replace(home)
    [package] = home.iterdir()
    return package


def link(source: Path, target: Path) -> None:
    """Make *target* the same file as *source*, or a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def write_size(path: Path) -> str:
    """The size of a file for a person."""
    size = path.stat().st_size
    return f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
