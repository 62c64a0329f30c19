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
_HASHES = {"md5": re.compile(r"[0-9a-f]{32}"), "sha256": re.compile(r"[0-9a-f]{64}")}
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<build>[^-]+)(?P<ending>\.conda|\.tar\.bz2)")


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
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

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
                f"{self.path} is not for {platform}.", fix=f"It is for {', '.join(self.platforms)}: choose another lock."
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
    if not _is_texts(platforms) or not platforms:
        raise _wrong(path, "its metadata name no platforms")
    found = [_read_package(path, number, entry) for number, entry in enumerate(packages, 1)]
    seen: set[tuple[str, str]] = set()
    for package in found:
        if package.platform not in platforms:
            raise _wrong(path, f"{package.name} is for {package.platform}, which is not among the lock's platforms")
        if (package.platform, package.name) in seen:
            raise _wrong(path, f"{package.name} is in it twice for {package.platform}")
        seen.add((package.platform, package.name))
    content, custom = metadata.get("content_hash"), metadata.get("custom_metadata") or {}
    if not _is_table(content) or not _is_table(custom):
        raise _wrong(path, "content_hash or custom_metadata is not a table of texts")
    return Lock(
        path=path,
        packages=tuple(sorted(found, key=lambda package: (package.platform, package.name))),
        platforms=tuple(platforms),
        channels=tuple(_list_channels(path, metadata.get("channels"))),
        sources=tuple(map(str, metadata.get("sources") or ())),
        content_hash=content,
        custom=custom,
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(f"{path} cannot be read: {reason}.", fix="Name a conda-lock.yml.") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{path}{where}, is not YAML.", fix="Make it anew: dswin lock.") from error
    if not isinstance(document, dict):
        raise _wrong(path, "it is not a table")
    if document.get("version") != 1:
        raise _wrong(path, f"its version is {document.get('version')!r}, not 1")
    return document


def _read_package(path: Path, number: int, entry: object) -> Locked:
    where = f"package {number}"
    if not isinstance(entry, dict):
        raise _wrong(path, f"{where} is not a table")
    texts = {key: entry.get(key) for key in ("name", "version", "platform", "url")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value:
            raise _wrong(path, f"{where} ({texts['name']}) has no {key}, or it is no text")
    name, url = str(texts["name"]), str(texts["url"])
    where = f"{name} ({where})"
    if entry.get("manager") != "conda":
        raise _wrong(path, f"{where} is for {entry.get('manager')!r}; only conda packages are installed")
    parsed = _FILE.fullmatch(unquote(_path_of(path, where, url)).rpartition("/")[2])
    if parsed is None or url.count("/") < 3:
        raise _wrong(path, f"{where} has a url that does not end in SUBDIR/NAME-VERSION-BUILD.conda or .tar.bz2")
    if (parsed["name"], parsed["version"]) != (name, texts["version"]):
        raise _wrong(path, f"{where} has the url of {parsed['name']} {parsed['version']}")
    if url.rsplit("/", 2)[-2] not in (texts["platform"], "noarch"):
        raise _wrong(path, f"{where} is for {texts['platform']} and has a url of another platform")
    depends = entry.get("dependencies") or {}
    if not _is_table(depends):
        raise _wrong(path, f"the dependencies of {where} are not a table of texts")
    hashes = _read_hashes(path, where, entry.get("hash"))
    return Locked(name, str(texts["version"]), parsed["build"], str(texts["platform"]), url, hashes["md5"], hashes["sha256"],
                  depends, str(entry.get("category", "main")))  # fmt: skip


def _path_of(path: Path, where: str, url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _wrong(path, f"{where} has a malformed url") from error
    if parts.scheme not in ("https", "http", "file"):
        raise _wrong(path, f"{where} has a url that is neither https, http nor file")
    return parts.path


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
        if not isinstance(url, str):
            raise _wrong(path, "a channel of its metadata has no url")
        yield url


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)


def _wrong(path: Path, what: str) -> BadInput:
    return BadInput(f"{path} is no lock that can be used: {what}.", fix="Make it anew: dswin lock, or conda-lock lock.")


def find_closure_faults(packages: Iterable[Locked]) -> list[str]:
    """Return a sentence for each requirement that no package of the same platform fulfils by its name."""
    by_platform: dict[str, dict[str, Locked]] = {}
    for package in packages:
        by_platform.setdefault(package.platform, {})[package.name] = package
    return [
        f"{package.name} ({platform}) requires {name}, which is not in the lock"
        for platform, names in by_platform.items()
        for package in names.values()
        for name in package.depends
        if not name.startswith("__") and name not in names
    ]
