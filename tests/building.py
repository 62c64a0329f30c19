"""Runs `dswin` as a user does."""

from __future__ import annotations

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


def run_dswin(*arguments: str, timeout: float = 1800, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, with more environment variables, and show what it says when a test fails."""
    command = [sys.executable, "-m", "dswin", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), **variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=timeout
    )
    print(done.stderr, done.stdout, sep="\n")
    return done
