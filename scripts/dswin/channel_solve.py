"""Whether solvers can fulfil what a channel's packages require."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import channel as channels
from . import channel_data, records, solver
from .addresses import hide_secrets
from .errors import BadInput, MachineLacks

Progress = Callable[[str], None]


def solve(
    channel: Path, all_records: Mapping[str, dict], deps: Sequence[str], progress: Progress = lambda _: None
) -> list[tuple[str, str]]:
    """Ask a solver for each package that no other of the channel requires, with the channels that have the rest.

    :param deps: channels, first one first; a folder of package records stands for pytorch, nvidia and conda-forge. Of these three
        each variant is given those that its install line names.
    :return: (place, the solver's words) of what cannot be solved.
    :raises MachineLacks: a channel does not answer.
    """
    import rattler
    from rattler.exceptions import InvalidChannelError, InvalidUrlError, SolverError

    from .build import CHANNELS

    required = {channels.read_name(text) for record in all_records.values() for text in record.get("depends") or ()}
    roots = {place: record for place, record in all_records.items() if record["name"] not in required}
    unsolved: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        sources = {"": rattler.Channel(channel.absolute().as_uri())}
        for dep in deps:
            folder = Path(dep)
            if any(folder.glob("*.jsonl")):
                _write_records(folder, Path(scratch))
                sources |= {name: rattler.Channel((Path(scratch) / name).as_uri()) for name in CHANNELS["cuda121"]}
            else:
                text = folder.absolute().as_uri() if folder.is_dir() else dep
                try:
                    sources[text.rstrip("/").rpartition("/")[2]] = rattler.Channel(text)
                except (InvalidChannelError, InvalidUrlError, UnicodeError) as error:
                    raise BadInput(
                        f"--deps {hide_secrets(dep)!r} names no channel: {solver.first_line(error)}.",
                        fix="Give a url, a name such as conda-forge, or a folder.",
                    ) from error
        gateway = rattler.Gateway(cache_dir=Path(scratch) / "cache")
        for place, record in sorted((roots or all_records).items()):
            chosen = [one for name, one in sources.items() if name not in _list_others(place, record)]
            subdir = place.partition("/")[0]
            for platform in solver.VIRTUAL if subdir == "noarch" else [subdir]:
                progress(f"solving {record['name']} {record['version']} {record['build']} for {platform}")
                asked = rattler.solve(
                    chosen,
                    [f"{record['name']} =={record['version']} {record['build']}"],
                    gateway=gateway,
                    platforms=[rattler.Subdir(platform), rattler.Subdir("noarch")],
                    virtual_packages=solver.list_virtual_packages(_list_virtual(platform, record)),
                )
                try:
                    asyncio.run(asked)
                except SolverError as error:
                    unsolved.append((place, f"on {platform}: {' '.join(str(error).split())[:1000]}"))
                except Exception as error:  # rattler's gateway raises of all kinds where a channel does not answer
                    # The lines below have paths and urls in a form in which a token is not found.
                    why = solver.first_line(error)
                    for dep in deps:
                        why = why.replace(dep, hide_secrets(dep))
                    raise MachineLacks(
                        f"Whether {place} can be solved on {platform} was not to be found out: {why}.",
                        fix="Check the network and the names of the channels in --deps, or leave them out.",
                    ) from error
    return unsolved


def _list_others(place: str, record: Mapping[str, Any]) -> set[str]:
    """The channels that a variant does not take its requirements from. With one of them in front, its torch would be hidden."""
    from .build import CHANNELS

    own = CHANNELS.get(channel_data.make_row(place, record, {})["variant"])
    return {name for names in CHANNELS.values() for name in names} - set(own) if own else set()


def _list_virtual(platform: str, record: Mapping[str, Any]) -> dict[str, str]:
    """The virtual packages of a machine for which a package is meant: with the oldest driver that it allows."""
    virtual = dict(solver.VIRTUAL[platform])
    cuda = channel_data.find_version(record.get("depends") or (), "__cuda")
    return {**virtual, **({"__cuda": cuda} if cuda else {})}


def _write_records(folder: Path, scratch: Path) -> None:
    """Package records as channels on the disk, each with all its subdirs."""
    from .build import CHANNELS

    records.write_repodata(records.read(folder), scratch)
    for name in CHANNELS["cuda121"]:
        for subdir in channels.SUBDIRS:
            path = scratch / name / subdir / "repodata.json"
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(channel_data.make_repodata(subdir, {})), encoding="utf-8")
