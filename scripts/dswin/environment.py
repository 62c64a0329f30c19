"""An environment made from a lock: planned, fetched, linked by rattler, verified, and stamped so that it is not made twice."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, archives, contents, env_verify, files, mutex, prefixes
from .addresses import hide_secrets, to_path, to_url
from .digests import hash_file
from .errors import CheckFailed, DswinError, MachineLacks
from .lock import Lock, Locked
from .mirrors import NONE, Mirrors
from .prefixes import JOURNAL, META, Stamp

if TYPE_CHECKING:
    from rattler import RepoDataRecord

Progress = Callable[[str], None]

#: Where unpacked packages lie, below the store: no other program's cache is ever linked from.
UNPACKED = "unpacked"


@dataclass(frozen=True)
class Step:
    """What happens to one package.

    :param old: version and build that are there. :param new: version and build to come. :param why: where the two are alike.
    """

    name: str
    old: str = ""
    new: str = ""
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """What has to be done to a prefix.

    :param fetch: bytes to fetch, of those archives whose size is known. :param unknown: how many there are beside them.
    :param free: bytes that are free where the prefix is to be.
    :param broken: records in conda-meta that cannot be read; they go.
    """

    keep: tuple[Step, ...]
    add: tuple[Step, ...]
    change: tuple[Step, ...]
    remove: tuple[Step, ...]
    fetch: int
    unknown: int
    free: int
    broken: tuple[Path, ...] = ()

    @property
    def is_done(self) -> bool:
        return not (self.add or self.change or self.remove or self.broken)

    def to_json(self) -> dict[str, Any]:
        steps = {kind: [vars(step) for step in getattr(self, kind)] for kind in ("keep", "add", "change", "remove")}
        return {**steps, "fetch_bytes": self.fetch, "unknown_sizes": self.unknown, "free_bytes": self.free,
                "broken_records": [path.name for path in self.broken]}  # fmt: skip


def plan(
    lock: Lock, platform: str, prefix: Path, store: Path, *, ask: Callable[[Locked], int | None] = lambda _: None
) -> Plan:
    """Compare a prefix with a lock by the records in its conda-meta, and change nothing.

    :param ask: gives the size of an archive that is not in the store, if it can be known.
    :raises BadInput: the lock is not for the platform, or the prefix may not be touched.
    """
    prefixes.check(prefix, platform)
    packages = {package.name: package for package in lock.on(platform)}
    installed, broken = prefixes.read_records(prefix)
    keep, add, change = [], [], []
    for name, package in packages.items():
        here, new = installed.get(name), f"{package.version} {package.build}"
        if here is None:
            add.append(Step(name, new=new))
            continue
        old = f"{here.version} {here.build}"
        if prefixes.is_same(package, here):
            keep.append(Step(name, old, new))
        else:
            change.append(Step(name, old, new, "another archive by its hash" if old == new else ""))
    remove = [Step(one.name, f"{one.version} {one.build}") for one in installed.values() if one.name not in packages]
    needed = [packages[step.name] for step in (*add, *change)]
    sizes = [ask(one) for one in needed if not archives.place(one, store).is_file()]
    return Plan(
        keep=tuple(keep),
        add=tuple(add),
        change=tuple(change),
        remove=tuple(sorted(remove, key=lambda step: step.name)),
        fetch=sum(size for size in sizes if size is not None),
        unknown=sum(size is None for size in sizes),
        free=shutil.disk_usage(next(folder for folder in (prefix, *prefix.parents) if folder.is_dir())).free,
        broken=tuple(broken),
    )


def ask_size(package: Locked) -> int | None:
    """The size of an archive whose url is a file; nothing for one elsewhere. For :func:`plan`."""
    try:
        return to_path(package.url).stat().st_size if package.url.startswith("file:") else None
    except (OSError, DswinError):
        return None


@dataclass(frozen=True)
class Created:
    """:param done: False: there was nothing to do. :param repaired: packages that were linked twice, as bytes were wrong."""

    plan: Plan
    done: bool
    repaired: tuple[str, ...] = ()
    files: int = 0


def create(
    lock: Lock,
    platform: str,
    prefix: Path,
    store: Path,
    *,
    mirrors: Mirrors = NONE,
    source: str = "",
    repair: bool = False,
    progress: Progress = lambda _: None,
    count: archives.Count = lambda done, more: None,
) -> Created:
    """Make a prefix what a lock says. What is right stays; a run that was killed is repaired by the next one.

    :param store: a folder for archives and unpacked packages.
    :param source: where the lock came from, for the stamp.
    :param repair: verify every package, those that earlier runs verified too, and link anew what is wrong.
    :raises BadInput: the lock is not for the platform, or the prefix holds other things.
    :raises CheckFailed: an archive, or what was linked, is not what the lock names.
    :raises MachineLacks: an archive cannot be had, or the disk is too small.
    """
    prefix = prefix.absolute()  # rattler writes it into shebangs as it stands
    store = store.absolute()
    packages = lock.on(platform)
    prefixes.check(prefix, platform)
    (prefix / META).mkdir(parents=True, exist_ok=True)
    with mutex.hold(prefix / META, f"{prefix} is being changed by another run: waiting for it", progress):
        planned = plan(lock, platform, prefix, store, ask=ask_size)
        if planned.is_done and not repair and not find_drift(lock, platform, prefix):
            return Created(planned, done=False)
        fetched = archives.fetch(packages, store, mirrors=mirrors, progress=progress, count=count)
        known = {package.name: contents.read(package, fetched[package.url]) for package in packages}
        _check_room(prefix, planned, known)
        with _journal(prefix, planned):
            _link(packages, known, planned, platform, prefix, store, progress)
            created = _verify(lock, known, planned, platform, prefix, store, repair, progress)
            _stamp(lock, packages, source, platform, prefix)
    return created


def find_drift(lock: Lock, platform: str, prefix: Path) -> list[str]:
    """What says that a prefix is not what this lock made: looks at the stamp and the names in conda-meta only, so it is quick."""
    packages = lock.on(platform)
    stamp = Stamp.read(prefix)
    if stamp is None or stamp.packages != prefixes.list_packages(packages):
        return ["it was not made from this lock"]
    return find_changes(prefix, stamp)


def find_changes(prefix: Path, stamp: Stamp) -> list[str]:
    """What was done to a prefix since it was stamped, by the names in conda-meta only."""
    expected = {prefixes.name_record(url) for _, url, _ in stamp.packages}
    found = {file.name for file in prefixes.list_records(prefix)}
    unfinished = ["a run was stopped before its end"] if (prefix / META / JOURNAL).exists() else []
    lost = [f"{name.removesuffix('.json')} is no longer installed" for name in sorted(expected - found)]
    return unfinished + lost + [f"{name.removesuffix('.json')} was added" for name in sorted(found - expected)]


def _check_room(prefix: Path, planned: Plan, known: Mapping[str, contents.Contents]) -> None:
    """:raises MachineLacks: the disk cannot hold what is to be unpacked, which is at least as large as the archives."""
    needed = sum(known[step.name].archive.stat().st_size for step in (*planned.add, *planned.change))
    if needed > planned.free:
        raise MachineLacks(
            f"{prefix} needs more than {needed / 1e9:.1f} GB, and {planned.free / 1e9:.1f} GB are free.",
            fix="Free some space, or name a folder on another disk.",
        )


@contextmanager
def _journal(prefix: Path, planned: Plan) -> Iterator[None]:
    """Keep the paths of packages that go, so that whatever a killed run left of them goes with the next one."""
    journal = prefix / META / JOURNAL
    installed, _ = prefixes.read_records(prefix)
    going = [installed[step.name] for step in (*planned.change, *planned.remove)]
    paths = {str(one["_path"]) for record in going for one in record.paths} | set(_read_journal(journal))
    files.write_whole(journal, json.dumps(sorted(paths)))
    yield
    installed, _ = prefixes.read_records(prefix)
    staying = {str(one["_path"]) for record in installed.values() for one in record.paths}
    for path in paths - staying:
        if (prefix / path).is_file() or (prefix / path).is_symlink():
            (prefix / path).unlink()
    journal.unlink()


def _read_journal(journal: Path) -> list[str]:
    try:
        paths = json.loads(journal.read_text(encoding="utf-8"))
        return [path for path in paths if isinstance(path, str) and not contents.leaves(path)]
    except (OSError, ValueError, TypeError):
        return []


def _link(
    packages: Sequence[Locked],
    known: Mapping[str, contents.Contents],
    planned: Plan,
    platform: str,
    prefix: Path,
    store: Path,
    progress: Progress,
    again: Iterable[str] = (),
) -> None:
    """Let rattler remove and link what the plan says; ``again`` names packages to link anew although they seem right."""
    import rattler
    from rattler.exceptions import InstallerError
    from rattler.package_cache import PackageCache, ValidationMode

    for file in planned.broken:
        file.unlink(missing_ok=True)
    cache = store / UNPACKED / platform
    cache.mkdir(parents=True, exist_ok=True)
    anew = {step.name for step in planned.change} | set(again)
    what = f"linking {len(anew | {step.name for step in planned.add})} packages"
    progress(f"{what}, removing {len(planned.remove)}" if planned.remove else what)

    async def run() -> None:
        await rattler.install(
            [_to_record(package, known[package.name]) for package in packages],
            prefix,
            # Fast: rattler's full check trusts the paths.json that lies beside the files. What was linked is verified after.
            package_cache=PackageCache.new_layered([cache], False, ValidationMode.fast()),
            reinstall_packages=anew,
            platform=rattler.Subdir(platform),
            show_progress=False,
        )

    with mutex.hold(cache, "another run unpacks packages: waiting for it", progress):
        try:
            asyncio.run(run())
        except InstallerError as error:
            raise MachineLacks(
                f"The packages cannot be linked into {prefix}.",
                fix="See the lines above. What is right already stays; run again after it is mended.",
                log=str(error),
            ) from error
    # rattler's, for programs that make backups; no package's, and conda makes none.
    (prefix / "CACHEDIR.TAG").unlink(missing_ok=True)
    _name_origins(packages, prefix)


def _to_record(package: Locked, content: contents.Contents) -> RepoDataRecord:
    """The record by which rattler installs an archive of the store, whose hashes were checked: rattler checks none of a file."""
    import rattler

    size, sha256 = content.archive.stat().st_size, package.sha256 or hash_file(content.archive)
    try:
        record = contents.make_record(content.index, size=size, sha256=sha256, md5=package.md5)
    except ValueError as error:
        raise CheckFailed(
            f"{package.fn} has an info/index.json that cannot be used: {error}.",
            fix="Ask whoever keeps the channel for a whole package.",
        ) from error
    return rattler.RepoDataRecord(record, package.fn, to_url(content.archive), f"{package.channel}/{package.subdir}")


def _name_origins(packages: Iterable[Locked], prefix: Path) -> None:
    """Write the lock's urls into conda-meta, where rattler has named the store."""
    for package in packages:
        file, url = prefix / META / prefixes.name_record(package.url), hide_secrets(package.url)
        document = json.loads(file.read_bytes())
        if document.get("url") != url:
            document.update(url=url, channel=url.rpartition("/")[0])
            files.write_whole(file, json.dumps(document, indent=2))


def _verify(
    lock: Lock,
    known: Mapping[str, contents.Contents],
    planned: Plan,
    platform: str,
    prefix: Path,
    store: Path,
    everything: bool,
    progress: Progress,
) -> Created:
    """Verify what was linked, and what no run of ours has verified before; what is wrong is linked once more from its archive."""
    stamp, packages = Stamp.read(prefix), lock.on(platform)
    before = set(stamp.packages) if stamp and not everything else set()
    kept = {step.name for step in planned.keep}
    names = {package.name for package in packages if package.name not in kept}
    names |= {name for name, url, key in prefixes.list_packages(packages) if (name, url, key) not in before}
    found = env_verify.verify(lock, prefix, platform, store, names=names, known=known)
    bad = sorted(
        {package.name for package in packages for finding in found.findings if finding.package == str(package)}
    )
    if bad:
        progress(f"not as in their archives, linked again: {', '.join(bad)}")
        for package in packages:
            if package.name in bad:
                unpacked = prefixes.name_record(package.url).removesuffix(".json")
                shutil.rmtree(store / UNPACKED / platform / unpacked, ignore_errors=True)
        _link(packages, known, plan(lock, platform, prefix, store), platform, prefix, store, progress, again=bad)
        found = env_verify.verify(lock, prefix, platform, store, names=names, known=known)
    if found.findings:
        raise CheckFailed(
            f"{prefix} is not what the lock says: {found.findings[0]}.",
            fix="Do not use it. Name another --store, so that everything is fetched and unpacked anew.",
            log=env_verify.write_summary(found.findings),
        )
    return Created(planned, done=True, repaired=tuple(bad), files=found.files)


def _stamp(lock: Lock, packages: Iterable[Locked], source: str, platform: str, prefix: Path) -> None:
    Stamp(
        lock=hash_file(lock.path),
        source=hide_secrets(source) if source else os.fspath(lock.path),
        platform=platform,
        version=__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        packages=prefixes.list_packages(packages),
    ).write(prefix)


@dataclass(frozen=True)
class Status:
    """:param drift: what was done since, by the names in conda-meta only; ``verify`` looks at every file."""

    stamp: Stamp | None
    drift: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        stamp = self.stamp
        made = {} if stamp is None else {key: value for key, value in vars(stamp).items() if key != "packages"}
        return {
            "ours": stamp is not None,
            **made,
            "packages": len(stamp.packages) if stamp else 0,
            "drift": [*self.drift],
        }


def status(prefix: Path) -> Status:
    """Say from which lock a prefix was made, when, and whether packages came or went since.

    :raises BadInput: it is no environment.
    """
    if not (prefix / META).is_dir():
        raise prefixes.no_environment(prefix)
    stamp = Stamp.read(prefix)
    return Status(stamp, tuple(find_changes(prefix, stamp)) if stamp else ())
