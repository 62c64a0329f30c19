"""The whole proof on this machine's GPU, as tests/gpu/prove.py runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from building import ROOT
from dswin import source

pytestmark = pytest.mark.gpu

#: A Python whose torch has the GPU; dswin's own has no torch.
PYTHON = os.environ.get("DSWIN_GPU_PYTHON") or shutil.which("python3") or "python3"


@pytest.fixture(scope="session")
def gpus() -> int:
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode or int(done.stdout) == 0:
        pytest.skip(f"no GPU: {PYTHON} (DSWIN_GPU_PYTHON names another) has no torch that sees one")
    return int(done.stdout)


def test_the_package_is_built_and_trains_on_the_gpu(gpus: int, tmp_path: Path) -> None:
    sdist = source.fetch(source.read(ROOT / "recipe"), ROOT / ".dswin" / "source", print)
    command = [PYTHON, ROOT / "tests" / "gpu" / "prove.py", sdist, "--out", tmp_path]
    assert subprocess.run(command, check=False).returncode == 0
    found = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    figures = {step["step"]: step.get("figures") for step in found["steps"]}
    assert len(figures["build"]["ops"]) == 16
    assert {"train-hidden", "verify", "finetune-fp16", "steps"} <= set(figures)
    assert ("train-2" in figures) == (gpus > 1)
    adam = figures["optimizer"]
    # The same arithmetic in another order.
    assert adam["largest_difference"] < 1e-4 * adam["largest_move"]
    assert figures["first"]["FusedAdam"]["jit_s"] > figures["first"]["FusedAdam"]["prebuilt_s"]
