"""Runs `dswin` as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The Python that packages are built for here.
PYTHON = "{}.{}".format(*sys.version_info)
#: What users do: scripts that any Python runs, of Linux or Windows.
USERS = ROOT / "tests" / "users"


@dataclass(frozen=True)
class Build:
    """What `dswin build` made."""

    out: Path
    package: Path
    wheel: Path
    channels: list[str]
    ops: list[dict]


def build(out: Path, *options: str, timeout: float = 1800) -> Build:
    """Build a CPU package into a channel, with the recipe's tests passed."""
    done = run_dswin("build", "--variant", "cpu", "--out", str(out), "--json", *options, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    return Build(out, Path(document["package"]), Path(document["wheel"]), document["channels"], document["ops"])


def build_for_windows(out: Path, msvc: Path) -> Build:
    """The same for Windows, under Wine. :param msvc: the folder of Microsoft's compiler."""
    return build(out, "--target", "win-64", "--deps", "pypi", "--msvc", str(msvc), timeout=3600)


def run_dswin(*arguments: str, timeout: float = 1800, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, with more environment variables, and show what it says when a test fails."""
    command = [sys.executable, "-m", "dswin", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=timeout
    )
    print(done.stderr, done.stdout, sep="\n")
    return done
