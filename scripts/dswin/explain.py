"""What a log of a failed build or run means: the first cause in it, what follows from that, and what only looks bad.

One pass, and memory that does not grow with the log. A line is looked at when it holds one of the data's words; then a pattern is
tried when its longest literal is in the line, and given up at the first line that it matches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from .errors import BadInput, CheckFailed
from .failures import RANKS, STAGES, Failure, Form, Harmless, Known, Pattern, load
from .log_text import OVERLAP, Log

#: Raised when a reader of --json would have to change.
SCHEMA = 1
#: Bytes of a long line that are looked at from a word on; OVERLAP before it.
REACH = 8192
#: A line that was looked at in vain is not looked at again: so many of so many bytes are kept in mind.
KEPT, KEPT_SIZE = 20_000, 512
#: Lines of no known failure that are shown.
UNKNOWN_SHOWN = 5
SHOWN = 160
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf")

Verdict = Literal["cause", "unknown", "nothing"]


@dataclass(frozen=True)
class Hit:
    """A line that was found: its number from 1, and its text around what was found."""

    line: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"line": self.line, "text": self.text}


@dataclass(frozen=True)
class Explained:
    """What was found in a log.

    :param encoding: of the log. :param lines: in it.
    :param causes: what explains the failure, the most likely first. :param consequences: what only follows from something above.
    :param harmless: what looks like an error and is none. :param unknown: the first lines that look like errors, of no entry.
    """

    encoding: str
    lines: int
    causes: tuple[tuple[Failure, Hit], ...]
    consequences: tuple[tuple[Failure, Hit], ...]
    harmless: tuple[tuple[Harmless, Hit], ...]
    unknown: tuple[Hit, ...]
    known: Known

    @property
    def verdict(self) -> Verdict:
        if self.causes:
            return "cause"
        return "unknown" if self.consequences or self.unknown else "nothing"

    @property
    def exit_code(self) -> int:
        """0 nothing wrong was found, 1 something was, known or not."""
        return 0 if self.verdict == "nothing" else CheckFailed.exit_code

    @property
    def looked_for(self) -> dict[str, int]:
        """How many failures are known, by stage."""
        counts = Counter(failure.stage for failure in self.known.failures)
        return {stage: counts[stage] for stage in STAGES}

    def to_json(self) -> dict[str, Any]:
        def show(pairs: tuple[tuple[Failure, Hit], ...]) -> list[dict[str, Any]]:
            keys = ("id", "rank", "stage", "cause", "fix", "applies", "source")
            return [{**{key: getattr(failure, key) for key in keys}, **hit.to_json()} for failure, hit in pairs]

        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "encoding": self.encoding,
            "lines": self.lines,
            "causes": show(self.causes),
            "consequences": show(self.consequences),
            "harmless": [{"id": one.id, "reason": one.reason, **hit.to_json()} for one, hit in self.harmless],
            "unknown": [hit.to_json() for hit in self.unknown],
            "looked_for": self.looked_for,
        }


def explain(stream: BinaryIO, name: str, known: Known | None = None) -> Explained:
    """Return what the log in ``stream`` means.

    :param name: of the log, for messages.
    :raises BadInput: it is empty, or an archive.
    """
    known = known or load()
    log = Log(stream)
    search = Search(log, known)
    for block, first in log.read_blocks():
        if block.startswith(_ARCHIVES) and first == 1:
            raise BadInput(f"{name} is an archive, not a log.", fix="Unpack it, and name one of the logs in it.")
        search.take(block, first)
    if not log.size:
        raise BadInput(f"{name} is empty.", fix="Name a file with the output of the build or run; errors go to 2>&1.")
    found = rank(known, search.hits)
    return Explained(
        log.encoding,
        log.lines,
        tuple(pair for pair in found if pair[0].rank != RANKS[-1]),
        tuple(pair for pair in found if pair[0].rank == RANKS[-1]),
        tuple((one, hit) for one in known.harmless if (hit := _first(one.any, search.hits))),
        tuple(_only_unknown(search, found)),
        known,
    )


class Search:
    """Looks through a log, block by block, for the first line of each pattern.

    :ivar hits: {pattern: where it was found}. :ivar unknown: the first lines that look like errors.
    """

    def __init__(self, log: Log, known: Known) -> None:
        self.hits: dict[str, Hit] = {}
        self.unknown: list[Hit] = []
        self._log, self._known = log, known
        #: {pattern: how often it was found}
        self._alarms = {pattern.text: 0 for pattern in known.alarms}
        #: {word: what is still looked for in lines that hold it: literal, pattern's form, pattern}
        self._wanted: dict[bytes, list[tuple[bytes, Form, str]]] = {}
        self._seen: set[tuple[bytes, bytes]] = set()
        patterns = [pattern for failure in known.failures for pattern in failure.patterns]
        patterns += [pattern for one in known.harmless for pattern in one.any]
        self._harmless = {pattern.text for one in known.harmless for pattern in one.any}
        for pattern in {pattern.text: pattern for pattern in (*patterns, *known.alarms)}.values():
            for form in pattern.forms:
                self._wanted.setdefault(form.word, []).append((form.literal, form, pattern.text))
        self._done = {one[2]: False for wanted in self._wanted.values() for one in wanted}

    def take(self, block: bytes, first: int) -> None:
        """Look through whole lines of a log, of which the first has the number ``first``."""
        for word, wanted in self._wanted.items():
            for begin, end in find_lines(block, word):
                line = block[begin:end]
                if (word, line) in self._seen:
                    continue
                if len(self._seen) < KEPT and len(line) <= KEPT_SIZE:
                    self._seen.add((word, line))
                for _, form, text in [one for one in wanted if one[0] in line]:
                    if self._done[text] or not (match := form.regex.search(line)):
                        continue
                    if text in self._harmless or not self._is_harmless(line):
                        self._note(text, Hit(first + block.count(b"\n", 0, begin), self._cut(line, match)))
                        wanted[:] = [one for one in wanted if not self._done[one[2]]]
                if not wanted:
                    break
        self._wanted = {word: wanted for word, wanted in self._wanted.items() if wanted}

    def _note(self, text: str, hit: Hit) -> None:
        if text not in self._alarms:
            self.hits[text] = hit
            self._done[text] = True
            return
        self._alarms[text] += 1
        self._done[text] = self._alarms[text] == UNKNOWN_SHOWN
        if hit.line not in (one.line for one in self.unknown):
            self.unknown = sorted([*self.unknown, hit], key=lambda one: one.line)[:UNKNOWN_SHOWN]

    def _is_harmless(self, line: bytes) -> bool:
        return any(pattern.search(line) for one in self._known.harmless for pattern in one.any)

    def _cut(self, line: bytes, match: re.Match[bytes]) -> str:
        """Return the line, or of a long one what stands around the match."""
        # A progress bar writes many lines over one another.
        begin = line.rfind(b"\r", 0, match.start()) + 1
        end = line.find(b"\r", match.end())
        end = len(line) if end < 0 else end
        if end - begin <= 2 * SHOWN:
            return self._log.show(line[begin:end])
        left, right = max(begin, match.start() - SHOWN // 4), min(end, match.end() + SHOWN)
        return f"{'... ' * (left > begin)}{self._log.show(line[left:right])}{' ...' * (right < end)}"


def find_lines(block: bytes, word: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the lines are that hold a word; of a longer one than :data:`REACH` what is around the word."""
    at = block.find(word)
    while at >= 0:
        begin = max(block.rfind(b"\n", 0, at) + 1, at - OVERLAP)
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        cut = min(end, at + REACH)
        yield begin, cut
        # What begins near a cut may go on behind it.
        at = block.find(word, end if cut == end else cut - OVERLAP)


def rank(known: Known, hits: dict[str, Hit]) -> list[tuple[Failure, Hit]]:
    """Return the failures that are there, causes first, then by line; one line counts for one failure only."""
    found = []
    for order, failure in enumerate(known.failures):
        if hit := _judge(failure, hits):
            found.append((RANKS.index(failure.rank), hit.line, order, failure, hit))
    kept: dict[int, tuple[Failure, Hit]] = {}
    for _, line, _, failure, hit in sorted(found, key=lambda one: one[:3]):
        kept.setdefault(line, (failure, hit))
    return list(kept.values())


def _judge(failure: Failure, hits: dict[str, Hit]) -> Hit | None:
    """Return where a failure is in the log, or None."""
    if _first(failure.unless, hits) or not all(pattern.text in hits for pattern in failure.every):
        return None
    return _first(failure.any, hits) if failure.any else hits[failure.every[0].text]


def _first(patterns: tuple[Pattern, ...], hits: dict[str, Hit]) -> Hit | None:
    return min((hits[one.text] for one in patterns if one.text in hits), key=lambda hit: hit.line, default=None)


def _only_unknown(search: Search, found: list[tuple[Failure, Hit]]) -> list[Hit]:
    """Return the lines that look like errors and in which no pattern of what was found stands."""
    texts = [pattern.text for failure, _ in found for pattern in failure.patterns]
    lines = {search.hits[text].line for text in texts if text in search.hits}
    return [hit for hit in search.unknown if hit.line not in lines]
