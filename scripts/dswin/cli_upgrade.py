"""The command ``dswin upgrade``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from . import errors

if TYPE_CHECKING:
    from .build import Deps
    from .upgrade import Builder, Target


@click.command()
@click.argument("release", metavar="VERSION|FILE.tar.gz")
@click.option("--torch", metavar="X.Y", help="With the variant cpu: another torch than the recipe's.")
@click.option("--target", type=click.Choice(["win-64", "linux-64"]), help="[default: this machine's]")
@click.option("--variant", default="cpu", show_default=True, help="cuda121, cuda130 or cpu.")
@click.option("--python", metavar="X.Y", help="The package's Python.  [default: the one that runs dswin]")
@click.option("--source-only", is_flag=True, help="Compare the source with the recipe; build nothing.")
@click.option(
    "--deps", type=click.Choice(["auto", "conda", "pypi"]), default="auto", show_default=True, help="As for build."
)
@click.option("--msvc", type=click.Path(path_type=Path), help="As for build.")
@click.option("--rehearse", is_flag=True, help="As for build: compile and link a CUDA variant for Windows on Linux.")
@click.option("--archs", metavar="LIST", help="With --rehearse: GPU architectures instead of the recipe's.")
@click.option(
    "--diff", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the recipe's patch there, not here."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings and the patch as JSON.")
def upgrade(
    release: str,
    torch: str | None,
    target: str | None,
    variant: str,
    python: str | None,
    source_only: bool,
    deps: str,
    msvc: Path | None,
    rehearse: bool,
    archs: str | None,
    file: Path | None,
    as_json: bool,
) -> int:
    """Try another release of DeepSpeed, or another torch, with a copy of the recipe, and say what breaks.

    Compares the source with the recipe, applies the patches one by one, builds and tests, and explains the log of what failed.
    Prints the patch that makes the recipe that of this release. The recipe itself and channel/ are not touched; the copy, the
    patched source and the package are left in .dswin/upgrade until the next trial.

    Exit codes: 0 nothing broke, 1 something did, 2 bad input or no such release, 3 this machine could not try it.
    """
    from rich.console import Console

    from . import cli, machine, rehearsal
    from . import upgrade as upgrades

    if archs and not rehearse:
        raise errors.BadInput("--archs goes with --rehearse.", fix="Add --rehearse, or leave --archs out.")
    if file and not file.absolute().parent.is_dir():
        raise errors.BadInput(f"{file.parent} is no folder.", fix="Make it, or name another file with --diff.")
    platform = target or machine.this_platform()
    if rehearse and platform != rehearsal.PLATFORM:
        raise errors.BadInput(f"A build for {platform} is not rehearsed.", fix=f"Add --target {rehearsal.PLATFORM}.")
    aim = upgrades.Target(platform, variant, python or machine.this_python(platform), torch)
    builder = None if source_only else make_builder(aim, deps, msvc, rehearse, archs)
    trial = upgrades.attempt(cli.RECIPE, cli.CACHE, release, aim, builder, cli.show_progress())
    if file:
        file.write_bytes(trial.diff.encode())
    if as_json:
        click.echo(json.dumps(trial.to_json(), indent=1))
        return trial.exit_code
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(upgrades.table(trial))
    click.echo(", ".join(f"{count} {status}" for status, count in trial.count().items()))
    click.echo(f"Source, recipe and package: {trial.folder}")
    if file:
        click.echo(f"The recipe's patch: {file}")
    elif trial.diff:
        click.echo(f"\nThe recipe's patch, for git apply:\n\n{trial.diff}", nl=False)
    return trial.exit_code


def make_builder(target: Target, deps: str, msvc: Path | None, rehearse: bool, archs: str | None) -> Builder:
    """Return what builds a target as ``dswin build`` does."""
    from . import build, cli, rehearsal

    def package(recipe: Path, channel: Path) -> str:
        built = build.build(
            recipe, channel, cli.CACHE, platform=target.platform, variant=target.variant, python=target.python,
            deps=cast("Deps", deps), msvc=msvc, progress=cli.show_progress(),
        )  # fmt: skip
        return f"Built and tested, {len(built.binaries)} ops: {built.package}"

    def compile_only(recipe: Path, channel: Path) -> str:
        done = rehearsal.rehearse(
            recipe, cli.CACHE, variant=target.variant, python=target.python, archs=archs, msvc=msvc,
            progress=cli.show_progress(),
        )  # fmt: skip
        return f"Rehearsed: {len(done.binaries)} ops compiled for {done.archs} and linked, none loaded: {done.folder}"

    return compile_only if rehearse else package
