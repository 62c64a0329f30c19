"""``dswin env``: what it prints, what a program reads from it, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import making
from dswin import cli, cli_env, downloads, logins
from making import Faults, Made, serve

if "env" not in cli.dswin.commands:
    cli.dswin.add_command(cli_env.env)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSES", ())
    monkeypatch.setattr(logins, "find_in_keyring", lambda host: None)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Made]]:
    folder = tmp_path_factory.mktemp("channel")
    return folder, making.make_sample(folder)


def run(*arguments: object) -> int:
    return cli.main(["env", *map(str, arguments)])


def options(lock: object, folder: Path) -> list[object]:
    return ["--lock", lock, "--prefix", folder / "env", "--platform", "linux-64", "--store", folder / "store"]


def write_command(words: list[object], after: str = "") -> list[str]:
    """``dswin env create`` as a process of its own, and what it does at its end."""
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from dswin import cli, cli_env
cli.dswin.add_command(cli_env.env)
code = cli.main(sys.argv[1:])
{after}
sys.stderr.flush()
os._exit(code)
"""
    return [sys.executable, "-c", code, "env", "create", *map(str, words)]


def test_from_plan_to_status(
    tmp_path: Path, channel: tuple[Path, list[Made]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, made = channel
    lock = making.lock_of(tmp_path / "x.conda-lock.yml", made, making.to_url(folder))
    assert run("plan", *options(lock, tmp_path)) == 0
    out = capsys.readouterr().out
    assert "+ alpha 1.0 0\n" in out
    assert "keep 0, add 4, change 0, remove 0; 0.0 MB to fetch" in out
    assert not (tmp_path / "env").exists(), "a plan makes nothing"
    assert run("create", *options(lock, tmp_path)) == 0
    captured = capsys.readouterr()
    assert "done, 12 files verified" in captured.out
    assert "fetched alpha-1.0-0.conda" in captured.err
    assert run("create", *options(lock, tmp_path)) == 0
    assert "nothing to do, 4 packages" in capsys.readouterr().out
    assert run("verify", *options(lock, tmp_path)) == 0
    assert "4 packages, 12 files compared, 0 findings" in capsys.readouterr().out
    assert run("status", "--prefix", tmp_path / "env") == 0
    assert str(lock) in capsys.readouterr().out


def test_json(tmp_path: Path, channel: tuple[Path, list[Made]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, made = channel
    lock = making.lock_of(tmp_path / "x.conda-lock.yml", made, making.to_url(folder))

    def read(code: int, *arguments: object) -> dict:
        assert run(*arguments, "--json") == code
        return json.loads(capsys.readouterr().out)

    size = sum(one.path.stat().st_size for one in made)
    planned = read(0, "plan", *options(lock, tmp_path))
    assert (len(planned["add"]), planned["fetch_bytes"], planned["unknown_sizes"]) == (4, size, 0)
    created = read(0, "create", *options(lock, tmp_path))
    assert (created["done"], created["files_verified"], created["prefix"]) == (True, 12, str(tmp_path / "env"))
    assert read(0, "verify", *options(lock, tmp_path))["ok"]
    assert read(0, "status", "-p", tmp_path / "env")["platform"] == "linux-64"
    (tmp_path / "env/bin/evil").write_bytes(b"")
    found = read(1, "verify", *options(lock, tmp_path))
    assert found["findings"] == [{"package": "", "path": "bin/evil", "kind": "foreign", "detail": ""}]
    (tmp_path / "env/conda-meta/old-1.0-0.json").unlink()
    assert read(1, "status", "-p", tmp_path / "env")["drift"] == ["old-1.0-0 is no longer installed"]


def test_sizes_are_asked_for(
    tmp_path: Path, channel: tuple[Path, list[Made]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, made = channel
    with serve(folder) as served:
        lock = making.lock_of(tmp_path / "x.conda-lock.yml", made, served.url)
        assert run("plan", *options(lock, tmp_path)) == 0
        assert served.requests == []
        assert "4 archives to fetch whose size is not known" in capsys.readouterr().out
        assert run("plan", *options(lock, tmp_path), "--sizes", "--json") == 0
        size = sum(one.path.stat().st_size for one in made)
        assert json.loads(capsys.readouterr().out)["fetch_bytes"] == size


def test_lock_from_a_url_and_packages_from_a_mirror(
    tmp_path: Path, channel: tuple[Path, list[Made]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, made = channel
    making.lock_of(tmp_path / "web" / "gpu.conda-lock.yml", made, "https://conda.invalid/ours")
    with serve(tmp_path / "web") as served:
        url = f"{served.url}/gpu.conda-lock.yml"
        mirror = f"https://conda.invalid/ours={making.to_url(folder)}"
        assert run("create", *options(url, tmp_path), "--mirror", mirror) == 0
        assert run("status", "-p", tmp_path / "env") == 0
        assert url in capsys.readouterr().out
        assert run("create", *options(f"{served.url}/other.yml", tmp_path)) == 3
    assert run("create", *options((tmp_path / "web/gpu.conda-lock.yml").as_uri(), tmp_path)) == 0


def test_platform_of_an_environment_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = making.make_sample(tmp_path / "c", "win-64")
    lock = making.lock_of(tmp_path / "x.conda-lock.yml", made, making.to_url(tmp_path / "c"), "win-64")
    where = ["--lock", lock, "-p", tmp_path / "env"]
    assert run("create", *where, "--store", tmp_path / "store", "--platform", "win-64") == 0
    assert run("verify", *where, "--store", tmp_path / "store") == 0, capsys.readouterr()


def test_mistakes(tmp_path: Path, channel: tuple[Path, list[Made]], capsys: pytest.CaptureFixture[str]) -> None:
    folder, made = channel
    lock = making.lock_of(tmp_path / "x.conda-lock.yml", made, making.to_url(folder))
    assert run("create", *options(tmp_path / "none.yml", tmp_path)) == 2
    assert run("create", *options(lock, tmp_path), "--mirror", "nowhere") == 2
    assert run("create", "--lock", lock) == 2
    assert run("plan", "--lock", lock, "-p", tmp_path / "env", "--platform", "osx-64") == 2
    assert run("verify", *options(lock, tmp_path)) == 2
    assert run("status", "-p", tmp_path / "env") == 2
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("")
    assert run("create", "--lock", lock, "-p", full, "--platform", "linux-64", "--store", tmp_path / "s") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_condarc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("condarc", "--mirror", "tuna") == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["channels"] == ["conda-forge", "pytorch"]
    file = tmp_path / ".condarc"
    assert run("condarc", "--mirror", "tuna", "--out", file) == 0
    assert file.read_text() == printed
    file.write_text("mine")
    assert run("condarc", "--mirror", "ustc", "--out", file) == 2
    assert file.read_text() == "mine"
    assert run("condarc", "--mirror", "ustc", "--out", file, "--force") == 0
    assert "ustc" in file.read_text()
    assert run("condarc") == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminal for a test")
def test_bar_on_a_terminal(tmp_path: Path, channel: tuple[Path, list[Made]]) -> None:
    import pty

    folder, made = channel
    big = making.make_package(folder, "big", files={"share/big": os.urandom(400_000)})
    with serve(folder, Faults(delay=0.2)) as served:
        lock = making.lock_of(tmp_path / "x.conda-lock.yml", [*made, big], served.url)
        ours, theirs = pty.openpty()
        words = write_command(options(lock, tmp_path))
        running = subprocess.Popen(
            words, stderr=theirs, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        )
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            seen += piece
        assert running.wait(60) == 0
    assert b"fetching" in seen
    assert b"kB" in seen


def test_a_second_run_imports_next_to_nothing(tmp_path: Path, channel: tuple[Path, list[Made]]) -> None:
    """In a process of its own; how long that takes is bench_env.py's matter."""
    folder, made = channel
    lock = making.lock_of(tmp_path / "x.conda-lock.yml", made, making.to_url(folder))
    report = "print('rattler' in sys.modules); sys.stdout.flush()"
    command = write_command(options(lock, tmp_path), report)
    for expected in ("12 files verified", "nothing to do"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert expected in done.stdout
    assert done.stdout.split()[-1] == "False", "a run that does nothing needs no rattler"


def test_stopped_by_hand(tmp_path: Path, channel: tuple[Path, list[Made]]) -> None:
    """Ctrl-C amid a slow download: one line, exit code 130, and what came is kept."""
    import signal

    folder, made = channel
    big = making.make_package(folder, "slow", files={"share/slow": os.urandom(2_000_000)})
    with serve(folder, Faults(delay=0.3)) as served:
        lock = making.lock_of(tmp_path / "x.conda-lock.yml", [*made, big], served.url)
        words = write_command(options(lock, tmp_path))
        running = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        while not list((tmp_path / "store").glob("*/slow*.part")):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=300)
    assert running.returncode == 130, err
    assert "Traceback" not in err


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.sampled_from(["conda", "linux-64", "alpha"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)


@settings(max_examples=700, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bad_locks_end_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, channel: tuple[Path, list[Made]], data: st.DataObject
) -> None:
    """A whole lock with one thing replaced anywhere: exit code 0 or 2, nothing else and no traceback."""
    folder, made = channel
    entries = making.list_locked(made[:2], making.to_url(folder))
    document: dict = {
        "version": 1,
        "metadata": {"content_hash": {"linux-64": "0"}, "channels": [], "platforms": ["linux-64"], "sources": []},
        "package": entries,
    }
    place = document
    for _ in range(data.draw(st.integers(0, 3))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        inner = [key for key in keys if isinstance(place[key], dict | list) and place[key]]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
    place[key] = data.draw(_VALUES)
    scratch = tmp_path_factory.getbasetemp() / "bad locks"
    scratch.mkdir(exist_ok=True)
    path = scratch / "x.conda-lock.yml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run("plan", *options(path, scratch), "--json") in (0, 2)
