"""``dswin lock``: it parses and prints; the modules beside it do the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click_default_group import DefaultGroup

from . import errors

if TYPE_CHECKING:
    from .solver import Wanted

_FOLDER = click.option("--folder", type=click.Path(path_type=Path), help="The folder of the locks.  [default: locks]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def _find_folder(folder: Path | None) -> Path:
    from .cli import ROOT

    return folder or ROOT / "locks"


@click.group(cls=DefaultGroup, default="make", default_if_no_args=True)
def lock() -> None:
    """Locked environments: the same packages on every machine.

    dswin lock NAME is dswin lock make NAME; dswin lock --list names what can be locked.
    """


@lock.command()
@click.argument("names", nargs=-1)
@click.option(
    "--records",
    "snapshot",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Solve from package records in this folder instead of asking conda-forge, pytorch and nvidia.",
)
@click.option("--channel", metavar="URL", help="Add deepspeed-win from this channel: a url, a folder, or a name.")
@click.option("--spec", metavar="SPEC", help="With --channel: what to take.  [default: deepspeed-win]")
@_FOLDER
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the locks here.  [default: the folder of the locks]"
)
@click.option("--list", "as_list", is_flag=True, help="Only name what can be locked.")
@_JSON
def make(
    names: tuple[str, ...],
    snapshot: Path | None,
    channel: str | None,
    spec: str | None,
    folder: Path | None,
    out: Path | None,
    as_list: bool,
    as_json: bool,
) -> None:
    """Solve the environments NAMES of locks.toml, by default all of them, and write NAME.conda-lock.yml for each.

    \b
    dswin lock gpu-py311 --channel https://example.com/ourchannel
    dswin lock gpu-py311 --records locks/records

    Exit codes: 0 written, 1 the requirements cannot be met together, 2 bad input, 3 a channel does not answer.
    """
    from . import solver

    folder = _find_folder(folder)
    wanted = solver.read_wanted(folder)
    if unknown := [name for name in names if name not in wanted]:
        raise errors.BadInput(f"There is no lock {unknown[0]!r}.", fix=f"Locks: {', '.join(wanted)}.")
    if spec and not channel:
        raise errors.BadInput("--spec goes with --channel.", fix="Name the channel that has deepspeed-win.")
    chosen = [wanted[name] for name in dict.fromkeys(names or wanted)]
    if as_list:
        show_list(chosen, folder, as_json)
        return
    made = []
    for one in chosen:
        made.append(make_one(one, out or folder, channel=channel, spec=spec, snapshot=snapshot))
        if not as_json:
            changes = made[-1]["changes"]
            counts = "new" if changes is None else ", ".join(f"{number} {kind}" for kind, number in changes.items())
            platforms = ", ".join(f"{number} packages for {name}" for name, number in made[-1]["packages"].items())
            click.echo(f"{made[-1]['path']}: {platforms}; {counts or 'no change'}")
    if as_json:
        click.echo(json.dumps(made, indent=1))


def show_list(chosen: list[Wanted], folder: Path, as_json: bool) -> None:
    """Name what can be locked."""
    from .lock import SUFFIX

    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "platforms": list(one.platforms),
            "why": one.why,
            "made": (folder / f"{one.name}{SUFFIX}").is_file(),
        }
        for one in chosen
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(
            f"{row['name']:<14}{' '.join(row['platforms']):<18}{row['why']}{'' if row['made'] else ' (not made)'}"
        )


def make_one(one: Wanted, out: Path, *, channel: str | None, spec: str | None, snapshot: Path | None) -> dict:
    """Make a lock, warn of what deserves it, and return what came out of it."""
    from . import lock as locks
    from . import lock_diff, lock_writer, solver
    from .cli import CACHE, console, show_progress

    path = out / f"{one.name}{locks.SUFFIX}"
    try:
        before: locks.Lock | None = locks.read(path)
    except errors.BadInput:  # not there, or to be replaced
        before = None
    solved = lock_writer.make(
        one,
        path,
        channel=channel,
        spec=spec or solver.PACKAGE,
        snapshot=snapshot,
        cache=CACHE / "repodata",
        progress=show_progress(),
    )
    after = locks.read(path)
    changes = lock_diff.compare(before, after) if before else []
    for change in changes:
        if "hash" in change.kinds and change.after:
            console.print(f"warning: {change.after.fn} has another hash than in the lock before", markup=False)
    for name, why in solved.inferred.items():
        console.print(f"note: {name}'s record is inferred: {why}", markup=False)
    return {
        "name": one.name,
        "path": str(path),
        "packages": {platform: len(after.on(platform)) for platform in after.platforms},
        "inferred": dict(solved.inferred),
        "md5_only": sorted({package.name for package in after.packages if package.sha256 is None}),
        "changes": lock_diff.count(changes) if before else None,
    }


@lock.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@_FOLDER
@click.option(
    "--records",
    "snapshot",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Compare urls and hashes with the package records in this folder, too.",
)
@click.option("--strict", is_flag=True, help="Warnings count as errors.")
@_JSON
def check(files: tuple[Path, ...], folder: Path | None, snapshot: Path | None, strict: bool, as_json: bool) -> int:
    """Look for faults in lock FILES, by default all of locks/, without a solve and without a network.

    Fresh: the sources are as they were when it was made. Complete: each requirement is in it. Hashes well-formed, urls canonical,
    no password or token; md5-only, inferred, the reference BLAS and more than one CUDA are named where the lock does not say why.

    Exit codes: 0 nothing found, 1 errors (with --strict: or warnings) found, 2 bad input.
    """
    from . import lock as locks
    from . import lock_check

    files = files or tuple(sorted(_find_folder(folder).glob(f"*{locks.SUFFIX}")))
    if not files:
        raise errors.BadInput("There are no locks to check.", fix="Name a conda-lock.yml, or make one: dswin lock.")
    found = {file: lock_check.check(file, snapshot=snapshot) for file in files}
    if as_json:
        document = [{"file": str(file), **vars(finding)} for file, findings in found.items() for finding in findings]
        click.echo(json.dumps(document, indent=1))
    else:
        for file, findings in found.items():
            click.echo(f"{file}: {f'{len(findings)} found' if findings else 'nothing found'}")
            for finding in findings:
                click.echo(f"  {finding.severity:<8}{finding.rule:<10}{finding.text}\n{'':20}{finding.fix}")
    return int(any(strict or finding.severity == "error" for findings in found.values() for finding in findings))


@lock.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json", "md"]), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--policy",
    type=click.Choice(["none", "hash", "major", "any"]),
    default="hash",
    show_default=True,
    help="What is not allowed. hash: the same file name with another hash. major: that, another channel, another "
    "major version. any: any change.",
)
def diff(first: Path, second: Path, form: str, as_json: bool, policy: str) -> int:
    """Show what changed from lock A to lock B: added, removed, version, build, channel, hash.

    A change of hash alone is the dangerous one: what was published under a file name has been replaced, or the lock was altered.

    Exit codes: 0 the same, or only changes that are allowed; 1 a change that is not; 2 bad input.
    """
    from rich.console import Console

    from . import lock as locks
    from . import lock_diff
    from .cli import console

    changes = lock_diff.compare(locks.read(first), locks.read(second))
    forbidden = lock_diff.find_forbidden(changes, policy)
    counts = ", ".join(f"{number} {kind}" for kind, number in lock_diff.count(changes).items()) or "no change"
    if as_json or form == "json":
        document = {
            "first": str(first),
            "second": str(second),
            "policy": policy,
            "counts": lock_diff.count(changes),
            "forbidden": len(forbidden),
            "changes": lock_diff.to_json(changes, forbidden),
        }
        click.echo(json.dumps(document, indent=1))
    elif form == "md":
        click.echo(f"{counts}\n" + (f"\n{lock_diff.to_markdown(changes, forbidden)}" if changes else ""), nl=False)
    else:
        if changes:
            width = None if sys.stdout.isatty() else 200
            Console(highlight=False, width=width).print(lock_diff.to_table(changes, forbidden))
        click.echo(counts)
    if forbidden:
        console.print(
            f"{len(forbidden)} of them not allowed: --policy {policy}, {lock_diff.POLICIES[policy]}", markup=False
        )
    return 1 if forbidden else 0
