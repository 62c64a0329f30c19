"""From environment files to a lock: solved by rattler, written through conda-lock's own models.

conda-lock reads the environment files and computes the content hash, so that ``conda-lock lock --check-input-hash`` agrees with
the result; what conda-lock would need a conda program for, the solve, is rattler's.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import rattler
from rattler import BuildString, Channel, GenericVirtualPackage, MatchSpec, PackageName, RepoDataRecord, SparseRepoData
from rattler import Version as RattlerVersion
from rattler.channel import ChannelPriority
from rattler.exceptions import SolverError

from . import lock, records
from .errors import BadInput, CheckFailed, MachineLacks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from conda_lock.models.lock_spec import Dependency, LockSpecification

Progress = Callable[[str], None]

PACKAGE = "deepspeed-win"
#: What the solver takes for granted about a machine; a lock's table in locks.toml adds ``cuda``.
VIRTUAL: Mapping[str, Mapping[str, str]] = {
    "win-64": {"__win": "0", "__archspec": "1 x86_64"},
    "linux-64": {"__unix": "0", "__linux": "5.10", "__glibc": "2.28", "__archspec": "1 x86_64"},
}
_TIMEOUT = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Wanted:
    """A lock that locks.toml describes.

    :param sources: environment files; a name in a later one replaces the same name in an earlier one, as conda-lock has it.
    :param cuda: the CUDA version of the driver that is taken for granted, or nothing.
    :param notes: what people must know of this lock, by subject; goes into its ``custom_metadata``.
    """

    name: str
    sources: tuple[Path, ...]
    platforms: tuple[str, ...]
    cuda: str | None = None
    why: str = ""
    notes: Mapping[str, str] = field(default_factory=dict, hash=False)

    def list_virtual(self, platform: str) -> dict[str, str]:
        """{name: "version" or "version build"} of what the machine is taken to have."""
        return {**VIRTUAL[platform], **({"__cuda": self.cuda} if self.cuda else {})}


def read_wanted(folder: Path) -> dict[str, Wanted]:
    """Read ``locks.toml`` in ``folder``.

    :raises BadInput: it cannot be read, or names something that is not there.
    """
    path = folder / "locks.toml"
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", fix="Name the folder of the locks.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}.", fix="Correct it; its first lines say how it is made.") from error
    found = {}
    for name, table in tables.items():
        try:
            wanted = Wanted(
                name,
                tuple(Path(os.path.normpath(folder / source)) for source in table["sources"]),
                tuple(table["platforms"]),
                table.get("cuda"),
                table.get("why", ""),
                dict(table.get("notes", {})),
            )
        except (KeyError, TypeError) as error:
            raise BadInput(f"{path}: [{name}] lacks {error}.", fix="A lock has sources and platforms.") from error
        if missing := [str(source) for source in wanted.sources if not source.is_file()]:
            raise BadInput(f"{path}: [{name}] names {missing[0]}, which is not there.", fix="Correct its sources.")
        if odd := sorted(set(wanted.platforms) - set(VIRTUAL)):
            raise BadInput(f"{path}: [{name}] is for {odd[0]}.", fix=f"Platforms: {', '.join(VIRTUAL)}.")
        found[name] = wanted
    return found


@dataclass(frozen=True)
class Solved:
    """:param inferred: {package: what of its record was concluded rather than seen}. :param origin: where the records are from."""

    spec: LockSpecification
    packages: Mapping[str, Sequence[RepoDataRecord]]
    inferred: Mapping[str, str]
    origin: str


def read_sources(wanted: Wanted) -> LockSpecification:
    """Read the environment files of a lock, as conda-lock does.

    :raises BadInput: conda-lock cannot read them.
    """
    from conda_lock.src_parser import make_lock_spec

    try:
        return make_lock_spec(
            src_files=list(wanted.sources), platform_overrides=list(wanted.platforms), mapping_url=""
        )
    except Exception as error:  # conda-lock's parsers raise of all kinds
        raise BadInput(
            f"conda-lock cannot read {', '.join(map(str, wanted.sources))}: {error}.",
            fix="Correct the environment file.",
        ) from error


def solve(wanted: Wanted, *, snapshot: Path | None = None, cache: Path, progress: Progress = lambda _: None) -> Solved:
    """Choose the packages of a lock.

    :param snapshot: a folder of package records, in place of asking conda-forge, pytorch and nvidia. A channel that is given by
        its url is asked all the same.
    :param cache: a folder for the channels' lists; may be deleted at any time.
    :raises CheckFailed: the requirements cannot be fulfilled together.
    :raises MachineLacks: a channel does not answer.
    """
    spec = read_sources(wanted)
    inferred: dict[str, str] = {}
    known = records.read(snapshot) if snapshot else []
    origin = "the channels"
    if known:
        origin = f"a snapshot of {len(known)} package records seen in public files, not the channels themselves"
    chosen: dict[str, Sequence[RepoDataRecord]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        records.write_repodata(known, Path(scratch))
        for platform in wanted.platforms:
            progress(f"solving {wanted.name} for {platform}")
            sources: list[SparseRepoData] = []
            for channel in (one.env_replaced_url() for one in spec.channels):
                if known and "://" not in channel:
                    sources += records.open_repodata(Path(scratch), [channel], platform)
                else:
                    sources += asyncio.run(_fetch(channel, platform, cache))
            chosen[platform] = asyncio.run(
                _solve(wanted.name, platform, list_specs(spec.dependencies[platform]), sources, wanted.list_virtual(platform))
            )
    urls = {record.url for packages in chosen.values() for record in packages}
    for record in known:
        if record.inferred and record.url in urls:
            inferred[record.repodata["name"]] = record.inferred
    return Solved(spec, chosen, inferred, origin)


def list_specs(dependencies: Iterable[Dependency]) -> list[MatchSpec]:
    """What to ask the solver for.

    :raises BadInput: a requirement that is not conda's, or is malformed.
    """
    specs = []
    for one in dependencies:
        if one.manager != "conda":
            raise BadInput(f"{one.name} is to come from pip.", fix="Ask for conda packages only: pip's are not locked.")
        text = one.name
        version, build = getattr(one, "version", ""), getattr(one, "build", None)
        if version or build:
            text += f" {version or '*'}"
        if build:
            text += f" {build}"
        try:
            specs.append(MatchSpec(text, strict=False))
        except Exception as error:
            raise BadInput(f"{text!r} is no requirement: {error}.", fix="NAME VERSION BUILD, as conda has it.") from error
    return specs


def list_virtual_packages(virtual: Mapping[str, str]) -> list[GenericVirtualPackage]:
    """Rattler's form of {name: "version" or "version build"}."""
    return [
        GenericVirtualPackage(PackageName(name), RattlerVersion(text.split()[0]), BuildString((*text.split(), "0")[1]))
        for name, text in virtual.items()
    ]


async def _fetch(channel: str, platform: str, cache: Path) -> list[SparseRepoData]:
    cache.mkdir(parents=True, exist_ok=True)
    try:
        return list(
            await rattler.fetch_repo_data(
                channels=[Channel(channel)],
                platforms=[rattler.Subdir(platform), rattler.Subdir("noarch")],
                cache_path=cache,
                callback=None,
            )
        )
    except Exception as error:
        raise MachineLacks(
            f"The channel {hide_secrets(channel)} does not answer for {platform}: {_first_line(error)}.",
            fix="Check the network, or solve from records: dswin lock --records locks/records.",
        ) from error


async def _solve(
    name: str, platform: str, specs: list[MatchSpec], sources: list[SparseRepoData], virtual: Mapping[str, str]
) -> Sequence[RepoDataRecord]:
    try:
        return await rattler.solve_with_sparse_repodata(
            specs,
            sources,
            virtual_packages=list_virtual_packages(virtual),
            channel_priority=ChannelPriority.Strict,
            timeout=_TIMEOUT,
        )
    except SolverError as error:
        raise CheckFailed(
            f"No set of packages fulfils what {name} asks for on {platform}.",
            fix="The solver's words say which requirement stands in the way; change the environment file.",
            log=str(error),
        ) from error


def hide_secrets(url: str) -> str:
    """A url without user, password and token, for messages.

    >>> hide_secrets("https://me:secret@host/t/abc-123/channel")
    'https://host/t/***/channel'
    """
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    path = parts.path.split("/")
    if "t" in path[:-1]:
        path[path.index("t") + 1] = "***"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="/".join(path), query="").geturl()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def write(solved: Solved, wanted: Wanted, path: Path) -> None:
    """Write the lock as conda-lock would, in one piece: there is the old file or the new one, never a part.

    :raises BadInput: a record without md5, which conda-lock's format demands.
    """
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.lockfile import apply_categories, write_conda_lock_file
    from conda_lock.lockfile.v1.models import LockMeta
    from conda_lock.lockfile.v2prelim.models import LockedDependency, Lockfile
    from conda_lock.virtual_package import default_virtual_package_repodata

    packages: list[LockedDependency] = []
    for platform, chosen in solved.packages.items():
        planned = {record.name.normalized: _to_locked(record, platform) for record in chosen}
        apply_categories(
            requested={one.name: one for one in solved.spec.dependencies[platform]}, planned=planned, mapping_url=""
        )
        packages += planned.values()
    with default_virtual_package_repodata() as assumed:
        hashes = compute_content_hashes(solved.spec, assumed)
    metadata = LockMeta(
        content_hash=hashes,
        channels=list(solved.spec.channels),
        platforms=list(wanted.platforms),
        sources=[os.path.relpath(source, path.parent).replace(os.sep, "/") for source in wanted.sources],
        custom_metadata=describe(solved, wanted),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under its own name, which conda-lock writes into the comments.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lock-") as scratch:
        written = Path(scratch) / path.name
        write_conda_lock_file(Lockfile(package=packages, metadata=metadata), written, metadata_choices=None)
        lock.read(written)
        os.replace(written, path)


def describe(solved: Solved, wanted: Wanted) -> dict[str, str]:
    """What a lock says of itself beside its packages."""
    words = {"solved_from": solved.origin}
    for platform in wanted.platforms:
        virtual = (f"{name}={'='.join(text.split())}" for name, text in wanted.list_virtual(platform).items())
        words[f"virtual_packages.{platform}"] = " ".join(virtual)
    chosen = {record.name.normalized: record for packages in solved.packages.values() for record in packages}
    words.update({f"inferred.{name}": why for name, why in solved.inferred.items()})
    if bare := sorted(name for name, record in chosen.items() if record.sha256 is None):
        words["md5_only"] = f"no sha256 is known of {', '.join(bare)}"
    words.update({f"note.{subject}": text for subject, text in wanted.notes.items()})
    return {name: words[name] for name in sorted(words)}


def _to_locked(record: RepoDataRecord, platform: str) -> Any:
    from conda_lock.lockfile.v1.models import HashModel
    from conda_lock.lockfile.v2prelim.models import LockedDependency

    if record.md5 is None:
        raise BadInput(
            f"The record of {record.file_name} has no md5, which a conda-lock.yml must have.",
            fix="Choose another build in the environment file.",
        )
    depends: dict[str, str] = {}
    for requirement in record.depends:
        name, _, rest = requirement.partition(" ")
        version = rest.split()[0].removeprefix("==") if rest else ""
        depends[name] = f"{depends[name]},{version}" if depends.get(name) and version else depends.get(name) or version
    return LockedDependency(
        name=record.name.normalized,
        version=str(record.version),
        manager="conda",
        platform=platform,
        dependencies=depends,
        url=record.url,
        hash=HashModel(md5=record.md5.hex(), sha256=record.sha256.hex() if record.sha256 else None),
    )


def add_package(wanted: Wanted, channel: str, spec: str, folder: Path) -> Wanted:
    """The same lock with ``deepspeed-win`` from a channel, which goes before the others; its source is written to ``folder``.

    :param spec: what to ask for, as ``deepspeed-win 0.19.8.*``.
    """
    import yaml

    others = [one.url for one in read_sources(wanted).channels]
    path = folder / f"{wanted.name}.{PACKAGE}.yaml"
    text = yaml.safe_dump({"channels": [channel, *others], "dependencies": [spec]}, sort_keys=False)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {PACKAGE} from its own channel; read beside the other sources of this lock.\n{text}", encoding="utf-8")
    return Wanted(wanted.name, (path, *wanted.sources), wanted.platforms, wanted.cuda, wanted.why, wanted.notes)
