"""The failures that are known: what a log says of each, why it happens, and what to do. The data is data/failures.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .errors import BadInput

DATA = Path(__file__).with_name("data") / "failures.yaml"

STAGES = ("solve", "download", "build", "package", "import", "run", "launch")
#: The first is why a build fails; a symptom may be why; a consequence never is: what explains it stands above it in the log.
RANKS = ("cause", "symptom", "consequence")
#: Letters beyond ASCII in a pattern are looked for as each of these has them.
ENCODINGS = ("utf-8", "gbk")
_FAILURE = ("id", "stage", "rank", "any", "all", "unless", "cause", "fix", "applies", "source")
#: What repeats something that is itself long or unlimited; a line of a million letters would take minutes.
_UNBOUNDED = re.compile(r"(?:(?<!\\)[.)]|\[\^[^\]]*\])(?:[*+]|\{\d*,\})|(?<!\\)\)\{|[*+}?][*+]")


@dataclass(frozen=True)
class Form:
    """How a pattern stands in a log of one encoding.

    :param word: one of the words for which a line is looked at, all of them shorter than most patterns.
    :param literal: bytes that every line has that the pattern matches.
    """

    word: bytes
    literal: bytes
    regex: re.Pattern[bytes]

    def search(self, line: bytes) -> re.Match[bytes] | None:
        return self.regex.search(line) if self.literal in line else None


@dataclass(frozen=True)
class Pattern:
    """What one line of a log is compared with."""

    text: str
    forms: tuple[Form, ...]

    def search(self, line: bytes) -> re.Match[bytes] | None:
        return next((match for form in self.forms if (match := form.search(line))), None)


@dataclass(frozen=True)
class Failure:
    """One known failure.

    It is there when a line matches one of ``any``, each of ``every`` matches a line, and none of ``unless`` does.

    :param cause: why it happens. :param fix: what to do; commands stand on lines of their own.
    :param applies: versions and systems. :param source: where it was seen.
    """

    id: str
    stage: str
    rank: str
    any: tuple[Pattern, ...]
    every: tuple[Pattern, ...]
    unless: tuple[Pattern, ...]
    cause: str
    fix: str
    applies: str
    source: str

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return self.any + self.every + self.unless


@dataclass(frozen=True)
class Harmless:
    """A line that looks like an error and is none."""

    id: str
    any: tuple[Pattern, ...]
    reason: str


@dataclass(frozen=True)
class Known:
    """All that is known, in the file's order: of two entries for one line the first counts.

    :param alarms: how a line looks that tells of a failure which nobody wrote down yet.
    """

    failures: tuple[Failure, ...]
    harmless: tuple[Harmless, ...]
    alarms: tuple[Pattern, ...]


@cache
def load() -> Known:
    """Return what dswin knows.

    :raises BadInput: its file is damaged.
    """
    return parse(DATA.read_text(encoding="utf-8"), DATA.name)


def parse(text: str, name: str) -> Known:
    """Return the entries of a file like data/failures.yaml.

    :param name: of the file, for messages.
    :raises BadInput: it is no YAML, or an entry is not as it must be; names the entry and what is wrong with it.
    """
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _read(document)
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(
            f"{name} cannot be used: {error}.", fix="Correct it, or restore it from the repository."
        ) from error


def _read(document: Any) -> Known:
    _check_keys(document, "the file", ("words", "failures", "harmless", "alarms"))
    words = _strings(document, "words", "the file")
    failures = tuple(_read_failure(entry, words) for entry in _entries(document, "failures"))
    harmless = tuple(_read_harmless(entry, words) for entry in _entries(document, "harmless"))
    ids = [failure.id for failure in failures] + [one.id for one in harmless]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise ValueError(f"the id {twice[0]} is there twice")
    alarms = tuple(compile_pattern(one, words, "alarms") for one in _strings(document, "alarms", "the file"))
    return Known(failures, harmless, alarms)


def _read_failure(entry: Any, words: Sequence[str]) -> Failure:
    where = _check_keys(entry, "a failure", _FAILURE)
    for key, allowed in (("stage", STAGES), ("rank", RANKS)):
        if entry.get(key) not in allowed:
            raise ValueError(f"{where}: {key} is {entry.get(key)!r}, not one of {', '.join(allowed)}")
    texts = {key: _text(entry, key, where) for key in ("cause", "fix", "applies", "source")}
    found = {key: _patterns(entry, key, words, where) for key in ("any", "all", "unless")}
    if not found["any"] and not found["all"]:
        raise ValueError(f"{where}: neither any nor all")
    return Failure(entry["id"], entry["stage"], entry["rank"], found["any"], found["all"], found["unless"], **texts)


def _read_harmless(entry: Any, words: Sequence[str]) -> Harmless:
    where = _check_keys(entry, "a harmless entry", ("id", "any", "reason"))
    if not (patterns := _patterns(entry, "any", words, where)):
        raise ValueError(f"{where}: any is missing")
    return Harmless(entry["id"], patterns, _text(entry, "reason", where))


def _check_keys(entry: Any, what: str, allowed: Sequence[str]) -> str:
    """Return how an entry is called in messages; it must be a mapping with an id where one is allowed, and no unknown key."""
    if not isinstance(entry, Mapping):
        raise ValueError(f"{what} is no mapping: {str(entry)[:60]!r}")
    where = str(entry.get("id", what))
    if unknown := set(entry) - set(allowed):
        raise ValueError(f"{where}: unknown key {min(map(str, unknown))!r}")
    if "id" in allowed and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", str(entry.get("id"))):
        raise ValueError(f"{what}: the id {entry.get('id')!r} is not made of small letters, digits and single hyphens")
    return where


def _entries(document: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(document.get(key), list):
        raise ValueError(f"{key} is no list")
    return document[key]


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} is no text")
    return value.strip()


def _strings(entry: Mapping[str, Any], key: str, where: str) -> list[str]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise ValueError(f"{where}: {key} is no list of texts")
    return value


def _patterns(entry: Mapping[str, Any], key: str, words: Sequence[str], where: str) -> tuple[Pattern, ...]:
    return tuple(compile_pattern(text, words, where) for text in _strings(entry, key, where))


def compile_pattern(text: str, words: Sequence[str], where: str) -> Pattern:
    """Return a pattern that is quick on any line.

    :param words: one of them must stand in the pattern literally.
    :raises ValueError: it is no regular expression, may take minutes on a long line, or has none of ``words``.
    """
    if found := _UNBOUNDED.search(text):
        raise ValueError(f"{where}: {found[0]!r} in {text!r} has no limit; write .{{0,200}}")
    runs = find_literals(text)
    if "|" in re.sub(r"\\.", "", _strip_groups(text)):
        raise ValueError(f"{where}: {text!r} is two patterns; write two")
    word = max((word for word in words if any(word in run for run in runs)), key=len, default="")
    if not word:
        raise ValueError(f"{where}: {text!r} has none of the words for which a line is looked at")
    forms = {}
    for encoding in ENCODINGS:
        try:
            regex = re.compile(b"".join(_encode(letter, encoding) for letter in text))
        except re.error as error:
            raise ValueError(f"{where}: {text!r} is no pattern: {error}") from error
        forms[regex.pattern] = Form(word.encode(encoding), max(runs, key=len).encode(encoding), regex)
    return Pattern(text, tuple(forms.values()))


def _encode(letter: str, encoding: str) -> bytes:
    # GBK's second bytes are also those of | and [.
    return letter.encode() if letter.isascii() else re.escape(letter.encode(encoding))


def _strip_groups(text: str) -> str:
    """Return a pattern with a NUL in place of each set and each group."""
    text = re.sub(r"(?<!\\)\[\^?\]?(?:\\.|[^\]\\])*\]", "\0", text)
    while (stripped := re.sub(r"(?<!\\)\((?:\\.|[^()\\])*\)", "\0", text)) != text:
        text = stripped
    return text


def find_literals(text: str) -> list[str]:
    """Return the runs of letters that are in all that a pattern matches."""
    runs = [""]
    for atom, quantifier in re.findall(r"(\\.|[^\\])(\{[\d,]+\}|[?*+]?)", _strip_groups(text), re.DOTALL):
        literal = atom[-1] if not (atom in ".^$\0" or re.match(r"\\\w", atom)) else ""
        if not literal or quantifier not in ("", "+"):
            runs.append("")
            continue
        runs[-1] += literal
        if quantifier:
            runs.append("")
    return [run for run in runs if run]
