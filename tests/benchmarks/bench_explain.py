"""What `dswin explain` takes for a large log: seconds, megabytes a second, and memory.

    .venv/bin/python tests/benchmarks/bench_explain.py [--megabytes N]

The logs are made of tests/data/logs, repeated: builds that went well with one failure at the end; nothing but lines with
errors, no two alike; the first as UTF-16; and long lines that hold every word in vain.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests" / "data" / "logs"
#: In a process of its own, so that its memory is that of one run.
RUN = """
import sys, threading, time
import psutil
from dswin import explain
most, process = 0, psutil.Process()
def watch():
    global most
    while True:
        most = max(most, process.memory_info().rss)
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
with open(sys.argv[1], "rb") as stream:
    started, worked = time.perf_counter(), time.process_time()
    found = explain.explain(stream, sys.argv[1])
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
print(f"{seconds:.2f} {cpu:.2f} {most / 2**20:.0f} {found.lines} {found.causes[0][0].id if found.causes else found.verdict}")
"""


def make_quiet(size: int) -> bytes:
    """A build log that went well, and at its end one that did not."""
    good = b"".join((LOGS / "harmless" / f"{name}.txt").read_bytes() for name in ("linux-build", "compiler-warnings"))
    return good * (size // len(good)) + (LOGS / "cl-too-new-for-nvcc.txt").read_bytes()


def make_loud(size: int) -> bytes:
    """Nothing but lines with an error in them, each another one."""
    bad = [line for log in sorted(LOGS.glob("*.txt")) for line in log.read_bytes().splitlines() if b"rror" in line]
    lines, written = [], 0
    for number in range(size):
        lines.append(b"%b (number %d)\n" % (bad[number % len(bad)], number))
        written += len(lines[-1])
        if written > size:
            break
    return b"".join(lines)


def make_long(size: int) -> bytes:
    line = b"error LNK not cannot fatal WARNING " * (2**20 // 35) + b"\n"
    return line * (size // len(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    size = parser.parse_args().megabytes * 10**6
    made: dict[str, Callable[[], bytes]] = {
        "builds that went well": lambda: make_quiet(size),
        "nothing but errors": lambda: make_loud(size),
        "UTF-16": lambda: make_quiet(size // 2).decode().encode("utf-16"),
        "lines of 1 MiB": lambda: make_long(size),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, make in made.items():
            log = Path(folder) / "log.txt"
            log.write_bytes(make())
            command = [sys.executable, "-c", RUN, log]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            seconds, cpu, memory, lines, found = done.stdout.split()
            size_read = log.stat().st_size / 1e6
            print(f"{name:24} {size_read:4.0f} MB  {seconds:>6} s, {cpu:>6} s of one core", end="  ")
            print(f"{memory:>4} MiB  {lines:>9} lines  {found}", flush=True)


if __name__ == "__main__":
    main()
