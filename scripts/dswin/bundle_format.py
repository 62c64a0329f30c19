"""What a bundle is, byte for byte, and reading one: it is as it was made, or refused with the name of what is wrong in it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from . import lock, mirror, stored_zip
from .errors import BadInput, CheckFailed, DswinError, MachineLacks, naming
from .lock import Lock, Locked
from .stored_zip import Member

Progress = Callable[[str], None]

SCHEMA = 1
MANIFEST, LOCK, PACKAGES = "manifest.json", "conda-lock.yml", "packages.txt"
README, INSTALL = "README.txt", "install.py"
CHANNEL, WHEELS, REPODATA = "channel", "wheels", "repodata.json"
#: Members that every bundle has, besides the manifest.
FIXED = (README, LOCK, INSTALL, PACKAGES, f"{CHANNEL}/{mirror.LICENCES}")
_WHEEL = re.compile(rf"{WHEELS}/[^/]+\.whl")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: The most that a member may have that is held in memory, in bytes: manifest, lock, repodata.
_MOST_TEXT = 2**26
_CHUNK = 2**20


@dataclass(frozen=True)
class Manifest:
    """:param members: {name: (size in bytes, sha256)} of all but the manifest itself. :param text: the manifest's own bytes."""

    platform: str
    lock_sha256: str
    members: Mapping[str, tuple[int, str]] = field(hash=False)
    text: bytes

    @property
    def size(self) -> int:
        """Bytes of the unpacked members."""
        return sum(size for size, _ in self.members.values()) + len(self.text)

    def list_sizes(self) -> dict[str, int]:
        """{member: size in bytes} in the order in which the members are written."""
        return {MANIFEST: len(self.text), **{name: self.members[name][0] for name in sorted(self.members)}}


@dataclass(frozen=True)
class Read:
    """:param sha256: the whole file's. :param packages: the lock's, for the bundle's platform."""

    manifest: Manifest
    lock: Lock
    packages: tuple[Locked, ...]
    sha256: str


@dataclass(frozen=True)
class Digests:
    size: int
    crc: int
    sha256: str
    md5: str


def copy(source: IO[bytes], target: IO[bytes] | None, size: int | None = None, also: Any = None) -> Digests:
    """Copy ``size`` bytes, or all, and say what they were. :param also: a hash that takes them in too."""
    sha256, md5, crc, done = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0, 0
    while chunk := source.read(_CHUNK if size is None else min(_CHUNK, size - done)):
        sha256.update(chunk)
        md5.update(chunk)
        crc = zlib.crc32(chunk, crc)
        done += len(chunk)
        if target:
            target.write(chunk)
        if also:
            also.update(chunk)
    return Digests(done, crc, sha256.hexdigest(), md5.hexdigest())


def read(path: Path, into: Path | None = None, *, progress: Progress = lambda _: None) -> Read:
    """Read a bundle to its end and compare every byte of it with what the manifest, and the lock inside, say.

    :param into: a folder that does not exist. The members are written there, if nothing at all is wrong.
    :raises CheckFailed: something is wrong; the error names the member.
    :raises BadInput: there is no such file. :raises MachineLacks: the disk is too small for ``into``.
    """
    if not path.is_file():
        raise BadInput(f"{path} is not a file.", fix="Name a bundle, as `dswin bundle create` makes it.")
    with path.open("rb") as source:
        manifest = _read_manifest(path, source)
        _check_directory(path, manifest)
        with _make_room(path, into, manifest.size) as folder:
            progress(f"checking {path.name}: {manifest.size / 1e6:.0f} MB")
            digests, texts, sha256 = _read_members(path, source, manifest, folder, progress)
            locked = _read_lock(path, texts[LOCK])
            packages = _check_packages(path, manifest, locked, digests, texts)
            if folder and into:
                folder.rename(into)
    return Read(manifest, locked, packages, sha256)


def _read_manifest(path: Path, source: IO[bytes]) -> Manifest:
    start = len(stored_zip.head(Member(MANIFEST, 0, 0)))
    head = source.read(start)
    size = int.from_bytes(head[22:26], "little")
    text = source.read(min(size, _MOST_TEXT))
    if head != stored_zip.head(Member(MANIFEST, size, zlib.crc32(text))) or len(text) != size:
        plain = head[:4] != b"PK\x03\x04" or MANIFEST.encode() not in head
        what = "it does not begin with a manifest" if plain else f"{MANIFEST} is altered, or the file ends in it"
        raise refuse(path, what)
    try:
        return _parse_manifest(path, text, json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(path, f"{MANIFEST} is malformed: {error!r}"[:300]) from error


def _parse_manifest(path: Path, text: bytes, document: Any) -> Manifest:
    if document["schema"] != SCHEMA:
        raise refuse(path, f"its format is {document['schema']!r}, and this dswin knows {SCHEMA}")
    members = {}
    for name, entry in document["members"].items():
        size, sha256 = entry["size"], entry["sha256"]
        if type(size) is not int or size < 0 or not _SHA256.fullmatch(sha256):
            raise refuse(path, f"{MANIFEST} has no size and sha256 for {name!r}")
        members[name] = (size, sha256)
    check_names(path, [MANIFEST, *members])
    manifest = Manifest(document["platform"], document["lock"]["sha256"], members, text)
    if manifest.platform not in ("linux-64", "win-64"):
        raise refuse(path, f"it is for {manifest.platform!r}")
    for name in (*FIXED, *_list_repodata_names(manifest.platform)):
        if name not in members:
            raise refuse(path, f"{MANIFEST} does not name {name}")
        if members[name][0] > _MOST_TEXT:
            raise refuse(path, f"{name} is too large: {members[name][0]} bytes")
    if members[LOCK][1] != manifest.lock_sha256:
        raise refuse(path, f"{MANIFEST} has two sha256 for {LOCK}")
    return manifest


def _list_repodata_names(platform: str) -> list[str]:
    return [f"{CHANNEL}/{subdir}/{REPODATA}" for subdir in ("noarch", platform)]


def check_names(path: Path, names: Sequence[str]) -> None:
    """Make sure that every system unpacks members of these names as that many files in one folder.

    :raises CheckFailed: one is a trick, or has a name that some system does not take; two are the same.
    """
    for name in names:
        if fault := stored_zip.find_name_fault(name):
            raise refuse(path, f"the member {name!r} {fault}")
    if pair := stored_zip.find_collision(names):
        same = pair[0] == pair[1]
        raise refuse(path, f"{pair[0]} is in it twice" if same else f"{pair[0]} and {pair[1]} get in each other's way")


def _check_directory(path: Path, manifest: Manifest) -> None:
    """Say in words what is wrong with the zip's directory. What this lets pass, the comparison of every byte finds."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception:  # zipfile raises of all kinds at what it was not made for
        entries = []
    # The list that is found in a file without its end is that of a package: these are zip files, too.
    if not any(entry.orig_filename == MANIFEST for entry in entries):
        raise refuse(path, "the list of its members, at its end, is missing or altered: it was not copied whole")
    for entry in entries:
        if fault := stored_zip.find_name_fault(entry.orig_filename):
            raise refuse(path, f"the member {entry.orig_filename!r} {fault}")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise refuse(path, f"the member {entry.orig_filename} is a link")
    check_names(path, [entry.orig_filename for entry in entries])
    sizes = manifest.list_sizes()
    there = {entry.orig_filename: entry for entry in entries}
    if extra := sorted(there.keys() - sizes.keys()):
        raise refuse(path, f"{', '.join(extra[:5])} is in it, and {MANIFEST} does not name it")
    if missing := sorted(sizes.keys() - there.keys()):
        raise refuse(path, f"{', '.join(missing[:5])} is missing")
    for name, size in sizes.items():
        if there[name].compress_type != zipfile.ZIP_STORED:
            raise refuse(path, f"{name} is compressed")
        if there[name].file_size != size:
            raise refuse(path, f"{name} has {there[name].file_size} bytes, and {MANIFEST} says {size}")


@contextmanager
def _make_room(path: Path, into: Path | None, size: int) -> Iterator[Path | None]:
    """Give a folder to write to, beside ``into``; it is gone afterwards unless it was moved."""
    if into is None:
        yield None
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(into.parent).free
    if free < size:
        raise MachineLacks(
            f"{path.name} needs {size / 1e6:.0f} MB in {into.parent}, where {free / 1e6:.0f} MB are free.",
            fix="Free some space, or name a folder on another disk.",
        )
    with naming(into.parent), tempfile.TemporaryDirectory(dir=into.parent, prefix=".unpacking-") as scratch:
        folder = Path(scratch) / into.name
        folder.mkdir()
        yield folder


def _read_members(
    path: Path, source: IO[bytes], manifest: Manifest, folder: Path | None, progress: Progress
) -> tuple[dict[str, Digests], dict[str, bytes], str]:
    source.seek(0)
    whole, members = hashlib.sha256(), []
    found: dict[str, Digests] = {}
    texts: dict[str, bytes] = {}
    told = done = 0
    for name, size in manifest.list_sizes().items():
        head = source.read(len(stored_zip.head(Member(name, size, 0))))
        whole.update(head)
        kept = io.BytesIO() if name in (LOCK, PACKAGES, *_list_repodata_names(manifest.platform)) else None
        if folder is not None:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                found[name] = copy(source, file, size, whole)
            if kept:
                texts[name] = target.read_bytes()
        else:
            found[name] = copy(source, kept, size, whole)
            if kept:
                texts[name] = kept.getvalue()
        if found[name].size != size:
            raise refuse(path, f"it ends in {name}: it was not copied whole")
        members.append(Member(name, size, found[name].crc))
        if head != stored_zip.head(members[-1]) or (
            name != MANIFEST and found[name].sha256 != manifest.members[name][1]
        ):
            raise refuse(path, f"{name} is altered")
        done += size
        if done - told > 2**28:
            progress(f"{done / 1e6:.0f} MB of {manifest.size / 1e6:.0f} checked")
            told = done
    tail = stored_zip.tail(members)
    rest = source.read(len(tail) + 1)
    if rest != tail:
        raise refuse(path, "the list of its members, at its end, is altered, or something comes after it")
    whole.update(rest)
    return found, texts, whole.hexdigest()


def _read_lock(path: Path, text: bytes) -> Lock:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / LOCK
        file.write_bytes(text)
        try:
            return lock.read(file)
        except DswinError as error:
            raise refuse(path, error.what.replace(str(file), LOCK).rstrip(".")) from error


def _check_packages(
    path: Path, manifest: Manifest, locked: Lock, digests: Mapping[str, Digests], texts: Mapping[str, bytes]
) -> tuple[Locked, ...]:
    """Make sure that manifest, lock, repodata and the list for conda speak of the same packages."""
    try:
        packages = locked.on(manifest.platform)
    except BadInput as error:
        raise refuse(path, f"{LOCK} is not for {manifest.platform}") from error
    wanted = {f"{CHANNEL}/{mirror.place(package)}": package for package in packages}
    for name, package in wanted.items():
        made = digests.get(name)
        if made is None:
            raise refuse(path, f"{name} is missing, and {LOCK} names it")
        for kind, expected, got in (("sha256", package.sha256, made.sha256), ("md5", package.md5, made.md5)):
            if expected and expected != got:
                raise refuse(path, f"{name} is not what {LOCK} names: its {kind} is {got}, and the lock has {expected}")
    known = {MANIFEST, *FIXED, *_list_repodata_names(manifest.platform), *wanted}
    if extra := sorted(name for name in manifest.members if name not in known and not _WHEEL.fullmatch(name)):
        raise refuse(path, f"{extra[0]} is in it, and belongs to no bundle of this lock")
    for name in _list_repodata_names(manifest.platform):
        folder = name.removesuffix(REPODATA)
        _check_repodata(
            path, folder, texts[name], {one: digests[one].sha256 for one in wanted if one.startswith(folder)}
        )
    if texts[PACKAGES] != write_packages(packages).encode():
        raise refuse(path, f"{PACKAGES} does not have the packages of {LOCK}")
    return packages


def _check_repodata(path: Path, folder: str, text: bytes, archives: Mapping[str, str]) -> None:
    """:param archives: {member: sha256} of what lies in ``folder``, which ends in a slash."""
    try:
        document = json.loads(text)
        records = {**document["packages"], **document["packages.conda"]}
        entries = {folder + fn: record["sha256"] for fn, record in records.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(path, f"{folder}{REPODATA} is malformed: {error!r}"[:300]) from error
    if wrong := sorted(one for one in {*entries, *archives} if entries.get(one) != archives.get(one)):
        raise refuse(path, f"{folder}{REPODATA} has other packages or hashes than {LOCK}: {wrong[0]}")


def write_packages(packages: Iterable[Locked]) -> str:
    """What conda is to install, in conda's words: the very builds of the lock."""
    return "".join(f"{package.name}={package.version}={package.build}\n" for package in packages)


def refuse(path: Path, what: str) -> CheckFailed:
    """The error for a bundle that is not as it was made."""
    return CheckFailed(
        f"{path.name} is no bundle to install from: {what}.",
        fix="Copy or download it again. If it is the same again, do not use it: ask whoever made it.",
    )
