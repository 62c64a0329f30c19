"""The closure of a lock, copied into a channel of our own: then that one channel brings everything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rattler import BuildString, MatchSpec, PackageRecord

from . import archives, contents, files, sums
from . import channel as channels
from .errors import BadInput, CheckFailed
from .lock import Lock, Locked
from .mirrors import NONE, Mirrors

Progress = Callable[[str], None]

#: In a channel's folder: the licence that each package names in its own metadata.
LICENCES = "licences.txt"
#: Licences of a company's own, as packages name them: LicenseRef-NVIDIA-End-User-License-Agreement, LicenseRef-ProprietaryIntel.
_COMPANY = re.compile(r"LicenseRef-|NVIDIA|Proprietary|EULA|End.User|cuDNN|Intel Simplified", re.IGNORECASE)
#: NVIDIA's own channel has packages whose metadata name no licence.
_COMPANY_CHANNEL = re.compile(r"/nvidia(/|$)")


@dataclass(frozen=True)
class Archive:
    """:param index: the archive's own info/index.json."""

    package: Locked
    path: Path
    index: Mapping[str, Any] = field(hash=False)

    @property
    def place(self) -> str:
        """Where a channel has it, as ``noarch/tqdm-4.67-0.conda``."""
        return place(self.package)

    @property
    def licence(self) -> str:
        return str(self.index.get("license") or "").strip() or "none named"

    @property
    def is_companys(self) -> bool:
        """Whether the metadata say that its licence is some company's own."""
        bare = self.licence == "none named" and _COMPANY_CHANNEL.search(self.package.channel)
        return bool(bare or _COMPANY.search(self.licence))


@dataclass(frozen=True)
class Mirrored:
    """:param added: the places of those that were not in the channel before. :param archives: all that the lock names."""

    channel: Path
    added: tuple[str, ...]
    archives: tuple[Archive, ...]
    warnings: tuple[str, ...]


def place(package: Locked) -> str:
    """Where a channel has a package: subdir/file name."""
    return f"{package.subdir}/{package.fn}"


def mirror(
    lock: Lock,
    channel: Path,
    store: Path,
    *,
    platforms: Sequence[str] = (),
    mirrors: Mirrors = NONE,
    progress: Progress = lambda _: None,
) -> Mirrored:
    """Copy every package of a lock into a channel folder and index it, all at once or not at all.

    What is there already with the right bytes is neither fetched nor copied. The repodata are made from the archives' own
    metadata, which a channel may have corrected since: what that changes for a solver is among the warnings.

    :param channel: a channel's folder, or one that does not exist. It may hold deepspeed-win and other packages.
    :param platforms: all that the lock is for, if none is named.
    :raises CheckFailed: an archive is not what the lock says, two packages would have one file name, or the channel has another
        file of that name.
    :raises BadInput: the lock is not for a platform, the folder is no channel, or a package comes out of a rehearsal.
    """
    channels.check_folder(channel)
    chosen = {platform: lock.on(platform) for platform in platforms or lock.platforms}
    found = gather(
        [package for packages in chosen.values() for package in packages],
        store,
        folder=channel,
        mirrors=mirrors,
        progress=progress,
    )
    by_place = {archive.place: archive for archive in found}
    warnings: list[str] = []
    for packages in chosen.values():
        warnings += find_unmet([by_place[place(package)] for package in packages])
    added = [archive for archive in found if archive.path != channel / archive.place]
    if added:
        progress(f"copying {_count(len(added))} into {channel}")
        channels.add(channel, [archive.path for archive in added])
    elif not _is_indexed(channel, found):
        progress(f"indexing {channel}")
        channels.reindex(channel)
    _write_licences(channel)
    return Mirrored(
        channel,
        added=tuple(archive.place for archive in added),
        archives=tuple(found),
        warnings=(*dict.fromkeys(warnings), *warn_of_licences(found)),
    )


def gather(
    packages: Iterable[Locked],
    store: Path,
    *,
    folder: Path | None = None,
    mirrors: Mirrors = NONE,
    progress: Progress = lambda _: None,
) -> list[Archive]:
    """Have the archive of every package, each with the lock's hashes and with the lock's name in it; sorted by place.

    :param folder: a channel's folder in which to look first.
    :raises CheckFailed: as :func:`mirror`. :raises BadInput: a package comes out of a rehearsal.
    """
    wanted = _list_places(packages)
    paths = {} if folder is None else _find_present(wanted, folder)
    missing = [package for where, package in wanted.items() if where not in paths]
    if missing:
        progress(f"fetching {_count(len(missing))}")
    fetched = archives.fetch(missing, store, mirrors=mirrors, progress=progress)
    paths |= {place(package): fetched[package.url] for package in missing}
    found = [Archive(package, paths[where], _read_index(package, paths[where])) for where, package in wanted.items()]
    channels.check_real(archive.path for archive in found)
    return found


def _list_places(packages: Iterable[Locked]) -> dict[str, Locked]:
    """{place: package}, sorted; a noarch package that several platforms share is in it once."""
    wanted: dict[str, Locked] = {}
    for package in packages:
        if package.subdir not in channels.SUBDIRS:
            raise BadInput(
                f"{package} is for {package.subdir}.",
                fix=f"A channel of this project has {', '.join(channels.SUBDIRS)}.",
            )
        known = wanted.setdefault(place(package), package)
        if known.url != package.url:
            raise CheckFailed(
                f"Two packages have the file name {place(package)}: one of {known.channel}, one of {package.channel}.",
                fix="One channel can hold only one of them. Take both from one channel in the environment file, and lock anew.",
            )
        if (known.sha256, known.md5) != (package.sha256, package.md5):
            raise CheckFailed(
                f"The lock has {place(package)} with different hashes for different platforms.", fix="Lock anew."
            )
    return dict(sorted(wanted.items()))


def _find_present(wanted: Mapping[str, Locked], folder: Path) -> dict[str, Path]:
    """The packages that a channel folder has.

    :raises CheckFailed: it has another file of that name.
    """
    found = {}
    for where, package in wanted.items():
        path = folder / where
        if not path.exists():
            continue
        if wrong := archives.find_wrong(package, path):
            kind, expected, got = wrong
            raise CheckFailed(
                f"{folder} has another {where}: its {kind} is {got}, and the lock has {expected}. A published file name is "
                "never replaced.",
                fix="Find out which of the two is right. To keep both, name another folder.",
            )
        found[where] = path
    return found


def _read_index(package: Locked, path: Path) -> Mapping[str, Any]:
    """An archive's own metadata: they go into our repodata, and must be what a solver can read.

    :raises CheckFailed: they are not, or not those of this package.
    """
    index: Mapping[str, Any] = contents.read(package, path).index
    if index.get("subdir") != package.subdir:
        raise CheckFailed(
            f"{package.fn} is not what its url says: its own subdir is {index.get('subdir')!r}, and the lock has "
            f"{package.subdir}.",
            fix="Do not install it. Ask whoever keeps its channel.",
        )
    try:
        contents.make_record(index)
        for text in (*(index.get("depends") or ()), *(index.get("constrains") or ())):
            MatchSpec(text)
    except OSError:  # of the system, where the record is written
        raise
    except Exception as error:  # rattler has many of its own; its indexer would end in one of them, with no name
        raise CheckFailed(
            f"{package.fn} has metadata that no solver can read: {error}.", fix="Lock another build of it."
        ) from error
    return index


def find_unmet(closure: Sequence[Archive]) -> list[str]:
    """Return a sentence for each requirement, in the archives' own words, that the packages of one platform do not fulfil.

    A solver that knows only these packages would refuse what asks for it. Channels correct requirements in their repodata; a
    mirror, whose repodata are made from the archives, does not have these corrections.
    """
    records = {}
    for archive in closure:
        package = archive.package
        number = int(archive.index.get("build_number", 0))
        records[package.name] = PackageRecord(
            package.name, package.version, BuildString(package.build), number, package.subdir
        )
    found = []
    for archive in closure:
        for key in ("depends", "constrains"):
            for text in archive.index.get(key) or []:
                name = channels.read_name(text)
                record = records.get(name)
                if name.startswith("__") or (record is None and key == "constrains"):
                    continue
                if record is None:
                    found.append(f"{archive.package} itself depends on {text}, which is not in the lock")
                elif not MatchSpec(text).matches(record):
                    says = "depends on" if key == "depends" else "allows only"
                    found.append(
                        f"{archive.package} itself {says} {text}, and the lock has {record.version} {record.build}"
                    )
    return found


def warn_of_licences(found: Iterable[Archive]) -> list[str]:
    """One line if there are packages under a company's own licence; else nothing."""
    companys = [archive for archive in found if archive.is_companys]
    if not companys:
        return []
    names = sorted({archive.package.name for archive in companys})
    some = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return [
        f"{_count(len(companys))} under licences of NVIDIA's, Intel's or another company's own ({some}): whether they may be "
        "passed on, inside your company too, is your company's own decision"
    ]


def write_licences(licences: Mapping[str, str]) -> str:
    """The text of a list of licences. :param licences: {place of a package: licence}."""
    lines = [f"{where}\t{' '.join(licence.split())}" for where, licence in sorted(licences.items())]
    return "".join(f"{line}\n" for line in ["# package\tlicence that its own metadata name", *lines])


def _is_indexed(channel: Path, found: Iterable[Archive]) -> bool:
    """Whether a channel's repodata have all of these, with the lock's hashes."""
    try:
        records = channels.list_records(channel)
        return all(
            records[archive.place]["sha256"] == archive.package.sha256
            if archive.package.sha256
            else records[archive.place]["md5"] == archive.package.md5
            for archive in found
        )
    except (BadInput, KeyError):
        return False


def _write_licences(channel: Path) -> None:
    """Write the list beside the subdirs, in one piece; the folder's SHA256SUMS too, if it has one."""
    licences = {
        where: str(record.get("license") or "none named") for where, record in channels.list_records(channel).items()
    }
    files.write_whole(channel / LICENCES, write_licences(licences))
    if (channel / sums.NAME).is_file():
        sums.renew(channel)


def _count(number: int) -> str:
    return "1 package" if number == 1 else f"{number} packages"
