"""One file from an http, https or file address to a path: tried again, resumed, hashed on the way."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from . import logins
from .addresses import expand, hide_secrets, to_path
from .errors import DswinError, MachineLacks, naming

THREADS = 8
#: Seconds before the second, third, ... time that an address is asked.
PAUSES = (0.5, 1.0, 2.0, 4.0)
#: Seconds without an answer, and without a byte.
TIMEOUT = (15, 60)
_CHUNK = 2**20
#: Smaller from the network: a connection that breaks takes a piece with it.
_PIECE = 2**16
#: What is left free on the disk in any case, in bytes.
_SPARE = 64 * 2**20


class Unreachable(Exception):
    """An address does not have the file, or does not answer. Its text is for a person and holds no secret."""


@dataclass
class Room:
    """The space of a disk, shared by the downloads that fill it at once.

    :param promised: bytes that running downloads have still to write.
    """

    folder: Path
    promised: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def hold(self, size: int, what: str) -> Iterator[Callable[[int], None]]:
        """Promise ``size`` bytes to a download, and give a function to call with the bytes that it wrote.

        :raises MachineLacks: there are not that many.
        """
        left = size
        with self.lock:
            free = shutil.disk_usage(self.folder).free - self.promised
            if size + _SPARE > free:
                raise MachineLacks(
                    f"{what} needs {size / 1e6:.0f} MB in {self.folder}, where {free / 1e6:.0f} MB are free.",
                    fix="Free some space, or name a folder on another disk.",
                )
            self.promised += size

        def wrote(count: int) -> None:
            nonlocal left
            count = min(count, left)
            with self.lock:
                self.promised -= count
            left -= count

        try:
            yield wrote
        finally:
            wrote(left)


@dataclass
class Downloader:
    """What the downloads of one run share.

    :param count: called with (bytes that came, bytes that are newly expected), from several threads.
    :param stop: set it, and running downloads end at their next piece.
    :param limit: bytes that a file may have.
    :param logins: {host: what the keyring had for it}, filled as hosts refuse.
    """

    room: Room
    count: Callable[[int, int], None] = lambda done, more: None
    stop: threading.Event = field(default_factory=threading.Event)
    session: requests.Session = field(default_factory=requests.Session)
    limit: int | None = None
    logins: dict[str, AuthBase | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, HTTPAdapter(pool_connections=THREADS, pool_maxsize=THREADS))

    def download(self, address: str, part: Path, kinds: tuple[str, ...]) -> Mapping[str, str]:
        """Write what an address has to ``part``, after what is there already, and return its digests.

        :param address: may hold ``$VARIABLE``.
        :param kinds: of :mod:`hashlib`: sha256, md5.
        :return: {kind: digest in hex} of the whole file.
        :raises Unreachable: the address does not answer, or does not have it.
        """
        url = expand(address)
        if urlsplit(url).scheme == "file":
            return self._copy(to_path(url), part, kinds)
        why = ""
        for pause in (0.0, *PAUSES):
            if self.stop.wait(pause):
                raise Unreachable("stopped")
            try:
                return self._request(url, part, kinds)
            except (requests.Timeout, requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
                # requests' own texts hold the url with its secrets.
                why = "no answer in time" if isinstance(error, requests.Timeout) else "the connection failed"
            except _Busy as error:
                why = str(error)
            except requests.RequestException as error:
                raise Unreachable(f"{hide_secrets(address)}: {type(error).__name__}") from error
        raise Unreachable(f"{hide_secrets(address)}: {why}, {len(PAUSES) + 1} times")

    def _copy(self, source: Path, part: Path, kinds: tuple[str, ...]) -> Mapping[str, str]:
        try:
            size = source.stat().st_size
            with source.open("rb") as file:
                digests = {kind: hashlib.new(kind) for kind in kinds}
                return self._write(iter(lambda: file.read(_CHUNK), b""), part, digests, size=size)
        except OSError as error:
            if error.filename != str(source):
                raise
            raise Unreachable(f"{source}: {error.strerror}") from error

    def _request(self, url: str, part: Path, kinds: tuple[str, ...]) -> Mapping[str, str]:
        had = part.stat().st_size if part.is_file() else 0
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={had}-"} if had else {})}
        host = urlsplit(url).hostname or ""
        with self._get(url, headers, host) as answer:
            if answer.status_code == 416:  # what is there is no beginning of the file
                part.unlink()
                raise _Busy("it has less than was downloaded before")
            if answer.status_code == 429 or answer.status_code >= 500:
                raise _Busy(f"it answers {answer.status_code}")
            if answer.status_code in (401, 403):
                raise Unreachable(
                    f"{hide_secrets(url)}: it answers {answer.status_code} (a login goes into {logins.variable_of(host)})"
                )
            if answer.status_code not in (200, 206):
                raise Unreachable(f"{hide_secrets(url)}: it answers {answer.status_code}")
            resumed = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {had}-")
            digests = {kind: hashlib.new(kind) for kind in kinds}
            if resumed:
                with part.open("rb") as file:
                    while piece := file.read(_CHUNK):
                        for digest in digests.values():
                            digest.update(piece)
            elif answer.status_code == 206:
                raise Unreachable(f"{hide_secrets(url)}: it answers with another part than was asked for")
            size = int(answer.headers.get("Content-Length") or 0)
            return self._write(answer.iter_content(_PIECE), part, digests, size=size, append=resumed)

    def _get(self, url: str, headers: Mapping[str, str], host: str, method: str = "GET") -> requests.Response:
        def ask(login: AuthBase | None) -> requests.Response:
            return self.session.request(method, url, headers=dict(headers), stream=True, timeout=TIMEOUT, auth=login)

        used = logins.find(host) or self.logins.get(host)
        answer = ask(used)
        if answer.status_code not in (401, 403) or used is not None:
            return answer
        with self.lock:
            if host not in self.logins:
                self.logins[host] = logins.find_in_keyring(host)
        if self.logins[host] is None:
            return answer
        answer.close()
        return ask(self.logins[host])

    def ask_size(self, address: str) -> int | None:
        """The size in bytes of what an address has; nothing where it does not say."""
        try:
            url = expand(address)
            if urlsplit(url).scheme == "file":
                return to_path(url).stat().st_size
            with self._get(url, {"Accept-Encoding": "identity"}, urlsplit(url).hostname or "", "HEAD") as answer:
                length = answer.headers.get("Content-Length", "") if answer.status_code == 200 else ""
                return int(length) if length.isdigit() else None
        except (requests.RequestException, OSError, DswinError):
            return None

    def _write(
        self, pieces: Iterator[bytes], part: Path, digests: dict, *, size: int, append: bool = False
    ) -> Mapping[str, str]:
        if self.limit is not None and size > self.limit:
            raise Unreachable(f"{part.stem} has {size / 1e6:.0f} MB, more than such a file has")
        self.count(0, size)
        with self.room.hold(size, part.stem) as wrote, naming(part), part.open("ab" if append else "wb") as target:
            for piece in pieces:
                if self.stop.is_set():
                    raise Unreachable("stopped")
                target.write(piece)
                for digest in digests.values():
                    digest.update(piece)
                wrote(len(piece))
                self.count(len(piece), 0)
        return {kind: digest.hexdigest() for kind, digest in digests.items()}


class _Busy(Exception):
    """Worth another try at the same address."""
