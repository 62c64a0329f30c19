"""From a built package to a team's machines: locked, recreated, mirrored into one channel, put into one file; each trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from building import PYTHON, USERS, Build, run_dswin
from locked import lock_build
from making import serve
from training import train


@pytest.fixture(scope="module")
def lock(built: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lock_build(built, tmp_path_factory.mktemp("locks"), "linux-64", PYTHON)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def recreated(lock: Path, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("recreated") / "an environment é"
    done = run_dswin("env", "create", "--lock", str(lock), "--prefix", str(prefix), "--store", str(store))
    assert done.returncode == 0, done.stderr
    return prefix


def list_files(prefix: Path) -> set[str]:
    """What lies in an environment, without what running it and describing it leaves there."""
    return {
        str(path.relative_to(prefix))
        for path in prefix.rglob("*")
        if not path.is_dir() and "__pycache__" not in path.parts and "conda-meta" not in path.parts
    }


def test_an_environment_from_the_lock_trains(recreated: Path, tmp_path: Path) -> None:
    train(recreated, tmp_path)


def test_a_second_run_finds_nothing_to_do_and_every_byte_is_the_locks(lock: Path, store: Path, recreated: Path) -> None:
    where = ("--lock", str(lock), "--prefix", str(recreated), "--store", str(store))
    done = run_dswin("env", "create", *where, "--json")
    assert done.returncode == 0, done.stderr
    before = {path: path.stat().st_mtime_ns for path in (recreated / "conda-meta").glob("*.json")}
    assert run_dswin("env", "create", *where).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (recreated / "conda-meta").glob("*.json")} == before
    assert run_dswin("env", "verify", *where).returncode == 0
    script = recreated / "share" / "deepspeed-win" / "train.py"
    text = script.read_text()
    # Written anew, since the file is a hard link into the cache.
    script.unlink()
    script.write_text(text + "\n")
    done = run_dswin("env", "verify", *where)
    assert done.returncode == 1
    assert "share/deepspeed-win/train.py" in done.stderr + done.stdout
    assert run_dswin("env", "create", *where, "--repair").returncode == 0
    assert script.read_text() == text


def test_one_mirrored_channel_brings_all_that_it_needs(lock: Path, store: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    done = run_dswin("channel", "mirror", str(lock), "--out", str(ours), "--store", str(store))
    assert done.returncode == 0, done.stderr
    prefix = tmp_path / "prefix"
    with serve(ours) as served:
        command = [sys.executable, USERS / "install.py", prefix, "--channel", served.url, "--spec", "deepspeed-win"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    train(prefix, tmp_path)


def test_a_bundle_gives_the_same_environment_without_a_network(
    lock: Path, store: Path, recreated: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "a.dswin-bundle.zip"
    done = run_dswin("bundle", "create", "--lock", str(lock), "--out", str(bundle), "--store", str(store))
    assert done.returncode == 0, done.stderr
    assert run_dswin("bundle", "check", str(bundle)).returncode == 0
    prefix = tmp_path / "prefix"
    done = run_dswin("bundle", "install", str(bundle), "--prefix", str(prefix), "--store", str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert list_files(prefix) == list_files(recreated)
    train(prefix, tmp_path)
