"""The Windows package on a team's machines: an environment made on Linux from a lock, and one from a mirrored channel, train."""

from __future__ import annotations

from pathlib import Path

import pytest

from building import USERS, Build, run_dswin
from dswin.machine import UnderWine
from dswin.wine import Host
from dswin.wine.python import MINOR
from locked import lock_build
from making import serve
from training import SCRIPT, check_training


@pytest.fixture(scope="module")
def lock(windows_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lock_build(windows_build, tmp_path_factory.mktemp("locks"), "win-64", MINOR)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def train(host: Host, prefix: Path, folder: Path, name: str) -> None:
    done = host.run(
        [prefix / "python.exe", SCRIPT, "--accelerator", "cpu", "--json", name],
        cwd=folder,
        env={"WINEPATH": "", "DS_ACCELERATOR": "cpu"},
        timeout=600,
    )
    assert done.code == 0, done.output
    check_training(folder / name)


def test_an_environment_made_on_linux_trains_on_windows(host: Host, lock: Path, store: Path, folder: Path) -> None:
    prefix = folder / "from a lock"
    where = ("--lock", str(lock), "--prefix", str(prefix), "--platform", "win-64", "--store", str(store))
    done = run_dswin("env", "create", *where)
    assert done.returncode == 0, done.stderr
    train(host, prefix, folder, "locked.json")
    assert run_dswin("env", "verify", *where).returncode == 0


def test_one_mirrored_channel_brings_all_that_it_needs(
    host: Host, machine: UnderWine, lock: Path, store: Path, folder: Path, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    done = run_dswin("channel", "mirror", str(lock), "--out", str(ours), "--store", str(store))
    assert done.returncode == 0, done.stderr
    prefix = folder / "from our channel"
    with serve(ours) as served:
        code = machine.run_python(
            [USERS / "install.py", prefix, "--channel", served.url, "--spec", "deepspeed-win"],
            log := folder / "mirrored.log",
            {},
        )
    assert code == 0, log.read_text(encoding="utf-8")
    train(host, prefix, folder, "mirrored.json")
