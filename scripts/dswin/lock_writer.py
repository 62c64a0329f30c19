"""A lock is written through conda-lock's own models, so that conda-lock reads it and agrees with its content hash."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rattler import MatchSpec, RepoDataRecord

from . import lock, solver
from .errors import BadInput, naming
from .files import write_whole
from .solver import Progress, Solved, Wanted

if TYPE_CHECKING:
    from conda_lock.models.lock_spec import LockSpecification
    from conda_lock.virtual_package import FakeRepoData


def make(
    wanted: Wanted,
    path: Path,
    *,
    channel: str | None = None,
    spec: str = solver.PACKAGE,
    snapshot: Path | None = None,
    cache: Path,
    progress: Progress = lambda _: None,
) -> Solved:
    """Solve a lock and write it to ``path``; with ``channel``, with deepspeed-win, whose source is written beside it.

    Nothing is written unless there is a solution. The arguments and errors are those of :func:`solver.solve` and
    :func:`solver.add_package`.
    """
    beside: dict[Path, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if channel is not None:
            extended = solver.add_package(wanted, channel, spec, Path(scratch))
            source, *others = extended.sources
            place = path.parent / source.name
            beside[place] = source.read_text(encoding="utf-8")
            wanted = replace(wanted, sources=(place, *others))
        solved = solver.solve(
            wanted if channel is None else extended, snapshot=snapshot, cache=cache, progress=progress
        )
    write(solved, wanted, path, beside)
    return solved


def write(solved: Solved, wanted: Wanted, path: Path, beside: Mapping[Path, str] = MappingProxyType({})) -> None:
    """Write the lock as conda-lock would, in one piece: there is the old file or the new one, never a part.

    :param beside: {path: text} of sources that change with the lock; they are as they were where the lock cannot be written.
    :raises BadInput: a record without md5, which conda-lock's format demands.
    """
    from conda_lock.lockfile import apply_categories, write_conda_lock_file
    from conda_lock.lockfile.v1.models import LockMeta
    from conda_lock.lockfile.v2prelim.models import LockedDependency, Lockfile

    packages: list[LockedDependency] = []
    for platform, chosen in solved.packages.items():
        names = {record.name.normalized for record in chosen}
        planned = {
            record.name.normalized: _to_locked(record, platform, names, solved.spec.channels) for record in chosen
        }
        # A virtual package may be asked for, and is never locked.
        requested = {one.name: one for one in solved.spec.dependencies[platform] if not one.name.startswith("__")}
        apply_categories(requested=requested, planned=planned, mapping_url="")
        packages += planned.values()
    metadata = LockMeta(
        content_hash=hash_sources(solved.spec),
        channels=list(solved.spec.channels),
        platforms=list(wanted.platforms),
        sources=[_relate(source, path.parent) for source in wanted.sources],
        custom_metadata=describe(solved, wanted),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under its own name, which conda-lock writes into the comments.
    with naming(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=".lock-") as scratch:
        written = Path(scratch) / path.name
        write_conda_lock_file(Lockfile(package=packages, metadata=metadata), written, metadata_choices=None)
        # It writes in the machine's own encoding and line ends.
        written.write_text(written.read_text(), encoding="utf-8", newline="\n")
        lock.read(written)
        for place, text in beside.items():
            write_whole(place, text)
        os.replace(written, path)


def _relate(source: Path, folder: Path) -> str:
    try:
        return Path(os.path.relpath(source, folder)).as_posix()
    except ValueError:  # on Windows, another drive
        return source.absolute().as_posix()


@functools.cache
def _assume_machine() -> FakeRepoData:
    """The virtual packages that are part of conda-lock's content hash. It writes them to a folder that goes with the process."""
    from conda_lock.virtual_package import default_virtual_package_repodata

    return default_virtual_package_repodata()


def hash_sources(spec: LockSpecification) -> dict[str, str]:
    """{platform: content hash} of what the sources of a lock ask for, as conda-lock computes it."""
    from conda_lock.content_hash import compute_content_hashes

    return compute_content_hashes(spec, _assume_machine())


def list_content_hashes(spec: LockSpecification, platform: str) -> set[str]:
    """All content hashes for which conda-lock takes a lock to be made of these sources: older versions had others."""
    from conda_lock.content_hash import backwards_compatible_content_hashes

    return backwards_compatible_content_hashes(spec, _assume_machine(), platform)


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


def _to_locked(record: RepoDataRecord, platform: str, names: Collection[str], channels: Sequence[Any]) -> Any:
    """:param names: of all packages that were chosen; what a condition asks for may not be among them."""
    from conda_lock.lockfile.v1.models import HashModel
    from conda_lock.lockfile.v2prelim.models import LockedDependency
    from conda_lock.models.channel import normalize_url_with_placeholders

    if record.md5 is None:
        raise BadInput(
            f"The record of {record.file_name} has no md5, which a conda-lock.yml must have.",
            fix="Choose another build in the environment file, or have the channel indexed with md5.",
        )
    url = normalize_url_with_placeholders(record.url, list(channels))
    solver.check_channel(url, record.file_name)
    return LockedDependency(
        name=record.name.normalized,
        version=str(record.version),
        manager="conda",
        platform=platform,
        dependencies=merge_requirements(record.depends, names),
        url=url,
        hash=HashModel(md5=record.md5.hex(), sha256=record.sha256.hex() if record.sha256 else None),
    )


def merge_requirements(depends: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """A record's requirements as conda-lock has them, {name: version}: one text for a name that stands in several of them.

    >>> merge_requirements(["python >=3.9", "python <3.12", "blas 1.0 mkl", "__win"], {"python", "blas"})
    {'python': '<3.12,>=3.9', 'blas': '1.0', '__win': ''}
    """
    found: dict[str, set[str]] = {}
    for requirement in depends:
        spec = MatchSpec(requirement, strict=False)
        name = spec.name.normalized
        if name in names or name.startswith("__"):
            found.setdefault(name, set()).update({spec.version.removeprefix("==")} if spec.version else ())
    return {name: _merge(versions) for name, versions in found.items()}


def _merge(versions: set[str]) -> str:
    parts = sorted(versions - {"*"}) or sorted(versions)
    # A comma binds before a bar.
    return ",".join(f"({part})" if "|" in part and len(parts) > 1 else part for part in parts)
