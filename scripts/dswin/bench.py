"""How fast the CPU optimizer's step is: ops of several builds, torch's own fused step and the memory, in turn."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from .errors import BadInput, CheckFailed, MachineLacks
from .facts import describe_cpu

Progress = Callable[[str], None]

SIZES = (1_000_000, 10_000_000, 50_000_000)
REPEATS = 9
TORCH_FUSED, MEMORY = "torch fused", "memory"
SCRIPT = Path(__file__).with_name("measure_adam.py")
#: What an answer of that script begins with.
ANSWER = "= "


@dataclass(frozen=True)
class Contender:
    """Something whose step is timed, in an environment of its own.

    :param command: what starts its Python, such as ``["env/bin/python"]``, or Wine and a Windows one.
    :param kind: ``op``, ``torch-fused`` or ``memory``.
    :param op: for ``op`` the extension as that Python knows its path, or ``installed``.
    :param script: measure_adam.py as that Python knows its path.
    """

    name: str
    command: Sequence[str]
    kind: str
    op: str = ""
    script: str = str(SCRIPT)
    environment: Mapping[str, str] = field(default_factory=dict)


def choose(python: Path, against: Sequence[tuple[str, Path, Path]] = ()) -> list[Contender]:
    """Return the contenders for an environment that has deepspeed-win: its op, and its torch's step, and the memory.

    :param python: the environment's Python.
    :param against: more ops, each with a name, the Python that has the torch it was built for, and its file.
    :raises BadInput: a Python or a file is not there, or a name is taken.
    """
    for file in [python, *(file for _, *files in against for file in files)]:
        if not file.is_file():
            raise BadInput(
                f"{file} is not there.", fix="Name a file: an environment's Python, or a compiled cpu_adam_op."
            )
    command = [str(python.absolute())]
    chosen = [
        Contender("deepspeed-win", command, "op", "installed"),
        *(Contender(name, [str(other.absolute())], "op", str(op.absolute())) for name, other, op in against),
        Contender(TORCH_FUSED, command, "torch-fused"),
        Contender(MEMORY, command, "memory"),
    ]
    names = [contender.name for contender in chosen]
    if len(set(names)) != len(names):
        raise BadInput(f"Two contenders have one name: {', '.join(names)}.", fix="Give each op a name of its own.")
    return chosen


class _Runner:
    """A live process of measure_adam.py."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.said: list[str] = []
        arguments = [*contender.command, contender.script, contender.kind, *([contender.op] if contender.op else [])]
        try:
            # One pipe for both outputs: a program under Wine cannot inherit a file of Linux.
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "PYTHONUTF8": "1", **contender.environment},
            )
        except OSError as error:
            raise MachineLacks(
                f"{contender.command[0]} does not start: {error.strerror}.", fix="Name the Python of an environment."
            ) from error
        self.about: dict = json.loads(self._read())

    def _read(self) -> str:
        """Return its next answer; what else it says is kept for an error."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER)
            self.said.append(line.rstrip())
        self.process.wait()
        raise CheckFailed(
            f"The contender {self.contender.name} ended with code {self.process.returncode}.",
            fix="Check that its Python has the torch that its op was built for.",
            log="\n".join(self.said[-12:]),
        )

    def step(self, size: int, threads: int) -> float:
        """Return the seconds of one step."""
        assert self.process.stdin is not None
        # If it has ended, reading says so better.
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{size} {threads}\n")
            self.process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            self.process.communicate("\n", timeout=10)
        self.process.kill()
        self.process.wait()


def measure(
    contenders: Sequence[Contender],
    *,
    sizes: Sequence[int] = SIZES,
    threads: Sequence[int] | None = None,
    repeats: int = REPEATS,
    progress: Progress = lambda _: None,
) -> dict:
    """Time steps of all contenders, one after the other in each round, and return everything that was seen.

    :param sizes: numbers of float32 parameters; a contender holds 16 bytes for each.
    :param threads: by default one, and as many as this machine has cores.
    :return: ``machine``; ``contenders`` by name, with what they say of themselves; ``runs``, each with contender, size,
        threads and ``seconds``, one a round.
    :raises CheckFailed: a contender ends early.
    :raises MachineLacks: a contender's Python does not start.
    """
    counts = sorted({1, os.cpu_count() or 1}) if threads is None else threads
    runs = []
    with contextlib.ExitStack() as stack:
        runners = []
        for contender in contenders:
            progress(f"starting {contender.name}")
            runners.append(runner := _Runner(contender))
            stack.callback(runner.close)
        for size in sizes:
            for count in counts:
                progress(f"{size:,} parameters, {count} thread(s), {repeats} rounds")
                seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
                for _ in range(repeats):
                    for runner in runners:
                        seconds[runner.contender.name].append(runner.step(size, count))
                runs += [
                    {"contender": name, "size": size, "threads": count, "seconds": found}
                    for name, found in seconds.items()
                ]
        about = {runner.contender.name: runner.about for runner in runners}
    return {"machine": describe_machine(), "contenders": about, "runs": runs}


def describe_machine() -> dict:
    """Return what the figures depend on: processor, cores, system, and the load before."""
    processor = platform.processor()
    if sys.platform == "linux":
        processor = str(describe_cpu()["name"] or processor)
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.platform(), "load": load}


def summarise(document: dict) -> list[dict]:
    """Return one row a contender, size and number of threads.

    Each has ``median``, ``low`` and ``high`` (the quartiles) in seconds, ``gb_per_s`` at the median, and ``ratio``: the
    median of the rounds' ratios to torch's fused step in the same round, or None where that did not run.
    """
    fused = {
        (run["size"], run["threads"]): run["seconds"] for run in document["runs"] if run["contender"] == TORCH_FUSED
    }
    rows = []
    for run in document["runs"]:
        seconds, base = run["seconds"], fused.get((run["size"], run["threads"]))
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        moved = document["contenders"][run["contender"]]["bytes_per_parameter"] * run["size"]
        rows.append(
            {
                **{key: run[key] for key in ("contender", "size", "threads")},
                "low": low,
                "median": median,
                "high": high,
                "gb_per_s": moved / median / 1e9,
                "ratio": statistics.median(a / b for a, b in zip(seconds, base, strict=True)) if base else None,
            }
        )
    return rows


def table(document: dict) -> Table:
    """Return the summary as a table for people."""
    shown = Table(title="One AdamW step, float32: the median, and the middle half of the rounds")
    for heading in ("parameters", "threads", "contender"):
        shown.add_column(heading, justify="left" if heading == "contender" else "right")
    for heading in ("ms", "middle half", "x torch fused", "GB/s"):
        shown.add_column(heading, justify="right")
    shown.add_column()
    rows = summarise(document)
    most = max(row["gb_per_s"] for row in rows)
    before = None
    for row in rows:
        group = (row["size"], row["threads"])
        if before not in (None, group):
            shown.add_section()
        first, before = group != before, group
        shown.add_row(
            f"{row['size']:,}" if first else "",
            str(row["threads"]) if first else "",
            row["contender"],
            f"{row['median'] * 1e3:.2f}",
            f"{row['low'] * 1e3:.2f} to {row['high'] * 1e3:.2f}",
            "" if row["ratio"] is None or row["contender"] == MEMORY else f"{row['ratio']:.2f}",
            f"{row['gb_per_s']:.1f}",
            Bar(most, 0, row["gb_per_s"], width=20),
        )
    return shown


def plot(document: dict, file: Path) -> None:
    """Write the table with its bars as an SVG picture that needs no other file.

    :raises BadInput: the file's name does not end in .svg.
    """
    if file.suffix != ".svg":
        raise BadInput(f"{file.name} is not an .svg file.", fix="Give it that ending.")
    # It draws into memory: a terminal is not there, or is too narrow.
    console = Console(record=True, file=io.StringIO(), width=110, highlight=False)
    console.print(table(document))
    machine = document["machine"]
    text = console.export_svg(title=f"{machine['processor']}, {machine['cores']} cores")
    # rich names fonts of a server; the viewer's own monospaced one will do.
    file.write_text(re.sub(r"@font-face\s*{[^}]*}", "", text), encoding="utf-8")
