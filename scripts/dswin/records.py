"""Package records collected from public files, for solving where no conda channel answers.

A line of a snapshot is a JSON object with a package's repodata fields, its channel, subdir and file name (``fn``), and where it
was seen (``source``). A line whose file name or version no source showed has them under ``inferred``, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rattler import Channel, SparseRepoData

from .errors import BadInput

#: What a channel's name stands for: https://docs.conda.io/projects/conda/en/stable/user-guide/configuration/settings.html
ANACONDA = "https://conda.anaconda.org"
_REPODATA_FIELDS = ("name", "version", "build", "subdir", "md5", "sha256", "size", "timestamp", "license", "noarch",
                    "track_features")  # fmt: skip
_FILE = re.compile(r"[^/]+-[^-/]+-[^-/]+(\.conda|\.tar\.bz2)")


@dataclass(frozen=True)
class Record:
    """A package that a channel has.

    :param channel: its name, as ``conda-forge`` or ``nvidia/label/cuda-12.4.0``.
    :param fn: the archive's file name.
    :param inferred: what of this was concluded rather than seen, and why; empty where all was seen.
    :param line: the snapshot's own text.
    """

    channel: str
    subdir: str
    fn: str
    repodata: dict
    inferred: str
    line: str

    @property
    def url(self) -> str:
        """Where the channel itself has it; a snapshot may have seen a mirror."""
        return f"{ANACONDA}/{self.channel}/{self.subdir}/{self.fn}"


def read(folder: Path) -> list[Record]:
    """Read all ``*.jsonl`` files of a snapshot. A package seen twice is kept once: what was seen goes before what was inferred.

    :raises BadInput: no snapshot, or a line that is none.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise BadInput(f"{folder} holds no package records (*.jsonl).", fix="Name a folder with a snapshot of records.")
    found: dict[str, Record] = {}
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            try:
                record = parse(line.decode())
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise BadInput(
                    f"{file}, line {number}, is no package record: {repr(error)[:300]}.",
                    fix="Each line is a JSON object with channel, subdir, fn, name, version, build and depends.",
                ) from error
            if record is None:
                continue
            other = found.get(record.url)
            if other is None or (other.inferred and not record.inferred):
                found[record.url] = record
    return sorted(found.values(), key=lambda record: record.url)


def parse(line: str) -> Record | None:
    """Return the record of a line, or nothing where its requirements were never seen: no solver could use it.

    :raises ValueError, KeyError: the line is no record.
    """
    seen = json.loads(line)
    if seen["depends"] is None:
        return None
    inferred, fn = "", seen["fn"]
    if guess := seen.get("inferred"):
        inferred = guess["basis"]
        seen["version"] = seen["version"] or guess["version"]
        seen["channel"] = guess.get("channel") or seen["channel"]
        fn = fn or guess["fn"]
    if seen.get("fn_doubtful"):
        # Files that name hundreds of packages .tar.bz2 with the hash of the .conda.
        fn = fn.removesuffix(".tar.bz2").removesuffix(".conda") + ".conda"
        inferred = inferred or "the file name's ending: the source writes .tar.bz2 beside hashes of .conda files"
    _check(seen, fn)
    number = seen.get("build_number")
    repodata = {
        **{name: seen[name] for name in _REPODATA_FIELDS if seen.get(name) is not None},
        "build_number": number if number is not None else guess_number(seen["build"]),
        "depends": seen["depends"],
        "constrains": seen.get("constrains") or [],
    }
    if isinstance(features := seen.get("track_features"), list):
        # Some sources put all of them into one text of a list.
        repodata["track_features"] = " ".join(features)
    return Record(seen["channel"], seen["subdir"], fn, repodata, inferred, line)


def guess_number(build: str) -> int:
    """The build number of a build string, for records of lock files, which do not have it.

    Where both were seen, this is right for 995 of 1,000.

    >>> guess_number("py3.10_cuda12.1_cudnn9_0"), guess_number("35_h5709861_mkl"), guess_number("mkl")
    (0, 35, 0)
    """
    numbers = [part for part in build.split("_") if part.isdecimal()]
    return int(numbers[-1]) if numbers else 0


def _check(seen: Mapping[str, Any], fn: Any) -> None:
    """:raises ValueError: a field that is not what it must be, or one that would lead out of the folder it names."""
    texts = {**{name: seen[name] for name in ("channel", "subdir", "name", "version", "build")}, "fn": fn}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"its {name} is {value!r}")
    depends = seen["depends"]
    if not isinstance(depends, list) or not all(isinstance(one, str) for one in depends):
        raise ValueError("its depends are not a list of texts")
    if not _FILE.fullmatch(fn):
        raise ValueError(f"its fn is {fn!r}, not NAME-VERSION-BUILD.conda or .tar.bz2")
    for name, parts in {"channel": str(seen["channel"]).split("/"), "subdir": [seen["subdir"]], "fn": [fn]}.items():
        if not all(re.fullmatch(r"(?!\.)[\w.+!@=%-]+", str(part)) for part in parts):
            raise ValueError(f"its {name} is {'/'.join(map(str, parts))!r}")


def write_repodata(records: Iterable[Record], folder: Path) -> list[Path]:
    """Write ``<channel>/<subdir>/repodata.json`` below ``folder`` for each channel and subdir; return the files."""
    trees: dict[Path, dict] = {}
    for record in records:
        path = folder / record.channel / record.subdir / "repodata.json"
        tree = trees.setdefault(
            path,
            {"info": {"subdir": record.subdir}, "packages": {}, "packages.conda": {}, "repodata_version": 1},
        )
        tree["packages.conda" if record.fn.endswith(".conda") else "packages"][record.fn] = record.repodata
    for path, tree in trees.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(tree, sort_keys=True), encoding="utf-8")
    return list(trees)


def open_repodata(folder: Path, channels: Iterable[str], platform: str) -> Iterator[SparseRepoData]:
    """What :func:`write_repodata` wrote of these channels for a platform, in the channels' order, with the channels' own urls."""
    for channel in channels:
        for subdir in (platform, "noarch"):
            path = folder / channel / subdir / "repodata.json"
            if path.is_file():
                try:
                    yield SparseRepoData(Channel(f"{ANACONDA}/{channel}"), subdir, str(path))
                except Exception as error:  # rattler reads repodata by its own rules
                    raise BadInput(
                        f"The records of {channel}/{subdir} cannot be used: {error}.",
                        fix="Correct the snapshot's lines.",
                    ) from error
