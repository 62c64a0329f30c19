"""Archives come into the store checked, from wherever they can be had, and nothing secret is printed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import making
from dswin import addresses, archives, downloads, lock, logins, mirrors
from dswin.errors import BadInput, CheckFailed, MachineLacks
from dswin.lock import Locked
from making import Faults, Made, serve

BIG = 300_000


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(logins, "find_in_keyring", lambda host: None)


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "a channel"


@pytest.fixture
def made(channel: Path) -> list[Made]:
    noise = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(BIG // 32))
    return [
        making.make_package(channel, "alpha", files={"share/noise": noise}, subdir="linux-64"),
        making.make_package(channel, "old", ending=".tar.bz2"),
    ]


def list_locked(folder: Path, made: list[Made], base: str, **options: object) -> tuple[Locked, ...]:
    return lock.read(making.lock_of(folder / "x.conda-lock.yml", made, base, **options)).on("linux-64")  # type: ignore[arg-type]


def test_file_and_http(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    with serve(channel) as served:
        for base in (making.to_url(channel), served.url):
            packages, store = list_locked(tmp_path, made, base), tmp_path / base[:4]
            found = archives.fetch(packages, store)
            assert [found[package.url].read_bytes() for package in packages] == [one.path.read_bytes() for one in made]
            assert found[packages[0].url] == store / made[0].sha256 / "alpha-1.0-0.conda"
        before = len(served.requests)
        archives.fetch(packages, store)
        assert len(served.requests) == before, "what is in the store is not asked for again"


def test_md5_only(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    packages = list_locked(tmp_path, made, making.to_url(channel), hashes=["md5"])
    found = archives.fetch(packages, tmp_path / "store")
    assert found[packages[1].url].parent.name == f"md5-{made[1].md5}"
    made[1].path.write_bytes(b"other")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(CheckFailed, match=r"old-1\.0-0\.tar\.bz2 .* its md5 is"):
        archives.fetch(packages, tmp_path / "store")


def test_both_hashes_count(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    entries = making.list_locked(made, making.to_url(channel))
    entries[0]["hash"]["md5"] = "0" * 32
    packages = lock.read(making.write_lock(tmp_path / "x.conda-lock.yml", entries)).on("linux-64")
    with pytest.raises(CheckFailed, match=f"its md5 is {made[0].md5}, and the lock has {'0' * 32}"):
        archives.fetch(packages, tmp_path / "store")


def test_broken_off_and_resumed(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    with serve(channel, Faults(cut={"/linux-64/alpha-1.0-0.conda": 100_000})) as served:
        packages = list_locked(tmp_path, made[:1], served.url)
        archives.fetch(packages, tmp_path / "store")
        ranges = [wanted for _, _, wanted in served.requests]
    assert ranges[0] is None
    assert ranges[1] == "bytes=65536-", "what came is kept, in whole pieces"


def test_resumed_by_a_later_run(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    data = made[0].path.read_bytes()
    with serve(channel) as served:
        [package] = list_locked(tmp_path, made[:1], served.url)
        path = archives.place(package, tmp_path / "store")
        path.parent.mkdir(parents=True)
        path.with_name(path.name + ".part").write_bytes(data[:5000])
        counted: list[tuple[int, int]] = []
        archives.fetch([package], tmp_path / "store", count=lambda done, more: counted.append((done, more)))
        assert served.requests == [("GET", "/linux-64/alpha-1.0-0.conda", "bytes=5000-")]
    assert path.read_bytes() == data
    assert sum(done for done, _ in counted) == sum(more for _, more in counted) == len(data) - 5000
    assert not list(path.parent.glob("*.part"))


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("part", [b"not its beginning", b"x" * 2 * BIG], ids=["other", "longer"])
def test_wrong_part(tmp_path: Path, channel: Path, made: list[Made], ranges: bool, part: bytes) -> None:
    with serve(channel, Faults(ranges=ranges)) as served:
        [package] = list_locked(tmp_path, made[:1], served.url)
        path = archives.place(package, tmp_path / "store")
        path.parent.mkdir(parents=True)
        path.with_name(path.name + ".part").write_bytes(part)
        archives.fetch([package], tmp_path / "store")
    assert path.read_bytes() == made[0].path.read_bytes()


def test_busy_server(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    with serve(channel, Faults(refuse={"/noarch/old-1.0-0.tar.bz2": 2})) as served:
        archives.fetch(list_locked(tmp_path, made, served.url), tmp_path / "store")
        served.faults.refuse["/noarch/old-1.0-0.tar.bz2"] = 99
        with pytest.raises(MachineLacks, match=r"old 1\.0 0 cannot be fetched") as caught:
            archives.fetch(list_locked(tmp_path, made, served.url), tmp_path / "other")
    assert "answers 503, 3 times" in caught.value.log


def test_one_failure_ends_the_others(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    with serve(channel, Faults(bytes={"/noarch/old-1.0-0.tar.bz2": b"other"})) as served:
        served.faults.delay = 0.2
        with pytest.raises(CheckFailed, match=r"old-1\.0-0\.tar\.bz2"):
            archives.fetch(list_locked(tmp_path, made, served.url), tmp_path / "store")
    parts = list((tmp_path / "store").glob("*/alpha*.part"))
    assert parts, "what came of the others is kept"
    assert not list((tmp_path / "store").glob("*/*.conda"))


def test_wrong_bytes_never_get_the_name(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    for base in ("http", "file"):
        with serve(channel, Faults(bytes={"/linux-64/alpha-1.0-0.conda": b"evil"})) as served:
            if base == "file":
                made[0].path.write_bytes(b"evil")
            url = served.url if base == "http" else making.to_url(channel)
            entries = making.alter(
                making.list_locked(made[:1], url), "alpha", hash={"md5": "1" * 32, "sha256": "a" * 64}
            )
            packages = lock.read(making.write_lock(tmp_path / "x.conda-lock.yml", entries)).on("linux-64")
            with pytest.raises(CheckFailed) as caught:
                archives.fetch(packages, tmp_path / base)
        found = hashlib.sha256(b"evil").hexdigest()
        assert all(word in caught.value.what for word in ("alpha-1.0-0.conda", packages[0].url, "a" * 64, found))
        assert [file.name for file in (tmp_path / base).glob("*/*") if file.name != ".lock"] == []


def test_altered_in_the_store(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    packages, lines = list_locked(tmp_path, made, making.to_url(channel)), []
    found = archives.fetch(packages, tmp_path / "store")
    found[packages[0].url].write_bytes(b"evil")
    again = archives.fetch(packages, tmp_path / "store", progress=lines.append)
    assert again[packages[0].url].read_bytes() == made[0].path.read_bytes()
    assert "alpha-1.0-0.conda in the store is not what the lock names: fetched again" in lines


def test_mirrors_in_order(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    """The first is wrong, the second lacks it, the third has it; the lock's own url is not asked."""
    lines: list[str] = []
    empty = tmp_path / "empty"
    empty.mkdir()
    with serve(channel, Faults(bytes={"/linux-64/alpha-1.0-0.conda": b"x"})) as bad, serve(empty) as none:
        with serve(channel) as good:
            table = mirrors.Mirrors({"https://c.invalid/ours": (bad.url, none.url, good.url)})
            packages = list_locked(tmp_path, made[:1], "https://c.invalid/ours")
            found = archives.fetch(packages, tmp_path / "store", mirrors=table, progress=lines.append)
    assert found[packages[0].url].read_bytes() == made[0].path.read_bytes()
    assert "is not the package that the lock names" in lines[0]
    assert "it answers 404" in lines[1]


def test_wrong_mirror_and_no_other(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    with serve(channel, Faults(bytes={"/linux-64/alpha-1.0-0.conda": b"x"})) as bad:
        gone = making.to_url(tmp_path / "gone")
        with pytest.raises(CheckFailed, match="alpha"):
            archives.fetch(
                list_locked(tmp_path, made[:1], gone), tmp_path / "store", mirrors=mirrors.Mirrors({gone: (bad.url,)})
            )


@pytest.mark.parametrize(("secret", "header"), [("me:pass word", "Basic bWU6cGFzcyB3b3Jk"), ("tok-1", "Bearer tok-1")])
def test_login(
    tmp_path: Path, channel: Path, made: list[Made], monkeypatch: pytest.MonkeyPatch, secret: str, header: str
) -> None:
    with serve(channel, Faults(login=header)) as served:
        packages = list_locked(tmp_path, made, served.url)
        with pytest.raises(MachineLacks) as caught:
            archives.fetch(packages, tmp_path / "store")
        assert "401" in caught.value.log
        assert "DSWIN_LOGIN_127_0_0_1" in caught.value.log
        monkeypatch.setenv("DSWIN_LOGIN_127_0_0_1", secret)
        archives.fetch(packages, tmp_path / "store")


def test_keyring_is_asked_once_a_host_refused(
    tmp_path: Path, channel: Path, made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(logins, "find_in_keyring", lambda host: asked.append(host) or logins._parse("tok-2"))
    with serve(channel) as served:
        archives.fetch(list_locked(tmp_path, made, served.url), tmp_path / "first")
        assert asked == []
        served.faults.login = "Bearer tok-2"
        archives.fetch(list_locked(tmp_path, made, served.url), tmp_path / "second")
        assert asked == ["127.0.0.1"]


def test_netrc(tmp_path: Path, channel: Path, made: list[Made], monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password word\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with serve(channel, Faults(login="Basic bWU6d29yZA==")) as served:
        archives.fetch(list_locked(tmp_path, made, served.url), tmp_path / "store")


def test_token_from_the_environment(
    tmp_path: Path, channel: Path, made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    secret = tmp_path / "secret"
    (secret / "t").mkdir(parents=True)
    shutil.move(channel, secret / "t" / "tok-3")
    with serve(secret) as served:
        packages = list_locked(tmp_path, [Made(secret / "t/tok-3/linux-64/alpha-1.0-0.conda", made[0].index)],
                               served.url + "/t/${TOKEN}")  # fmt: skip
        with pytest.raises(MachineLacks, match="variable TOKEN"):
            archives.fetch(packages, tmp_path / "store")
        monkeypatch.setenv("TOKEN", "tok-3")
        archives.fetch(packages, tmp_path / "store", progress=lines.append)
        served.faults.bytes["/t/tok-3/linux-64/alpha-1.0-0.conda"] = b"x"
        with pytest.raises(CheckFailed) as wrong:
            archives.fetch(packages, tmp_path / "again")
        served.faults.status["/t/tok-3/linux-64/alpha-1.0-0.conda"] = 403
        with pytest.raises(MachineLacks) as refused:
            archives.fetch(packages, tmp_path / "again")
    texts = [*lines, wrong.value.what, refused.value.what, refused.value.log]
    assert not any("tok-3" in text for text in texts)
    assert all("tok-3" not in file.name for file in (tmp_path / "store").rglob("*"))


def test_no_room(tmp_path: Path, channel: Path, made: list[Made], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda folder: usage._replace(free=downloads._SPARE + 10_000))
    with serve(channel) as served:
        for base in (served.url, making.to_url(channel)):
            with pytest.raises(MachineLacks, match=r"alpha-1\.0-0\.conda needs 0 MB in .*, where 67 MB are free"):
                archives.fetch(list_locked(tmp_path, made, base), tmp_path / "store")


def test_room_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda folder: usage._replace(free=downloads._SPARE + 100))
    room = downloads.Room(tmp_path)
    with room.hold(60, "a") as wrote:
        with pytest.raises(MachineLacks), room.hold(60, "b"):
            pass
        wrote(30)
        with room.hold(60, "b"):
            assert room.promised == 90
    assert room.promised == 0


def test_two_processes_one_store(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    """Both end well, and each archive is fetched once."""
    with serve(channel, Faults(delay=0.1)) as served:
        file = making.lock_of(tmp_path / "x.conda-lock.yml", made, served.url)
        code = (
            f"import sys; sys.path[:0] = {sys.path!r}\nfrom pathlib import Path; from dswin import archives, lock\n"
            f"archives.fetch(lock.read(Path({str(file)!r})).on('linux-64'), Path({str(tmp_path / 'store')!r}))"
        )
        running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
        assert [one.wait(120) for one in running] == [0, 0]
        assert sorted(served.list_paths()) == ["/linux-64/alpha-1.0-0.conda", "/noarch/old-1.0-0.tar.bz2"]


def test_sizes(tmp_path: Path, channel: Path, made: list[Made]) -> None:
    with serve(channel) as served:
        packages = list_locked(tmp_path, made, served.url)
        sizes = archives.ask_sizes(packages)
        assert served.list_paths("GET") == []
    assert [sizes[package.url] for package in packages] == [one.path.stat().st_size for one in made]


@pytest.mark.parametrize(
    ("url", "windows", "path"),
    [
        ("file:///a%20b/x%25.conda", False, "/a b/x%.conda"),
        ("file://localhost/a/x.conda", False, "/a/x.conda"),
        ("file:///C:/a%20b/x.conda", True, "C:/a b/x.conda"),
        ("file://C:/a/x.conda", True, "//C:/a/x.conda"),
        ("file://server/share/x.conda", True, "//server/share/x.conda"),
    ],
)
def test_file_urls(url: str, windows: bool, path: str) -> None:
    assert addresses.to_path(url, windows=windows).as_posix() == path


def test_share_elsewhere_than_on_windows() -> None:
    with pytest.raises(BadInput, match="the machine server"):
        addresses.to_path("file://server/share/x.conda", windows=False)


@pytest.mark.parametrize("path", ["/a b/ü%25#?.conda", "//server/a share/x.conda", "/plain"])
def test_file_url_there_and_back(path: str) -> None:
    assert addresses.to_path(addresses.to_url(Path(path)), windows=path.startswith("//")).as_posix() == path
