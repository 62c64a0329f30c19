"""The archives that a lock names, in a store where each lies under its own hash. Nothing gets its name there unchecked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from . import mutex
from .addresses import hide_secrets
from .digests import hash_by
from .downloads import THREADS, Downloader, Room, Unreachable
from .errors import CheckFailed, MachineLacks
from .lock import Locked
from .mirrors import NONE, Mirrors

Progress = Callable[[str], None]
#: Called with (bytes that came, bytes that are newly expected), from several threads.
Count = Callable[[int, int], None]


def place(package: Locked, store: Path) -> Path:
    """Where the store has, or would have, a package's archive."""
    return store / (package.sha256 or f"md5-{package.md5}") / package.fn


def find_wrong(package: Locked, path: Path) -> tuple[str, str, str] | None:
    """(kind, expected, found) of the first hash of the lock that a file does not have; nothing if it has them all."""
    return _compare(package, hash_by(path, _kinds(package)))


def fetch(
    packages: Sequence[Locked],
    store: Path,
    *,
    mirrors: Mirrors = NONE,
    progress: Progress = lambda _: None,
    count: Count = lambda done, more: None,
) -> dict[str, Path]:
    """Bring the archives of packages into the store, several at once, and check every hash that the lock has, of those there too.

    What was downloaded in part before is gone on with. A mirror that is down or wrong is passed over, with a line.

    :param store: a folder, made if it is not there; the key of an archive is its sha256, or its md5 where that is all there is.
    :return: {url in the lock: archive}.
    :raises CheckFailed: an archive is not what the lock names.
    :raises MachineLacks: an archive cannot be had from anywhere, or the disk is too small.
    """
    store.mkdir(parents=True, exist_ok=True)
    wanted = {place(package, store): package for package in packages}
    downloader = Downloader(Room(store), count)
    pool, interrupted = ThreadPoolExecutor(THREADS), False
    try:
        jobs = [
            pool.submit(_fetch_one, package, path, mirrors, downloader, progress) for path, package in wanted.items()
        ]
        finished, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        failed = [job for job in jobs if job in finished and job.exception() is not None]
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        # One that failed, or Ctrl-C: the others end at their next piece, and what they have is gone on with next time. A server
        # may keep one from its next piece for a minute, which nobody who pressed Ctrl-C waits for.
        downloader.stop.set()
        pool.shutdown(wait=not interrupted, cancel_futures=True)
    if failed:
        raise failed[0].exception()  # type: ignore[misc]
    return {package.url: place(package, store) for package in packages}


def ask_sizes(packages: Sequence[Locked], mirrors: Mirrors = NONE) -> dict[str, int]:
    """{url in the lock: bytes} of the archives whose size a channel, or the first of its mirrors, tells."""
    downloader = Downloader(Room(Path()))
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = pool.map(lambda one: downloader.ask_size(mirrors.list_addresses(one.url)[0]), packages)
        return {package.url: size for package, size in zip(packages, sizes, strict=True) if size is not None}


def _fetch_one(package: Locked, path: Path, mirrors: Mirrors, downloader: Downloader, progress: Progress) -> None:
    path.parent.mkdir(exist_ok=True)
    with mutex.hold(path.parent, f"{package} is being fetched by another run: waiting for it", progress):
        wrong: CheckFailed | None = None
        if path.is_file():
            if find_wrong(package, path) is None:
                return
            wrong = CheckFailed(
                f"{package.fn} in the store is not what the lock names, and cannot be fetched again.",
                fix="It was removed. Check the network, or name a mirror (--mirror).",
            )
            progress(f"{package.fn} in the store is not what the lock names: fetched again")
            path.unlink()
        why: list[str] = []
        for address in mirrors.list_addresses(package.url):
            try:
                _download(package, address, path, downloader)
                progress(f"fetched {package.fn} ({path.stat().st_size / 1e6:.1f} MB)")
                return
            except CheckFailed as error:
                wrong = error
                why.append(error.what)
            except Unreachable as error:
                why.append(str(error))
            if address != package.url:
                progress(f"{package.fn}: {why[-1]}; asking elsewhere")
    if wrong:
        raise wrong
    raise MachineLacks(
        f"{package} cannot be fetched.",
        fix="Check the network, or name a mirror (--mirror). What is already there is not fetched again.",
        log="\n".join(why),
    )


def _download(package: Locked, address: str, path: Path, downloader: Downloader) -> None:
    part = path.with_name(path.name + ".part")
    # A part of an earlier run may be of a file that has changed since: then once more from the beginning.
    for resumed in (part.exists(), False):
        found = downloader.download(address, part, _kinds(package))
        wrong = _compare(package, found)
        if wrong is None:
            os.replace(part, path)
            return
        part.unlink()
        if not resumed:
            kind, expected, got = wrong
            raise CheckFailed(
                f"{package.fn} from {hide_secrets(address)} is not the package that the lock names: "
                f"its {kind} is {got}, and the lock has {expected}.",
                fix="Do not install it. Ask whoever made the lock or keeps the channel which of the two is right.",
            )


def _kinds(package: Locked) -> tuple[str, ...]:
    return tuple(kind for kind, value in (("sha256", package.sha256), ("md5", package.md5)) if value)


def _compare(package: Locked, found: Mapping[str, str]) -> tuple[str, str, str] | None:
    expected = {"sha256": package.sha256, "md5": package.md5}
    for kind in _kinds(package):
        if expected[kind] != found[kind]:
            return kind, str(expected[kind]), found[kind]
    return None
