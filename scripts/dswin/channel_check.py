"""A channel folder against itself: archives, the documents about them, what was published before, and what a solver says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import channel as channels
from . import channel_data, channel_page, channel_solve, sbom, solver, sums
from .channel_data import Described
from .digests import hash_by, hash_file, hash_pieces
from .errors import BadInput
from .sums import NAME as SUMS

Progress = Callable[[str], None]

#: What repodata.json says of an archive out of its info/index.json; absent and empty are the same.
_FIELDS = ("name", "version", "build", "build_number", "depends", "constrains", "license", "timestamp", "noarch",
           "track_features")  # fmt: skip
_PIECE = 2**20


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is not as it must be.

    :param kind: document, missing, orphan, metadata, name, contents, zst, current, run_exports, channeldata, packages, replaced,
        sums, unsolvable or incomplete.
    :param place: subdir/file name, or what else it is about.
    """

    kind: str
    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}: {self.detail}"


@dataclass(frozen=True)
class Checked:
    """:param records: {subdir/file name: record} that the repodata have. :param notes: what was not checked, and why."""

    channel: Path
    findings: tuple[Finding, ...]
    records: Mapping[str, dict]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.findings,
            "channel": str(self.channel),
            "packages": len(self.records),
            "findings": [vars(finding) for finding in self.findings],
            "notes": list(self.notes),
        }


def check(
    channel: Path,
    *,
    deps: Sequence[str] = (),
    previous: Path | None = None,
    allow_incomplete: bool = False,
    progress: Progress = lambda _: None,
) -> Checked:
    """Check a channel folder and name everything that is wrong with it.

    :param deps: channels that have what the packages require, by url or name, or a folder of package records; without one no
        solver is asked, with a note.
    :param previous: the SHA256SUMS of what was published before; by default the folder's own.
    :raises BadInput: the folder is no channel.
    """
    if not channel.is_dir() or not any((channel / subdir).is_dir() for subdir in channels.SUBDIRS):
        raise BadInput(
            f"{channel} is not a conda channel.", fix="Name a folder that `dswin channel index` has indexed."
        )
    findings: list[Finding] = []
    notes: list[str] = []
    found, documents = _read_documents(channel)
    findings += documents
    broken = {finding.place for finding in documents if finding.kind == "document"}
    all_records = found.list_records()
    files = {
        f"{subdir}/{file.name}": file
        for subdir in channels.SUBDIRS
        for file in channels.list_archives(channel / subdir)
    }
    findings += [
        Finding("missing", place, "the repodata name it, and there is no such file")
        for place in all_records.keys() - files.keys()
    ]
    findings += [
        Finding("orphan", place, "no repodata name it: no client finds it")
        for place in files.keys() - all_records
        if f"{place.partition('/')[0]}/repodata.json" not in broken
    ]
    progress(f"looking into {len(files)} packages")
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        jobs = [
            pool.submit(_check_archive, place, file, all_records.get(place), found, broken)
            for place, file in files.items()
        ]
        findings += [finding for job in jobs for finding in job.result()]
    if channel_data.CHANNELDATA not in broken:
        findings += _check_channeldata(found.packages, all_records)
    findings += _check_run_exports(found)
    findings += _check_sums(channel, previous)
    if not allow_incomplete:
        findings += find_incomplete(all_records)
    rows = [channel_data.make_row(place, record, {}) for place, record in all_records.items()]
    others = channel_page.list_channels(rows, rows)
    if deps or not others:
        unsolved = channel_solve.solve(channel, all_records, deps, progress)
        findings += [Finding("unsolvable", place, said) for place, said in unsolved]
    else:
        asked = " ".join(f"--deps {one}" for one in others)
        notes.append(f"Not checked: whether solvers can fulfil what the packages require. That takes {asked}.")
    return Checked(channel, tuple(sorted(set(findings))), all_records, tuple(notes))


def _read_documents(channel: Path) -> tuple[Described, list[Finding]]:
    """What the documents say, as far as they can be read, and what is wrong with them as documents."""
    found, findings = Described(), []

    def load(path: str, read: Callable[[Any], Any] = lambda document: document) -> Any:
        """What ``read`` makes of a document; nothing, with a finding, where it is none."""
        try:
            data = (channel / path).read_bytes()
            if path.endswith(".zst"):
                from backports import zstd

                data = zstd.decompress(data)
            return read(json.loads(data))
        except FileNotFoundError:
            findings.append(Finding("document", path, "it is not there"))
        except Exception as error:  # of all kinds: zstd's, rattler's, and whatever JSON of another shape leads to
            findings.append(Finding("document", path, f"no client can read it: {solver.first_line(error)}"))
        return None

    for subdir in channels.SUBDIRS:
        if subdir != "noarch" and not (channel / subdir).is_dir():
            continue
        plain = load(path := f"{subdir}/repodata.json")
        if plain is not None and load(f"{path}.zst") not in (None, plain):
            findings.append(Finding("zst", f"{path}.zst", "it does not say the same as repodata.json"))
        read = load(path, partial(_read_repodata, subdir)) if plain is not None else None
        found.records[subdir], expected = read or ({}, {})
        current = load(f"{subdir}/current_repodata.json", channel_data.list_entries)
        if read and current not in (None, expected):
            findings.append(Finding("current", f"{subdir}/current_repodata.json", "it is not of the newest packages"))
        exports = load(f"{subdir}/run_exports.json", channel_data.list_entries) or {}
        found.run_exports[subdir] = {fn: one.get("run_exports", {}) for fn, one in exports.items()}
    found.packages = load(channel_data.CHANNELDATA, _read_channeldata) or {}
    found.rows = load(channel_data.PACKAGES, channel_data.list_rows) or {}
    for page in (channel_page.INDEX, *(f"{subdir}/{channel_page.INDEX}" for subdir in found.records)):
        if not (channel / page).is_file():
            findings.append(Finding("document", page, "it is not there"))
    return found, findings


def _read_repodata(subdir: str, document: Mapping[str, Any]) -> tuple[dict[str, dict], dict[str, dict]]:
    """The records of a repodata.json, and those that current_repodata.json is to have."""
    if document["info"]["subdir"] != subdir:
        raise ValueError(f"it is of {document['info']['subdir']}")
    records = channel_data.list_entries(document)
    for fn, record in records.items():
        channel_data.make_row(f"{subdir}/{fn}", record, {})
    return records, channel_data.choose_current(subdir, records)


def _read_channeldata(document: Mapping[str, Any]) -> dict[str, dict]:
    for entry in document["packages"].values():
        channel_data.merge_entries(dict(entry), entry)
    return document["packages"]


def _check_archive(
    place: str, file: Path, record: Mapping[str, Any] | None, found: Described, broken: Collection[str]
) -> list[Finding]:
    try:
        return list(_compare_archive(place, file, record, found, broken))
    except Exception as error:  # of all kinds: what reads archives, and whatever JSON of another shape leads to
        return [Finding("contents", place, f"it is not a whole package: {solver.first_line(error)}")]


def _compare_archive(
    place: str, file: Path, record: Mapping[str, Any] | None, found: Described, broken: Collection[str]
) -> Iterator[Finding]:
    info = channels.read_documents(file, channel_data.INFO)
    index, exports = info[channels.INDEX], info.get("info/run_exports.json", {})
    for text in check_contents(file, info.get("info/paths.json")):
        yield Finding("contents", place, text)
    subdir, _, fn = place.partition("/")
    named = f"{index['name']}-{index['version']}-{index['build']}"
    if sbom.stem(file) != named or index["subdir"] != subdir:
        yield Finding("name", place, f"it calls itself {index['subdir']}/{named}")
    if any(channels.read_name(one) == channels.REHEARSAL_MARK for one in index.get("depends", [])):
        yield Finding("contents", place, "it comes out of a rehearsal and cannot run")
    if record is None:
        return
    actual = {"size": file.stat().st_size, **hash_by(file, ["md5", "sha256"])}
    expected = {name: index.get(name) for name in _FIELDS} | actual
    for name, value in expected.items():
        if (record.get(name) or None) != (value or None):
            yield Finding("metadata", place, f"repodata have {name} {record.get(name)!r}, and it has {value!r}")
    if f"{subdir}/run_exports.json" not in broken and found.run_exports.get(subdir, {}).get(fn) != exports:
        yield Finding("run_exports", place, "run_exports.json does not say what the archive says")
    row = channel_data.make_row(place, {**index, **actual}, info.get("info/about.json", {}))
    shown = found.rows.get(place, {})
    for name in row if channel_data.PACKAGES not in broken else ():
        if name != "sbom" and shown.get(name) != row[name]:
            what = f"{channel_data.PACKAGES} has {name} {shown.get(name)!r}, and it should be {row[name]!r}"
            yield Finding("packages", place, what)


def check_contents(archive: Path, paths: Mapping[str, Any] | None) -> Iterator[str]:
    """What is wrong with the files of an archive, by its own info/paths.json; what is older than that file is not checked.

    :raises Exception: of zipfile, tarfile, zstd and json, where the archive is broken.
    """
    from conda_package_streaming.package_streaming import stream_conda_component

    expected = {one["_path"]: one for one in paths["paths"]} if paths else {}
    seen = set()
    for tar, member in stream_conda_component(str(archive), component="pkg"):
        if member.isdir() or member.name.startswith("info/"):
            continue
        seen.add(member.name)
        one = expected.get(member.name)
        if paths and one is None:
            yield f"its paths.json does not have {member.name}"
        elif one and member.isfile() and one.get("sha256"):
            stream = tar.extractfile(member)
            if hash_pieces(iter(partial(stream.read, _PIECE), b"")) != one["sha256"]:
                yield f"{member.name} has other bytes than its paths.json says"
    for path, one in expected.items():
        if path not in seen and one.get("path_type") != "directory":
            yield f"{path} is not in it"


def _check_channeldata(packages: Mapping[str, dict], all_records: Mapping[str, dict]) -> Iterator[Finding]:
    """The versions in channeldata.json against the repodata."""
    newest: dict[str, Any] = {}
    for record in all_records.values():
        version = channel_data.parse(record["version"])
        newest[record["name"]] = max(newest.get(record["name"], version), version)
    for name in sorted(newest.keys() | packages):
        said = packages.get(name, {}).get("version")
        if name not in newest or said is None or channel_data.parse(said) != newest[name]:
            there = f"and the newest is {newest[name]}" if name in newest else "and there is no such package"
            yield Finding("channeldata", name, f"channeldata.json has {said or 'nothing'}, {there}")


def _check_run_exports(found: Described) -> Iterator[Finding]:
    """Names in run_exports.json that the repodata do not have."""
    for subdir, exports in found.run_exports.items():
        for fn in exports.keys() - found.records.get(subdir, {}).keys():
            yield Finding("run_exports", f"{subdir}/{fn}", "run_exports.json has it, and the repodata do not")


def _check_sums(channel: Path, previous: Path | None) -> Iterator[Finding]:
    """Names whose bytes changed since they were published, and files that are not what the folder's list of sums says."""
    before, said = sums.read(previous) if previous else {}, {}
    try:
        said = sums.read(channel / SUMS) if (channel / SUMS).is_file() else {}
    except BadInput as error:
        yield Finding("document", SUMS, error.what)
    if not before and not said:
        return
    now = {path: hash_file(channel / path) for path in sums.list_files(channel)}
    for one in (before, said):
        for path in sums.find_replaced(one, now):
            yield Finding("replaced", path, "other bytes were published under this name, which is never replaced")
    for path in now.keys() | said.keys() if said else ():
        if not sums.is_fixed(path) and said.get(path) != now.get(path):
            yield Finding("sums", path, f"it is not what {SUMS} says")
        elif path not in said or path not in now:
            yield Finding(
                "sums", path, f"{SUMS} {'does not have it' if path in now else 'has it, and it is not there'}"
            )


def find_incomplete(all_records: Mapping[str, dict]) -> list[Finding]:
    """Combinations of variant and Python that an older version of ours has and the newest lacks.

    A solver takes the newest version that it can: one published for the CPU only would win over CUDA on machines with GPUs.
    """
    findings = []
    rows = [
        channel_data.make_row(place, record, {})
        for place, record in all_records.items()
        if record["name"] == solver.PACKAGE
    ]
    for subdir in sorted({row["subdir"] for row in rows}):
        builds: dict[str, set[tuple[str, str]]] = {}
        for row in rows:
            if row["subdir"] == subdir and row["variant"]:
                builds.setdefault(row["version"], set()).add((row["variant"], row["python"]))
        newest = max(builds, key=channel_data.parse, default=None)
        for version in sorted(builds, key=channel_data.parse):
            lost = builds[version] - builds[str(newest)]
            if lost:
                names = ", ".join(f"{variant} for Python {python}" for variant, python in sorted(lost))
                findings.append(
                    Finding(
                        "incomplete",
                        f"{subdir}/{solver.PACKAGE} {newest}",
                        f"{version} has {names}, and {newest} has not: solvers take the newest version, and so another variant",
                    )
                )
    return findings


def write_summary(findings: Iterable[Finding], limit: int = 20) -> str:
    """The first findings, a line each, for an error."""
    lines = [str(finding) for finding in findings]
    return "\n".join([*lines[:limit], *([f"and {len(lines) - limit} more"] if len(lines) > limit else [])])
