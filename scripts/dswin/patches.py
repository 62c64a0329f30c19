"""Does a patch still fit a source tree, and where not? Each hunk is placed as GNU patch places it, as the builders do.

A program would do, but Windows has none; and a builder says nothing of a hunk that it took although the lines around it differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .errors import BadInput

#: Lines of context that may differ at each end of a hunk: the default of patch, and of rattler-build.
FUZZ = 2
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NOTHING = "/dev/null"

#: ``offset``: lines further up or down. ``fuzz``: other context. ``upstream``: the tree has it already.
State = Literal["applies", "offset", "fuzz", "upstream", "fails"]


@dataclass(frozen=True)
class Hunk:
    """One change. :param number: in its file, from 1. :param start: its first line in the old file, from 1."""

    number: int
    start: int
    lines: tuple[str, ...]

    def side(self, mark: str) -> list[str]:
        """The lines before (``-``) or after (``+``) the change, with their context."""
        return [line[1:] for line in self.lines if line[0] in (" ", mark)]

    def context(self) -> tuple[int, int]:
        """How many lines of context stand before the first change and after the last one."""
        changed = [at for at, line in enumerate(self.lines) if line[0] != " "]
        return (changed[0], len(self.lines) - 1 - changed[-1]) if changed else (len(self.lines), 0)


@dataclass(frozen=True)
class FilePatch:
    """The changes of one file. :param path: relative to the tree. :param creates: the file is new. :param deletes: it goes."""

    path: str
    hunks: tuple[Hunk, ...]
    creates: bool = False
    deletes: bool = False


@dataclass(frozen=True)
class Placed:
    """Where a hunk went, or did not.

    :param state: ``upstream`` where the tree holds the hunk's result and not what it starts from.
    :param offset: lines below (above: negative) the place that the patch names. :param fuzz: lines of context left out.
    """

    path: str
    hunk: Hunk
    state: State
    offset: int = 0
    fuzz: int = 0


@dataclass(frozen=True)
class Applied:
    """What became of a patch. A patch that fails in one hunk changes nothing."""

    name: str
    placed: tuple[Placed, ...]

    @property
    def state(self) -> State:
        """What is worst of its hunks; ``upstream`` only where all of them are."""
        states = {one.state for one in self.placed}
        if states == {"upstream"}:
            return "upstream"
        if states & {"fails", "upstream"}:
            return "fails"
        return next((one for one in ("fuzz", "offset") if one in states), "applies")

    @property
    def paths(self) -> set[str]:
        return {one.path for one in self.placed}


def parse(text: str, name: str) -> list[FilePatch]:
    """Return what a unified diff changes, its paths without the first part (``-p1``).

    :param name: of the patch, for messages.
    :raises BadInput: it changes nothing, or a hunk is not as long as it says.
    """
    files: list[FilePatch] = []
    # Not splitlines: it ends lines at form feeds too.
    lines = iter(text.split("\n"))
    old = ""
    for line in lines:
        if line.startswith("--- "):
            old = line[4:].split("\t")[0].strip()
        elif line.startswith("+++ ") and old:
            new = line[4:].split("\t")[0].strip()
            path = (old if new == _NOTHING else new).split("/", 1)[-1]
            files.append(FilePatch(path, (), creates=old == _NOTHING, deletes=new == _NOTHING))
        elif (head := _HUNK.match(line)) and files:
            last = files[-1]
            hunk = Hunk(len(last.hunks) + 1, int(head[1]), tuple(_take_lines(lines, head, f"{name}: {last.path}")))
            files[-1] = replace(last, hunks=(*last.hunks, hunk))
    if not any(one.hunks for one in files):
        raise BadInput(f"{name} is no unified diff.", fix="Restore it from the repository.")
    return files


def _take_lines(lines: Iterator[str], head: re.Match[str], where: str) -> Iterator[str]:
    left = {"-": int(head[2] or 1), "+": int(head[4] or 1)}
    while left["-"] or left["+"]:
        line = next(lines, None)
        if line is None or line[:1] not in ("", " ", "-", "+", "\\"):
            raise BadInput(f"{where}: a hunk is shorter than {head[0]} says.", fix="Restore it from the repository.")
        if line.startswith("\\"):
            continue
        # Editors strip the blank of an empty line of context.
        line = line or " "
        for side in ("-", "+"):
            left[side] -= line[0] in (" ", side)
        yield line


def apply(patch: Path, tree: Path) -> Applied:
    """Apply a patch to the files below ``tree``, whole or not at all, and say where each hunk went.

    :raises BadInput: it is no unified diff.
    """
    placed: list[Placed] = []
    changed: dict[Path, str | None] = {}
    for file in parse(patch.read_bytes().decode("utf-8", "surrogateescape"), patch.name):
        path = tree / file.path
        there = path.is_file()
        text = path.read_bytes().decode("utf-8", "surrogateescape") if there else ""
        lines = text.split("\n") if text else []
        result, found = place(file, lines, there)
        placed += found
        changed[path] = None if file.deletes else "\n".join(result) + ("\n" if file.creates else "")
    applied = Applied(patch.name, tuple(placed))
    if applied.state in ("applies", "offset", "fuzz"):
        for path, content in changed.items():
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return applied


def place(file: FilePatch, lines: list[str], there: bool) -> tuple[list[str], list[Placed]]:
    """Return the lines of a file after the hunks that fit, and where each hunk went.

    :param there: the file exists; a patch that creates it fails then, unless the content is its own.
    """
    result, placed = list(lines), []
    offset = moved = floor = 0
    for hunk in file.hunks:
        old, new = hunk.side("-"), hunk.side("+")
        # Of a hunk without old lines the number is that of the line before it.
        expected = hunk.start - (1 if old else 0)
        found = None if file.creates and there else _find(result, old, hunk, expected + offset + moved, floor)
        there_already = bool(new) and _match(result, new, range(len(result))) is not None
        # The result as it stands in the patch says more than a start that is only similar.
        if found is None or (found[1] and there_already):
            placed.append(Placed(file.path, hunk, "upstream" if there_already else "fails"))
            # Further hunks name lines of the old file, which this one has moved already.
            moved += (len(new) - len(old)) if there_already else 0
            continue
        at, fuzz = found
        front, back = (max(0, count) for count in _trim(hunk, fuzz))
        # Context that differs stays the tree's.
        result[at + front : at + len(old) - back] = new[front : len(new) - back]
        offset = at - expected - moved
        moved += len(new) - len(old)
        floor = at + len(new) - back
        state: State = "fuzz" if fuzz else "offset" if offset else "applies"
        placed.append(Placed(file.path, hunk, state, offset, fuzz))
    return result, placed


def _find(lines: list[str], old: list[str], hunk: Hunk, expected: int, floor: int) -> tuple[int, int] | None:
    """Return where the old lines of a hunk begin, nearest to ``expected`` and not above ``floor``, and the fuzz that it took."""
    end = len(lines) - (lines[-1:] == [""])
    for fuzz in range(min(FUZZ, max(hunk.context())) + 1):
        front, back = _trim(hunk, fuzz)
        wanted = old[max(0, front) : len(old) - max(0, back)]
        # Context that is left out at the front must be there all the same.
        places = range(floor + max(0, front), end - len(wanted) + 1)
        # Context that is shorter at one end was cut off by the end of the file, and the hunk belongs there.
        if front < 0:
            places = places[: max(0, 1 - floor)]
        if back < 0:
            places = places[-1:]
        at = _match(lines, wanted, sorted(places, key=lambda at: abs(at - expected - max(0, front))))
        if at is not None:
            return at - max(0, front), fuzz
    return None


def _trim(hunk: Hunk, fuzz: int) -> tuple[int, int]:
    """How many lines of context are left out at the front and at the back, the longer end first, as patch has it; below 0 where
    that end is shorter still."""
    front, back = hunk.context()
    longer = max(front, back)
    return fuzz + front - longer, fuzz + back - longer


def _match(lines: list[str], wanted: list[str], places: Iterable[int]) -> int | None:
    return next((at for at in places if lines[at : at + len(wanted)] == wanted), None)
