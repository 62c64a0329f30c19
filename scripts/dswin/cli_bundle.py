"""The commands of ``dswin bundle``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .cli_options import add_options, find_store, read_mirrors, show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def bundle() -> None:
    """An environment in one file, for machines without a network."""


@bundle.command("create")
@click.option("--lock", "lock", type=click.Path(path_type=Path), required=True, help="A conda-lock.yml (version 1).")
@click.option(
    "--platform", metavar="P", help="win-64 or linux-64, on either.  [default: the lock's, if it has one only]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="The file.  [default: LOCK-PLATFORM.dswin-bundle.zip here]"
)
@click.option(
    "--channel", type=click.Path(path_type=Path), help="A channel's folder in which to look for packages first."
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    help="A folder of wheels that goes in too: dswin and what it needs, for machines that have Python and no conda.",
)
@add_options("store", "mirror", "json")
def create_bundle(
    lock: Path,
    platform: str | None,
    out: Path | None,
    channel: Path | None,
    wheels: Path | None,
    store: Path | None,
    mirrors: tuple[str, ...],
    as_json: bool,
) -> None:
    """Put the packages of a lock, as a channel, and what installs them into one file.

    The same lock gives the same bytes on every machine. Tell the people who get the file its sha256.
    """
    from . import bundle, cli, errors
    from . import lock as locks

    if platform is None:
        platforms = locks.read(lock).platforms
        if len(platforms) > 1:
            raise errors.BadInput(f"{lock} is for {' and '.join(platforms)}.", fix="Choose: --platform P.")
        platform = platforms[0]
    made = bundle.create(
        lock,
        platform,
        out or Path.cwd() / bundle.name_for(lock, platform),
        find_store(store),
        channel=channel,
        wheels=wheels,
        mirrors=read_mirrors(mirrors),
        progress=cli.show_progress(),
    )
    if as_json:
        document = {
            "bundle": str(made.path.absolute()),
            "platform": made.platform,
            "sha256": made.sha256,
            "size": made.size,
            "packages": [str(package) for package in made.packages],
            "warnings": list(made.warnings),
        }
        click.echo(json.dumps(document, indent=1))
        return
    show_warnings(made.warnings)
    click.echo(f"Bundle   {made.path}  ({made.size / 1e6:.1f} MB, {len(made.packages)} packages, {made.platform})")
    click.echo(f"SHA-256  {made.sha256}")
    click.echo(f"Install  dswin bundle install {made.path.name} --prefix DIR, or see README.txt in it")


@bundle.command("check")
@_FILE
@add_options("json")
def check_bundle(file: Path, as_json: bool) -> None:
    """Make sure that a bundle is as it was made, to the last byte; what is wrong is named.

    Exit codes: 0 it is, 1 it is not.
    """
    from . import bundle, cli

    read = bundle.check(file, progress=cli.show_progress())
    if as_json:
        document = {
            "bundle": str(file.absolute()),
            "platform": read.manifest.platform,
            "sha256": read.sha256,
            "lock_sha256": read.manifest.lock_sha256,
            "packages": [str(package) for package in read.packages],
        }
        click.echo(json.dumps(document, indent=1))
        return
    click.echo(f"{file}: as it was made, {len(read.packages)} packages for {read.manifest.platform}")
    click.echo(f"SHA-256  {read.sha256}  (who made it can tell whether it is theirs)")


@bundle.command("install")
@_FILE
@add_options("prefix", "store", "json")
def install_bundle(file: Path, prefix: Path, store: Path | None, as_json: bool) -> None:
    """Make an environment from a bundle: every byte is checked before, and every linked file after. No network is asked."""
    from . import bundle

    with show_bytes() as (progress, count):
        made = bundle.install(file, prefix, find_store(store), progress=progress, count=count)
    if as_json:
        document = {
            "prefix": str(prefix.absolute()),
            "done": made.done,
            "files_verified": made.files,
            **made.plan.to_json(),
        }
        click.echo(json.dumps(document, indent=1))
    elif made.done:
        click.echo(f"{prefix.absolute()}: done, {made.files} files verified")
    else:
        click.echo(f"{prefix.absolute()}: nothing to do, {len(made.plan.keep)} packages are as the bundle has them")


def show_warnings(warnings: Iterable[str]) -> None:
    """Print them for a person."""
    from . import cli, errors

    for warning in warnings:
        cli.console.print("[bold yellow]warning:[/bold yellow]", end=" ")
        cli.console.print(errors.show_text(warning), markup=False)
