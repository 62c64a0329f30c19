"""`dswin verify` on an environment with the real package."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from building import ROOT, run_dswin
from dswin import ops


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages é") / "a report.html"


@pytest.fixture(scope="module")
def document(prefix: Path, page: Path) -> dict:
    done = run_dswin("verify", "--prefix", str(prefix), "--ranks", "2", "--report", str(page), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_everything_passes_and_is_as_the_schema_says(document: dict, page: Path) -> None:
    schema = json.loads((ROOT / "scripts" / "dswin" / "data" / "verify.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(document, schema)
    results = {check["title"]: check["result"] for check in document["checks"]}
    assert results.pop("ZeRO in fp16") == "skipped"
    assert set(results.values()) == {"passed"}
    assert page.read_text(encoding="utf-8").count("<svg") == 8


def test_the_ops_are_those_of_ops_yaml(document: dict) -> None:
    [rows] = [check["details"]["ops"] for check in document["checks"] if check["kind"] == "ops"]
    expected = {op.name for op in ops.read(ROOT / "recipe") if op.is_built("linux-64", "cpu")}
    assert {row["op"] for row in rows if row["loads"]} == expected
    assert {row["op"] for row in rows if row["reported"]} == expected
    assert all(row["reason"] for row in rows if not row["recorded"])


def test_every_stage_learns_the_same_in_each_precision_and_on_two_ranks(document: dict) -> None:
    runs = [check["details"] for check in document["checks"] if check["kind"] in ("zero", "ranks")]
    runs = [run for run in runs if run]
    combinations = {(run["dtype"], run["stage"], run["offload"], run["ranks"]) for run in runs}
    stages = [(0, False), (1, False), (2, False), (3, False), (2, True), (3, True)]
    alone = {(dtype, *stage, 1) for dtype in ("fp32", "bf16") for stage in stages}
    assert combinations == alone | {("fp32", 2, False, 2), ("fp32", 3, False, 2)}
    for run in runs:
        assert run["train_batch"] == run["micro_batch"] * run["accumulation"] * run["ranks"] == 8
        assert run["losses"][-1] < run["losses"][0] / 2
        assert run["optimizer"] == ("DeepSpeedCPUAdam" if run["offload"] else "FusedAdam")
        first = next(other for other in runs if other["dtype"] == run["dtype"])
        for one, other in zip(run["losses"], first["losses"], strict=True):
            assert one == pytest.approx(other, abs={"fp32": 2e-4, "bf16": 2e-2}[run["dtype"]])
    # The two precisions are not the same computation.
    assert next(run for run in runs if run["dtype"] == "bf16")["losses"] != runs[0]["losses"]


def test_the_optimizers_are_torchs(document: dict) -> None:
    found = {check["details"]["optimizer"]: check["details"] for check in document["checks"] if check["kind"] == "adam"}
    assert set(found) == {"FusedAdam", "DeepSpeedCPUAdam"}
    for one in found.values():
        # float32 rounds 50 times; were nothing rounded, it would be the same code.
        assert 0 < one["max_abs"] < 1e-5


def test_a_gpu_that_is_required_is_lacking(prefix: Path) -> None:
    done = run_dswin("verify", "--prefix", str(prefix), "--quick", "--require-gpu", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3, done.stderr
    assert "The package was built for the CPU." in done.stdout
    assert "What to do: Install a CUDA variant" in done.stdout
