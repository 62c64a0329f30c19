"""``dswin channel mirror``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from . import cli_bundle
from .cli_options import add_options, find_store, read_mirrors


@click.command("mirror")
@click.argument("lock", type=click.Path(path_type=Path))
@click.option(
    "--platform", "platforms", multiple=True, metavar="P", help="Once a platform.  [default: all of the lock's]"
)
@click.option("--out", type=click.Path(path_type=Path), help="The channel folder.  [default: channel]")
@add_options("store", "mirror", "json")
def mirror_lock(
    lock: Path,
    platforms: tuple[str, ...],
    out: Path | None,
    store: Path | None,
    mirrors: tuple[str, ...],
    as_json: bool,
) -> None:
    """Copy every package of LOCK into a channel of our own, which then brings all that deepspeed-win needs.

    Each archive's hash is checked against the lock. What the channel has already stays, and no file of it is ever replaced.
    licences.txt in the channel has the licence of each package.
    """
    from . import cli, mirror
    from . import lock as locks

    channel = (out or cli.ROOT / "channel").absolute()
    done = mirror.mirror(
        locks.read(lock),
        channel,
        find_store(store),
        platforms=platforms,
        mirrors=read_mirrors(mirrors),
        progress=cli.show_progress(),
    )
    if as_json:
        document = {
            "channel": str(channel),
            "added": list(done.added),
            "licences": {archive.place: archive.licence for archive in done.archives},
            "warnings": list(done.warnings),
        }
        click.echo(json.dumps(document, indent=1))
        return
    cli_bundle.show_warnings(done.warnings)
    present = len(done.archives) - len(done.added)
    click.echo(f"Channel   {channel}: {len(done.added)} packages added, {present} were there")
    click.echo(f"Licences  {channel / mirror.LICENCES}")
    click.echo(f"Install   conda install --override-channels -c {channel.as_uri()} deepspeed-win")
