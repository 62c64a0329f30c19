"""What changed between two locks, and whether a policy allows it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from .addresses import hide_secrets
from .lock import Lock, Locked

#: What may change of a package, and what each means.
KINDS: Mapping[str, str] = {
    "added": "only the second lock has it",
    "removed": "only the first lock has it",
    "version": "another version",
    "build": "the same version, and another build or another kind of archive",
    "channel": "from another channel",
    "hash": "the same file name, and other content: what was published under it has been replaced, or the lock was altered",
}
#: What each policy does not allow, from the laxest to the strictest.
POLICIES: Mapping[str, str] = {
    "none": "nothing",
    "hash": "a change of hash",
    "major": "that, another channel, and another major version",
    "any": "any change",
}


@dataclass(frozen=True)
class Change:
    """What changed of one package for one platform.

    :param kinds: of :data:`KINDS`, in that order; never empty.
    """

    platform: str
    name: str
    kinds: tuple[str, ...]
    before: Locked | None
    after: Locked | None

    @property
    def is_major(self) -> bool:
        """Whether the epoch or the first number of the version differs."""
        if self.before is None or self.after is None:
            return False
        return _read_major(self.before.version) != _read_major(self.after.version)


def compare(first: Lock, second: Lock) -> list[Change]:
    """All changes, by platform and name; an empty list when both locks install the same files.

    What the locks say of themselves, and of requirements, is not compared.
    """
    before, after = ({(one.platform, one.name): one for one in found.packages} for found in (first, second))
    changes = []
    for platform, name in sorted({*before, *after}):
        old, new = before.get((platform, name)), after.get((platform, name))
        if kinds := _list_kinds(old, new):
            changes.append(Change(platform, name, kinds, old, new))
    return changes


def _list_kinds(old: Locked | None, new: Locked | None) -> tuple[str, ...]:
    if old is None or new is None:
        return ("added",) if old is None else ("removed",)
    found = {
        "version": old.version != new.version,
        "build": old.version == new.version and (old.fn, old.subdir) != (new.fn, new.subdir),
        "channel": old.channel != new.channel,
        "hash": old.fn == new.fn and not _has_same_content(old, new),
    }
    return tuple(kind for kind in KINDS if found.get(kind))


def _has_same_content(old: Locked, new: Locked) -> bool:
    """A sha256 that was added to an md5 is no change; one that was taken away is one: less vouches for the file."""
    pairs = [(old.md5, new.md5), (old.sha256, new.sha256)]
    known = [one == other for one, other in pairs if one and other]
    return bool(known) and all(known) and not (old.sha256 and not new.sha256)


def _read_major(version: str) -> tuple[str, str]:
    epoch, _, rest = version.rpartition("!")
    number = re.match(r"v?(\d+)", rest)
    return epoch or "0", number[1] if number else rest


def find_forbidden(changes: Iterable[Change], policy: str) -> list[Change]:
    """The changes that a policy, a name in :data:`POLICIES`, does not allow."""
    strictness = list(POLICIES).index(policy)
    return [
        one
        for one in changes
        if strictness == 3
        or (strictness >= 1 and "hash" in one.kinds)
        or (strictness >= 2 and ("channel" in one.kinds or one.is_major))
    ]


def count(changes: Iterable[Change]) -> dict[str, int]:
    """How often each kind of change is there; kinds that are not are left out."""
    counted = Counter(kind for change in changes for kind in change.kinds)
    return {kind: counted[kind] for kind in KINDS if counted[kind]}


def to_json(changes: Iterable[Change], forbidden: Sequence[Change]) -> list[dict[str, object]]:
    """The changes for programs."""
    return [
        {
            "platform": one.platform,
            "name": one.name,
            "kinds": list(one.kinds),
            "forbidden": one in forbidden,
            "before": _describe(one.before),
            "after": _describe(one.after),
        }
        for one in changes
    ]


def _describe(package: Locked | None) -> dict[str, str | None] | None:
    if package is None:
        return None
    return {
        "version": package.version,
        "build": package.build,
        "channel": hide_secrets(package.channel),
        "fn": package.fn,
        "md5": package.md5,
        "sha256": package.sha256,
    }


def _list_cells(change: Change) -> tuple[str, str, str, str, str]:
    """Platform, package, kinds, before, after; of the last two what differs."""
    sides = []
    for package in (change.before, change.after):
        parts = []
        if package is not None:
            parts.append(f"{package.version} {package.build}")
            if "build" in change.kinds and change.before and change.after and change.before.build == change.after.build:
                parts.append(f"{package.subdir}/{package.fn}")
            if "channel" in change.kinds:
                parts.append(hide_secrets(package.channel))
            if "hash" in change.kinds:
                parts.append(f"sha256 {package.sha256}" if package.sha256 else f"md5 {package.md5}")
        sides.append(", ".join(parts))
    return change.platform, change.name, ", ".join(change.kinds), sides[0], sides[1]


_HEADINGS = ("platform", "package", "change", "before", "after")


def to_table(changes: Iterable[Change], forbidden: Sequence[Change]) -> Table:
    """The changes for people; those that are not allowed are red."""
    table = Table(*_HEADINGS, box=None, pad_edge=False)
    for change in changes:
        style = "bold red" if change in forbidden else ""
        table.add_row(*(Text(cell, overflow="fold") for cell in _list_cells(change)), style=style)
    return table


def to_markdown(changes: Iterable[Change], forbidden: Sequence[Change]) -> str:
    """The changes as a table for a pull request; those that are not allowed are bold."""
    rows = [_HEADINGS, ("---",) * len(_HEADINGS)]
    for change in changes:
        cells = [re.sub(r"([\\|`*_<>\[\]])", r"\\\1", cell) for cell in _list_cells(change)]
        rows.append(tuple(f"**{cell}**" if cell and change in forbidden else cell for cell in cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
