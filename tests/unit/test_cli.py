from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dswin import build as builder
from dswin import cli
from dswin.errors import BadInput, CheckFailed, DswinError, MachineLacks


def raise_in_build(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(builder, "build", fail)


@pytest.mark.parametrize(("error", "code"), [(CheckFailed, 1), (BadInput, 2), (MachineLacks, 3)])
def test_each_kind_of_failure_has_its_exit_code_and_a_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[DswinError], code: int
) -> None:
    raise_in_build(monkeypatch, error("It is [broken].", fix="Mend it.", log="cl : [D8021] invalid"))
    assert cli.main(["build", "--variant", "cpu"]) == code
    said = capsys.readouterr().err
    assert "It is [broken]." in said
    assert "cl : [D8021] invalid" in said
    assert "Mend it." in said
    assert "Traceback" not in said


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raise_in_build(monkeypatch, KeyboardInterrupt())
    assert cli.main(["build", "--variant", "cpu"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "The disk is full."), (errno.EACCES, "Permission denied: /nowhere")]
)
def test_what_the_system_says_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, said: str
) -> None:
    import os

    monkeypatch.delenv("DSWIN_DEBUG", raising=False)
    raise_in_build(monkeypatch, OSError(number, os.strerror(number), "/nowhere"))
    assert cli.main(["build", "--variant", "cpu"]) == 3
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["build", "--no-such-option"],
        ["build", "--deps", "npm"],
        ["build", "--build-number", "-1"],
        ["build", "--variant", "rocm"],
        ["build", "--python", "2.7"],
        ["build", "--target", "osx-arm64"],
        ["build", "--variant", "cpu", "--out", __file__],
        ["binaries", "no-such-file.so"],
        ["channel", "index", "no-such-folder"],
    ],
    ids=" ".join,
)
def test_bad_input_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.strip()
    assert "Traceback" not in said


def test_help_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "Exit codes: 0 done" in capsys.readouterr().out


def test_the_default_channel_lies_in_the_clone() -> None:
    assert Path(__file__).parents[2] == cli.ROOT
