"""A conda-lock.yml, version 1: the packages of an environment, each with its url and its hash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from .errors import BadInput

#: The suffix by which ``conda-lock install`` knows a lock.
SUFFIX = ".conda-lock.yml"
#: The longest file name of ext4, NTFS (in UTF-16 units there) and APFS.
_LONGEST = 255
_HASHES = {"md5": re.compile(r"[0-9a-f]{32}"), "sha256": re.compile(r"[0-9a-f]{64}")}
#: CEP 26, and capital letters: no text that is a path when it becomes part of one.
_FILE = re.compile(
    r"(?P<name>[a-z0-9_][a-z0-9_.-]*)-(?P<version>[a-z0-9_.!+]+)-(?P<build>[a-z0-9_.+]+)(?P<ending>\.conda|\.tar\.bz2)",
    re.ASCII | re.IGNORECASE,
)
_PLATFORM = re.compile(r"[a-z]+-[a-z0-9_]+")
#: What a client may read in another way than we do is in no url: white space, a backslash, a query, a fragment.
_URL = re.compile(r"(https?|file)://[^\s\\?#\x00-\x1f\x7f-\x9f]+")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")


@dataclass(frozen=True)
class Locked:
    """One package for one platform.

    :param platform: the environment's, where ``subdir`` may be ``noarch``.
    :param md5: lower-case hexadecimal, or nothing; ``sha256`` the same. At least one of them is there.
    :param depends: {name: version}, as conda-lock keeps it: build strings are not in it.
    """

    name: str
    version: str
    build: str
    platform: str
    url: str
    md5: str | None
    sha256: str | None
    depends: Mapping[str, str] = field(default_factory=dict, hash=False)
    category: str = "main"

    @property
    def fn(self) -> str:
        return unquote(self.url.rpartition("/")[2])

    @property
    def subdir(self) -> str:
        return self.url.rsplit("/", 2)[-2]

    @property
    def channel(self) -> str:
        """The channel's url, without a slash at its end."""
        return self.url.rsplit("/", 2)[0]

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.build}"


@dataclass(frozen=True)
class Lock:
    """:param packages: by platform and name. :param custom: what the lock says of itself: assumptions, doubts."""

    path: Path
    packages: tuple[Locked, ...]
    platforms: tuple[str, ...]
    channels: tuple[str, ...]
    sources: tuple[str, ...]
    content_hash: Mapping[str, str] = field(hash=False)
    custom: Mapping[str, str] = field(default_factory=dict, hash=False)

    def on(self, platform: str) -> tuple[Locked, ...]:
        """The packages for a platform.

        :raises BadInput: the lock is not for it.
        """
        if platform not in self.platforms:
            raise BadInput(
                f"{self.path} is not for {platform}.",
                fix=f"It is for {', '.join(self.platforms)}: choose another lock.",
            )
        return tuple(package for package in self.packages if package.platform == platform)


def read(path: Path) -> Lock:
    """Read and check a lock. Whatever is wrong with it is one error that names the place.

    :raises BadInput: no lock, or one that cannot be installed from: a package without a hash, two of one name, ...
    """
    document = _load(path)
    packages, metadata = document.get("package"), document.get("metadata")
    if not isinstance(packages, list) or not isinstance(metadata, dict):
        raise _wrong(path, "it has no list of packages or no metadata")
    platforms = metadata.get("platforms")
    if not _is_texts(platforms) or not platforms or not all(_PLATFORM.fullmatch(one) for one in platforms):
        raise _wrong(path, "its metadata name no platforms, or something that is none")
    found = [_read_package(path, number, entry) for number, entry in enumerate(packages, 1)]
    seen: set[tuple[str, str]] = set()
    for package in found:
        if package.platform not in platforms:
            odd = _show(package.platform)
            raise _wrong(path, f"{package.name} is for {odd}, which is not among the lock's platforms")
        if (package.platform, package.name) in seen:
            raise _wrong(path, f"{package.name} is in it twice for {package.platform}")
        seen.add((package.platform, package.name))
    content: Any = metadata.get("content_hash")
    custom = _default(metadata.get("custom_metadata"), {})
    if not _is_table(content) or not _is_table(custom):
        raise _wrong(path, "content_hash or custom_metadata is not a table of texts")
    sources = _default(metadata.get("sources"), [])
    if not _is_texts(sources):
        raise _wrong(path, "its sources are not a list of texts")
    return Lock(
        path=path,
        packages=tuple(sorted(found, key=lambda package: (package.platform, package.name))),
        platforms=tuple(dict.fromkeys(platforms)),
        channels=tuple(_list_channels(path, metadata.get("channels"))),
        sources=tuple(sources),
        content_hash=content,
        custom=custom,
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # UnicodeDecodeError, and a NUL in the path, are a ValueError
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(f"{path} cannot be read: {reason}.", fix="Name a conda-lock.yml.") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(path, yaml.parse(text, Loader=loader))
        document = yaml.load(text, Loader=loader)
    except BadInput:
        raise
    except Exception as error:  # its constructors raise of all kinds: KeyError for a !!bool that is none, ...
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}," if mark else ""
        raise BadInput(f"{path}{where} is not YAML.", fix="Make it anew: dswin lock.") from error
    if not isinstance(document, dict):
        raise _wrong(path, "it is not a table")
    if type(document.get("version")) is not int or document["version"] != 1:
        raise _wrong(path, f"its version is {_show(document.get('version'))}, not 1")
    return document


def _check_events(path: Path, events: Iterable[Any]) -> None:
    """Refuse what conda-lock never writes: an alias, which may unfold without end, and a key that stands twice in a table.

    :raises BadInput: there is one.
    """
    # For each table that is open, its keys so far and whether a key comes next; for each list that is open, nothing.
    tables: list[list[Any] | None] = []
    for event in events:
        where = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise _wrong(path, f"{where} refers to another place (*{event.anchor})")
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            tables.pop()
        elif isinstance(event, yaml.NodeEvent):
            if tables and tables[-1] is not None:
                keys, is_key = tables[-1]
                if is_key and isinstance(event, yaml.ScalarEvent):
                    if event.value in keys:
                        raise _wrong(path, f"{where} has the key {_show(event.value)} for the second time")
                    keys.add(event.value)
                tables[-1][1] = not is_key
            if isinstance(event, yaml.CollectionStartEvent):
                tables.append([set(), True] if isinstance(event, yaml.MappingStartEvent) else None)


def _read_package(path: Path, number: int, entry: object) -> Locked:
    where = f"package {number}"
    if not isinstance(entry, dict):
        raise _wrong(path, f"{where} is not a table")
    texts = {key: entry.get(key) for key in ("name", "version", "platform", "url")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise _wrong(path, f"{where} ({_show(texts['name'])}) has no {key}, or it is no text")
    name, version, platform, url = map(str, texts.values())
    where = f"{_show(name)[1:-1]} ({where})"
    if entry.get("manager") != "conda":
        raise _wrong(path, f"{where} is for {_show(entry.get('manager'))}; only conda packages are installed")
    if not is_url(url):
        raise _wrong(path, f"{where} has a url that is malformed, or neither https, http nor file")
    folder, _, file = url.rpartition("/")
    parsed = _FILE.fullmatch(unquote(file))
    if parsed is None or folder.count("/") < 3:
        raise _wrong(path, f"{where} has a url that does not end in SUBDIR/NAME-VERSION-BUILD.conda or .tar.bz2")
    if len(unquote(file).encode()) > _LONGEST:
        raise _wrong(path, f"{where} has a url with a file name of more than {_LONGEST} bytes, which no disk takes")
    if (parsed["name"], parsed["version"]) != (name, version):
        raise _wrong(path, f"{where} has the url of {parsed['name']} {parsed['version']}")
    if folder.rpartition("/")[2] not in (platform, "noarch"):
        raise _wrong(path, f"{where} is for {_show(platform)} and has a url of another platform")
    depends, category = _default(entry.get("dependencies"), {}), entry.get("category", "main")
    if not _is_table(depends) or not isinstance(category, str):
        raise _wrong(path, f"the dependencies of {where} are not a table of texts, or its category is no text")
    hashes = _read_hashes(path, where, entry.get("hash"))
    return Locked(
        name, version, parsed["build"], platform, url, hashes["md5"], hashes["sha256"], depends, category
    )  # fmt: skip


def is_url(text: str) -> bool:
    """Whether a text is an https, http or file url that every client reads alike; variables in it are not filled in.

    >>> is_url("https://conda.anaconda.org/pytorch"), is_url("pytorch"), is_url("https://host/x y")
    (True, False, False)
    """
    try:
        parts = urlsplit(text)
        return bool(_URL.fullmatch(text)) and (parts.scheme == "file" or bool(parts.hostname)) and parts.port != 0
    except ValueError:  # brackets or a port that are none
        return False


def holds_secret(url: str) -> bool:
    """Whether a user, a password or a token stands in a url itself, rather than an environment variable's name.

    >>> holds_secret("https://me:${PASSWORD}@host/c"), holds_secret("https://host/t/${TOKEN}/c"), holds_secret("pytorch")
    (True, False, False)
    """
    if "://" not in url:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are none: it cannot be told
        return True
    secrets = [one for one in parts.netloc.rpartition("@")[0].split(":") if one]
    path = parts.path.split("/")
    if parts.scheme != "file" and "t" in path[:-1]:
        secrets.append(path[path.index("t") + 1])
    return bool(parts.query) or not all(_VARIABLE.fullmatch(one) for one in secrets)


def _read_hashes(path: Path, where: str, entry: object) -> dict[str, str | None]:
    if not isinstance(entry, dict):
        raise _wrong(path, f"{where} has no hash")
    hashes: dict[str, str | None] = {}
    for kind, pattern in _HASHES.items():
        value = entry.get(kind)
        if value is not None and (not isinstance(value, str) or not pattern.fullmatch(value)):
            raise _wrong(path, f"the {kind} of {where} is not one")
        hashes[kind] = value
    if not any(hashes.values()):
        raise _wrong(path, f"{where} has no hash")
    return hashes


def _list_channels(path: Path, entries: object) -> Iterator[str]:
    if not isinstance(entries, list):
        raise _wrong(path, "its metadata name no channels")
    for entry in entries:
        url = entry.get("url") if isinstance(entry, dict) else entry
        if not isinstance(url, str) or ("://" in url and not is_url(url)):
            raise _wrong(path, "a channel of its metadata has no url, or a malformed one")
        yield url


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _show(value: object) -> str:
    """A value from a file for a message: short, and nothing that a terminal obeys."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return str(value) if value is None or type(value) is bool else f"a {type(value).__name__}"


def _wrong(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} is no lock that can be used: {what}.", fix="Make it anew: dswin lock, or conda-lock lock.")
