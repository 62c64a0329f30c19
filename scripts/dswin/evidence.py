"""Figures from what builds and tests leave behind: rattler-build's tables, recipe/tests/train.py's lines, pytest's records."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TypedDict

#: Packages whose version decides how the ops come out.
TELLING = (
    "cuda-cudart", "cuda-nvcc", "cuda-version", "deepspeed-win", "gxx_linux-64", "intel-openmp", "llvm-openmp", "mkl",
    "numpy", "python", "pytorch", "pytorch-cuda", "ucrt", "vc14_runtime", "vs2022_win-64",
)  # fmt: skip


class Training(TypedDict, total=False):
    """One training run: times in milliseconds, memory in MiB."""

    run: str
    device: str
    optimizer: str
    first_loss: float
    last_loss: float
    first_step_ms: float
    steady_step_ms: float
    peak_memory_mib: int


class Tests(TypedDict):
    """What pytest recorded: failed tests by name, skipped ones with their reason."""

    count: int
    passed: int
    failed: list[str]
    skipped: dict[str, str]


def read_training(log: str) -> list[Training]:
    """Return the training runs of a package's test log, a run that stopped half-way too.

    rattler-build prints a test's output more than once; a run counts once.
    """
    runs: dict[str, Training] = {}
    for line in log.splitlines():
        if found := re.search(r"ZeRO-2, (.+): batch \d+ = ", line):
            current = runs[found[1]] = Training(run=found[1])
        elif not runs:
            continue
        elif found := re.search(r"step +\d+  loss (\S+)", line):
            current.setdefault("first_loss", float(found[1]))
            current["last_loss"] = float(found[1])
        elif found := re.search(
            r"(\S.*), (\w+): first step ([\d.]+) ms, steady ([\d.]+) ms, peak memory (\d+) MiB", line
        ):
            current["device"], current["optimizer"] = found[1], found[2]
            current["first_step_ms"], current["steady_step_ms"] = float(found[3]), float(found[4])
            current["peak_memory_mib"] = int(found[5])
    return list(runs.values())


def read_skipped(log: str) -> str | None:
    """Return why the training of a package's test was skipped, or None."""
    found = re.search(r"SKIPPED: (.+)", log)
    return found[1].strip() if found else None


def read_packages(log: str) -> dict[str, str]:
    """Return {name: "version build"} of the telling packages in the tables of environments that rattler-build printed."""
    rows = re.findall(r"│ ([\w.-]+) +┆ ([\w.!+]+) +┆ ([\w.]+) +┆ \S+ +┆ +[\d.]+ \w+ │", log)
    return {name: f"{version} {build}" for name, version, build in rows if name in TELLING}


def read_toolset(log: str) -> str | None:
    """Return what recipe/toolset.py said of the compiler, or None."""
    found = re.search(r"cl\.exe [\d.]+ (?:for CUDA|is) .+", log)
    return found[0].strip() if found else None


def read_tests(xml: str) -> Tests:
    """Return what pytest's JUnit file says.

    :raises ValueError: it is damaged.
    """
    try:
        root = ET.fromstring(xml)
    except ET.ParseError as error:
        raise ValueError(str(error)) from error
    result = Tests(count=0, passed=0, failed=[], skipped={})
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        result["count"] += 1
        if case.find("failure") is not None or case.find("error") is not None:
            result["failed"].append(name)
        elif (skipped := case.find("skipped")) is not None:
            result["skipped"][name] = skipped.get("message", "")
        else:
            result["passed"] += 1
    return result
