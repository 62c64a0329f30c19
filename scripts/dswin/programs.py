"""Small programs of the machine that are asked one thing: where they are, what they say, in whatever encoding."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

#: Seconds that an answer may take; a conda whose environments lie on a slow disk takes ten for its version.
TIMEOUT = 30


class Absent(Exception):
    """Why a fact has no value: it is not there, or cannot be had."""


def find_program(name: str, *elsewhere: str) -> str:
    """Return the path of a program: on PATH, or the first of ``elsewhere`` that is there.

    :param elsewhere: paths, with variables as the system writes them.
    :raises Absent: it is in none of these places.
    """
    places = (os.path.expandvars(place) for place in elsewhere)
    found = shutil.which(name) or next((place for place in places if Path(place).is_file()), None)
    if found is None:
        raise Absent(f"{name} is not on PATH")
    return found


def run(program: str, *arguments: str, folder: Path | None = None, timeout: float | None = None) -> tuple[int, str]:
    """Run a program to its end and return its exit code and all it said.

    :param timeout: seconds; by default :data:`TIMEOUT`.
    :raises Absent: it does not start, or takes longer than that.
    """
    timeout = timeout or TIMEOUT
    # A file, not a pipe: what a stopped batch file has started would keep the pipe open, and us waiting.
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise Absent(f"{Path(program).name} gave no answer in {timeout:g} s") from error
        except OSError as error:
            raise Absent(f"{program} does not start: {error.strerror}") from error
        output.seek(0)
        return done.returncode, decode(output.read())


def ask(program: str, *elsewhere: str, arguments: Iterable[str] = (), folder: Path | None = None) -> str:
    """Return what a program says.

    :raises Absent: it is not there, or fails; says its last words.
    """
    code, said = run(find_program(program, *elsewhere), *arguments, folder=folder)
    if code != 0:
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "nothing")
        raise Absent(f"{program} ended with code {code} and said: {last}")
    return said


def decode(said: bytes, code_page: str | None = None) -> str:
    """Return the text of what a program wrote: each line UTF-8, or else in the system's code page.

    :param code_page: by default that of a Windows console.
    """
    if code_page is None:
        code_page = "utf-8"
        if sys.platform == "win32":
            code_page = f"cp{ctypes.windll.kernel32.GetOEMCP()}"

    def read(line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError:
            return line.decode(code_page, "replace")

    try:
        # A log can hold the words of several programs, each with an encoding of its own.
        return "".join(read(line) for line in said.splitlines(keepends=True)).replace("\r\n", "\n")
    except LookupError:  # a code page that Python does not know
        return said.decode("utf-8", "replace").replace("\r\n", "\n")
