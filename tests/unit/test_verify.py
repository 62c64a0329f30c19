"""`dswin verify` with stand-ins for the checks: what becomes of one that crashes, hangs, compiles or measures something wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from building import ROOT, run_dswin
from dswin import verify
from dswin.checks import check_ops, check_training, verify_worker
from dswin.checks.verify_worker import Check, Examination
from dswin.errors import BadInput, DswinError, MachineLacks
from dswin.privacy import Names

RECIPE = ROOT / "recipe"
SCHEMA = json.loads((ROOT / "scripts" / "dswin" / "data" / "verify.schema.json").read_text(encoding="utf-8"))

ABOUT: dict[str, Any] = {
    "python": "3.11.7",
    "executable": sys.executable,
    "torch": {"version": "2.5.1", "cuda": None},
    "gpus": [],
    "deepspeed": {"version": "0.19.8", "folder": "/x", "accelerator": "cpu", "torch": "2.5", "cuda": "0.0",
                  "ops": {"cpu_adam": True}},
}  # fmt: skip
GPU = {"name": "A GPU", "memory_bytes": 2**34, "capability": "8.9"}
OP = {"op": "cpu_adam", "recorded": True, "reported": True, "compatible": False, "loads": True, "file": "x.so",
      "problem": None}  # fmt: skip
ADAM = {"optimizer": "FusedAdam", "reference": "torch.optim.AdamW", "device": "cpu", "steps": 50, "parameters": 9,
        "max_abs": 0.0, "allowed": 1e-5, "max_rel": 0.0, "timed_parameters": 9, "step_s": 0.1,
        "timed_reference": "torch", "reference_step_s": 0.1}  # fmt: skip

#: A stand-in for a check: it finds what DATA says; a line of what it does comes before.
SCRIPT = """
import argparse, json, os, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--run", action="append")
options, _ = parser.parse_known_args()
def write(data):
    open(options.out, "w").write(json.dumps(data))
"""
#: Training that learns the same in each stage; what goes wrong at a run comes from the file beside it.
TRAINING = (
    SCRIPT
    + """
ranks = int(os.environ.get("WORLD_SIZE", 1))
runs = []
for run in options.run:
    losses = [2.0, 1.0, 0.5]
    problem = None
    exec(open(os.path.join(os.path.dirname(__file__), "trouble.py")).read())
    stage, _, offload = run.partition(",")
    runs.append({"stage": int(stage), "offload": bool(offload), "dtype": "fp32", "device": "cpu", "backend": "gloo",
        "ranks": ranks, "micro_batch": 4, "accumulation": 2, "train_batch": 8, "parameters": 9,
        "optimizer": "DeepSpeedCPUAdam" if offload else "FusedAdam", "losses": losses, "first_step_s": 0.1,
        "steady_step_s": 0.1, "peak_memory_bytes": 1, "problem": problem})
    write({"runs": runs})
"""
)


def examine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str = "", about: dict[str, Any] = ABOUT, **asked: Any
) -> tuple[dict[str, Check], Examination]:
    """Run the worker with stand-ins and return its checks by title."""
    scripts = folder / "the checks"
    scripts.mkdir()
    for name, data in {
        "check_environment.py": about,
        "check_ops.py": {"ops": [OP], "report": ""},
        "check_adam.py": ADAM,
    }.items():
        (scripts / name).write_text(f"{SCRIPT}\nwrite({data!r})\n", encoding="utf-8")
    (scripts / "check_training.py").write_text(TRAINING, encoding="utf-8")
    (scripts / "trouble.py").write_text(trouble, encoding="utf-8")
    (scripts / "train.py").write_text("import sys\nopen(sys.argv[-1], 'w').write('{}')\n", encoding="utf-8")
    monkeypatch.setattr(verify_worker, "HERE", scripts)
    scratch = folder / "scratch"
    scratch.mkdir()
    arguments = argparse.Namespace(
        **{"train": scripts / "train.py", "require_gpu": False, "ranks": None, "quick": True, **asked}
    )
    examination = Examination(scratch, arguments)
    examination.examine()
    return {check.title: check for check in examination.checks}, examination


def find_failed(checks: dict[str, Check]) -> dict[str, str]:
    return {title: check.what for title, check in checks.items() if check.result == "failed"}


# What happens to a check


def test_where_all_is_right_all_passes_and_the_document_is_as_its_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, done = examine(tmp_path, monkeypatch)
    assert {
        check.result for title, check in checks.items() if title.startswith("ZeRO ") and "in" not in title.split()
    } == {"passed"}
    assert checks["ZeRO 2, optimizer offloaded, fp32"].details["against"] == {
        "name": "ZeRO 0, fp32",
        "apart": 0.0,
        "allowed": 1e-4,
    }
    assert verify_worker.conclude(checks.values()) == 0
    found = {
        "environment": done.about,
        "checks": [vars(check) for check in done.checks],
        "output": "\n".join(done.said),
    }
    document = verify.make_document(found, {"require_gpu": False, "ranks": None, "quick": True}, RECIPE, Names())
    jsonschema.validate(document, SCHEMA)
    assert document["exit_code"] == 0
    # The schema is one that can fail.
    document["checks"][-1]["result"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_a_crash_is_one_finding_and_what_comes_after_it_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = "if run == '2': print('the last words', flush=True); os._exit(7) if os.name == 'nt' else os.abort()"
    checks, _ = examine(tmp_path, monkeypatch, trouble)
    assert list(find_failed(checks)) == ["ZeRO 2, fp32"]
    if os.name != "nt":
        assert find_failed(checks)["ZeRO 2, fp32"] == "It crashed (exit code -6)."
    assert "the last words" in checks["ZeRO 2, fp32"].log
    assert checks["ZeRO 2, optimizer offloaded, fp32"].result == "passed"
    assert verify_worker.conclude(checks.values()) == 1


def test_a_hang_is_a_finding_and_nothing_of_it_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_worker, "TIMEOUT", 2)
    pids = tmp_path / "pids"
    trouble = f"""
if run == '2':
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')
    time.sleep(600)
"""
    checks, _ = examine(tmp_path, monkeypatch, trouble)
    assert find_failed(checks) == {"ZeRO 2, fp32": "It did not end within 2 s and was stopped."}
    for pid in map(int, pids.read_text().split()):
        # One that has ended may wait for whoever adopted it.
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_whatever_is_compiled_on_the_way_fails_the_check_that_did_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        verify_worker, "run", compile_during(verify_worker.run, "check_adam.py", tmp_path / "scratch"), raising=True
    )
    checks, _ = examine(tmp_path, monkeypatch)
    # The first one leaves it, and it is gone before the second one runs.
    assert find_failed(checks) == {
        "FusedAdam on CPU computes what torch computes": "Compiled on the way, so not in the package: x.so"
    }


def compile_during(run: Any, script: str, scratch: Path) -> Any:
    """Return the worker's `run` with a library that comes into being while one script runs for the first time."""
    scripts = [script]

    def wrapped(command: list[str], *more: Any) -> Any:
        if scripts and Path(command[1]).name == scripts[0]:
            scripts.pop()
            (scratch / "torch_extensions" / "x").mkdir()
            (scratch / "torch_extensions" / "x" / "x.so").touch()
        return run(command, *more)

    return wrapped


def test_a_training_run_says_what_it_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert check_training.list_compiled() == []
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "cpu_adam.so").touch()
    (tmp_path / "cpu_adam" / "build.ninja").touch()
    assert check_training.list_compiled() == ["cpu_adam.so"]


@pytest.mark.parametrize(
    ("losses", "what"),
    [
        ([2.0, 1.0, 0.501], "The loss is 5.0e-04 of the first one away from ZeRO 0, fp32's."),
        # As where a bias correction counts a step too many.
        ([2.0, 1.2, 0.5], "The loss is 1.0e-01 of the first one away from ZeRO 0, fp32's."),
        ([2.0, 1.0, 0.5001], ""),
    ],
)
def test_a_stage_that_computes_something_else_is_found(
    losses: list[float], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, _ = examine(tmp_path, monkeypatch, f"if run == '2': losses = {losses}")
    assert checks["ZeRO 2, fp32"].what == what
    assert checks["ZeRO 2, optimizer offloaded, fp32"].what == ""


def test_what_a_run_says_is_wrong_with_it_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, _ = examine(tmp_path, monkeypatch, "if run == '2': problem = 'It did not learn.'")
    assert find_failed(checks) == {"ZeRO 2, fp32": "It did not learn."}


def test_ranks_are_started_by_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no deepspeed here whose launcher could start them.
    checks, _ = examine(tmp_path, monkeypatch, ranks=2)
    assert checks["2 ranks, ZeRO 2, fp32"].result == "failed"
    assert "deepspeed.launcher.runner" in checks["2 ranks, ZeRO 2, fp32"].log


# A GPU


@pytest.mark.parametrize(("required", "result", "code"), [(False, "skipped", 0), (True, "lacks", 3)])
def test_a_build_for_gpus_without_one(
    required: bool, result: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {**ABOUT, "deepspeed": {**ABOUT["deepspeed"], "accelerator": "cuda"}}
    checks, done = examine(tmp_path, monkeypatch, about=about, require_gpu=required)
    assert {title: check.result for title, check in checks.items()} == {
        "torch and DeepSpeed import": "passed",
        "A GPU can be used": result,
        "Ops compiled ahead of time load": "passed",
    }
    assert "sees no GPU" in checks["A GPU can be used"].what
    assert done.environment["DS_ACCELERATOR"] == "cuda"
    assert verify_worker.conclude(checks.values()) == code
    assert "nvidia-smi" in verify.find_fix(vars(checks["A GPU can be used"])) or not required


def test_a_build_for_the_cpu_where_a_gpu_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, _ = examine(tmp_path, monkeypatch, require_gpu=True)
    assert checks["A GPU can be used"].result == "lacks"
    assert verify.find_fix(vars(checks["A GPU can be used"])) == "Install a CUDA variant of deepspeed-win."
    assert checks["ZeRO 2, fp32"].result == "passed"
    assert verify_worker.conclude(checks.values()) == 3


@pytest.mark.parametrize(("capability", "expected"), [("7.5", ["fp32", "fp16"]), ("8.0", ["fp32", "bf16", "fp16"])])
def test_precisions_are_those_of_the_gpu(
    capability: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {**ABOUT, "gpus": [{**GPU, "capability": capability}]}
    about["deepspeed"] = {**ABOUT["deepspeed"], "accelerator": "cuda"}
    _, done = examine(tmp_path, monkeypatch, about=about, quick=False)
    trained = [check.title.split()[-1] for check in done.checks if check.kind == "zero" and check.result != "skipped"]
    assert list(dict.fromkeys(trained)) == expected
    assert len(trained) == 6 * len(expected)


def test_more_ranks_than_gpus_are_lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {**ABOUT, "gpus": [GPU], "deepspeed": {**ABOUT["deepspeed"], "accelerator": "cuda"}}
    checks, _ = examine(tmp_path, monkeypatch, about=about, ranks=2)
    assert checks["Several ranks through DeepSpeed's launcher"].result == "lacks"


# What is read and judged

REPORT = """
cpu_adam ............... [YES] ...... [OKAY]
async_io ............... [NO] ....... [NO]
fused_adam ............. [YES] ...... [NO]
torch version .................... 2.5.1
"""


def test_ds_report_is_held_to_what_the_package_records() -> None:
    reported = check_ops.read_report(REPORT)
    assert reported == {"cpu_adam": (True, True), "async_io": (False, False), "fused_adam": (True, False)}
    recorded = {"async_io": False, "cpu_adam": True, "fused_adam": True}
    rows = check_ops.list_ops(recorded, reported)
    assert list(rows) == ["cpu_adam", "fused_adam", "async_io"]
    for name in ("cpu_adam", "fused_adam"):
        rows[name]["loads"] = True
    # An op that cannot be compiled here is as good as any.
    assert check_ops.judge(rows) is None
    rows["fused_adam"] |= {"loads": False, "problem": "ImportError: no"}
    assert check_ops.judge(rows) == "fused_adam does not load: ImportError: no"
    other = check_ops.list_ops({**recorded, "fused_adam": False}, reported)
    other["cpu_adam"]["loads"] = True
    assert check_ops.judge(other) == "ds_report and the package's own record differ about fused_adam."
    nothing = check_ops.list_ops({"cpu_adam": False}, {"cpu_adam": (False, True)})
    assert "no op compiled ahead of time" in str(check_ops.judge(nothing))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"losses": [2.0, 1.01]}, "The loss went from 2 to 1.01, and must fall to a half."),
        ({"optimizer": "AdamW"}, "The optimizer is AdamW, not FusedAdam."),
        ({"offload": True}, "The optimizer is FusedAdam, not DeepSpeedCPUAdam."),
    ],
)
def test_a_run_must_learn_by_the_optimizer_that_was_meant(change: dict[str, Any], problem: str | None) -> None:
    run = {"losses": [2.0, 1.0], "optimizer": "FusedAdam", "offload": False}
    assert check_training.judge({**run, **change}) == problem


@pytest.mark.parametrize(("accumulation", "ranks"), [(2, 1), (1, 2), (1, 8)])
def test_the_batch_is_micro_batch_times_accumulation_times_ranks(accumulation: int, ranks: int) -> None:
    config = check_training.configure(3, True, "bf16", accumulation, ranks, 1e-3)
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * ranks
    assert config["train_batch_size"] == product == 4 * accumulation * ranks
    assert config["bf16"] == {"enabled": True}
    assert "fp16" not in config
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}


def test_complaints_are_counted_and_explained() -> None:
    output = "\n".join(
        [
            "[2026-11-30 10:11:12,345] [WARNING] [runner.py:234:fetch_hostfile] Unable to find hostfile, will proceed",
            "[2026-11-30 10:11:13,999] [WARNING] [runner.py:234:fetch_hostfile] Unable to find hostfile, will proceed",
            " [WARNING]  fused_adam compatibility check failed (CUDA_HOME does not exist, unable to compile CUDA op(s))",
            "[rank1]:[W1130 10:11:12.123456 ProcessGroup.cpp:12] Warning: something that nobody knows",
            "/opt/x/torch/y.py:83: FutureWarning: `torch.f` is deprecated.",
            "  warnings.warn(",
            "step 3 loss 0.5",
        ]
    )
    found = verify.explain_messages(output)
    assert [(one["text"][:40], one["count"], bool(one["why"])) for one in found] == [
        ("Unable to find hostfile, will proceed", 2, True),
        ("fused_adam compatibility check failed (C", 1, True),
        ("Warning: something that nobody knows", 1, False),
        ("FutureWarning: `torch.f` is deprecated.", 1, True),
    ]
    assert "toolkit" in found[1]["why"]


def test_nothing_private_is_in_the_document_and_ops_that_are_not_built_have_their_reason() -> None:
    absent = {**OP, "op": "async_io", "recorded": False, "reported": False, "loads": None}
    check = Check("ops", "Ops", "failed", "no /home/jane/x on janes-pc", log="jane@janes-pc")
    check.details = {"ops": [OP, absent], "report": "in /home/jane/env"}
    found = {"environment": {**ABOUT, "executable": "/home/jane/env/python"}, "checks": [vars(check)], "output": ""}
    names = Names(users=("jane",), homes=("/home/jane",), hosts=("janes-pc",))
    document = verify.make_document(found, {"require_gpu": False, "ranks": None, "quick": False}, RECIPE, names)
    jsonschema.validate(document, SCHEMA)
    assert "jane" not in json.dumps(document)
    there, absent = document["checks"][0]["details"]["ops"]
    assert there["reason"] is None
    assert "libaio" in absent["reason"]
    assert document["exit_code"] == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("It crashed (exit code 0xC000001D).", "AVX2"),
        ("CUDA error: no kernel image is available for execution on the device", "variant"),
        ("RuntimeError: PyTorch version mismatch! DeepSpeed ops were compiled", "torch"),
        ("Compiled on the way, so not in the package: x.so", "conda install"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "Close other programs"),
        ("something else", "See the log"),
    ],
)
def test_each_failure_says_what_to_do(said: str, expected: str) -> None:
    assert expected in verify.find_fix({"result": "failed", "what": said, "log": ""})
    assert verify.find_fix({"result": "passed", "what": said, "log": ""}) == ""


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (1, "x\nImportError: no library\nmore", "ImportError: no library"),
        (1, "[rank1]: RuntimeError: on a rank", "RuntimeError: on a rank"),
        (1, "ERROR: The loss rose.", "The loss rose."),
        (-11, "ValueError: of before", "It crashed (exit code -11)."),
        (3221225477, "", "It crashed (exit code 0xC0000005)."),
        (9, "nothing that helps", "It ended with code 9."),
    ],
)
def test_why_a_process_ended(code: int, output: str, expected: str) -> None:
    assert verify_worker.explain(verify_worker.Ended(code, output, 1.0)) == expected


# Which environment


def make_environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    return python


def test_the_environment_is_the_one_that_is_named_or_active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, active = make_environment(tmp_path / "named é"), make_environment(tmp_path / "active")
    variables = {"CONDA_PREFIX": str(tmp_path / "active")}
    assert verify.find_python(tmp_path / "named é", None, variables) == named
    assert verify.find_python(None, named, variables) == named
    assert verify.find_python(None, None, variables) == active
    with pytest.raises(BadInput, match="both"):
        verify.find_python(tmp_path, named, variables)
    with pytest.raises(BadInput, match="has no Python"):
        verify.find_python(tmp_path, None, variables)
    with pytest.raises(BadInput, match="is not there"):
        verify.find_python(None, tmp_path / "python.exe", variables)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineLacks, match="PATH has no Python"):
        verify.find_python(None, None, {})


def test_from_the_command_line_without_deepspeed(tmp_path: Path) -> None:
    started = time.monotonic()
    done = run_dswin("verify", "--python", sys.executable, "--json")
    assert done.returncode == 2, time.monotonic() - started
    assert "has no torch" in done.stderr
    assert "what to do: Activate" in done.stderr
    assert done.stdout == ""
    for page, what in {"x.pdf": "is not an .html file", "no/x.html": "There is no folder for"}.items():
        done = run_dswin("verify", "--python", sys.executable, "--report", str(tmp_path / page))
        assert done.returncode == 2
        assert what in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows starts what ends in .exe")
def test_a_python_that_does_not_start(tmp_path: Path) -> None:
    python = make_environment(tmp_path)
    with pytest.raises(MachineLacks, match="does not start"):
        verify.examine(python, train=tmp_path / "train.py")
    python.write_text("#!/bin/sh\necho broken >&2\nexit 5\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(DswinError, match="did not come to its end") as raised:
        verify.examine(python, train=tmp_path / "train.py")
    assert raised.value.log == "broken"
