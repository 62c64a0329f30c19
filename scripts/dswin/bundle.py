"""One file with all that an environment needs, for machines without a network: the packages of a lock as a channel, and the lock.

A bundle is a zip: ``manifest.json`` with the size and the sha256 of each other member, then those, sorted. The same lock and
packages give the same bytes on every machine. ``unbundle.py`` is in it as install.py, for people who have conda and no dswin.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from . import __version__, archives, bundle_format, environment, lock, mirror, stored_zip, unbundle
from .addresses import to_url
from .bundle_format import (
    CHANNEL,
    INSTALL,
    LOCK,
    MANIFEST,
    PACKAGES,
    README,
    REPODATA,
    WHEELS,
    Digests,
    Progress,
    Read,
    copy,
)
from .bundle_readme import write_readme
from .environment import Created
from .errors import BadInput, CheckFailed, naming
from .files import to_json
from .lock import Locked
from .mirrors import NONE, Mirrors
from .stored_zip import Member

#: What a member is made from: its bytes, or a file.
Source = bytes | Path

SUFFIX = ".dswin-bundle.zip"
#: Files of more bytes than this have a line of progress each.
_LARGE = 10**8


@dataclass(frozen=True)
class Bundle:
    """:param sha256: the whole file's. :param size: in bytes."""

    path: Path
    platform: str
    sha256: str
    size: int
    packages: tuple[Locked, ...]
    warnings: tuple[str, ...]


def name_for(lock_path: Path, platform: str) -> str:
    """The default name of a bundle.

    >>> name_for(Path("locks/gpu-py311.conda-lock.yml"), "win-64")
    'gpu-py311-win-64.dswin-bundle.zip'
    """
    stem = lock_path.name.removesuffix(lock.SUFFIX).removesuffix(".yml").removesuffix(".yaml")
    return f"{stem}-{platform}{SUFFIX}"


def create(
    lock_path: Path,
    platform: str,
    out: Path,
    store: Path,
    *,
    channel: Path | None = None,
    wheels: Path | None = None,
    mirrors: Mirrors = NONE,
    progress: Progress = lambda _: None,
) -> Bundle:
    """Make a bundle of a lock. It is written under another name and moved: there is the whole file or none.

    :param channel: a channel's folder in which to look for packages before any is fetched.
    :param wheels: a folder of wheels that goes into it, for machines that have Python and no conda.
    :raises CheckFailed: a package is not what the lock says. :raises BadInput: the lock is not for the platform.
    """
    locked = lock.read(lock_path)
    packages = locked.on(platform)
    if any(lock.holds_secret(url) for url in (*locked.channels, *(package.url for package in locked.packages))):
        raise BadInput(f"{lock_path} has a password or a token in it, which the bundle would pass on.",
                       fix="Lock with the name of an environment variable in its place: ${NAME}.")  # fmt: skip
    if not packages:
        raise BadInput(f"{lock_path} has no packages for {platform}.", fix="Choose another lock.")
    if channel and not channel.is_dir():
        raise BadInput(f"{channel} is not a folder.", fix="Name a channel's folder for --channel.")
    if out.is_dir():
        raise BadInput(f"{out} is a folder.", fix=f"Name a file for --out, as {out / name_for(lock_path, platform)}.")
    found = mirror.gather(packages, store, folder=channel, mirrors=mirrors, progress=progress)
    files: dict[str, Source] = {f"{CHANNEL}/{archive.place}": archive.path for archive in found}
    files |= {f"{WHEELS}/{wheel.name}": wheel for wheel in _list_wheels(wheels)}
    progress(f"hashing {len(files)} files")
    digests = {}
    for name, source in files.items():
        digests[name] = _digest(source)
        if digests[name].size > _LARGE:
            progress(f"hashed {name}: {digests[name].size / 1e6:.0f} MB")
    size = sum(made.size for made in digests.values())
    texts: dict[str, Source] = {
        LOCK: lock_path.read_bytes(),
        INSTALL: _read_own(Path(unbundle.__file__)),
        PACKAGES: bundle_format.write_packages(packages).encode(),
        README: write_readme(platform, len(packages), size),
        f"{CHANNEL}/{mirror.LICENCES}": mirror.write_licences({one.place: one.licence for one in found}).encode(),
    }
    for subdir in ("noarch", platform):
        texts[f"{CHANNEL}/{subdir}/{REPODATA}"] = to_json(_make_repodata(subdir, found, digests))
    digests |= {name: _digest(text) for name, text in texts.items()}
    bundle_format.check_names(out, [MANIFEST, *digests])
    manifest = to_json(
        {
            "schema": bundle_format.SCHEMA,
            "tool": f"dswin {__version__}",
            "platform": platform,
            "lock": {"name": LOCK, "sha256": digests[LOCK].sha256},
            "members": {name: {"size": made.size, "sha256": made.sha256} for name, made in digests.items()},
        }
    )
    digests[MANIFEST] = _digest(manifest)
    progress(f"writing {out.name}: {size / 1e6:.0f} MB")
    sha256 = _write(out, {MANIFEST: manifest, **dict(sorted({**files, **texts}.items()))}, digests, progress)
    warnings = (*mirror.find_unmet(found), *mirror.warn_of_licences(found), *_warn(packages))
    return Bundle(out, platform, sha256, out.stat().st_size, packages, warnings)


def check(path: Path, *, progress: Progress = lambda _: None) -> Read:
    """Make sure that a bundle is as it was made, to the last byte, and that its packages are those of the lock inside.

    It cannot know who made it: for that, compare the sha256 that this returns with the maker's.

    :raises CheckFailed: it is not; the error names the member.
    """
    return bundle_format.read(path, progress=progress)


def unpack(path: Path, folder: Path, *, progress: Progress = lambda _: None) -> Read:
    """Check a bundle and unpack it into a folder that does not exist, whole or not at all.

    :raises CheckFailed: as :func:`check`. :raises BadInput: the folder is there. :raises MachineLacks: the disk is too small.
    """
    if folder.exists():
        raise BadInput(f"{folder} is there already.", fix="Name a folder that does not exist.")
    return bundle_format.read(path, folder, progress=progress)


def install(
    path: Path,
    prefix: Path,
    store: Path,
    *,
    progress: Progress = lambda _: None,
    count: archives.Count = lambda done, more: None,
) -> Created:
    """Make an environment from a bundle, for the platform of the bundle, on this machine; no network is asked.

    :param store: a folder for archives and unpacked packages; the bundle is unpacked beside it for the time of this.
    :raises CheckFailed: the bundle, or what was linked, is not what it must be. :raises BadInput: the prefix holds other things.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store.parent, prefix=".bundle-") as scratch:
        folder = Path(scratch) / "unpacked"
        opened = unpack(path, folder, progress=progress)
        return environment.create(
            lock.read(folder / LOCK),
            opened.manifest.platform,
            prefix,
            store,
            mirrors=map_to(folder / CHANNEL, opened.packages),
            source=path.name,
            progress=progress,
            count=count,
        )


def map_to(channel: Path, packages: Iterable[Locked]) -> Mirrors:
    """Have every channel that a lock names looked for in one folder."""
    return Mirrors({package.channel: (to_url(channel.absolute()),) for package in packages})


def _warn(packages: Iterable[Locked]) -> list[str]:
    found = {
        f"the lock, which is in the bundle, names a folder of this machine: {package.channel}": None
        for package in packages
        if package.url.startswith("file:") and "$" not in package.url
    }
    if not any(package.name == "deepspeed-win" for package in packages):
        found["the lock has no deepspeed-win: `dswin lock --channel URL` adds it"] = None
    return [*found]


def _list_wheels(folder: Path | None) -> list[Path]:
    found = sorted(folder.glob("*.whl")) if folder else []
    if folder and not found:
        raise BadInput(
            f"{folder} holds no wheels (*.whl).",
            fix="Put dswin's wheel there (pip wheel), and those of what it needs (pip download --platform).",
        )
    return found


def _read_own(path: Path) -> bytes:
    """One of our own files. git may have given it Windows' line ends, and the bytes are to be the same everywhere."""
    return path.read_bytes().replace(b"\r\n", b"\n")


def _make_repodata(subdir: str, found: Iterable[mirror.Archive], digests: Mapping[str, Digests]) -> dict[str, Any]:
    """A subdir's repodata, from the archives' own metadata. An indexer would write the time into them."""
    repodata: dict[str, Any] = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": {}, "repodata_version": 1}
    for archive in found:
        if archive.package.subdir == subdir:
            made = digests[f"{CHANNEL}/{archive.place}"]
            record = {**archive.index, "md5": made.md5, "sha256": made.sha256, "size": made.size}
            kind = "packages.conda" if archive.package.fn.endswith(".conda") else "packages"
            repodata[kind][archive.package.fn] = record
    return repodata


def _open(source: Source) -> IO[bytes]:
    return source.open("rb") if isinstance(source, Path) else io.BytesIO(source)


def _digest(source: Source) -> Digests:
    with _open(source) as file:
        return copy(file, None)


def _write(out: Path, sources: Mapping[str, Source], digests: Mapping[str, Digests], progress: Progress) -> str:
    """Write the zip and return its sha256."""
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = hashlib.sha256()
    members = [Member(name, digests[name].size, digests[name].crc) for name in sources]
    with naming(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=".bundle-") as scratch:
        part = Path(scratch) / out.name
        with part.open("wb") as target:

            def add(text: bytes) -> None:
                target.write(text)
                whole.update(text)

            for member in members:
                add(stored_zip.head(member))
                with _open(sources[member.name]) as file:
                    if copy(file, target, also=whole) != digests[member.name]:
                        raise CheckFailed(f"{sources[member.name]!s} changed while it was read.", fix="Run again.")
                if member.size > _LARGE:
                    progress(f"written {member.name}: {member.size / 1e6:.0f} MB")
            add(stored_zip.tail(members))
            target.flush()
            os.fsync(target.fileno())
        os.replace(part, out)
    return whole.hexdigest()
