"""The pages of a channel, for people: how to install from it, and what each package is for. They need no script, load nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from . import pages
from .errors import BadInput

TEMPLATE, INDEX = "channel.html.j2", "index.html"
#: What stands for the channel's url where nobody said it and no script runs.
PLACEHOLDER = "https://HOST/CHANNEL"
SYSTEMS = {"win-64": "Windows", "linux-64": "Linux", "noarch": "any system"}
#: Nothing that a shell would take apart.
_URL = re.compile(r"(https?|file|s3)://[\w.~:/@%+,=-]+")
#: The name of the environment in the install lines.
_ENVIRONMENT = "deepspeed"

Row = dict[str, Any]


def check_url(url: str) -> str:
    """The url of a channel as it can stand in a page that everybody reads.

    :raises BadInput: it is none, or has a secret in it.
    """
    from .lock import holds_secret

    url = url.rstrip("/")
    if url and not _URL.fullmatch(url):
        raise BadInput(f"{url!r} is no channel's url.", fix="Write it as https://host/channel, with %20 for a space.")
    if url and holds_secret(url):
        raise BadInput(
            "The channel's url has a user, a password or a token in it, and its pages are for everybody.",
            fix="Leave it out: clients take it from their own settings.",
        )
    return url


def render(rows: Sequence[Row], subdirs: Sequence[str], url: str = "") -> dict[str, bytes]:
    """{path: bytes} of a channel's index.html, and of one for each subdir.

    :param rows: as :func:`dswin.channel_data.make_row` makes them.
    :param url: the channel's; without it a script in the page puts in where the page lies.
    """
    template = pages.find_template(
        TEMPLATE,
        size=show_size,
        date=show_date,
        system=lambda subdir: SYSTEMS.get(subdir, subdir),
        file=quote,
        purpose=name_purpose,
        facts=list_facts,
    )
    name = choose_name(rows)
    shared = {
        "name": name,
        "url": check_url(url) or PLACEHOLDER,
        "known": bool(url),
        "published": any(row["sbom"] for row in rows),
        "subdirs": {subdir: sum(row["subdir"] == subdir for row in rows) for subdir in subdirs},
    }

    def render_page(subdir: str = "") -> bytes:
        chosen = sort(row for row in rows if row["subdir"] == (subdir or row["subdir"]))
        ours = [row for row in chosen if row["name"] == name]
        newest = [row for row in ours if row["version"] == ours[0]["version"]]
        page = template.render(
            **shared,
            subdir=subdir,
            version=newest[0]["version"] if newest else "",
            variants={row["variant"] for row in newest},
            clients=list_clients(newest, rows) if newest else [],
            newest={
                system: [(row, conda_line(row, rows)) for row in found]
                for system, found in groupby(newest, itemgetter("subdir"))
            },
            older=ours[len(newest) :],
            others=[row for row in chosen if row["name"] != name],
        )
        return page.encode()

    return {INDEX: render_page(), **{f"{subdir}/{INDEX}": render_page(subdir) for subdir in subdirs}}


def choose_name(rows: Sequence[Row]) -> str:
    """The package that the channel is for: ours, or the first of what is in it."""
    from .solver import PACKAGE

    names = [row["name"] for row in rows]
    return PACKAGE if PACKAGE in names or not names else names[0]


def sort(rows: Iterable[Row]) -> list[Row]:
    """By name; the newest version first, of it what is for Windows, then as solvers prefer builds: by build number."""
    from .channel_data import parse

    found = sorted(rows, key=lambda row: row["build"])
    found.sort(key=lambda row: row["build_number"], reverse=True)
    found.sort(key=lambda row: (row["subdir"] != "win-64", row["subdir"]))
    found.sort(key=lambda row: parse(row["version"]), reverse=True)
    return sorted(found, key=lambda row: row["name"])


def list_channels(chosen: Iterable[Row], rows: Iterable[Row]) -> list[str]:
    """The channels to name behind this one: none if torch is in it, else those that the chosen builds' dependencies come from.

    :param rows: all of the channel.
    """
    from .build import CHANNELS

    if any(row["name"] == "pytorch" for row in rows):
        return []
    wanted: list[tuple[str, ...]] = [CHANNELS[row["variant"]] for row in chosen if row["variant"] in CHANNELS]
    return max([list(CHANNELS["cpu"]), *map(list, wanted)], key=len)


def list_clients(chosen: Sequence[Row], rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """(client, its lines, a note or nothing) to install one of the chosen builds, with the placeholder for the channel's url.

    conda, mamba and micromamba ask the machine for its driver. pixi and conda-lock solve for machines that are described to them:
    pixi's have no driver, and conda-lock's have one of CUDA 11.4, which is too old for every CUDA build.
    """
    name = chosen[0]["name"]
    others = list_channels(chosen, rows)
    channels = " ".join(f"-c {channel}" for channel in (PLACEHOLDER, *others))
    create = f"create -n {_ENVIRONMENT} --override-channels {channels} {name}"
    source = [
        "channels:",
        *(f"  - {one}" for one in (PLACEHOLDER, *others, "nodefaults")),
        "dependencies:",
        f"  - {name}",
    ]
    platforms = " ".join(f"-p {subdir}" for subdir in sorted({row["subdir"] for row in chosen} - {"noarch"}))
    drivers = sorted({row["driver"] for row in chosen if row["driver"]}, key=lambda text: [*map(int, text.split("."))])
    pixi = [f"pixi init {_ENVIRONMENT} {channels}", f"cd {_ENVIRONMENT}", f"pixi add {name}"]
    asked, without_pixi, without_lock = "", "", ""
    if drivers:
        pixi.insert(2, f"pixi workspace system-requirements add cuda {drivers[0]}")
        asked = f" --with-cuda {drivers[0]}"
        without_pixi = "Without an NVIDIA driver, leave out the line with cuda."
        without_lock = "Without an NVIDIA driver, write --without-cuda in its place."
    lock = "gpu-py311" if drivers else "cpu-py311"
    return [
        ("conda", f"conda {create}", ""),
        ("mamba", f"mamba {create}", ""),
        ("micromamba", f"micromamba {create}", ""),
        ("pixi", "\n".join(pixi), without_pixi),
        ("conda-lock: environment.yml", "\n".join(source), ""),
        (
            "conda-lock",
            f"conda-lock lock -f environment.yml {platforms}{asked}\nconda-lock install -n {_ENVIRONMENT} conda-lock.yml",
            without_lock,
        ),
        (
            "dswin env create",
            f"dswin lock {lock} --channel {PLACEHOLDER}\n"
            f"dswin env create --lock locks/{lock}.conda-lock.yml --prefix envs/{_ENVIRONMENT}",
            "",
        ),
    ]


def conda_line(row: Row, rows: Sequence[Row]) -> str:
    """The line by which conda installs exactly this build."""
    channels = " ".join(f"-c {one}" for one in (PLACEHOLDER, *list_channels([row], rows)))
    return f'conda install --override-channels {channels} "{row["name"]}={row["version"]}={row["build"]}"'


def name_purpose(row: Mapping[str, Any]) -> str:
    """What a build is for, in words: CUDA 12.1, CPU, or its build string."""
    if row["cuda"]:
        return f"CUDA {row['cuda']}"
    return "CPU" if row["variant"] == "cpu" else str(row["variant"] or row["build"])


def list_facts(row: Mapping[str, Any]) -> str:
    """What is in a build, in a line: variant, CUDA, torch, Python, CPU code, GPU architectures; nothing for other packages."""
    facts = {
        "": row["variant"],
        "CUDA ": row["cuda"],
        "torch ": row["torch"],
        "Python ": row["python"],
        "CPU code ": row["simd"].upper(),
        "GPU ": ", ".join(row["archs"]),
    }
    return " · ".join(f"{label}{value}" for label, value in facts.items() if value)


def show_size(size: int | None) -> str:
    """A number of bytes for people."""
    if size is None:
        return "unknown"
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def show_date(timestamp: int | None) -> str:
    """A time in seconds since 1970 as a date, UTC."""
    return "unknown" if timestamp is None else datetime.fromtimestamp(timestamp, timezone.utc).strftime("%Y-%m-%d")
