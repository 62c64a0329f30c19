"""From environment files and a channel to a lock: rattler solves over small channels made here."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

import making
from dswin import lock, lock_check, lock_writer, mutex, solver
from dswin.errors import BadInput, CheckFailed, DswinError, MachineLacks

NAMES = ["_u.v_w-x", "deepspeed-win", "epoch", "rc"]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names, versions and requirements of the odder kind, in a folder whose name must be percent-encoded."""
    folder = tmp_path_factory.mktemp("channels") / "a chan%20nel" / "c"
    making.make_package(folder, "epoch", "1!2.0", "py_0", subdir="linux-64")
    depends = ("epoch >=1!1", "epoch <2!0", "rc", "_u.v_w-x *", "rc <2|>3", "__linux")
    making.make_package(folder, solver.PACKAGE, "0.19.8", "cpu_py311_0", subdir="linux-64", depends=depends)
    making.make_package(folder, "rc", "1.0RC1", "0")
    making.make_package(folder, "_u.v_w-x", "1.0_1", "a.b_0", ending=".tar.bz2")
    return making.index_channel(folder)


@pytest.fixture
def wanted(tmp_path: Path) -> solver.Wanted:
    source = tmp_path / "environment.yaml"
    source.write_text("channels: []\ndependencies: [rc, __linux]\n", encoding="utf-8")
    return solver.Wanted("small", (source,), ("linux-64",))


def make(wanted: solver.Wanted, tmp_path: Path, channel: str, **options: str) -> lock.Lock:
    path = tmp_path / "out" / f"{wanted.name}{lock.SUFFIX}"
    lock_writer.make(wanted, path, channel=channel, cache=tmp_path / "cache", **options)  # type: ignore[arg-type]
    return lock.read(path)


def test_a_folder_as_channel(channel: Path, wanted: solver.Wanted, tmp_path: Path) -> None:
    made = make(wanted, tmp_path, str(channel))
    assert [package.name for package in made.packages] == NAMES
    packages = {package.name: package for package in made.packages}
    ours = packages[solver.PACKAGE]
    [archive] = channel.glob("*/deepspeed-win*")
    assert ours.sha256 == making.hashlib.sha256(archive.read_bytes()).hexdigest()
    assert ours.md5 == making.hashlib.md5(archive.read_bytes()).hexdigest()
    assert ours.depends == {"__linux": "", "_u.v_w-x": "*", "epoch": "<2!0,>=1!1", "rc": "<2|>3"}
    assert (packages["epoch"].version, packages["epoch"].fn) == ("1!2.0", "epoch-1!2.0-py_0.conda")
    assert (packages["rc"].version, packages["rc"].subdir) == ("1.0RC1", "noarch")
    assert packages["_u.v_w-x"].fn == "_u.v_w-x-1.0_1-a.b_0.tar.bz2"
    [url] = made.channels
    assert url.startswith("file:///")
    assert url.endswith("/a%20chan%2520nel/c")
    assert {package.channel for package in made.packages} == {url}
    assert made.sources == ("small.deepspeed-win.yaml", "../environment.yaml")
    assert [one.rule for one in lock_check.check(made.path)] == ["local"]
    assert (
        os.listdir(made.path.parent) == [f"small{lock.SUFFIX}", "small.deepspeed-win.yaml"]
        or len(os.listdir(made.path.parent)) == 2
    )
    assert b"\r" not in made.path.read_bytes()


def test_runs_that_share_a_cache_take_turns(channel: Path, wanted: solver.Wanted, tmp_path: Path) -> None:
    """Side by side, rattler's readers of one cache now and then ended with SIGBUS, or waited for each other for ever."""
    cache = tmp_path / "cache"
    cache.mkdir()
    said: list[str] = []
    waits = threading.Event()

    def hear(line: str) -> None:
        said.append(line)
        waits.set()

    with ThreadPoolExecutor() as pool:
        with mutex.hold(cache, "", lambda _: None):
            running = pool.submit(
                lock_writer.make,
                wanted,
                tmp_path / f"one{lock.SUFFIX}",
                channel=str(channel),
                cache=cache,
                progress=hear,
            )
            assert waits.wait(30)
            assert "waiting for another run" in said[0]
            assert str(cache) in said[0]
        running.result(30)
    assert said[1:] == ["solving small for linux-64"]


def test_the_same_lock_has_the_same_bytes(channel: Path, wanted: solver.Wanted, tmp_path: Path) -> None:
    first = make(wanted, tmp_path, str(channel)).path.read_bytes()
    assert make(wanted, tmp_path, str(channel)).path.read_bytes() == first


def test_secrets_stay_in_the_environment(
    channel: Path, wanted: solver.Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSWIN_TEST_ME", "someone")
    monkeypatch.setenv("DSWIN_TEST_WORD", "s3cret-word")
    login = "Basic c29tZW9uZTpzM2NyZXQtd29yZA=="
    with making.serve(channel.parent, making.Faults(login=login)) as served:
        host = served.url.removeprefix("http://")
        # Written with variables, and written out: conda-lock knows the values again.
        for login_text in ("$DSWIN_TEST_ME:$DSWIN_TEST_WORD", "someone:s3cret-word"):
            made = make(wanted, tmp_path, f"http://{login_text}@{host}/c/")
            base = f"http://${{DSWIN_TEST_ME}}:${{DSWIN_TEST_WORD}}@{host}/c"
            assert made.channels == (base,)
            assert {package.channel for package in made.packages} == {base}
            assert lock_check.check(made.path) == []
            for path in made.path.parent.iterdir():
                assert "s3cret" not in path.read_text(encoding="utf-8")
        with pytest.raises(BadInput, match="has a user, a password or a token in it") as caught:
            make(wanted, tmp_path, f"http://other:unknown-word@{host}/c")
        assert "unknown-word" not in caught.value.what


def test_a_token_stays_in_the_environment(
    channel: Path, wanted: solver.Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSWIN_TEST_TOKEN", "tk-s3cret")
    (tmp_path / "www" / "t" / "tk-s3cret").mkdir(parents=True)
    (tmp_path / "www" / "t" / "tk-s3cret" / "c").symlink_to(channel)
    with making.serve(tmp_path / "www") as served:
        made = make(wanted, tmp_path, f"{served.url}/t/${{DSWIN_TEST_TOKEN}}/c")
        assert {package.channel for package in made.packages} == {f"{served.url}/t/${{DSWIN_TEST_TOKEN}}/c"}
        assert lock_check.check(made.path) == []
        monkeypatch.setenv("DSWIN_TEST_TOKEN", "tk-s3cret-2")
        with pytest.raises(MachineLacks, match="does not answer") as caught:
            make(wanted, tmp_path, f"{served.url}/t/${{DSWIN_TEST_TOKEN}}/c")
        assert "s3cret" not in caught.value.what
    monkeypatch.delenv("DSWIN_TEST_TOKEN")
    with pytest.raises(MachineLacks, match="DSWIN_TEST_TOKEN"):
        make(wanted, tmp_path, f"{served.url}/t/${{DSWIN_TEST_TOKEN}}/c")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("pytorch", "pytorch"),
        ("nvidia/label/cuda-12.1.0", "nvidia/label/cuda-12.1.0"),
        ("https://host.example/c/", "https://host.example/c"),
        ("file://${PLACE}/c", "file://${PLACE}/c"),
        ("here", "file://{cwd}/here"),
        ("./not yet", "file://{cwd}/not%20yet"),
        ("100%", "file://{cwd}/100%25"),
    ],
)
def test_what_may_be_named_as_a_channel(
    wanted: solver.Wanted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, url: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    extended = solver.add_package(wanted, text, "deepspeed-win 0.19.8.*", tmp_path / "new")
    [source, *others] = extended.sources
    assert others == list(wanted.sources)
    document = yaml.safe_load(source.read_text(encoding="utf-8"))
    assert document == {
        "channels": [url.replace("{cwd}", tmp_path.as_posix())],
        "dependencies": ["deepspeed-win 0.19.8.*"],
    }


def test_the_channel_of_our_package_goes_before_the_others(tmp_path: Path) -> None:
    source = tmp_path / "environment.yaml"
    source.write_text("channels: [pytorch, https://host.example/c]\ndependencies: [pip]\n", encoding="utf-8")
    wanted = solver.Wanted("small", (source,), ("win-64",))
    for channel, channels in {"ours": ["ours", "pytorch", "https://host.example/c"]}.items():
        extended = solver.add_package(wanted, channel, solver.PACKAGE, tmp_path / "new")
        assert [one.url for one in solver.read_sources(extended).channels] == channels


@pytest.mark.parametrize(
    ("channels", "said"),
    [
        ("['./here']", "'./here' is no channel"),
        ("['/srv/channel']", "'/srv/channel' is no channel"),
        ("['C:\\channel']", "is no channel"),
        ("['https://host/a b']", "A malformed url is no channel"),
        ("['https://me:s3cret@host:port/a']", "A malformed url is no channel|cannot read"),
        ("['https://me:s3cret@host/a']", "has a user, a password or a token"),
        ("7", "conda-lock cannot read"),
    ],
)
def test_a_channel_that_cannot_stand_in_a_lock_is_refused(tmp_path: Path, channels: str, said: str) -> None:
    source = tmp_path / "environment.yaml"
    source.write_text(f"channels: {channels}\ndependencies: [pip]\n", encoding="utf-8")
    with pytest.raises(BadInput, match=said) as caught:
        solver.read_sources(solver.Wanted("small", (source,), ("win-64",)))
    assert "s3cret" not in caught.value.what


@pytest.mark.parametrize(
    ("dependencies", "spec", "error", "said"),
    [
        ("[rc]", "deepspeed-win 9.*", CheckFailed, "deepspeed-win 9"),
        ("[rc >=2]", solver.PACKAGE, CheckFailed, "rc >=2"),
        ("['conda-forge::rc']", solver.PACKAGE, CheckFailed, "conda-forge"),
        ("[__cuda]", solver.PACKAGE, CheckFailed, "__cuda"),
        ("[rc, {pip: [torch]}]", solver.PACKAGE, BadInput, "from pip"),
    ],
)
def test_what_cannot_be_fulfilled_is_said_and_nothing_written(
    channel: Path, tmp_path: Path, dependencies: str, spec: str, error: type[DswinError], said: str
) -> None:
    source = tmp_path / "environment.yaml"
    source.write_text(f"channels: []\ndependencies: {dependencies}\n", encoding="utf-8")
    with pytest.raises(error) as caught:
        make(solver.Wanted("small", (source,), ("linux-64",)), tmp_path, str(channel), spec=spec)
    assert said in caught.value.what + caught.value.log
    assert not (tmp_path / "out").exists()


def test_a_failed_solve_leaves_the_old_lock_and_its_source(
    channel: Path, wanted: solver.Wanted, tmp_path: Path
) -> None:
    made = make(wanted, tmp_path, str(channel))
    before = {path: path.read_bytes() for path in made.path.parent.iterdir()}
    with pytest.raises(CheckFailed):
        make(wanted, tmp_path, str(channel), spec="deepspeed-win 9.*")
    assert {path: path.read_bytes() for path in made.path.parent.iterdir()} == before


@pytest.mark.parametrize("repodata", [None, "{", '{"packages": {"rc-1.0-0.tar.bz2": {"name": 7}}}'])
def test_a_channel_without_good_lists_is_named(wanted: solver.Wanted, tmp_path: Path, repodata: str | None) -> None:
    folder = tmp_path / "broken"
    for subdir in ("noarch", "linux-64"):
        (folder / subdir).mkdir(parents=True)
        if repodata is not None:
            (folder / subdir / "repodata.json").write_text(repodata, encoding="utf-8")
    with pytest.raises((MachineLacks, CheckFailed)) as caught:
        make(wanted, tmp_path, str(folder))
    assert caught.value.fix


def test_a_record_without_md5_cannot_be_locked(wanted: solver.Wanted, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    making.make_package(folder, "rc")
    making.make_package(folder, solver.PACKAGE)
    making.index_channel(folder)
    path = folder / "noarch" / "repodata.json"
    document = making.json.loads(path.read_text(encoding="utf-8"))
    for record in document["packages.conda"].values():
        del record["md5"]
    path.write_text(making.json.dumps(document), encoding="utf-8")
    (folder / "linux-64").mkdir()
    (folder / "linux-64" / "repodata.json").write_text('{"packages": {}, "packages.conda": {}}', encoding="utf-8")
    with pytest.raises(BadInput, match=r"has no md5"):
        make(wanted, tmp_path, str(folder))


@pytest.mark.parametrize(
    ("depends", "merged"),
    [
        (["python"], {"python": ""}),
        (["python *"], {"python": "*"}),
        (["python>=3.9"], {"python": ">=3.9"}),
        (["python 3.11.* *_cpython"], {"python": "3.11.*"}),
        (["python ==3.11"], {"python": "3.11"}),
        (["python[version='>=3.9,<4']"], {"python": ">=3.9,<4"}),
        (["conda-forge::python 3.11.*"], {"python": "3.11.*"}),
        (["python >=3.9", "python <3.12"], {"python": "<3.12,>=3.9"}),
        (["python >=3.9|<3", "python !=3.10"], {"python": "!=3.10,(>=3.9|<3)"}),
        (["python >=3.9", "python"], {"python": ">=3.9"}),
        (['absent[when="python <3"]', "__win"], {"__win": ""}),
    ],
)
def test_requirements_are_merged_by_name(depends: list[str], merged: dict[str, str]) -> None:
    assert lock_writer.merge_requirements(depends, {"python"}) == merged


# locks.toml


def read_wanted(tmp_path: Path, text: str) -> dict[str, solver.Wanted]:
    (tmp_path / "a.yaml").write_text("channels: []\ndependencies: [pip]\n", encoding="utf-8")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "locks.toml").write_text(text, encoding="utf-8")
    return solver.read_wanted(tmp_path / "locks")


def test_locks_toml_is_read(tmp_path: Path) -> None:
    text = '[gpu-1]\nsources = ["../a.yaml"]\nplatforms = ["win-64"]\ncuda = "12.1"\nwhy = "so"\nnotes.blas = "slow"\n'
    [found] = read_wanted(tmp_path, text).values()
    assert found == solver.Wanted("gpu-1", (tmp_path / "a.yaml",), ("win-64",), "12.1", "so", {"blas": "slow"})
    assert found.list_virtual("win-64") == {"__win": "0", "__archspec": "1 x86_64", "__cuda": "12.1"}


GOOD = 'sources = ["../a.yaml"]\nplatforms = ["win-64"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x", "is not TOML"),
        ("x = 1", r"\[x\] is no description"),
        ("[x]\n", r"\[x\] is no description"),
        ('[x]\nsources = "../a.yaml"\nplatforms = ["win-64"]', "is no description"),
        ('[x]\nsources = ["../a.yaml"]\nplatforms = "win-64"', "is no description"),
        ('[x]\nsources = []\nplatforms = ["win-64"]', "is no description"),
        (f"[x]\n{GOOD}cuda = 12.1", "is no description"),
        (f'[x]\n{GOOD}cuda = "twelve"', "has cuda = 'twelve'"),
        (f"[x]\n{GOOD}notes = 7", "is no description"),
        (f"[x]\n{GOOD}notes.blas = 7", "is no description"),
        (f"['../x']\n{GOOD}", "is no description"),
        ('[x]\nsources = ["../b.yaml"]\nplatforms = ["win-64"]', "which is not there"),
        ('[x]\nsources = ["../a.yaml"]\nplatforms = ["osx-64"]', "is for osx-64"),
    ],
)
def test_a_bad_locks_toml_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_wanted(tmp_path, text)


def test_a_folder_without_locks_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        solver.read_wanted(tmp_path)
