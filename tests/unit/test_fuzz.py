"""Every command with hostile arguments: an exit code of ours, one clear error, and nothing changed that was not named.

The commands are found in the command line itself, so that a new one is tried too. What would take minutes is stood in for at
its boundary, in :func:`stubs`; what is before the boundary runs.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fuzzing
from dswin import bench, build, cli, facts, machine, prove, source, torch_probe, verify
from dswin.addresses import hide_secrets, to_path, to_url
from dswin.errors import BadInput, DswinError, MachineLacks
from fuzzing import CODES, CONTROL, ERROR, Watch, World

COMMANDS = dict(fuzzing.list_commands(cli.dswin))
#: Runs of each command. Those that are given here take longer.
EXAMPLES = {("channel", "publish"): 30, ("channel", "check"): 30, ("env", "create"): 30, ("doctor",): 20, ("test",): 10}
watch = Watch()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fuzzing.make_world(tmp_path_factory.mktemp("fuzz").resolve() / "world")


@pytest.fixture(scope="module")
def stubs(world: World) -> Iterator[None]:
    """Where the long work begins: a compiler, pytest, training, and the programs that a machine is asked with."""

    def stop(*_: Any, **__: Any) -> Any:
        raise MachineLacks("The work would begin here.", fix="Leave the test.")

    done = subprocess.CompletedProcess([], 0, "", "")
    with (
        fuzzing.isolated(world),
        mock.patch.object(machine, "open_machine", stop),
        mock.patch.object(build, "open_machine", stop),
        mock.patch.object(build, "check_space"),
        mock.patch.object(source, "fetch", stop),
        mock.patch.object(prove, "take", lambda step, work: setattr(step, "result", "passed")),
        mock.patch.object(bench, "measure", stop),
        mock.patch.object(verify, "_follow", stop),
        mock.patch.object(torch_probe, "ask", return_value=torch_probe.Probe()),
        mock.patch.object(facts, "collect", return_value=[]),
        mock.patch.object(cli.subprocess, "run", return_value=done),
    ):
        yield


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_hostile_arguments(words: tuple[str, ...], world: World, stubs: None) -> None:
    command = COMMANDS[words]
    inputs = fuzzing.take_stock(world.inputs)

    @settings(
        max_examples=EXAMPLES.get(words, 50),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        arguments = [*words, *fuzzing.draw_arguments(data.draw, command, world)]
        world.renew()
        said = fuzzing.run(watch, world, arguments)
        assert said.code in CODES, said
        assert "Traceback" not in said.err
        assert cli.FAULT not in said.err, said.err
        assert not CONTROL.search(said.out + said.err), repr(said)
        if said.code == 2:
            assert len(ERROR.findall(said.err)) == 1, said.err
        if said.code == 3:
            assert len(ERROR.findall(said.err)) == 1 or said.out, said.err
        if "--json" in arguments and said.code in (0, 1) and _has_json_flag(command) and "--help" not in arguments:
            assert said.code or said.out
            assert not said.out or json.loads(said.out) is not None
        assert not said.written, "written outside of what was named"
        assert fuzzing.take_stock(world.inputs) == inputs, "an input was changed"
        assert not list(world.home.iterdir())

    run()


def _has_json_flag(command: click.Command) -> bool:
    return any(one.name == "as_json" for one in command.params)


@pytest.mark.parametrize(
    ("number", "name", "kind", "said"),
    [
        (errno.ENOSPC, "/d/x", MachineLacks, "The disk is full. /d/x was being written."),
        (errno.EFBIG, None, MachineLacks, "The disk is full."),
        (errno.EROFS, "/d/x", MachineLacks, "Read-only file system: /d/x."),
        (errno.ENOTDIR, "/d/x", BadInput, "Not a directory: /d/x."),
        (errno.ENAMETOOLONG, "/d/x", BadInput, "File name too long: /d/x."),
        (errno.ENOENT, None, MachineLacks, "No such file or directory."),
    ],
)
def test_what_the_system_refuses(number: int, name: str | None, kind: type[DswinError], said: str) -> None:
    error = cli.translate(OSError(number, os.strerror(number), name))
    assert (type(error), error.what) == (kind, said)


def test_what_nobody_foresaw_is_one_error_that_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DSWIN_DEBUG", raising=False)
    monkeypatch.setattr(cli, "show_rehearsal", lambda *_: 1 // 0)
    assert cli.main(["build", "--rehearse"]) == 1
    said = capsys.readouterr().err
    assert "This is a fault of dswin: ZeroDivisionError" in said
    assert "in build, cli.py:" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("url", ["https://[", "https://me:secret@[::1"])
def test_a_url_that_cannot_be_cut_is_not_shown(url: str) -> None:
    assert hide_secrets(url) == "a malformed url"


def test_a_path_that_is_no_utf_8_goes_into_a_url_and_back() -> None:
    path = Path(os.fsdecode(b"/a b/\xff\xe9.conda"))
    if os.name != "nt":
        assert to_url(path) == "file:///a%20b/%FF%E9.conda"
        assert to_path(to_url(path)) == path
