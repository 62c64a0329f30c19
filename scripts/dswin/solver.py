"""From environment files to the packages of a lock: conda-lock reads the files, rattler solves, no conda program is needed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import rattler
from rattler import BuildString, Channel, GenericVirtualPackage, MatchSpec, PackageName, RepoDataRecord, SparseRepoData
from rattler import Version as RattlerVersion
from rattler.channel import ChannelPriority
from rattler.exceptions import SolverError

from . import lock, mutex, records
from .addresses import expand, hide_secrets, to_url
from .errors import BadInput, CheckFailed, MachineLacks
from .files import write_whole

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
#: A lock's name, and a channel's: what is no url and no path.
_NAME = re.compile(r"\w[\w.-]*")
_CHANNEL = re.compile(r"\w[\w.-]*(/[\w.-]+)*")
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
    except (ValueError, RecursionError) as error:  # as in mirrors.read
        raise BadInput(
            f"{path} is not TOML: {error}.", fix="Correct it; its first lines say how it is made."
        ) from error
    found = {}
    for name, table in tables.items():
        found[name] = wanted = _read_table(path, name, table)
        if missing := [str(source) for source in wanted.sources if not os.path.isfile(source)]:
            raise BadInput(f"{path}: [{name}] names {missing[0]}, which is not there.", fix="Correct its sources.")
        if odd := sorted(set(wanted.platforms) - set(VIRTUAL)):
            raise BadInput(f"{path}: [{name}] is for {odd[0]}.", fix=f"Platforms: {', '.join(VIRTUAL)}.")
    return found


def _read_table(path: Path, name: str, table: object) -> Wanted:
    given = table if isinstance(table, dict) else {}
    sources, platforms, notes = given.get("sources"), given.get("platforms"), given.get("notes", {})
    texts = [given.get("cuda", ""), given.get("why", ""), *(notes.values() if isinstance(notes, dict) else [None])]
    for one in (sources, platforms):
        texts += one if isinstance(one, list) and one else [None]
    if not _NAME.fullmatch(name) or not all(isinstance(text, str) for text in texts):
        raise BadInput(
            f"{path}: [{name}] is no description of a lock.",
            fix="A lock has a name that a file can have, sources and platforms as lists of texts, and other texts.",
        )
    if (cuda := given.get("cuda")) is not None and not re.fullmatch(r"\d+\.\d+", cuda):
        raise BadInput(f"{path}: [{name}] has cuda = {cuda!r}.", fix='Write it as "12.1", or leave it out.')
    places = tuple(Path(os.path.normpath(path.parent / source)) for source in given["sources"])
    return Wanted(name, places, tuple(given["platforms"]), cuda, given.get("why", ""), notes)


@dataclass(frozen=True)
class Solved:
    """A solution.

    :param packages: the records, by platform.
    :param inferred: {package: what of its record was concluded rather than seen}.
    :param origin: where the records are from.
    """

    spec: LockSpecification
    packages: Mapping[str, Sequence[RepoDataRecord]]
    inferred: Mapping[str, str]
    origin: str


def read_sources(wanted: Wanted) -> LockSpecification:
    """Read the environment files of a lock, as conda-lock does.

    :raises BadInput: conda-lock cannot read them, or a channel in them is a path or holds a secret.
    """
    from conda_lock.src_parser import make_lock_spec

    logging.getLogger("conda_lock").setLevel(logging.ERROR)  # it warns of each line that is for another platform
    names = ", ".join(map(str, wanted.sources))
    with tempfile.TemporaryDirectory() as scratch:
        # What pip is to bring is refused later, by name; until then conda-lock must find a list of pip's names, be it empty.
        (mapping := Path(scratch) / "names.json").write_text("{}", encoding="utf-8")
        try:
            spec = make_lock_spec(
                src_files=list(wanted.sources), platform_overrides=list(wanted.platforms), mapping_url=str(mapping)
            )
        except Exception as error:  # conda-lock's parsers raise of all kinds
            raise BadInput(
                f"conda-lock cannot read {names}: {first_line(error)}.", fix="Correct the environment file."
            ) from error
    for channel in spec.channels:
        check_channel(channel.url, names)
    return spec


def check_channel(url: str, where: str) -> None:
    """Make sure that a channel can stand in a lock, which others read and which no secret may enter.

    :raises BadInput: it is neither a name nor a url, or there is a password or token in it.
    """
    if not _CHANNEL.fullmatch(url) and not lock.is_url(url):
        shown = (
            "A malformed url" if "://" in url else repr(url)
        )  # what is malformed is not shown: secrets cannot be cut out
        raise BadInput(
            f"{where}: {shown} is no channel.", fix="Name a channel of conda.anaconda.org, or write a whole url."
        )
    if lock.holds_secret(url):
        raise BadInput(
            f"{where}: {hide_secrets(url)} has a user, a password or a token in it, and locks are for others to read.",
            fix="Write ${NAME} in its place, and set that environment variable.",
        )


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
        origin = "records of packages that were seen in public files, not the channels themselves"
    chosen: dict[str, Sequence[RepoDataRecord]] = {}
    channels = [expand(one.url) for one in spec.channels]
    recorded = {channel for channel in channels if known and _CHANNEL.fullmatch(channel)}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        if recorded != set(channels):
            stack.enter_context(_hold_lists(cache, progress))
        records.write_repodata(known, Path(scratch))
        for platform in wanted.platforms:
            progress(f"solving {wanted.name} for {platform}")
            sources: list[SparseRepoData] = []
            for channel in channels:
                if channel in recorded:
                    sources += records.open_repodata(Path(scratch), [channel], platform)
                else:
                    sources += asyncio.run(_fetch(channel, platform, cache))
            chosen[platform] = asyncio.run(
                _solve(
                    wanted.name,
                    platform,
                    list_specs(spec.dependencies[platform]),
                    sources,
                    wanted.list_virtual(platform),
                )
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
        channel = getattr(one, "conda_channel", None)
        text = f"{channel}::{one.name}" if channel else one.name
        version, build = getattr(one, "version", ""), getattr(one, "build", None)
        if version or build:
            text += f" {version or '*'}"
        if build:
            text += f" {build}"
        try:
            specs.append(MatchSpec(text, strict=False))
        except Exception as error:
            raise BadInput(
                f"{text!r} is no requirement: {error}.", fix="NAME VERSION BUILD, as conda has it."
            ) from error
    return specs


def list_virtual_packages(virtual: Mapping[str, str]) -> list[GenericVirtualPackage]:
    """Rattler's form of {name: "version" or "version build"}."""
    return [
        GenericVirtualPackage(PackageName(name), RattlerVersion(text.split()[0]), BuildString((*text.split(), "0")[1]))
        for name, text in virtual.items()
    ]


#: How rattler's words end where the disk is in the way, not the network: EACCES, EFBIG, ENOSPC, EROFS, EDQUOT; on Windows 112.
_REFUSED = re.compile(r"os error (13|27|28|30|122|112)\)")


def _hold_lists(cache: Path, progress: Progress) -> contextlib.AbstractContextManager[None]:
    """Keep other runs out while lists are fetched and read: rattler reads them as mapped memory, and another's write there ends
    the reader with SIGBUS or lets both wait for ever.
    """
    cache.mkdir(parents=True, exist_ok=True)
    return mutex.hold(cache, f"waiting for another run that uses the channels' lists in {cache}", progress)


async def _fetch(channel: str, platform: str, cache: Path) -> list[SparseRepoData]:
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
        shown = hide_secrets(channel)
        if _REFUSED.search(str(error)):
            raise MachineLacks(
                f"The lists of {shown} cannot be kept in {cache}: {first_line(error).replace(channel, shown)}.",
                fix="Free some space there, or set DSWIN_CACHE to a folder on another disk.",
            ) from error
        raise MachineLacks(
            f"The channel {shown} does not answer for {platform}: {first_line(error).replace(channel, shown)}.",
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
    except Exception as error:  # rattler's readers raise of all kinds when they meet broken repodata
        raise CheckFailed(
            f"What the channels say of their packages for {platform} cannot be used: {first_line(error)}.",
            fix="Ask whoever keeps the channel to index it anew; delete the cache folder if it is the channel's old state.",
        ) from error


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def add_package(wanted: Wanted, channel: str, spec: str, folder: Path) -> Wanted:
    """The same lock with ``deepspeed-win`` from a channel, which goes before the others; its source is written to ``folder``.

    :param channel: a folder, a url or a name. Secrets in a url must be in environment variables, and stay there.
    :param spec: what to ask for, as ``deepspeed-win 0.19.8.*``.
    :raises BadInput: no channel, or one with a secret in it.
    """
    import yaml
    from conda_lock.models.channel import Channel as CondaLockChannel

    if not lock.is_url(channel) and (os.path.isdir(channel) or not _CHANNEL.fullmatch(channel)):
        channel = to_url(Path(os.path.abspath(channel)))
    channel = CondaLockChannel.from_string(channel.rstrip("/")).url
    check_channel(channel, "--channel")
    others = [one.url for one in read_sources(wanted).channels if one.url != channel]
    path = folder / f"{wanted.name}.{PACKAGE}.yaml"
    text = yaml.safe_dump({"channels": [channel, *others], "dependencies": [spec]}, sort_keys=False)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, f"# {PACKAGE} from its own channel; read beside the other sources of this lock.\n{text}")
    return replace(wanted, sources=(path, *wanted.sources))
