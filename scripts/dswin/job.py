"""A job of worker.py, seen from outside: start it, follow it, end it whole, say why it failed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import worker
from .errors import CheckFailed, MachineLacks

Progress = Callable[[str], None]


def put_compiler_cache(cache: Path) -> Path:
    """Return a folder with the program that build.sh looks for: ccache, with its files below ``cache``.

    A build script hides the caller's variables, so that the settings are in the program.
    """
    folder = cache / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    ccache = shutil.which(
        "ccache", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    program = folder / "dswin-compiler-cache"
    if ccache is None or os.name != "posix":
        program.unlink(missing_ok=True)
        return folder
    text = f"""#!/bin/sh
export CCACHE_DIR={shlex.quote(str(cache / "ccache"))} CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK='%compiler% -v' CCACHE_MAXSIZE=2G
exec {shlex.quote(ccache)} "$@"
"""
    scratch = program.with_suffix(".new")
    scratch.write_text(text, encoding="utf-8")
    scratch.chmod(0o755)
    os.replace(scratch, program)
    return folder


def run(job: dict, log: Path, cache: Path, environment: dict[str, str], progress: Progress) -> dict:
    """Run a job of worker.py, its output in ``log``, and return its result.

    Ctrl-C ends the whole process group, compilers too.

    :raises CheckFailed: the job failed; the error holds the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="job-", dir=cache) as folder:
        result = Path(folder) / "result.json"
        job_file = Path(folder) / "job.json"
        job_file.write_text(json.dumps({**job, "result": str(result)}), encoding="utf-8")
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, str(Path(worker.__file__)), str(job_file)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "RATTLER_CACHE_DIR": str(cache / "rattler"),
                    "PATH": os.pathsep.join([str(put_compiler_cache(cache)), os.environ.get("PATH", "")]),
                    **environment,
                },
                start_new_session=os.name == "posix",
            )
            try:
                _follow(process, log, progress)
            except BaseException:
                _end(process)
                raise
        if process.returncode == 0 and result.is_file():
            return json.loads(result.read_text(encoding="utf-8"))
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if any("No space left on device" in line for line in lines[-200:]):
        raise MachineLacks("The disk is full.", fix="Free some space and run again; nothing was added to the channel.")
    op = _name_failed_op(lines)
    what = f"Compiling the op {op} failed." if op else f"The {job['do']} failed."
    raise CheckFailed(what, fix=f"The whole log is {log}.", log="\n".join(find_last_words(lines)))


def _follow(process: subprocess.Popen, log: Path, progress: Progress) -> None:
    """Wait for a process and report the steps that its log announces."""
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            try:
                code = process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                code = None
            for line in file:
                if step := _name_step(line):
                    progress(step)
            if code is not None:
                return


def _name_op(line: str) -> str | None:
    """Return the op whose compilation a line of the log announces, or None."""
    found = re.search(r"building '([\w.]+)' extension", line)
    return found[1].rsplit(".", 1)[-1].removesuffix("_op") if found else None


def _name_failed_op(lines: list[str]) -> str | None:
    """Return the op that was being compiled when pip gave up, or None when it was something else that failed."""
    if not any("Failed building wheel" in line or "Failed to build" in line for line in lines):
        return None
    return next((op for line in reversed(lines) if (op := _name_op(line))), None)


def _name_step(line: str) -> str | None:
    """Return what a line of the log says to a person waiting, or None."""
    if op := _name_op(line):
        return f"compiling {op}"
    if line.startswith("== "):
        return line[3:].strip().lower()
    return None


def find_last_words(lines: list[str], count: int = 40) -> list[str]:
    """Return the lines that explain a failure: those around the first error, else the last ones."""
    lines = [line for line in lines if line.strip()]
    marks = (": error", "fatal error", "error:", "ERROR:", "FAILED:", "Error:", "error C", "LNK", "Script failed")
    first = next((n for n, line in enumerate(lines) if any(mark in line for mark in marks)), None)
    if first is None:
        return lines[-count:]
    return lines[max(0, first - 12) : first + count - 12]


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
