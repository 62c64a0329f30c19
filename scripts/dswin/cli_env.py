"""The commands of ``dswin env``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import errors
from .cli_options import add_options, find_store, read_mirrors, show_bytes

if TYPE_CHECKING:
    from .env_verify import Verified
    from .environment import Plan
    from .lock import Lock

_LOCK_LIMIT = 64 * 2**20


@click.group()
def env() -> None:
    """An environment from a lock: the same files on every machine, each checked."""


@env.command("plan")
@add_options("lock", "prefix", "platform", "store", "mirror")
@click.option("--sizes", is_flag=True, help="Ask the channels how large the archives are.")
@add_options("json")
def show_plan(
    lock: str,
    prefix: Path,
    platform: str | None,
    store: Path | None,
    mirrors: tuple[str, ...],
    sizes: bool,
    as_json: bool,
) -> None:
    """Show what `create` would keep, add, change, remove and fetch; nothing is changed."""
    from . import archives, environment

    with _open_lock(lock) as found:
        where = _platform(platform, prefix)
        ask = environment.ask_size
        if sizes:
            told = archives.ask_sizes(found.on(where), read_mirrors(mirrors))
            ask = lambda package: told.get(package.url)  # noqa: E731
        planned = environment.plan(found, where, prefix.absolute(), find_store(store), ask=ask)
    if as_json:
        click.echo(json.dumps(planned.to_json(), indent=1))
    else:
        _print_plan(planned)


@env.command("create")
@add_options("lock", "prefix", "platform", "store", "mirror")
@click.option("--repair", is_flag=True, help="Verify every file, and link anew the packages that are not right.")
@add_options("json")
def create_environment(
    lock: str,
    prefix: Path,
    platform: str | None,
    store: Path | None,
    mirrors: tuple[str, ...],
    repair: bool,
    as_json: bool,
) -> None:
    """Make an environment what a lock says, or leave it when it is.

    Every archive's hash is checked before anything of it is linked, and every linked file after. What the lock does not name is
    removed. A run that was stopped is gone on with by the next.
    """
    from . import environment

    with _open_lock(lock) as found, show_bytes() as (progress, count):
        made = environment.create(
            found,
            _platform(platform, prefix),
            prefix,
            find_store(store),
            mirrors=read_mirrors(mirrors),
            source=lock,
            repair=repair,
            progress=progress,
            count=count,
        )
    if as_json:
        document = {
            "done": made.done,
            "repaired": list(made.repaired),
            "files_verified": made.files,
            **made.plan.to_json(),
        }
        click.echo(json.dumps({"prefix": str(prefix.absolute()), **document}, indent=1))
    elif made.done:
        _print_plan(made.plan)
        click.echo(f"{prefix.absolute()}: done, {made.files} files verified")
    else:
        click.echo(f"{prefix.absolute()}: nothing to do, {len(made.plan.keep)} packages are as the lock has them")


@env.command("verify")
@add_options("lock", "prefix", "platform", "store")
@add_options("json")
def verify_environment(lock: str, prefix: Path, platform: str | None, store: Path | None, as_json: bool) -> int:
    """Compare every file of an environment with the lock: lock -> archive -> paths.json -> bytes on disk.

    Names each file that is missing, altered or foreign. Exit codes: 0 all is right, 1 something is not.
    """
    from . import cli, env_verify, prefixes

    if not (prefix / prefixes.META).is_dir():
        raise prefixes.no_environment(prefix)
    with _open_lock(lock) as found:
        verified = env_verify.verify(
            found, prefix, _platform(platform, prefix), find_store(store), progress=cli.show_progress()
        )
    if as_json:
        click.echo(json.dumps(verified.to_json(), indent=1))
    else:
        _print_verified(verified)
    return errors.CheckFailed.exit_code if verified.findings else 0


@env.command("status")
@add_options("prefix", "json")
def show_status(prefix: Path, as_json: bool) -> int:
    """Say which lock an environment was made from, when, and whether packages came or went since.

    Exit codes: 0 as it was made, 1 not, or not made by dswin.
    """
    from . import environment

    found = environment.status(prefix.absolute())
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    elif found.stamp is None:
        click.echo(f"{prefix}: a conda environment that dswin did not make")
    else:
        stamp = found.stamp
        click.echo(f"Lock      {stamp.source}\nSHA-256   {stamp.lock}")
        click.echo(
            f"Made      {stamp.made} by dswin {stamp.version}, for {stamp.platform}, {len(stamp.packages)} packages"
        )
        click.echo(
            "Since     "
            + ("\n          ".join(found.drift) or "no package came or went (every file: dswin env verify)")
        )
    return 0 if found.stamp is not None and not found.drift else errors.CheckFailed.exit_code


@env.command("condarc")
@add_options("mirror")
@click.option("--out", type=click.Path(path_type=Path), help="Write it there, as ~/.condarc.  [default: print it]")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def write_condarc(mirrors: tuple[str, ...], out: Path | None, force: bool) -> None:
    """Write a .condarc by which conda itself asks a mirror."""
    from . import mirrors as known
    from .files import write_whole

    text = known.write_condarc(mirrors)
    if out is None:
        click.echo(text, nl=False)
        return
    if out.exists() and not force:
        raise errors.BadInput(
            f"{out} is there already. Nothing was written.",
            fix="Add --force, or merge by hand what is printed without --out.",
        )
    write_whole(out, text)
    click.echo(f"{out}: written")


@contextmanager
def _open_lock(text: str) -> Iterator[Lock]:
    """Read a lock from a path or a url; one from a url lies in a scratch folder while the context lasts.

    :raises MachineLacks: the url does not answer.
    """
    from . import addresses, downloads
    from . import lock as locks

    if not text.startswith(("http://", "https://", "file:")):
        yield locks.read(Path(text))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conda-lock.yml"
        try:
            downloads.Downloader(downloads.Room(path.parent), limit=_LOCK_LIMIT).download(text, path, ())
        except downloads.Unreachable as error:
            raise errors.MachineLacks(
                f"The lock {addresses.hide_secrets(text)} cannot be fetched.",
                fix="Check the url and the network.",
                log=str(error),
            ) from error
        yield locks.read(path)


def _platform(text: str | None, prefix: Path) -> str:
    from .prefixes import Stamp

    if text is None and (stamp := Stamp.read(prefix)):
        return stamp.platform
    if text is None:
        from .machine import this_platform  # takes a second to import

        return this_platform()
    return text


def _print_plan(planned: Plan) -> None:
    for sign, steps in (("-", planned.remove), ("~", planned.change), ("+", planned.add)):
        for step in steps:
            versions = " -> ".join(filter(None, (step.old, step.new)))
            click.echo(f"{sign} {step.name} {versions}" + (f" ({step.why})" if step.why else ""))
    for path in planned.broken:
        click.echo(f"- {path.name}, which cannot be read")
    sizes = [f"{planned.fetch / 1e6:.1f} MB to fetch"] if planned.fetch else []
    sizes += [f"{planned.unknown} archives to fetch whose size is not known"] if planned.unknown else []
    click.echo(
        f"keep {len(planned.keep)}, add {len(planned.add)}, change {len(planned.change)}, remove {len(planned.remove)}; "
        + ", ".join([*(sizes or ["nothing to fetch"]), f"{planned.free / 1e9:.1f} GB free"])
    )


def _print_verified(verified: Verified) -> None:
    for finding in verified.findings:
        click.echo(str(finding))
    for note in verified.notes:
        click.echo(f"note: {note}")
    click.echo(f"{verified.packages} packages, {verified.files} files compared, {len(verified.findings)} findings")
