"""A Wine that stops: played by a script, since the real one does so too rarely to wait for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dswin.errors import CheckFailed
from dswin.wine import prefix
from dswin.wine.host import Host
from dswin.wine.msvc import Msvc

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Wine is for Linux")

#: ``wine launch.exe CODE-FILE PROGRAM``: counts its starts, and does what the file ``do`` says of each.
WINE = r"""#!/bin/bash
case "$1" in *launch.exe) ;; cmd.exe) exec sleep 60 ;; *) exit 0 ;; esac
cd "$WINEPREFIX"
echo start >> starts
code_file="drive_c/dswin/${2##*\\}"
. ./do
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    wine, server = tmp_path / "wine", tmp_path / "wineserver"
    wine.write_text(WINE)
    server.write_text("#!/bin/sh\n")
    wine.chmod(0o755)
    server.chmod(0o755)
    (tmp_path / "prefix" / "drive_c" / "dswin").mkdir(parents=True)
    msvc = Msvc(tmp_path, "14.44.35207", "10.0.26100.0", (), (), ())
    return Host(prefix.Wine(wine, server, "wine-8.0"), tmp_path / "prefix", msvc)


def run(host: Host, script: str) -> tuple[int | str, int]:
    """Return the exit code or the error of a program that ends as a script says, and how often it was started."""
    (host.prefix / "do").write_text(script)
    try:
        ended: int | str = host.run(["cl.exe"]).code
    except CheckFailed as error:
        ended = error.what
    finally:
        host.end_programs()
    return ended, len((host.prefix / "starts").read_text().split())


def test_a_program_that_wine_did_not_start_is_started_again(host: Host) -> None:
    assert run(host, '[ "$(wc -l < starts)" = 3 ] || kill -BUS $$\nprintf 7 > "$code_file"\n') == (7, 3)


def test_a_program_whose_process_ended_while_it_was_made_is_started_again(host: Host) -> None:
    script = 'if [ "$(wc -l < starts)" = 2 ]; then printf 0; else printf "error 1359"; fi > "$code_file"\n'
    assert run(host, script) == (0, 2)


def test_a_wine_that_never_starts_it_is_said_with_its_end(host: Host) -> None:
    assert run(host, "kill -BUS $$\n") == ("cl.exe was killed, or Wine itself stopped (signal 7, SIGBUS).", 3)


def test_a_program_that_had_begun_is_not_run_twice(host: Host) -> None:
    assert run(host, ': > "$code_file"\nexit 2\n') == ("cl.exe was killed, or Wine itself stopped (exit code 2).", 1)


def test_a_program_that_another_thread_has_ended_is_not_run_twice(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = host._spawn

    def end(*words: object) -> tuple[int, str]:
        host.end_programs()
        return spawn(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(host, "_spawn", end)
    assert run(host, "kill -KILL $$\n") == ("cl.exe was killed, or Wine itself stopped (signal 9, SIGKILL).", 1)
