"""Options and reports that the commands for locks, environments and bundles share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .mirrors import Mirrors


def add_options(*names: str) -> Callable[[Any], Any]:
    """The options that several commands have, in this order."""
    folder = click.Path(path_type=Path)
    mirror = "Ask there first: tuna, ustc, bfsu, sustech, one url for another, or a mirrors.toml. The hashes stay the lock's."
    known = {
        "lock": click.option("--lock", metavar="FILE|URL", required=True, help="A conda-lock.yml (version 1)."),
        "prefix": click.option("--prefix", "-p", type=folder, required=True, help="The environment's folder."),
        "platform": click.option(
            "--platform", metavar="P", help="win-64 or linux-64.  [default: the environment's, else this machine's]"
        ),
        "store": click.option("--store", type=folder, help="Where archives are kept.  [default: .dswin/archives]"),
        "mirror": click.option("--mirror", "mirrors", multiple=True, metavar="NAME|FROM=TO|FILE", help=mirror),
        "json": click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    }

    def decorate(function: Any) -> Any:
        for name in reversed(names):
            function = known[name](function)
        return function

    return decorate


@contextmanager
def show_bytes() -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Functions for lines and for bytes: a bar on a terminal, plain lines elsewhere."""
    from . import cli

    if not cli.console.is_terminal:
        yield cli.show_progress(), lambda done, more: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=cli.console, transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        total = 0

        def count(done: int, more: int) -> None:
            nonlocal total
            total += more
            bar.update(task, advance=done, total=total, visible=True)

        yield cli.show_progress(), count


def find_store(folder: Path | None) -> Path:
    """The folder of archives: the one named, or the one that all commands share."""
    from . import cli

    return (folder or cli.CACHE / "archives").absolute()


def read_mirrors(texts: tuple[str, ...]) -> Mirrors:
    """What ``--mirror`` said, and a mirrors.toml at the root of this project."""
    from . import cli, mirrors

    return mirrors.gather(texts, cli.ROOT)
