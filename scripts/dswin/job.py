"""A job of worker.py, seen from outside: start it, follow it, say why it failed."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import worker
from .errors import CheckFailed, MachineLacks
from .machine import Machine

Progress = Callable[[str], None]


def run(job: dict, machine: Machine, log: Path, cache: Path, environment: dict[str, str], progress: Progress) -> dict:
    """Run a job of worker.py on a machine, its output in ``log``, and return its result.

    :param job: as worker.py has it, its paths as programs on that machine name them.
    :raises CheckFailed: the job failed; the error holds the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    with tempfile.TemporaryDirectory(prefix="job-", dir=cache) as folder:
        result = Path(folder) / "result.json"
        job_file = Path(folder) / "job.json"
        job_file.write_text(json.dumps({**job, "result": machine.name(result)}), encoding="utf-8")
        with _follow(log, progress):
            code = machine.run_python([Path(worker.__file__), job_file], log, environment)
        if code == 0 and result.is_file():
            return json.loads(result.read_text(encoding="utf-8"))
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if any(full in line for line in lines[-200:] for full in _DISK_FULL):
        raise MachineLacks("The disk is full.", fix="Free some space and run again; nothing was added to the channel.")
    op = _name_failed_op(lines)
    what = f"Compiling the op {op} failed." if op else f"The {job['do']} failed."
    raise CheckFailed(what, fix=f"The whole log is {log}.", log="\n".join(find_last_words(lines)))


#: What programs say when a disk is full, on Linux and on Windows.
_DISK_FULL = ("No space left on device", "There is not enough space on the disk")


@contextmanager
def _follow(log: Path, progress: Progress) -> Iterator[None]:
    """Report the steps that a log announces, while it grows."""
    ended = threading.Event()

    def read() -> None:
        with log.open(encoding="utf-8", errors="replace") as file:
            last = False
            while not last:
                last = ended.wait(0.5)
                for line in file:
                    if step := _name_step(line):
                        progress(step)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()


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


#: cmd writes a script's lines before it runs them, those too that speak of another case. Whether there is libaio on Windows
#: is asked by linking with it.
_SAYS_NOTHING = re.compile(r"%SRC_DIR%>|\s*(@?rem\b|::|echo\b)|.*LNK1181.*'aio\.lib'", re.IGNORECASE)


def find_last_words(lines: list[str], count: int = 40) -> list[str]:
    """Return the lines that explain a failure: those around the first error, else the last ones."""
    lines = [line for line in lines if line.strip() and not _SAYS_NOTHING.match(line)]
    marks = (": error", "fatal error", "error:", "ERROR:", "FAILED:", "Error:", "error C", "LNK", "Script failed")
    first = next((n for n, line in enumerate(lines) if any(mark in line for mark in marks)), None)
    if first is None:
        return lines[-count:]
    return lines[max(0, first - 12) : first + count - 12]
