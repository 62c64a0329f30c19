"""The command ``dswin doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from . import errors

if TYPE_CHECKING:
    from .seen import Purpose


@click.command()
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["run", "build"]),
    default="run",
    show_default=True,
    help="Is it ready to run deepspeed-win, or to build it?",
)
@click.option(
    "--prefix", "-p", type=click.Path(path_type=Path), help="The environment's folder.  [default: the active one]"
)
@click.option("--python", type=click.Path(path_type=Path), metavar="FILE", help="Instead: the environment's Python.")
@click.option("--variant", help="cuda121, cuda130 or cpu.  [default: what is installed; to build: as `build`]")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(purpose: str, prefix: Path | None, python: Path | None, variant: str | None, as_json: bool) -> int:
    """Look at this machine and one environment, and say what is in the way, with what to type.

    Nothing is changed. The environment's Python is started once, to import torch.

    Exit codes: 0 no check failed, 1 one did, 2 bad input, 3 nothing could be looked at.
    """
    from rich.console import Console

    from . import cli
    from . import doctor as doctors

    if prefix and python:
        raise errors.BadInput("--prefix and --python both name an environment.", fix="Give one of them.")
    cli.show_progress()("looking at this machine" + (" and importing torch" if purpose == "run" else ""))
    found = doctors.examine(
        cast("Purpose", purpose), cli.RECIPE, cli.CACHE / "build", prefix=prefix, python=python, variant=variant or ""
    )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return found.exit_code
    here = found.seen.installation
    click.echo(f"{here.prefix} ({here.origin})" + (f", variant {found.seen.variant}" if found.seen.variant else ""))
    Console(highlight=False, soft_wrap=False).print(doctors.table(found))
    click.echo(", ".join(f"{count} {status}" for status, count in found.count().items() if count))
    return found.exit_code
