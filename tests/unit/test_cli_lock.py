"""dswin lock, check and diff as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import making
from dswin import cli, cli_lock, lock, solver
from locking import FORGE, on_package, write


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cli.dswin.commands, "lock", cli_lock.lock)
    monkeypatch.setattr(cli, "CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two locks that can be made, from a channel that is there."""
    channel = tmp_path / "channel"
    for version in ("0.19.7", "0.19.8"):
        making.make_package(channel, solver.PACKAGE, version, subdir="linux-64", depends=["rc"])
    making.make_package(channel, "rc")
    making.index_channel(channel)
    (tmp_path / "locks").mkdir()
    (tmp_path / "environment.yaml").write_text("channels: []\ndependencies: [rc]\n", encoding="utf-8")
    text = 'sources = ["../environment.yaml"]\nplatforms = ["linux-64"]\nwhy = "for a test"\n'
    (tmp_path / "locks" / "locks.toml").write_text(f"[one]\n{text}[two]\n{text}", encoding="utf-8")
    return tmp_path / "locks"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.main(["lock", *map(str, arguments)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_a_name_alone_makes_that_lock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "one", "--folder", folder, "--channel", folder.parent / "channel")
    assert (code, sorted(path.name for path in folder.glob("*.yml"))) == (0, ["one.conda-lock.yml"])
    assert "one.conda-lock.yml: 2 packages for linux-64; new" in out
    assert "solving one for linux-64" in err
    assert run(capsys, "check", "--folder", folder)[0] == 0
    assert run(capsys, "check", "--folder", folder, "--strict")[0] == 1  # a folder of this machine


def test_make_says_what_changed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--folder", folder, "--channel", folder.parent / "channel", "--out", tmp_path / "out", "--json")
    code, out, _ = run(capsys, "make", "one", *options, "--spec", "deepspeed-win 0.19.7.*")
    assert code == 0
    [made] = json.loads(out)
    path = tmp_path / "out" / "one.conda-lock.yml"
    assert made == {
        "name": "one",
        "path": str(path),
        "packages": {"linux-64": 2},
        "inferred": {},
        "md5_only": [],
        "changes": None,
    }
    assert not list(folder.glob("*.yml"))
    _, out, _ = run(capsys, "make", "one", "two", *options)
    assert [(one["name"], one["changes"]) for one in json.loads(out)] == [("one", {"version": 1}), ("two", None)]
    # The same file name with another content: never without a word.
    channel = folder.parent / "channel"
    making.make_package(channel, "rc", files={"share/rc.txt": b"other"})
    making.index_channel(channel)
    _, out, err = run(capsys, "make", "one", *options)
    assert json.loads(out)[0]["changes"] == {"hash": 1}
    assert "warning: rc-1.0-0.conda has another hash than in the lock before" in err


def test_what_can_be_locked_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list", "--folder", folder)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["one", "two"]
    assert "for a test (not made)" in out
    _, out, _ = run(capsys, "make", "two", "--list", "--json", "--folder", folder)
    assert json.loads(out) == [{"name": "two", "platforms": ["linux-64"], "why": "for a test", "made": False}]


def test_our_own_locks_are_listed_without_options(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list")
    assert code == 0
    assert "gpu-py311" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["three"],
        ["make", "--folder", "not-there"],
        ["one", "--spec", "deepspeed-win"],
        ["one", "--records", "."],
        ["check", "not-there.conda-lock.yml"],
        ["check", "--folder", "."],
        ["diff", "not-there.yml", "not-there.yml"],
        ["diff", "one.yml"],
        ["diff", "a", "b", "--policy", "some"],
        ["diff", "a", "b", "--format", "html"],
    ],
    ids=" ".join,
)
def test_bad_input_is_2(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    if "--folder" not in arguments and arguments[0] in ("one", "three"):
        arguments = [*arguments, "--folder", "locks"]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.strip()


def test_a_channel_that_does_not_answer_is_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "one", "--folder", folder, "--channel", "http://127.0.0.1:9/c")
    assert (code, "does not answer" in err) == (3, True)


def test_what_cannot_be_solved_is_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(
        capsys, "one", "--folder", folder, "--channel", folder.parent / "channel", "--spec", "deepspeed-win 9.*"
    )
    assert (code, "No set of packages fulfils what one asks for" in err) == (1, True)


def test_check_prints_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path, name="good")
    bad = write(
        tmp_path, on_package(2, url="https://mirror.example/conda-forge/noarch/tzdata-2026c-pyh_0.conda"), name="bad"
    )
    bare = write(tmp_path, on_package(1, hash={"md5": "0" * 32}), name="bare")
    assert run(capsys, "check", good) == (0, f"{good}: nothing found\n", "")
    code, out, _ = run(capsys, "check", good, bad, bare)
    assert code == 1
    assert f"{bad}: 1 found\n  error   urls      tzdata is from https://mirror.example/conda-forge, a mirror" in out
    assert run(capsys, "check", bare)[0] == 0
    assert run(capsys, "check", bare, "--strict")[0] == 1
    code, out, _ = run(capsys, "check", bare, bad, "--json")
    assert code == 1
    assert [(Path(one["file"]), one["rule"], one["severity"], one["package"]) for one in json.loads(out)] == [
        (bare, "sha256", "warning", "python"),
        (bad, "urls", "error", "tzdata"),
    ]
    assert json.loads(run(capsys, "check", good, "--json")[1]) == []


def test_diff_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path, name="a")
    newer = write(tmp_path, on_package(1, version="3.11.10", url=f"{FORGE}/win-64/python-3.11.10-0.conda"), name="b")
    other = write(tmp_path, on_package(1, hash={"md5": "1" * 32, "sha256": "1" * 64}), name="c")
    assert run(capsys, "diff", first, first) == (0, "no change\n", "")
    assert run(capsys, "diff", first, first, "--format", "md", "--policy", "any") == (0, "no change\n", "")

    code, out, _ = run(capsys, "diff", first, newer)
    assert code == 0
    assert "python" in out
    assert out.endswith("1 version\n")
    code, _, err = run(capsys, "diff", first, newer, "--policy", "any")
    assert (code, "1 of them not allowed: --policy any, any change" in err) == (1, True)

    code, out, err = run(capsys, "diff", first, other)
    assert (code, "--policy hash, a change of hash" in err) == (1, True)
    assert "1" * 64 in out
    assert run(capsys, "diff", first, other, "--policy", "none")[0] == 0

    code, out, _ = run(capsys, "diff", first, other, "--json")
    document = json.loads(out)
    assert (code, document["policy"], document["forbidden"], document["counts"]) == (1, "hash", 1, {"hash": 1})
    assert [(one["name"], one["kinds"]) for one in document["changes"]] == [("python", ["hash"])]
    assert json.loads(run(capsys, "diff", first, other, "--format", "json")[1]) == document

    code, out, _ = run(capsys, "diff", first, other, "--format", "md")
    assert (code, out.splitlines()[:3]) == (1, ["1 hash", "", "| platform | package | change | before | after |"])


def test_a_broken_lock_is_2_in_diff_and_1_in_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = write(tmp_path, on_package(1, hash=None))
    assert run(capsys, "diff", broken, broken)[0] == 2
    code, out, _ = run(capsys, "check", broken)
    assert (code, "has no hash" in out) == (1, True)


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("make", "check", "diff"):
        code, out, _ = run(capsys, command, "--help")
        assert (code, "Exit codes: 0" in out) == (0, True)
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in ("make", "check", "diff"):
        assert command in out


def test_the_help_needs_none_of_the_slow_modules() -> None:
    assert (
        run_python("from dswin import cli_lock; print({'rattler', 'conda_lock', 'yaml'} & set(sys.modules))") == "set()"
    )


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(cli.ROOT / 'scripts')!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_the_default_folder_is_locks() -> None:
    assert cli_lock._find_folder(None) == cli.ROOT / "locks"
    assert list(cli_lock._find_folder(None).glob(f"*{lock.SUFFIX}"))
