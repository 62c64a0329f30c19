"""A channel folder to where people install from: archives first, then what names them. No archive there is ever replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import channel_check, channel_data, mirror, sbom, sums
from .channel_data import Described
from .digests import hash_bytes, hash_file
from .errors import BadInput, CheckFailed, MachineLacks
from .publish_targets import Files, Folder, Server, open_target

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Published:
    """:param sent: archives, wheels and SBOMs that the target did not have. :param present: those that it had.
    :param written: documents that changed. :param notes: what was not checked, and why."""

    target: str
    sent: tuple[str, ...]
    present: tuple[str, ...]
    written: tuple[str, ...]
    notes: tuple[str, ...]
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def publish(
    channel: Path,
    to: str,
    *,
    url: str = "",
    deps: Sequence[str] = (),
    allow_incomplete: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _: None,
) -> Published:
    """Check a channel folder, and add what it has to a target. What the target has already stays.

    Killed at any point, it leaves a channel that works, and the next run goes on.

    :param to: a folder, a share, file://, s3://BUCKET/PATH, or a server: :func:`dswin.publish_targets.open_target`.
    :param url: where the target is served, for its pages.
    :raises CheckFailed: the folder is not in order, the target has other bytes under one of the names, or the newest version
        would have fewer variants than an older one.
    :raises MachineLacks: the target cannot be written.
    """
    target = open_target(to)
    if isinstance(target, Folder) and (channel in target.path.parents or target.path in channel.parents):
        raise BadInput(f"Of {target} and {channel} one lies in the other.", fix="Publish to a folder of its own.")
    checked = channel_check.check(channel, deps=deps, allow_incomplete=True, progress=progress)
    _refuse(checked.findings, f"{channel} is not in order and was not published.", "Correct it; then publish again.")
    try:
        if isinstance(target, Server):
            return _upload(channel, target, checked, allow_incomplete, dry_run, progress)
        with target.hold(progress, dry_run):
            return _Publication(channel, target, checked, url, progress).run(allow_incomplete, dry_run)
    except OSError as error:
        raise MachineLacks(
            f"{target} cannot be written: {error.strerror or error}{f': {error.filename}' if error.filename else ''}.",
            fix="Make room, or ask for the right to write there, and run it again: what was sent is not sent again.",
        ) from error


class _Publication:
    """One run for a target that is plain files."""

    def __init__(
        self, channel: Path, target: Files, checked: channel_check.Checked, url: str, progress: Progress
    ) -> None:
        self.channel, self.target, self.checked, self.url, self.progress = channel, target, checked, url, progress
        self.before = sums.parse(target.read(sums.NAME) or b"", f"{target}/{sums.NAME}")

    def run(self, allow_incomplete: bool, dry_run: bool) -> Published:
        old = channel_data.read(self.target.read, str(self.target))
        new = channel_data.describe(self.channel)
        if new.list_records() != self.checked.records:
            raise CheckFailed(f"{self.channel} has changed since it was checked.", fix="Publish again.")
        fixed = self._list_fixed(new)
        present = self._compare(fixed, old)
        merged = channel_data.merge(old, new)
        for place in new.list_records():
            merged.rows[place]["sbom"] = merged.rows[place]["fn"] + channel_data.SBOM_ENDING
        _check_complete(merged, allow_incomplete)
        missing = [path for path in fixed if path not in present]
        notes_of = {place + channel_data.SBOM_ENDING: place for place in new.list_records()}
        notes = [path for path in notes_of if self.target.find_hash(path) is None]
        documents = channel_data.render(merged, self.url)
        if (self.channel / mirror.LICENCES).is_file() or self.target.read(mirror.LICENCES) is not None:
            licences = {place: str(one.get("license") or "none named") for place, one in merged.list_records().items()}
            documents[mirror.LICENCES] = mirror.write_licences(licences).encode()
        changed = [path for path, data in documents.items() if not self._has(path, data)]
        sent = (*missing, *notes)
        if not dry_run:
            written = self._send(missing, fixed, {path: notes_of[path] for path in notes}, merged)
            for path in changed:
                self.target.write(path, documents[path])
            changed += self._write_sums(documents, {**fixed, **written}, [*sent, *changed])
        return Published(str(self.target), sent, tuple(present), tuple(changed), self.checked.notes, dry_run)

    def _list_fixed(self, new: Described) -> dict[str, str]:
        """{path: sha256} of what never changes: archives and wheels."""
        archives = {place: record["sha256"] for place, record in new.list_records().items()}
        wheels = [path for path in sums.list_files(self.channel) if path.endswith(".whl")]
        return archives | {path: hash_file(self.channel / path) for path in wheels}

    def _compare(self, fixed: Mapping[str, str], old: Described) -> list[str]:
        """What of this the target has already.

        :raises CheckFailed: under one of the names it has, or once had, other bytes.
        """
        self.progress(f"comparing {len(fixed)} files with {self.target}")
        known = {place: record.get("sha256") for place, record in old.list_records().items()} | self.before
        present, other = [], []
        for path, sha256 in fixed.items():
            there = self.target.find_hash(path)
            if any(one not in (None, sha256) for one in (there, known.get(path))):
                other.append(path)
            elif there:
                present.append(path)
        if other:
            raise _replaced(self.target, other)
        return present

    def _has(self, path: str, data: bytes) -> bool:
        return self.target.read(path) == data

    def _send(
        self, missing: Iterable[str], fixed: Mapping[str, str], notes: Mapping[str, str], merged: Described
    ) -> dict[str, str]:
        """Send archives and wheels, then the archives' SBOMs; return these files' sums."""
        for path in missing:
            size = (self.channel / path).stat().st_size
            self.progress(f"sending {path} ({size / 1e6:.1f} MB)")
            self.target.put(path, self.channel / path, fixed[path])
        found = {}
        for path, place in notes.items():
            subdir, _, fn = place.partition("/")
            data = sbom.make(self.channel / place, merged.records[subdir][fn])
            self.target.write(path, data)
            found[path] = hash_bytes(data)
        return found

    def _write_sums(
        self, documents: Mapping[str, bytes], known: Mapping[str, str], touched: Iterable[str]
    ) -> list[str]:
        """Write SHA256SUMS, the last file of all, and read back what this run wrote.

        :raises CheckFailed: something did not arrive as it was sent.
        """
        found = {path: hash_bytes(data) for path, data in documents.items()} | dict(known)
        for path in self.target.list_files():
            if path not in found:
                found[path] = self.before.get(path) or str(self.target.find_hash(path))
        data = sums.write(found)
        changed = not self._has(sums.NAME, data)
        if changed:
            self.target.write(sums.NAME, data)
        self.progress("reading back what was written")
        if wrong := [path for path in touched if self.target.find_hash(path) != found[path]]:
            raise CheckFailed(
                f"{self.target} does not have what was sent as {', '.join(wrong[:3])}.",
                fix="Someone else writes there, or the disk is failing. Run `dswin channel check` on it.",
            )
        return [sums.NAME] if changed else []


def _upload(
    channel: Path,
    server: Server,
    checked: channel_check.Checked,
    allow_incomplete: bool,
    dry_run: bool,
    progress: Progress,
) -> Published:
    """Send archives to a server that indexes by itself."""
    old, notes = server.find_records({record["name"] for record in checked.records.values()})
    if other := [place for place, one in checked.records.items() if old.get(place, one).get("sha256") != one["sha256"]]:
        raise _replaced(server, other)
    merged = {**checked.records, **old}
    if not allow_incomplete:
        _refuse_incomplete(channel_check.find_incomplete(merged))
    missing = [place for place in checked.records if place not in old]
    for place in missing if not dry_run else ():
        progress(f"sending {place} to {server}")
        server.upload(channel / place)
    present = tuple(place for place in checked.records if place in old)
    return Published(str(server), tuple(missing), present, (), (*checked.notes, *notes), dry_run)


def _replaced(target: object, places: Sequence[str]) -> CheckFailed:
    some = ", ".join(places[:3]) + (", ..." if len(places) > 3 else "")
    return CheckFailed(
        f"{target} has other bytes under {some}: a published file name is never replaced. Nothing was written.",
        fix="Give the build a new number (dswin build --build-number), and publish that.",
    )


def _check_complete(merged: Described, allow_incomplete: bool) -> None:
    if not allow_incomplete:
        _refuse_incomplete(channel_check.find_incomplete(merged.list_records()))


def _refuse_incomplete(findings: Sequence[channel_check.Finding]) -> None:
    _refuse(
        findings,
        "The newest version would have fewer variants than an older one. Nothing was written.",
        "Build and publish all variants together; --allow-incomplete publishes these all the same.",
    )


def _refuse(findings: Sequence[channel_check.Finding], what: str, fix: str) -> None:
    if findings:
        raise CheckFailed(what, fix=fix, log=channel_check.write_summary(findings))
