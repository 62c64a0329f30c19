"""Proves the package on a Linux machine with NVIDIA GPUs: builds it by the recipe for the torch that is there, and trains.

What needs the CUDA toolkit runs once with it and once in a mount namespace in which its folders are empty, as on the machine of
somebody who installed a conda package. Every step has a log; what was measured is in figures.json. Nothing is downloaded.

    python prove.py deepspeed-0.19.8.tar.gz --out FOLDER [--prefix FOLDER] [--only STEP ...]

Exit codes: 0 all steps passed, 1 one did not, 3 no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VARIABLES_OF_A_TOOLKIT = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDACXX", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")


@dataclass
class Step:
    """One command that must end with 0.

    :param json: it writes its figures there.
    :param hidden: it runs where there is no CUDA toolkit.
    :param gpus: how many it needs.
    """

    name: str
    command: list[str | Path]
    json: Path | None = None
    hidden: bool = False
    gpus: int = 1
    timeout: int = 900
    variables: dict[str, str] = field(default_factory=dict)


def list_steps(prefix: Path, source: Path, out: Path, scratch: Path, gpus: int) -> list[Step]:
    """Return all steps, in their order."""
    python, programs = prefix / "bin" / "python", prefix / "bin"
    share = prefix / "share" / "deepspeed-win"
    base = sys.executable

    def figures(name: str) -> Path:
        return out / f"{name}.json"

    def verify(name: str, ranks: int, hidden: bool) -> Step:
        command = [base, "-m", "dswin", "verify", "--python", python, "--require-gpu", "--json", "--ranks", str(ranks)]
        command += ["--report", out / f"{name}.html"]
        return Step(name, command, gpus=ranks, hidden=hidden, variables={"PYTHONPATH": _join(ROOT / "scripts")})

    steps = [
        Step(
            "build",
            [
                base,
                HERE / "make_prefix.py",
                f"--{'wheel' if source.suffix == '.whl' else 'sdist'}",
                source,
                "--prefix",
                prefix,
                "--json",
                figures("build"),
            ],
            json=figures("build"),
            timeout=1800,
        )
    ]
    for hidden in (False, True):
        suffix = "-hidden" if hidden else ""
        train = figures(f"train{suffix}")
        steps += [
            Step(f"ops{suffix}", [python, share / "check_ops.py", "--accelerator", "cuda"], hidden=hidden),
            Step(
                f"train{suffix}",
                [python, share / "train.py", "--accelerator", "cuda", "--require-gpu", "--json", train],
                json=train,
                hidden=hidden,
            ),
        ]
    steps += [
        Step("noise-hidden", [python, "-c", "import deepspeed.ops.adam, deepspeed.runtime.zero"], hidden=True),
        verify("verify", 1, hidden=True),
        *(
            Step(f"finetune-{dtype}", [python, ROOT / "tests/users/finetune.py", scratch / dtype, dtype], hidden=True)
            for dtype in ("bf16", "fp16")
        ),
        *(
            Step(what, [python, HERE / "measure.py", what, "--json", figures(what)], json=figures(what), hidden=hidden)
            for what, hidden in (("optimizer", True), ("steps", True), ("first", False))
        ),
        verify("verify-2", 2, hidden=True),
        Step(
            "train-2",
            [programs / "deepspeed", "--num_gpus", "2", share / "train.py", "--accelerator", "cuda", "--require-gpu"],
            gpus=2,
            hidden=True,
        ),
    ]
    return [step for step in steps if step.gpus <= gpus]


def _join(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def hide_toolkit(command: list[str]) -> list[str]:
    """Return ``command`` for a mount namespace in which every folder of a CUDA toolkit is empty.

    Needs the right to mount: root, or user namespaces.
    """
    folders = {str(folder.resolve()) for folder in Path("/usr/local").glob("cuda*") if folder.is_dir()}
    if nvcc := shutil.which("nvcc"):
        folders.add(str(Path(nvcc).resolve().parents[1]))
    mounts = [f"mount -t tmpfs none '{folder}'" for folder in sorted(folders)]
    check = "if command -v nvcc > /dev/null; then echo 'nvcc is still there'; exit 1; fi"
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    return [*unshare, "bash", "-ec", "\n".join([*mounts, check, 'exec "$@"']), "bash", *command]


def run(step: Step, prefix: Path, out: Path) -> dict:
    """Run a step, its output into a log, and return how it went."""
    environment = {**os.environ, **step.variables, "PATH": f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = [str(word) for word in step.command]
    if step.hidden:
        command = hide_toolkit(command)
        for name in VARIABLES_OF_A_TOOLKIT:
            environment.pop(name, None)
    started = time.monotonic()
    with (out / f"{step.name}.log").open("wb") as log:
        try:
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False,
                timeout=step.timeout,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 124
    result: dict = {"step": step.name, "code": code, "seconds": round(time.monotonic() - started, 1)}
    if step.json and step.json.is_file():
        result["figures"] = json.loads(step.json.read_text(encoding="utf-8"))
    return result


def describe_machine() -> dict:
    """Return what the figures were measured on."""
    import torch

    query = "--query-gpu=name,driver_version,memory.total"
    said = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "gpus": said.stdout.splitlines(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="DeepSpeed's sdist, or a wheel that an earlier run made of it")
    parser.add_argument("--out", type=Path, required=True, help="for logs and figures")
    parser.add_argument("--prefix", type=Path, help="an environment to make, or one that an earlier run made")
    parser.add_argument("--only", action="append", help="a step's name; once a step")
    parser.add_argument("--budget", type=float, default=3600, help="seconds after which no step is started")
    arguments = parser.parse_args()

    import torch

    if not torch.cuda.is_available():
        print(f"ERROR: torch {torch.__version__} sees no GPU.", file=sys.stderr)
        return 3
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        prefix = (arguments.prefix or Path(scratch) / "prefix").absolute()
        steps = list_steps(prefix, arguments.source.absolute(), out, Path(scratch), torch.cuda.device_count())
        found: dict = {"machine": describe_machine(), "steps": []}
        failed = False
        for step in steps:
            if step.name == "build" and (prefix / "share").is_dir():
                continue
            if (arguments.only and step.name not in arguments.only) or time.monotonic() - started > arguments.budget:
                continue
            result = run(step, prefix, out)
            found["steps"].append(result)
            failed |= result["code"] != 0
            print(f"{step.name}: code {result['code']}, {result['seconds']} s", flush=True)
            if result["code"]:
                print(
                    "".join((out / f"{step.name}.log").read_text(errors="replace").splitlines(True)[-25:]), flush=True
                )
            (out / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            if step.name == "build" and failed:
                break
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
