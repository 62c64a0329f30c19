"""The documents of a channel beside its archives: what they say, how two channels' documents become one, and their bytes."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import channel as channels
from .errors import BadInput
from .files import to_json

#: What the name of a package's SBOM, which lies beside it, has behind the package's.
SBOM_ENDING = ".cdx.json"
#: At the root, for programs: what the pages show of each package, which no other document of a channel has.
PACKAGES = "packages.json"
CHANNELDATA = "channeldata.json"
KINDS = ("packages", "packages.conda")

#: What is read of an archive to describe it.
INFO = ("info/about.json", "info/paths.json", "info/run_exports.json")
_BUILD = re.compile(r"(?P<variant>[a-z]+\d*)_py(?P<major>\d)(?P<minor>\d+)_\d+")
#: A CUDA that a package is built for stands in one of these requirements.
_CUDA = ("pytorch-cuda", "cuda-version")
#: What a package's entry in channeldata.json has out of its info/about.json, by the same names.
_TEXTS = ("description", "dev_url", "doc_source_url", "doc_url", "home", "identifiers", "keywords", "license", "source_url",
          "summary", "tags")  # fmt: skip
#: What rows have out of archives, and no document of a channel but ours has: {name: its type}.
_INSIDE = {"archs": list, "simd": str, "sbom": str}
#: Timestamps beyond the year 9999 in seconds are in milliseconds, as conda has it.
_SECONDS_END = 253_402_300_799


@dataclass
class Described:
    """What a channel's documents say.

    :param records: {subdir: {file name: record of repodata.json}}; noarch is always there.
    :param run_exports: {subdir: {file name: run exports (CEP 12)}}.
    :param packages: {name: entry of channeldata.json (CEP 38)}.
    :param rows: {subdir/file name: what the pages show of it}; see :func:`make_row`.
    """

    records: dict[str, dict[str, dict]] = field(default_factory=lambda: {"noarch": {}})
    run_exports: dict[str, dict[str, dict]] = field(default_factory=lambda: {"noarch": {}})
    packages: dict[str, dict] = field(default_factory=dict)
    rows: dict[str, dict] = field(default_factory=dict)

    def list_records(self) -> dict[str, dict]:
        """{subdir/file name: record}."""
        return {f"{subdir}/{fn}": record for subdir, found in self.records.items() for fn, record in found.items()}


def describe(channel: Path) -> Described:
    """Read an indexed channel folder's repodata, and what else there is to say from the archives themselves.

    :raises BadInput: a repodata or an archive cannot be read.
    """
    found = Described()
    for place, record in channels.list_records(channel).items():
        subdir, fn = place.split("/")
        found.records.setdefault(subdir, {})[fn] = record
        info = channels.read_documents(channel / place, INFO)
        exports, about = info.get("info/run_exports.json", {}), info.get("info/about.json", {})
        found.run_exports.setdefault(subdir, {})[fn] = exports
        found.rows[place] = make_row(place, record, about)
        if (channel / f"{place}{SBOM_ENDING}").is_file():
            found.rows[place]["sbom"] = fn + SBOM_ENDING
        paths = info.get("info/paths.json", {}).get("paths")
        entry = make_entry(subdir, record, about, exports, paths if isinstance(paths, list) else [])
        found.packages[record["name"]] = merge_entries(found.packages.get(record["name"]), entry)
    for subdir in channels.SUBDIRS:
        if (channel / subdir).is_dir():
            found.records.setdefault(subdir, {})
    return found


def read(get: Callable[[str], bytes | None], where: str) -> Described:
    """Read a channel's documents, wherever they are; one that is not there says nothing.

    :param get: gives the bytes of a file by its path in the channel.
    :raises BadInput: one is no JSON, or not what its name says.
    """
    documents = ("repodata.json", "run_exports.json")
    paths = [*(f"{subdir}/{name}" for subdir in channels.SUBDIRS for name in documents), CHANNELDATA, PACKAGES]
    bytes_of = {path: get(path) for path in paths}
    found = Described()

    def load(path: str) -> Any:
        return json.loads(bytes_of[path] or b"{}")

    path = ""
    try:
        for subdir in channels.SUBDIRS:
            if (repodata := load(path := f"{subdir}/repodata.json")) or subdir == "noarch":
                found.records[subdir] = list_entries(repodata)
                for fn, record in found.records[subdir].items():
                    found.rows[f"{subdir}/{fn}"] = make_row(f"{subdir}/{fn}", record, {})
                choose_current(subdir, found.records[subdir])
                exports = list_entries(load(path := f"{subdir}/run_exports.json"))
                found.run_exports[subdir] = {fn: dict(one["run_exports"]) for fn, one in exports.items()}
        found.packages = load(path := CHANNELDATA).get("packages", {})
        for entry in found.packages.values():
            merge_entries(dict(entry), entry)
        for place, known in list_rows(load(path := PACKAGES)).items():
            if row := found.rows.get(place):
                row |= {name: known[name] for name, kind in _INSIDE.items() if isinstance(known.get(name), kind)}
    except Exception as error:  # of all kinds: what rattler raises, and whatever JSON of another shape leads to
        raise BadInput(
            f"{where}: {path} is not what a channel has: {error!r}.", fix="Index the channel anew from its packages."
        ) from error
    return found


def list_rows(document: Mapping[str, Any]) -> dict[str, dict]:
    """{subdir/file name: row} of a packages.json."""
    return {f"{row['subdir']}/{row['fn']}": row for row in document.get("packages", [])}


def list_entries(document: Mapping[str, Any]) -> dict[str, dict]:
    """{file name: entry} of a repodata.json, current_repodata.json or run_exports.json."""
    return {fn: {**one} for kind in KINDS for fn, one in document.get(kind, {}).items()}


def merge(old: Described, new: Described) -> Described:
    """One channel of two. A package of both keeps the old one's record, so that publishing it again changes nothing."""
    merged = Described(packages=dict(old.packages), rows={**old.rows, **new.rows})
    for name in ("records", "run_exports"):
        ours, theirs = getattr(old, name), getattr(new, name)
        setattr(
            merged, name, {subdir: {**theirs.get(subdir, {}), **ours.get(subdir, {})} for subdir in {**ours, **theirs}}
        )
    for name, entry in new.packages.items():
        merged.packages[name] = merge_entries(merged.packages.get(name), entry)
    return merged


def make_row(place: str, record: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """What people want to know of a package before they install it.

    :param about: its info/about.json; what the recipe wrote under ``extra`` is there: simd, cuda_arch_list.
    """
    subdir, _, fn = place.partition("/")
    depends = [str(one) for one in record.get("depends") or ()]
    named = _BUILD.fullmatch(record["build"])
    extra = about.get("extra")
    extra = extra if isinstance(extra, dict) else {}
    archs = str(extra.get("cuda_arch_list") or "none")
    return {
        "name": record["name"],
        "version": record["version"],
        "build": record["build"],
        "build_number": record.get("build_number", 0),
        "subdir": subdir,
        "fn": fn,
        "variant": named["variant"] if named else "",
        "python": f"{named['major']}.{named['minor']}" if named else find_version(depends, "python_abi"),
        "torch": find_version(depends, "pytorch"),
        "cuda": next(filter(None, (find_version(depends, name) for name in _CUDA)), ""),
        "driver": find_version(depends, "__cuda"),
        "archs": [] if archs == "none" else archs.replace(",", ";").split(";"),
        "simd": str(extra.get("simd") or ""),
        "license": str(record.get("license") or ""),
        "size": record.get("size"),
        "sha256": record.get("sha256"),
        "sbom": "",
        "timestamp": to_seconds(record.get("timestamp")),
    }


def find_version(depends: Iterable[str], name: str) -> str:
    """The first version in the requirement of a package, as 2.5.1 of ``pytorch ==2.5.1 *cuda12.1*``; nothing without one."""
    for text in depends:
        if channels.read_name(text) == name and (found := re.match(r"[^\s<>=!~\[]+[\s<>=!~]*(\d+(\.\d+)*)", text)):
            return found[1]
    return ""


def to_seconds(timestamp: float | None) -> int | None:
    """A record's timestamp, which may be in milliseconds, in seconds since 1970."""
    if timestamp is None:
        return None
    return int(timestamp / 1000 if timestamp > _SECONDS_END else timestamp)


def make_entry(
    subdir: str, record: Mapping[str, Any], about: Mapping[str, Any], exports: Mapping, paths: Iterable[Mapping]
) -> dict[str, Any]:
    """A package's entry in channeldata.json, as CEP 38 has it: https://github.com/conda/ceps/blob/main/cep-0038.md"""
    paths = [one for one in paths if isinstance(one, Mapping)]
    files = {str(one.get("_path", "")) for one in paths}
    modes = {one.get("file_mode") for one in paths if one.get("prefix_placeholder")}

    def has_script(kind: str) -> bool:
        return bool(files & {f"bin/.{record['name']}-{kind}.sh", f"Scripts/.{record['name']}-{kind}.bat"})

    texts = {name: about[name] for name in _TEXTS if about.get(name)}
    return {
        **texts,
        "license": str(record.get("license") or texts.get("license", "")),
        "activate.d": any(file.startswith("etc/conda/activate.d/") for file in files),
        "deactivate.d": any(file.startswith("etc/conda/deactivate.d/") for file in files),
        "binary_prefix": "binary" in modes,
        "text_prefix": "text" in modes,
        "post_link": has_script("post-link"),
        "pre_link": has_script("pre-link"),
        "pre_unlink": has_script("pre-unlink"),
        "run_exports": {record["version"]: dict(exports)} if exports else {},
        "subdirs": [subdir],
        "timestamp": to_seconds(record.get("timestamp")) or 0,
        "version": record["version"],
    }


def merge_entries(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """One entry of two: the texts of the newer version where it has them, and what either has of the rest."""
    if old is None:
        return new
    older, newer = sorted((old, new), key=lambda entry: (parse(entry["version"]), entry["timestamp"]))
    flags = {name: older[name] or newer[name] for name, value in newer.items() if isinstance(value, bool)}
    return {
        **older,
        **newer,
        **flags,
        "run_exports": {**older["run_exports"], **newer["run_exports"]},
        "subdirs": sorted({*older["subdirs"], *newer["subdirs"]}),
        "timestamp": max(older["timestamp"], newer["timestamp"]),
    }


def parse(version: str) -> Any:
    """A version that compares as conda's do."""
    from rattler import Version

    return Version(version)


def choose_current(subdir: str, records: Mapping[str, dict]) -> dict[str, dict]:
    """The records for current_repodata.json: each package's newest version, and of what these require the newest that fulfils it,
    in this subdir: https://docs.conda.io/projects/conda-build/en/stable/concepts/generating-index.html
    """
    from rattler import Channel, MatchSpec, SparseRepoData

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "repodata.json"
        file.write_bytes(to_json(make_repodata(subdir, records)))
        sparse = SparseRepoData(Channel("https://localhost/channel"), subdir, str(file))
        by_name = {name: sparse.load_records(name) for name in sparse.package_names()}
        sparse.close()
    chosen: dict[str, Any] = {}
    waiting: list[Any] = []

    def take(candidates: Iterable[Any]) -> None:
        candidates = list(candidates)
        newest = max((one.version for one in candidates), default=None)
        new = [one for one in candidates if one.version == newest and one.file_name not in chosen]
        chosen.update((one.file_name, one) for one in new)
        waiting.extend(new)

    for found in by_name.values():
        take(found)
    seen: set[str] = set()
    while waiting:
        for text in set(waiting.pop().depends) - seen:
            seen.add(text)
            spec = MatchSpec(text, strict=False)
            fitting = [one for one in by_name.get(channels.read_name(text), ()) if spec.matches(one)]
            if not any(one.file_name in chosen for one in fitting):
                take(fitting)
    return {fn: records[fn] for fn in sorted(chosen)}


def make_repodata(subdir: str, records: Mapping[str, dict]) -> dict[str, Any]:
    """A repodata.json (CEP 36) of records by file name."""
    return {"info": {"subdir": subdir}, **_by_kind(records), "repodata_version": 1}


def make_run_exports(subdir: str, exports: Mapping[str, dict]) -> dict[str, Any]:
    """A run_exports.json (CEP 12) of run exports by file name."""
    return {
        "info": {"subdir": subdir, "version": 1},
        **_by_kind({fn: {"run_exports": one} for fn, one in exports.items()}),
    }


def make_channeldata(described: Described) -> dict[str, Any]:
    """A channeldata.json (CEP 38)."""
    return {"channeldata_version": 1, "packages": described.packages, "subdirs": sorted(described.records)}


def _by_kind(entries: Mapping[str, dict]) -> dict[str, dict]:
    conda = {fn: entry for fn, entry in entries.items() if fn.endswith(".conda")}
    return {"packages": {fn: one for fn, one in entries.items() if fn not in conda}, "packages.conda": conda}


def render(described: Described, url: str = "") -> dict[str, bytes]:
    """{path in the channel: bytes} of all documents and pages, in the order in which they are to be written.

    :param url: of the channel, for the pages' install lines; without it they say where they lie.
    """
    from backports import zstd

    from . import channel_page

    documents: dict[str, bytes] = {}
    # noarch first: what the other subdirs' packages require is there before them.
    for subdir, records in sorted(described.records.items(), key=lambda one: (one[0] != "noarch", one[0])):
        repodata = to_json(make_repodata(subdir, records))
        documents |= {
            f"{subdir}/run_exports.json": to_json(make_run_exports(subdir, described.run_exports.get(subdir, {}))),
            f"{subdir}/current_repodata.json": to_json(make_repodata(subdir, choose_current(subdir, records))),
            f"{subdir}/repodata.json.zst": zstd.compress(repodata),
            f"{subdir}/repodata.json": repodata,
        }
    rows = [described.rows[place] for place in sorted(described.rows)]
    documents |= {CHANNELDATA: to_json(make_channeldata(described)), PACKAGES: to_json({"packages": rows})}
    return documents | channel_page.render(rows, sorted(described.records), url)
