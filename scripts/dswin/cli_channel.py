"""``dswin channel index | check | mirror | publish``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from . import cli_bundle
from .cli_options import add_options, find_store, read_mirrors


def url_option(where: str) -> Any:
    """The option that says where a channel is served."""
    words = (
        f"Where {where} is served, for the lines in its pages.  [default: a script in the page puts in its own address]"
    )
    return click.option("--url", metavar="URL", default="", help=words)


deps_option = click.option(
    "--deps",
    multiple=True,
    metavar="CHANNEL",
    help="A channel that has what the packages require: a url, name or folder, or a folder of package records. Once a channel. "
    "Not needed where torch is in the channel itself.",
)
incomplete_option = click.option(
    "--allow-incomplete", is_flag=True, help="The newest version may have fewer variants than an older one."
)


@click.command("index")
@click.argument("folder", type=click.Path(path_type=Path))
@url_option("FOLDER")
def index_channel(folder: Path, url: str) -> None:
    """Write all documents of a channel anew from the packages in FOLDER: repodata, run exports, channeldata, pages for people."""
    from . import channel as channels
    from . import channel_page

    count = channels.reindex(folder.absolute(), channel_page.check_url(url))
    click.echo(f"{folder}: {count} packages indexed")


@click.command("check")
@click.argument("folder", type=click.Path(path_type=Path))
@deps_option
@click.option(
    "--previous", type=click.Path(path_type=Path), help="SHA256SUMS of what was published.  [default: FOLDER's own]"
)
@incomplete_option
@add_options("json")
def check_channel(
    folder: Path, deps: tuple[str, ...], previous: Path | None, allow_incomplete: bool, as_json: bool
) -> int:
    """Check the channel in FOLDER: each archive and what is in it, every document about it, names that were published before,
    variants that are missing, and, with --deps, whether a solver can fulfil what its packages require.

    Exit code 1 if anything is wrong; each finding is named.
    """
    from . import channel_check, cli

    done = channel_check.check(
        folder.absolute(),
        deps=deps,
        previous=previous,
        allow_incomplete=allow_incomplete,
        progress=cli.show_progress(),
    )
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=1))
    else:
        for line in (*done.findings, *done.notes):
            click.echo(str(line))
        number = "nothing is wrong" if not done.findings else f"{len(done.findings)} findings"
        click.echo(f"{folder}: {len(done.records)} packages, {number}")
    return 1 if done.findings else 0


@click.command("publish")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", required=True, metavar="TARGET", help="Where people install from; see above.")
@url_option("TARGET")
@deps_option
@incomplete_option
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@add_options("json")
def publish_channel(
    folder: Path, to: str, url: str, deps: tuple[str, ...], allow_incomplete: bool, dry_run: bool, as_json: bool
) -> None:
    """Check the channel in FOLDER and add its packages to TARGET, where older ones stay and no file name is ever replaced.

    \b
    TARGET: a folder, a share (\\\\server\\share\\channel), file:///FOLDER, s3://BUCKET/PATH,
    https://anaconda.org/OWNER, https://prefix.dev/CHANNEL, quetz://HOST/CHANNEL

    Killed or without room, it is gone on with by the same command. Folders and S3 also get SHA256SUMS, an SBOM of each package
    (CycloneDX) and pages. Logins come from the keyring, RATTLER_AUTH_FILE or ANACONDA_API_KEY, PREFIX_API_KEY, QUETZ_API_KEY;
    for S3 they are what boto3 finds.
    """
    from . import channel_page, cli, publish

    done = publish.publish(
        folder.absolute(),
        to,
        url=channel_page.check_url(url),
        deps=deps,
        allow_incomplete=allow_incomplete,
        dry_run=dry_run,
        progress=cli.show_progress(),
    )
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=1))
        return
    verbs = ("to send", "to write") if dry_run else ("sent", "written")
    for verb, paths in zip(verbs, (done.sent, done.written), strict=True):
        for path in paths:
            click.echo(f"{verb:8}  {path}")
    for note in done.notes:
        click.echo(note)
    summary = f"{len(done.sent)} files {verbs[0]}, {len(done.present)} there already, {len(done.written)} documents {verbs[1]}"
    click.echo(f"{done.target}: {summary}")


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
