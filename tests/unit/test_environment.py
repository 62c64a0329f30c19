"""Environments are made from locks, once; changed, repaired and stamped; whatever the run before did."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import making
from dswin import archives, env_verify, environment, lock, prefixes
from dswin.errors import BadInput, CheckFailed, MachineLacks
from dswin.lock import Lock
from dswin.prefixes import META, Stamp
from making import Made, serve

LINUX = "linux-64"


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "channel"


def read_lock(folder: Path, made: list[Made], base: str, platform: str = LINUX, **options: object) -> Lock:
    return lock.read(making.lock_of(folder / "x.conda-lock.yml", made, base, platform, **options))


def assert_right(lock: Lock, prefix: Path, store: Path, platform: str = LINUX) -> None:
    assert env_verify.verify(lock, prefix, platform, store).findings == ()


@pytest.mark.parametrize("folder", ["env", "an é environment", "long/" + "l" * 120])
@pytest.mark.parametrize("platform", ["linux-64", "win-64"])
def test_made_and_verified(tmp_path: Path, channel: Path, platform: str, folder: str) -> None:
    """For Windows too, whatever the machine; with spaces in the prefix, and with one too long for a shebang."""
    prefix, store = tmp_path / folder, tmp_path / "store"
    with serve(channel) as served:
        found = read_lock(tmp_path, making.make_sample(channel, platform), served.url, platform)
        made = environment.create(found, platform, prefix, store)
    assert made.done
    assert made.repaired == ()
    assert [step.name for step in made.plan.add] == ["alpha", "old", "pure", "python"]
    assert_right(found, prefix, store, platform)
    # conda-meta alone agrees.
    without = env_verify.verify(found, prefix, platform, None)
    assert without.findings == ()
    assert "archives of 4 of 4 packages are not at hand" in without.notes[0]
    script = prefix / ("Scripts/pure-script.py" if platform == "win-64" else "bin/pure")
    assert "from pure import main" in script.read_text(encoding="utf-8")
    assert str(prefix) in (prefix / "etc" / "alpha.cfg").read_text(encoding="utf-8")


def test_conda_meta_has_the_lock_s_urls(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    for package in found.on(LINUX):
        [file] = (tmp_path / "env" / META).glob(f"{package.name}-*.json")
        record = json.loads(file.read_text(encoding="utf-8"))
        assert (record["url"], record["sha256"], record["md5"]) == (package.url, package.sha256, package.md5)
        assert record["channel"] == f"{package.channel}/{package.subdir}"
        assert record["fn"] == package.fn


def test_secrets_are_stored_nowhere(tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "web" / "t" / "tok-9"
    made = making.make_sample(secret)
    monkeypatch.setenv("TOKEN", "tok-9")
    with serve(tmp_path / "web") as served:
        host = served.url.removeprefix("http://")
        found = read_lock(tmp_path, made, f"http://me:word-9@{host}/t/$TOKEN")
        environment.create(
            found, LINUX, tmp_path / "env", tmp_path / "store", source=f"http://me:word-9@{host}/t/tok-9/x.yml"
        )
    for file in [*(tmp_path / "env" / META).iterdir(), *(tmp_path / "store").rglob("*.json")]:
        assert b"word-9" not in file.read_bytes()
        assert b"tok-9" not in file.read_bytes()


def test_md5_only(tmp_path: Path, channel: Path) -> None:
    made = making.make_sample(channel)
    found = read_lock(tmp_path, made, making.to_url(channel), hashes=["md5"])
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert_right(found, tmp_path / "env", tmp_path / "store")
    assert not environment.create(found, LINUX, tmp_path / "env", tmp_path / "store").done


def test_second_run_does_nothing(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "env").rglob("*") if path.name != ".lock"}
    shutil.rmtree(channel)
    shutil.rmtree(tmp_path / "store")
    started = time.process_time()
    again = environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert time.process_time() - started < 1
    assert not again.done
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_lost_record_is_noticed_and_repaired(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    [record] = (tmp_path / "env" / META).glob("alpha-*.json")
    record.unlink()
    assert environment.status(tmp_path / "env").drift == ("alpha-1.0-0 is no longer installed",)
    again = environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert [step.name for step in again.plan.add] == ["alpha"]
    assert_right(found, tmp_path / "env", tmp_path / "store")
    assert environment.status(tmp_path / "env").drift == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"name": 1}', '{"name": "alpha", "version": "1.0", "build": "0"}']
)
def test_broken_record_is_repaired(tmp_path: Path, channel: Path, text: str) -> None:
    """Rattler stops at one; the last is whole but lies about which package it is."""
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    [record] = (tmp_path / "env" / META).glob("pure-*.json")
    record.write_text(text, encoding="utf-8")
    again = environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert again.plan.broken == (record,)
    assert_right(found, tmp_path / "env", tmp_path / "store")


def test_changes(tmp_path: Path, channel: Path) -> None:
    """Another version, the same version by another hash, one that goes, one that comes, one that stays."""
    prefix, store = tmp_path / "env", tmp_path / "store"
    stays = making.make_package(channel, "stays")
    first = [stays, *(making.make_package(channel, name) for name in ("goes", "grows", "rebuilt"))]
    environment.create(read_lock(tmp_path, first, making.to_url(channel)), LINUX, prefix, store)
    inode = (prefix / "share/stays.txt").stat().st_ino
    second = [
        stays,
        making.make_package(channel, "comes"),
        making.make_package(channel, "grows", "2.0", files={"share/new.txt": b"new"}),
        making.make_package(channel, "rebuilt", files={"share/rebuilt.txt": b"again"}),
    ]
    found = read_lock(tmp_path, second, making.to_url(channel))
    planned = environment.plan(found, LINUX, prefix, store, ask=environment.ask_size)
    assert [step.name for step in planned.keep] == ["stays"]
    assert [(step.name, step.new) for step in planned.add] == [("comes", "1.0 0")]
    assert [(step.name, step.old, step.new, bool(step.why)) for step in planned.change] == [
        ("grows", "1.0 0", "2.0 0", False),
        ("rebuilt", "1.0 0", "1.0 0", True),
    ]
    assert [(step.name, step.old) for step in planned.remove] == [("goes", "1.0 0")]
    assert (planned.fetch, planned.unknown) == (sum(one.path.stat().st_size for one in second[1:]), 0)
    environment.create(found, LINUX, prefix, store)
    assert_right(found, prefix, store)
    assert sorted(path.name for path in (prefix / "share").iterdir()) == [
        "comes.txt",
        "new.txt",
        "rebuilt.txt",
        "stays.txt",
    ]
    assert (prefix / "share/stays.txt").stat().st_ino == inode, "what stays is not linked again"


def test_another_python(tmp_path: Path, channel: Path) -> None:
    """Pure packages move to where the new Python looks for them."""
    made = making.make_sample(channel)
    environment.create(read_lock(tmp_path, made, making.to_url(channel)), LINUX, tmp_path / "env", tmp_path / "store")
    newer = making.make_package(
        channel, "python", "3.12.1", "0_cpython", subdir=LINUX, files={"bin/python3.12": b"#!/bin/sh\n"}
    )
    found = read_lock(tmp_path, [newer, *made[1:]], making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert_right(found, tmp_path / "env", tmp_path / "store")
    assert (tmp_path / "env/lib/python3.12/site-packages/pure/__init__.py").is_file()
    assert not (tmp_path / "env/lib/python3.11").exists()


def test_same_file_in_two_packages(tmp_path: Path, channel: Path) -> None:
    made = [making.make_package(channel, name, files={"share/both.txt": name.encode()}) for name in ("one", "two")]
    found = read_lock(tmp_path, made, making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert_right(found, tmp_path / "env", tmp_path / "store")


def test_altered_cache_is_not_linked(tmp_path: Path, channel: Path) -> None:
    """Even where what lies beside the files was altered to match: what counts is the archive."""
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "first", tmp_path / "store")
    cache = tmp_path / "store" / environment.UNPACKED / LINUX / "alpha-1.0-0"
    file, paths = cache / "share/alpha.txt", cache / "info/paths.json"
    file.unlink()  # it is a hard link into the first environment
    file.write_bytes(b"evil\n")
    old = (made := json.loads(paths.read_text()))["paths"]
    next(entry for entry in old if entry["_path"] == "share/alpha.txt")["sha256"] = env_verify.hash_file(file)
    paths.write_text(json.dumps(made))
    lines: list[str] = []
    created = environment.create(found, LINUX, tmp_path / "second", tmp_path / "store", progress=lines.append)
    assert created.repaired == ("alpha",)
    assert "not as in their archives, linked again: alpha" in lines
    assert (tmp_path / "second/share/alpha.txt").read_bytes() == b"alpha\n"
    assert_right(found, tmp_path / "second", tmp_path / "store")


def test_archive_that_contradicts_itself(tmp_path: Path, channel: Path) -> None:
    """Its hash is the lock's and its files are not what its own paths.json says."""
    made = making.make_package(channel, "alpha", paths={"share/alpha.txt": {"sha256": "0" * 64}})
    found = read_lock(tmp_path, [made], making.to_url(channel))
    with pytest.raises(CheckFailed, match=r"share/alpha\.txt \(alpha 1\.0 0\)"):
        environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert Stamp.read(tmp_path / "env") is None


def test_files_that_were_altered(tmp_path: Path, channel: Path) -> None:
    """A plain second run does not look at them; with repair it does."""
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    (tmp_path / "env/etc/alpha.cfg").write_bytes(b"evil")
    assert not environment.create(found, LINUX, tmp_path / "env", tmp_path / "store").done
    assert environment.create(found, LINUX, tmp_path / "env", tmp_path / "store", repair=True).repaired == ("alpha",)
    assert_right(found, tmp_path / "env", tmp_path / "store")


def test_environment_of_another_program(tmp_path: Path, channel: Path) -> None:
    """It is taken over: kept where it is right, verified, stamped."""
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    (tmp_path / "env" / META / prefixes.STAMP).unlink()
    (tmp_path / "env/share/alpha.txt").write_bytes(b"evil")
    assert environment.status(tmp_path / "env").stamp is None
    created = environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert len(created.plan.keep) == 4
    assert created.repaired == ("alpha",)
    assert environment.status(tmp_path / "env").drift == ()


def test_relative_prefix(tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, Path("env"), Path("store"))
    assert (tmp_path / "env/bin/run").read_text().startswith(f"#!{tmp_path}/env/bin/python")


def test_folders_that_are_refused(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, [making.make_package(channel, "alpha")], making.to_url(channel))
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    base = tmp_path / "base"
    (base / META).mkdir(parents=True)
    (base / META / "conda-24.1.0-py311_0.json").write_text("{}")
    file = tmp_path / "file"
    file.write_text("")
    for folder, words in ((full, "no conda environment"), (base, "conda installation itself"), (file, "is a file")):
        with pytest.raises(BadInput, match=words):
            environment.create(found, LINUX, folder, tmp_path / "store")
    assert [path.name for path in full.iterdir()] == ["thesis.txt"]
    with pytest.raises(BadInput, match="not for win-64"):
        environment.create(found, "win-64", tmp_path / "env", tmp_path / "store")


def test_other_platform_is_refused(tmp_path: Path, channel: Path) -> None:
    made = making.make_package(channel, "alpha")
    entries = [
        *making.list_locked([made], making.to_url(channel)),
        *making.list_locked([made], making.to_url(channel), "win-64"),
    ]
    found = lock.read(making.write_lock(tmp_path / "x.conda-lock.yml", entries))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    with pytest.raises(BadInput, match="for linux-64, not for win-64"):
        environment.create(found, "win-64", tmp_path / "env", tmp_path / "store")


def test_no_room(tmp_path: Path, channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    archives.fetch(found.on(LINUX), tmp_path / "store")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(MachineLacks, match=r"0\.0 GB are free"):
        environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert prefixes.list_records(tmp_path / "env") == []


def test_rattler_s_own_failure(tmp_path: Path, channel: Path) -> None:
    """A prefix that is longer than the placeholder in a binary."""
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    deep = tmp_path / ("d" * 130) / ("e" * 130)
    with pytest.raises(MachineLacks, match="cannot be linked") as caught:
        environment.create(found, LINUX, deep, tmp_path / "store")
    assert caught.value.log


def kill_in_child(where: str, file: Path, prefix: Path, store: Path) -> None:
    """Run ``create`` in a process of its own, which kills itself without any warning at a point of its work."""
    code = f"""
        import os, signal, sys, threading
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from dswin import archives, env_verify, environment, lock
        import rattler

        def kill(*arguments, **options):
            os.kill(os.getpid(), signal.SIGKILL)

        def kill_when_there(path):
            def watch():
                while not os.path.lexists(path):
                    pass
                kill()
            threading.Thread(target=watch, daemon=True).start()

        {textwrap.indent(textwrap.dedent(where), " " * 8).strip()}
        found = lock.read(Path({str(file)!r}))
        environment.create(found, "linux-64", Path({str(prefix)!r}), Path({str(store)!r}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


KILLS = {
    "while the second archive comes": """
        real, seen = archives._download, []
        def download(package, *rest):
            seen.append(package)
            return kill() if len(seen) > 1 else real(package, *rest)
        archives._download = download
    """,
    "before linking": "rattler.install = kill",
    "amid linking": "kill_when_there(FIRST)",
    "before verifying": "env_verify.verify = kill",
    "before the stamp": "environment._stamp = kill",
}


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lock, Lock]:
    """A lock, and one that follows it; in both a package with many files."""
    folder = tmp_path_factory.mktemp("locks")
    old = {f"share/many/old-{number}.txt": b"%d" % number for number in range(300)}
    new = {f"share/many/{number}.txt": b"%d" % number for number in range(300)}
    before = [making.make_package(folder, "many", "0.9", files=old), making.make_package(folder, "goes")]
    after = [*making.make_sample(folder), making.make_package(folder, "many", files=new)]
    return (
        lock.read(making.lock_of(folder / "before.conda-lock.yml", before, making.to_url(folder))),
        lock.read(making.lock_of(folder / "after.conda-lock.yml", after, making.to_url(folder))),
    )


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that a process cannot see")
@pytest.mark.parametrize("where", KILLS)
@pytest.mark.parametrize("change", [False, True], ids=["new", "change"])
def test_killed_run_is_repaired_by_the_next(tmp_path: Path, locks: tuple[Lock, Lock], where: str, change: bool) -> None:
    prefix, store = tmp_path / "env", tmp_path / "store"
    before, found = locks
    if change:
        environment.create(before, LINUX, prefix, store)
    code = KILLS[where].replace("FIRST", repr(str(prefix / "share/many/0.txt")))
    kill_in_child(code, found.path, prefix, store)
    assert environment.find_drift(found, LINUX, prefix)
    assert environment.create(found, LINUX, prefix, store).done
    assert_right(found, prefix, store)
    assert {path.name for path in prefixes.list_records(prefix)} == {
        prefixes.name_record(one.url) for one in found.on(LINUX)
    }
    assert not (prefix / META / prefixes.JOURNAL).exists()
    assert not environment.create(found, LINUX, prefix, store).done


def test_one_run_at_a_time(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\nfrom pathlib import Path; from dswin import environment, lock\n"
        f"made = environment.create(lock.read(Path({str(found.path)!r})), 'linux-64', Path({str(tmp_path / 'env')!r}), "
        f"Path({str(tmp_path / 'store')!r}))\nprint(made.done)\nsys.stdout.flush()\nimport os; os._exit(0)"
    )
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(one.communicate(timeout=120)[0].strip() for one in running) == ["False", "True"]
    assert_right(found, tmp_path / "env", tmp_path / "store")


def test_status(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store", source="https://me:word@host/x.yml")
    status = environment.status(tmp_path / "env")
    assert status.stamp is not None
    assert status.stamp.source == "https://host/x.yml"
    assert status.stamp.lock == env_verify.hash_file(found.path)
    (tmp_path / "env" / META / "extra-1-0.json").write_text("{}")
    assert environment.status(tmp_path / "env").drift == ("extra-1-0 was added",)
    with pytest.raises(BadInput, match="no conda environment"):
        environment.status(channel)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"packages": 1}', '{"packages": [], "lock": 1}', "\udcff"])
def test_stamp_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / META).mkdir()
    (tmp_path / META / prefixes.STAMP).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert Stamp.read(tmp_path) is None


def test_journal_cannot_reach_outside(tmp_path: Path, channel: Path) -> None:
    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    (tmp_path / "env" / META).mkdir(parents=True)
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    left = tmp_path / "env" / "share" / "left.txt"
    left.parent.mkdir()
    left.write_text("of a run that was killed")
    paths = ["../mine.txt", str(mine), "share/../../mine.txt", 7, "share", "share/left.txt"]
    (tmp_path / "env" / META / prefixes.JOURNAL).write_text(json.dumps(paths))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    assert mine.read_text() == "mine"
    assert not left.exists()


def test_record_cannot_reach_outside(tmp_path: Path, channel: Path) -> None:
    """A package that goes takes with it what its record names, but nothing from outside the environment."""
    made = making.make_sample(channel)
    environment.create(read_lock(tmp_path, made, making.to_url(channel)), LINUX, tmp_path / "env", tmp_path / "store")
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    [file] = (tmp_path / "env" / META).glob("old-*.json")
    record = json.loads(file.read_text())
    record["paths_data"]["paths"].append({"_path": "../mine.txt", "path_type": "hardlink"})
    record["files"].append("../mine.txt")
    file.write_text(json.dumps(record))
    created = environment.create(
        read_lock(tmp_path, made[:3], making.to_url(channel)), LINUX, tmp_path / "env", tmp_path / "store"
    )
    assert created.plan.broken == (file,)
    assert mine.read_text() == "mine"
    assert not file.exists()


def test_conda_and_rattler_read_the_prefix(tmp_path: Path, channel: Path) -> None:
    """Neither stops at what lies beside the records; a stamp that ends in .json stops both."""
    import rattler

    found = read_lock(tmp_path, making.make_sample(channel), making.to_url(channel))
    environment.create(found, LINUX, tmp_path / "env", tmp_path / "store")
    records = [rattler.PrefixRecord.from_path(path) for path in prefixes.list_records(tmp_path / "env")]
    assert {record.name.normalized for record in records} == {"alpha", "old", "pure", "python"}
    assert not prefixes.STAMP.endswith(".json")
    assert not prefixes.JOURNAL.endswith(".json")


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_VERSIONS = st.tuples(st.sampled_from(["1.0", "2.0"]), st.sampled_from(["0", "1"]), st.sampled_from(["x", "y"]))
_SETS = st.dictionaries(_NAMES, _VERSIONS, min_size=1)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, tuple[str, str, str]], Made]:
    """Every package that the property below may ask for; the third part of a version is its content."""
    folder = tmp_path_factory.mktemp("shelf")
    return {
        (name, (version, build, content)): making.make_package(
            folder / content, name, version, build, files={f"share/{name}/{version}.txt": f"{content}\n".encode()}
        )
        for name in "abcd"
        for version in ("1.0", "2.0")
        for build in ("0", "1")
        for content in ("x", "y")
    }


def lock_of_set(folder: Path, chosen: dict, shelf: dict) -> Lock:
    entries = []
    for name, version in chosen.items():
        made = shelf[name, version]
        entries += making.list_locked([made], making.to_url(made.path.parents[1]))
    return lock.read(making.write_lock(folder / "x.conda-lock.yml", entries))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_SETS, min_size=1, max_size=3))
def test_any_way_from_lock_to_lock(tmp_path_factory: pytest.TempPathFactory, shelf: dict, steps: list[dict]) -> None:
    """Whatever was there before, the environment is what the last lock says, and the plan said so before."""
    folder = tmp_path_factory.mktemp("way")
    prefix, store = folder / "env", folder / "store"
    before: dict = {}
    for chosen in steps:
        found = lock_of_set(folder, chosen, shelf)
        planned = environment.plan(found, LINUX, prefix, store)
        assert {step.name for step in planned.keep} == {name for name in chosen if before.get(name) == chosen[name]}
        assert {step.name for step in planned.add} == chosen.keys() - before.keys()
        assert {step.name for step in planned.remove} == before.keys() - chosen.keys()
        assert {step.name for step in planned.change} == {
            name for name in chosen.keys() & before.keys() if before[name] != chosen[name]
        }
        created = environment.create(found, LINUX, prefix, store)
        assert created.done == (chosen != before)
        assert_right(found, prefix, store)
        files = {path.relative_to(prefix).as_posix() for path in (prefix / "share").rglob("*.txt")}
        assert files == {f"share/{name}/{version}.txt" for name, (version, _, _) in chosen.items()}
        before = chosen


_TEXTS = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.dictionaries(
        st.sampled_from(["a-1.0-0.json", "b-1.0-0.json", "a-1.0-1.json", "x.json"]),
        st.one_of(
            st.binary(max_size=20),
            st.fixed_dictionaries(
                {
                    "name": st.one_of(_NAMES, _TEXTS),
                    "version": st.one_of(st.just("1.0"), _TEXTS),
                    "build": st.just("0"),
                },
                optional={
                    "url": _TEXTS,
                    "md5": _TEXTS,
                    "sha256": _TEXTS,
                    "paths_data": st.one_of(
                        _TEXTS,
                        st.fixed_dictionaries(
                            {
                                "paths": st.one_of(
                                    _TEXTS, st.lists(st.dictionaries(st.just("_path"), _TEXTS), max_size=2)
                                )
                            }
                        ),
                    ),
                },
            ).map(lambda record: json.dumps(record).encode()),
        ),
        max_size=3,
    )
)
def test_any_conda_meta_can_be_planned_and_verified(
    tmp_path_factory: pytest.TempPathFactory, shelf: dict, records: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("meta")
    (folder / "env" / META).mkdir(parents=True)
    for name, data in records.items():
        (folder / "env" / META / name).write_bytes(data)
    found = lock_of_set(folder, {"a": ("1.0", "0", "x"), "b": ("1.0", "0", "x")}, shelf)
    planned = environment.plan(found, LINUX, folder / "env", folder / "store")
    assert len(planned.keep) + len(planned.add) + len(planned.change) == 2
    assert env_verify.verify(found, folder / "env", LINUX, folder / "store").findings
    assert replace(planned, free=0).to_json()["broken_records"] == sorted(path.name for path in planned.broken)
