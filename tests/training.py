"""What it means that an environment trains: the recipe's own training, run by the environment's Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from building import ROOT

SCRIPT = ROOT / "recipe" / "tests" / "train.py"


def train(prefix: Path, folder: Path) -> None:
    """Train in an environment of this machine, on the CPU, with nothing of the caller's around it."""
    result = folder / "result.json"
    done = subprocess.run(
        [prefix / "bin" / "python", SCRIPT, "--accelerator", "cpu", "--json", result],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_training(result)


def check_training(result: Path) -> None:
    """Both optimizers ran and learned."""
    runs = json.loads(result.read_text(encoding="utf-8"))
    assert [run["optimizer"] for run in runs.values()] == ["DeepSpeedCPUAdam", "FusedAdam"]
    for run in runs.values():
        assert run["losses"][-1] < run["losses"][0] / 10
