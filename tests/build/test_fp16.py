"""FP16 without ZeRO trains as FP16 with it: patch 0011."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from building import USERS


def test_stage_0_takes_the_steps_of_stages_1_and_2(prefix: Path) -> None:
    environment = {**os.environ, "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = [prefix / "bin" / "python", USERS / "fp16.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    norms = {stage: one["gradient_norm"] for stage, one in found.items()}
    # Without the patch that of stage 0 is 1024 times as small.
    assert norms["0"] == pytest.approx(norms["2"], rel=1e-3)
    assert norms["1"] == pytest.approx(norms["2"], rel=1e-3)
    for stage in "01":
        assert found[stage]["losses"] == pytest.approx(found["2"]["losses"], rel=1e-4)
    assert found["0"]["losses"][-1] < 0.35
