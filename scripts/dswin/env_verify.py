"""An environment against its lock, file by file: lock hash -> archive -> info/paths.json -> bytes on disk.

A file with the prefix in it is made again from the archive and compared, so that an edited conda-meta proves nothing. Only the
launchers (.exe) of commands on Windows, which linkers bring along, are held to a list of known ones or to conda-meta.
"""

from __future__ import annotations

import os
import posixpath
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import archives, contents, prefixes
from .addresses import hide_secrets
from .contents import Contents, Entry
from .digests import hash_bytes, hash_file
from .errors import CheckFailed
from .lock import Lock, Locked
from .prefixes import Installed

Progress = Callable[[str], None]

MISSING, ALTERED, FOREIGN, RECORD, ARCHIVE = "missing", "altered", "foreign", "record", "archive"
#: SHA-256 of the launchers that rattler 0.28 puts beside a command for 64-bit Windows.
LAUNCHERS = frozenset(("4d8c479577961d0c6d940966f7987fbb0d6fc98b80edc03b00ee949dd8c1b3e2",))
_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is not as the lock has it.

    :param kind: missing, altered or foreign for a file; record for what conda-meta says; archive for one in the store.
    :param path: below the prefix, with slashes; an archive's file name.
    """

    package: str
    path: str
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        words = f"{self.kind}: {self.path}" + (f" ({self.package})" if self.package else "")
        return words + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class Verified:
    """:param files: how many were compared. :param notes: where the chain is shorter than it should be."""

    findings: tuple[Finding, ...]
    packages: int
    files: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.findings,
            "packages": self.packages,
            "files": self.files,
            "notes": list(self.notes),
            "findings": [vars(finding) for finding in self.findings],
        }


@dataclass(frozen=True)
class _Check:
    """One file to be compared, and how."""

    package: str
    path: str
    matches: Callable[[Path], str] = field(repr=False)


def verify(
    lock: Lock,
    prefix: Path,
    platform: str,
    store: Path | None,
    *,
    names: Iterable[str] | None = None,
    known: Mapping[str, Contents] | None = None,
    progress: Progress = lambda _: None,
) -> Verified:
    """Compare an environment with its lock and name everything that differs.

    :param store: where the archives are; without it, or where it lacks one, there are conda-meta's own hashes only, with a note.
    :param names: only these packages, and no search for foreign files.
    :param known: {package: what its archive says}, of archives whose hashes were just checked.
    :raises BadInput: the lock is not for the platform.
    """
    prefix = prefix.absolute()
    packages = lock.on(platform)
    chosen = packages if names is None else [one for one in packages if one.name in set(names)]
    installed, broken = prefixes.read_records(prefix)
    python = find_python(packages)
    findings = [
        Finding("", f"{prefixes.META}/{file.name}", RECORD, "cannot be read, or is not what its name says")
        for file in broken
        if names is None
    ]
    findings += _compare_records(packages if names is None else chosen, installed, complete=names is None)
    paths: list[str] = []
    shorter, verified = [], set()

    def compare(checks: Sequence[_Check]) -> None:
        paths.extend(check.path for check in checks)
        slices = [checks[start::_THREADS] for start in range(_THREADS)]
        for found in pool.map(lambda some: [_run(check, prefix) for check in some], slices):
            findings.extend(finding for finding in found if finding)

    with ThreadPoolExecutor(_THREADS) as pool:
        for package in chosen:
            record = installed.get(package.name)
            progress(f"verifying {package}")
            content = (known or {}).get(package.name)
            if content is None:
                archive = archives.place(package, store) if store else None
                if archive is None or not archive.is_file():
                    shorter.append(package.fn)
                    compare([*_list_recorded(record, platform, python)] if record else [])
                    continue
                try:
                    content = _check_archive(package, archive)
                except CheckFailed as error:
                    findings.append(Finding(str(package), package.fn, ARCHIVE, error.what))
                    continue
            verified.add(package.name)
            odd, checks = _list_expected(package, content, record, prefix, platform, python)
            findings += odd
            compare(checks)
    files = len(paths)
    if names is None:
        # Where an archive is at hand, its files are known, and not what a record calls its own.
        bare = [record for name, record in installed.items() if name not in verified]
        paths += [one["_path"] for record in bare for one in record.paths]
        findings += [Finding("", path, FOREIGN) for path in prefixes.list_foreign(prefix, paths)]
    notes: tuple[str, ...] = ()
    if shorter:
        notes = (
            f"The archives of {len(shorter)} of {len(chosen)} packages are not at hand ({', '.join(shorter[:3])}"
            f"{', ...' if len(shorter) > 3 else ''}): their files were held to conda-meta only, which stands in the environment.",
        )
    return Verified(tuple(sorted(set(findings))), len(chosen), files, notes)


def _check_archive(package: Locked, archive: Path) -> Contents:
    if wrong := archives.find_wrong(package, archive):
        kind, expected, found = wrong
        raise CheckFailed(f"its {kind} is {found}, and the lock has {expected}", fix="Fetch it again.")
    return contents.read(package, archive)


def find_python(packages: Iterable[Locked]) -> str:
    """The minor version of the Python among packages, as ``3.11``; nothing if there is none."""
    version = next((one.version for one in packages if one.name == "python"), "")
    return ".".join(version.split(".")[:2])


def _compare_records(
    packages: Iterable[Locked], installed: Mapping[str, Installed], *, complete: bool
) -> Iterator[Finding]:
    locked = {package.name: package for package in packages}
    for name, package in locked.items():
        record = installed.get(name)
        path = f"{prefixes.META}/{package.name}-{package.version}-{package.build}.json"
        if record is None:
            yield Finding(str(package), path, MISSING, "the package is not installed")
            continue
        path = f"{prefixes.META}/{record.file.name}"
        pairs = {
            "version": (package.version, record.version),
            "build": (package.build, record.build),
            "url": (hide_secrets(package.url), record.url),
            "sha256": (package.sha256, record.sha256 or package.sha256),
            "md5": (package.md5, record.md5 or package.md5),
        }
        for what, (expected, found) in pairs.items():
            if expected is not None and expected != found:
                yield Finding(str(package), path, RECORD, f"its {what} is {found}, and the lock has {expected}")
    for name in sorted(installed.keys() - locked.keys()) if complete else ():
        yield Finding(str(installed[name]), f"{prefixes.META}/{installed[name].file.name}", FOREIGN, "not in the lock")


def _list_expected(
    package: Locked, content: Contents, record: Installed | None, prefix: Path, platform: str, python: str
) -> tuple[list[Finding], list[_Check]]:
    """What conda-meta says otherwise than the archive, and the files to compare; these are known without a record too."""
    # Of a file that several packages bring, rattler keeps one in its place and the others aside.
    recorded = {str(one.get("original_path") or one["_path"]): one for one in record.paths} if record else {}
    title, meta = str(package), f"{prefixes.META}/{record.file.name}" if record else ""
    findings, checks = [], []
    texts = _Originals(content)
    for entry in content.entries:
        path = contents.locate(entry.path, platform, python) if content.is_python else entry.path
        # conda lists a noarch package's files by their paths in the archive.
        one = recorded.pop(path, None) or recorded.pop(entry.path, None)
        if one is None:
            findings.append(Finding(title, meta, RECORD, f"it does not list {path}"))
        elif str(one.get("sha256") or entry.sha256) != entry.sha256:
            findings.append(Finding(title, meta, RECORD, f"its hash of {path} is not the archive's"))
        aside = one["_path"] if one and one.get("original_path") else path
        checks.append(_Check(title, aside, _match_entry(entry, texts, prefix, platform)))
    commands = contents.list_commands(content, platform)
    for path, target in commands.items():
        one = recorded.pop(path, None)
        if one is None:
            findings.append(Finding(title, meta, RECORD, f"it does not list {path}"))
        checks.append(_Check(title, path, _match_command(path, target, one or {})))
    if record is None:  # which is a finding of its own
        findings = []
    for path, one in recorded.items():
        if one.get("path_type") != "pyc_file" and not path.endswith(".pyc"):
            findings.append(Finding(title, meta, RECORD, f"it lists {path}, which the archive does not have"))
    return findings, checks


class _Originals:
    """What only the body of an archive can say: files with a placeholder, and where links point; read when first asked for."""

    def __init__(self, content: Contents) -> None:
        self.content = content
        self.entries = {entry.path: entry for entry in content.entries}
        self.lock = threading.Lock()
        self.found: dict[str, bytes] | None = None

    def read(self, entry: Entry) -> bytes | None:
        with self.lock:
            if self.found is None:
                wanted = [one.path for one in self.content.entries if one.placeholder or one.kind == "softlink"]
                self.found = contents.read_members(self.content.archive, wanted)
        return self.found.get(entry.path)

    def is_same(self, entry: Entry, path: str) -> bool:
        """Whether a link of the archive may point to another file of it: by the hash that it has for the link."""
        other = self.entries.get(path)
        return other is not None and other.kind == "hardlink" and entry.sha256 != "" and other.sha256 == entry.sha256


def _match_entry(entry: Entry, originals: _Originals, prefix: Path, platform: str) -> Callable[[Path], str]:
    """A function that says what is wrong with a file on disk; nothing if it is right."""

    def match(path: Path) -> str:
        if entry.kind == "softlink":
            return _match_link(path, entry, originals)
        if entry.kind == "directory":
            return "" if path.is_dir() else "it is no folder"
        if wrong := _must_be_file(path):
            return wrong
        if not entry.placeholder:
            return "" if not entry.sha256 or hash_file(path) == entry.sha256 else "its bytes are not the archive's"
        data = originals.read(entry)
        if data is None or hash_bytes(data) != entry.sha256:
            return "the archive's own file is not what its paths.json says"
        forms = contents.list_forms(entry, data, str(prefix), platform)
        found = path.read_bytes()
        return (
            "" if any(form == found for form in forms) else "its bytes are not the archive's with this prefix in them"
        )

    return match


def _match_link(path: Path, entry: Entry, originals: _Originals) -> str:
    if not stat.S_ISLNK(path.lstat().st_mode):
        # Where links are not allowed, on Windows, linkers copy.
        return "" if path.is_file() and hash_file(path) == entry.sha256 else "it is no symbolic link"
    target = os.readlink(path).replace(os.sep, "/")
    if originals.is_same(entry, posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), target))):
        return ""
    expected = originals.read(entry)
    return "" if expected == target.encode() else f"it points to {target}"


def _match_command(path: str, target: str, recorded: Mapping[str, Any]) -> Callable[[Path], str]:
    def match(file: Path) -> str:
        if wrong := _must_be_file(file):
            return wrong
        if path.endswith(".exe"):
            return "" if hash_file(file) in {*LAUNCHERS, recorded.get("sha256")} else "it is no launcher that is known"
        return "" if contents.is_command(file.read_bytes(), target) else f"it does not start {target}"

    return match


def _list_recorded(record: Installed, platform: str, python: str) -> Iterator[_Check]:
    """What conda-meta alone can say of a package's files."""
    for one in record.paths:
        expected = one.get("sha256_in_prefix") or one.get("sha256")
        if one.get("path_type") == "pyc_file":
            continue
        path = contents.locate(one["_path"], platform, python)
        yield _Check(str(record), path, _match_recorded(expected, one.get("path_type") == "softlink"))


def _match_recorded(expected: str | None, is_link: bool) -> Callable[[Path], str]:
    def match(path: Path) -> str:
        if is_link:
            return "" if path.is_symlink() or path.is_file() else "it is no symbolic link"
        if wrong := _must_be_file(path):
            return wrong
        return "" if not expected or hash_file(path) == expected else "its bytes are not what conda-meta has"

    return match


def _must_be_file(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"it is a symbolic link to {os.readlink(path)}"
    return "" if stat.S_ISREG(mode) else "it is no file"


def _run(check: _Check, prefix: Path) -> Finding | None:
    path = prefix / check.path
    try:
        wrong = check.matches(path)
    except FileNotFoundError:
        return Finding(check.package, check.path, MISSING)
    except OSError as error:
        wrong = f"it cannot be read: {error.strerror}"
    return Finding(check.package, check.path, ALTERED, wrong) if wrong else None


def write_summary(findings: Sequence[Finding], limit: int = 20) -> str:
    """The first findings, a line each, for an error."""
    more = len(findings) - limit
    return "\n".join([*map(str, findings[:limit]), *([f"and {more} more"] if more > 0 else [])])
