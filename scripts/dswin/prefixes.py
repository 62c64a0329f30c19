"""An environment's folder: the records in its conda-meta, our stamp beside them, and what may be done with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .addresses import hide_secrets
from .contents import leaves
from .errors import BadInput
from .files import write_whole
from .lock import Locked

META = "conda-meta"
#: Not .json: conda and rattler take every .json there for a package and stop at this one.
STAMP = "dswin-stamp"
#: Written before anything is linked, removed when all is checked: a run that was killed in between leaves it.
JOURNAL = "dswin-unfinished"


@dataclass(frozen=True)
class Installed:
    """A package's record in conda-meta.

    :param file: the record itself.
    :param paths: the entries of its paths_data, as they stand there.
    """

    file: Path
    name: str
    version: str
    build: str
    url: str
    md5: str | None
    sha256: str | None
    paths: tuple[Mapping[str, Any], ...] = field(hash=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.build}"


def read_records(prefix: Path) -> tuple[dict[str, Installed], list[Path]]:
    """Read conda-meta: ({name: package}, the records that cannot be read)."""
    found: dict[str, Installed] = {}
    broken = []
    for file in list_records(prefix):
        try:
            record = json.loads(file.read_bytes())
            paths = tuple((record.get("paths_data") or {}).get("paths") or ())
            md5, sha256 = record.get("md5"), record.get("sha256")
            name, version, build, url = record["name"], record["version"], record["build"], record.get("url") or ""
            places = [one["_path"] for one in paths]
            if not all(isinstance(text, str) for text in (name, version, build, url, *places)) or any(
                map(leaves, places)
            ):
                raise ValueError("not texts, or a path that leads out of the environment")
            one = Installed(file, name, version, build, url, md5, sha256, paths)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            broken.append(file)
            continue
        if one.name in found or file.stem != f"{one.name}-{one.version}-{one.build}":
            broken.append(file)
            continue
        found[one.name] = one
    return found, broken


def list_records(prefix: Path) -> list[Path]:
    """The files of conda-meta that are packages' records."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(prefix / META) if entry.name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_same(package: Locked, installed: Installed) -> bool:
    """Whether what is installed is by its record what the lock names: by the hash, or it cannot be said."""
    if (package.version, package.build) != (installed.version, installed.build):
        return False
    pairs = [(package.sha256, installed.sha256), (package.md5, installed.md5)]
    known = [locked == found for locked, found in pairs if locked and found]
    return bool(known) and all(known)


@dataclass(frozen=True)
class Stamp:
    """What an environment was made from.

    :param lock: SHA-256 of the lock's file. :param source: its path or url, without secrets.
    :param made: UTC, as 2026-11-30T19:20:21Z.
    :param packages: [name, url, hash].
    """

    lock: str
    source: str
    platform: str
    version: str
    made: str
    packages: tuple[tuple[str, str, str], ...]

    @classmethod
    def read(cls, prefix: Path) -> Stamp | None:
        """The stamp of an environment; nothing where there is none, or none that can be read."""
        try:
            document = json.loads((prefix / META / STAMP).read_text(encoding="utf-8"))
            packages = tuple((str(name), str(url), str(key)) for name, url, key in document.pop("packages"))
            return cls(packages=packages, **{key: str(value) for key, value in document.items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, prefix: Path) -> None:
        write_whole(prefix / META / STAMP, json.dumps(asdict(self), indent=1) + "\n")


def key_of(package: Locked) -> str:
    """The hash by which an archive is known."""
    return f"sha256:{package.sha256}" if package.sha256 else f"md5:{package.md5}"


def list_packages(packages: Iterable[Locked]) -> tuple[tuple[str, str, str], ...]:
    """What a stamp has of a lock's packages."""
    return tuple(sorted((one.name, hide_secrets(one.url), key_of(one)) for one in packages))


def name_record(url: str) -> str:
    """The file name in conda-meta of a package with this url, when it is installed: NAME-VERSION-BUILD.json."""
    return unquote(url.rpartition("/")[2]).removesuffix(".conda").removesuffix(".tar.bz2") + ".json"


def check(prefix: Path, platform: str) -> None:
    """Make sure that an environment may be made in, or made of, a folder.

    :raises BadInput: it holds other things, is a conda installation itself, or an environment for another platform.
    """
    if prefix.is_symlink() and not prefix.exists():
        raise BadInput(f"{prefix} is a link to nothing.", fix="Name another folder.")
    if prefix.exists() and not prefix.is_dir():
        raise BadInput(f"{prefix} is a file.", fix="Name a folder that does not exist, or an environment.")
    if not prefix.is_dir() or not any(prefix.iterdir()):
        return
    if not (prefix / META).is_dir():
        raise BadInput(
            f"{prefix} has files in it and is no conda environment. Nothing was changed.",
            fix="Name a folder that is empty or does not exist yet.",
        )
    if any((prefix / META).glob("conda-[0-9]*.json")) or (prefix / "condabin").is_dir():
        raise BadInput(
            f"{prefix} is a conda installation itself: what the lock does not name would be removed from it.",
            fix="Name a folder of its own for the environment.",
        )
    stamp = Stamp.read(prefix)
    if stamp is not None and stamp.platform != platform:
        raise BadInput(
            f"{prefix} is an environment for {stamp.platform}, not for {platform}.",
            fix="Name another folder, or remove this one first.",
        )


def no_environment(prefix: Path) -> BadInput:
    """The error for a folder that is no environment."""
    return BadInput(f"{prefix} is no conda environment: it has no {META}.", fix="Make one: dswin env create.")


def list_foreign(prefix: Path, known: Sequence[str]) -> Iterator[str]:
    """The files, with slashes, in the folders that packages fill which no package brought.

    Left out are folders that no package uses, ``conda-meta``, and the bytecode that Python writes as it runs (``__pycache__``).

    :param known: the paths of all packages' files.
    """
    fold = os.path.normcase
    expected = {fold(path) for path in known}
    tops = {path.partition("/")[0] for path in known if "/" in path} - {META}
    waiting = [top for top in sorted(tops) if (prefix / top).is_dir() and not (prefix / top).is_symlink()]
    if any("/" not in path for path in known):  # Windows: python.exe and its DLLs lie at the top
        with os.scandir(prefix) as entries:
            for entry in entries:
                loose = entry.is_file(follow_symlinks=False) or entry.is_symlink()
                if (
                    loose
                    and fold(entry.name) not in expected
                    and entry.name.endswith((".exe", ".dll", ".pyd", ".py", "._pth"))
                ):
                    yield entry.name
    while waiting:
        folder = waiting.pop()
        with os.scandir(prefix / folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        waiting.append(path)
                elif fold(path) not in expected:
                    yield path
