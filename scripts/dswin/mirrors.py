"""Mirrors of conda channels: where to ask first. A lock keeps its urls, and its hashes say whether a mirror's bytes are right."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .errors import BadInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "mirrors.toml"
#: Public mirrors by the name that ``--mirror`` takes: the folder whose subfolders are channels, and those of our channels that
#: they carry. https://mirrors.tuna.tsinghua.edu.cn/help/anaconda/ https://mirrors.ustc.edu.cn/help/anaconda.html
#: https://mirrors.bfsu.edu.cn/help/anaconda/ https://mirrors.sustech.edu.cn/help/anaconda.html
KNOWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tuna": ("https://mirrors.tuna.tsinghua.edu.cn/anaconda/cloud", ("conda-forge", "pytorch")),
    "ustc": ("https://mirrors.ustc.edu.cn/anaconda/cloud", ("conda-forge", "pytorch")),
    "bfsu": ("https://mirrors.bfsu.edu.cn/anaconda/cloud", ("conda-forge", "pytorch")),
    "sustech": ("https://mirrors.sustech.edu.cn/anaconda-extra/cloud", ("nvidia",)),
}
_OTHER_NAMES = {"tsinghua": "tuna"}


@dataclass(frozen=True)
class Mirrors:
    """:param table: {beginning of a url: what to try in its place, in this order}."""

    table: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def list_addresses(self, url: str) -> list[str]:
        """Where to ask for a url, in order: the mirrors of the longest beginning that fits, and the url itself.

        >>> Mirrors({"https://a/x": ("https://m/x",)}).list_addresses("https://a/x/noarch/p-1-0.conda")
        ['https://m/x/noarch/p-1-0.conda', 'https://a/x/noarch/p-1-0.conda']
        """
        # A beginning ends at a slash: conda-forge does not stand for conda-forge-dev.
        fitting = [start for start in self.table if url.startswith(start + "/")]
        places = self.table[max(fitting, key=len)] if fitting else ()
        start = max(fitting, key=len, default="")
        return [*dict.fromkeys([*(place + url[len(start) :] for place in places), url])]

    def __or__(self, other: Mirrors) -> Mirrors:
        """Both; where both know a beginning, this one's mirrors go first."""
        starts = {**self.table, **other.table}
        return Mirrors(
            {one: (*dict.fromkeys((*self.table.get(one, ()), *other.table.get(one, ()))),) for one in starts}
        )


NONE = Mirrors()


def read(path: Path) -> Mirrors:
    """Read a mirrors.toml: tables ``[[mirror]]`` with ``from``, a url, and ``to``, a list of urls.

    :raises BadInput: it cannot be read or is malformed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", fix=f"Name a {FILE}.") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # TOMLDecodeError, no UTF-8, a number of 5,000 digits; lists in lists in lists
        raise BadInput(f"{path} is not TOML: {error}.", fix="Correct it.") from error
    found = NONE
    entries = document.get("mirror")
    for number, entry in enumerate(entries if isinstance(entries, list) else [None], 1):
        places = entry.get("to") if isinstance(entry, dict) else None
        if not isinstance(places, list) or not places or not isinstance(entry.get("from"), str):
            raise BadInput(
                f"{path}: mirror {number} is malformed.",
                fix='Write [[mirror]], from = "https://...", to = ["https://...", ...].',
            )
        found |= _make(f"{path}: mirror {number}", entry["from"], places)
    return found


def parse(text: str) -> Mirrors:
    """What ``--mirror`` takes: the name of a known one, a mirrors.toml, or ``FROM=TO``.

    :raises BadInput: none of these.
    """
    from .records import ANACONDA  # brings rattler along, which few commands need

    name = _OTHER_NAMES.get(text.lower(), text.lower())
    if name in KNOWN:
        folder, channels = KNOWN[name]
        return Mirrors({f"{ANACONDA}/{channel}": (f"{folder}/{channel}",) for channel in channels})
    if text.endswith(".toml"):
        return read(Path(text))
    start, equals, place = text.partition("=")
    if not equals:
        raise BadInput(
            f"There is no mirror {text!r}.", fix=f"Known: {', '.join(KNOWN)}. Others: FROM=TO, or a .toml file."
        )
    return _make(f"--mirror {start}=...", start, [place])


def gather(texts: Iterable[str], folder: Path | None = None) -> Mirrors:
    """All that ``--mirror`` gave, in that order, then the mirrors.toml of a folder, if there is one.

    :raises BadInput: one of them is malformed.
    """
    found = NONE
    for text in texts:
        found |= parse(text)
    if folder is not None and (folder / FILE).is_file():
        found |= read(folder / FILE)
    return found


def _make(where: str, start: str, places: list[Any]) -> Mirrors:
    for url in (start, *places):
        try:
            scheme = urlsplit(url).scheme if isinstance(url, str) else ""
        except ValueError:
            scheme = ""
        if scheme not in ("https", "http", "file"):
            raise BadInput(f"{where} has something that is no https, http or file url.", fix="Write whole urls.")
    return Mirrors({start.rstrip("/"): tuple(place.rstrip("/") for place in places)})


def write_condarc(names: Iterable[str]) -> str:
    """The text of a .condarc by which conda itself asks a mirror, as the known mirrors' own help has it: custom_channels.

    :param names: what ``--mirror`` takes.
    :raises BadInput: no mirror of a whole channel of conda.anaconda.org is among them.
    """
    import yaml

    from .records import ANACONDA

    found = gather(names)
    channels = {}
    for start, places in found.table.items():
        name = start.removeprefix(ANACONDA + "/")
        folder, _, last = places[0].rpartition("/")
        if start == name or last != name:
            raise BadInput(
                f"conda cannot ask {places[0]} for {start}.",
                fix=f"custom_channels are for channels of {ANACONDA}, and the mirror's url must end in the channel's name.",
            )
        channels[name] = folder
    if not channels:
        raise BadInput("No mirror was named.", fix=f"--mirror NAME: {', '.join(KNOWN)}.")
    document = {"channels": list(channels), "custom_channels": channels, "show_channel_urls": True}
    return yaml.safe_dump(document, sort_keys=False)
