"""conda-lock itself reads our locks, renders them, and agrees with their content hash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import making
from dswin import lock, lock_check, lock_writer, solver

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob(f"*{lock.SUFFIX}"))
CondaLock = Callable[..., Result]


@pytest.fixture
def conda_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CondaLock:
    """Run conda-lock's command line in a scratch folder; ``--conda`` is a program that can say its version, and no more."""
    from conda_lock.conda_lock import main

    monkeypatch.setenv("CONDA_LOCK_CONDA", sys.executable)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(*arguments: object, succeeds: bool = True) -> Result:
        done = CliRunner().invoke(main, [str(one) for one in arguments])
        assert (done.exit_code == 0) is succeeds, f"{done.output}\n{done.exception!r}"
        return done

    return run


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A lock that has our package from a channel in a folder."""
    channel = tmp_path / "a channel"
    making.make_package(channel, "epoch", "1!2.0", subdir="linux-64")
    making.make_package(channel, solver.PACKAGE, "0.19.8", subdir="linux-64", depends=["epoch", "__linux"])
    making.index_channel(channel)
    source = tmp_path / "environment.yaml"
    source.write_text("channels: []\ndependencies: [epoch]\n", encoding="utf-8")
    path = tmp_path / "locks" / f"ours{lock.SUFFIX}"
    wanted = solver.Wanted("ours", (source,), ("linux-64",))
    lock_writer.make(wanted, path, channel=str(channel), cache=tmp_path / "cache")
    return path


def render(conda_lock: CondaLock, path: Path) -> None:
    """Render to explicit, and hold every url and md5 of the lock to it."""
    found = lock.read(path)
    for platform in found.platforms:
        conda_lock("render", "-k", "explicit", "-p", platform, path)
        lines = Path(f"conda-{platform}.lock").read_text(encoding="utf-8").splitlines()
        urls = {line for line in lines if line and not line.startswith(("#", "@"))}
        assert "@EXPLICIT" in lines
        assert urls == {f"{package.url}#{package.md5}" for package in found.on(platform)}


def check_input_hash(conda_lock: CondaLock, path: Path) -> None:
    """conda-lock takes the lock to be that of its sources, and does not touch it."""
    before, found = path.read_bytes(), lock.read(path)
    done = conda_lock(*list_lock_words(found))
    assert f"Spec hash already locked for {sorted(found.platforms)}. Skipping solve." in done.output
    assert path.read_bytes() == before


def list_lock_words(found: lock.Lock) -> list[object]:
    """The arguments by which conda-lock solves a lock anew if its sources have changed."""
    sources = [word for source in found.sources for word in ("-f", found.path.parent / source)]
    platforms = [word for platform in found.platforms for word in ("-p", platform)]
    return ["lock", *sources, *platforms, "--lockfile", found.path, "--check-input-hash", "-k", "lock"]


def test_there_are_locks() -> None:
    assert len(LOCKS) >= 3


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_conda_lock_reads_our_locks(path: Path) -> None:
    from conda_lock.lockfile import parse_conda_lock_file

    theirs, ours = parse_conda_lock_file(path), lock.read(path)
    assert {
        (one.platform, one.name, one.version, one.url, one.hash.md5, one.hash.sha256) for one in theirs.package
    } == {(one.platform, one.name, one.version, one.url, one.md5, one.sha256) for one in ours.packages}
    assert tuple(theirs.metadata.platforms) == ours.platforms
    assert [one.url for one in theirs.metadata.channels] == list(ours.channels)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_our_locks_render_to_explicit(conda_lock: CondaLock, path: Path) -> None:
    render(conda_lock, path)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_conda_lock_agrees_with_the_content_hash_of_our_locks(
    conda_lock: CondaLock, tmp_path: Path, path: Path
) -> None:
    # A copy: were the hash another one, conda-lock would write.
    for folder in ("environments", "locks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("records"))
    check_input_hash(conda_lock, tmp_path / "locks" / path.name)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_nothing_is_wrong_with_our_locks(path: Path) -> None:
    assert lock_check.check(path) == []


def test_a_lock_with_our_package_is_conda_locks_too(conda_lock: CondaLock, made: Path, tmp_path: Path) -> None:
    [ours] = [package for package in lock.read(made).packages if package.name == solver.PACKAGE]
    [archive] = (tmp_path / "a channel").glob("*/deepspeed-win-*")
    data = archive.read_bytes()
    assert (ours.md5, ours.sha256) == (making.hashlib.md5(data).hexdigest(), making.hashlib.sha256(data).hexdigest())
    render(conda_lock, made)
    check_input_hash(conda_lock, made)


def test_conda_lock_sees_a_change_that_we_see(conda_lock: CondaLock, made: Path) -> None:
    source = made.parent / "ours.deepspeed-win.yaml"
    source.write_text(
        source.read_text(encoding="utf-8").replace("- deepspeed-win", "- deepspeed-win 0.19.*"), encoding="utf-8"
    )
    assert [one.rule for one in lock_check.check(made) if one.severity == "error"] == ["fresh"]
    # It goes on to solve, which its conda here cannot.
    done = conda_lock(*list_lock_words(lock.read(made)), succeeds=False)
    assert "Locking dependencies for ['linux-64']" in done.output


def test_the_program_renders_as_well(tmp_path: Path) -> None:
    [path] = [one for one in LOCKS if one.name.startswith("gpu-py311")]
    command = [sys.executable, "-m", "conda_lock", "render", "-k", "explicit", "-p", "win-64", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "pytorch-2.5.1-py3.11_cuda12.1" in (tmp_path / "conda-win-64.lock").read_text(encoding="utf-8")
