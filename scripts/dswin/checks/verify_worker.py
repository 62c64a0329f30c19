"""Examine the environment of the Python that runs this: ``python verify_worker.py --json FILE [--train train.py] ...``

Needs only the standard library, and for its checks torch and deepspeed. Each check is a process of its own with a time limit:
one that crashes or hangs is a finding, and the next one runs. What is measured goes to FILE; `dswin verify` makes a report of it.
Progress is printed, a line a check.

Exit codes: 0 all that ran passed, 1 a check failed, 3 this machine lacks what was asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: The recipe's training script, in an environment.
TRAIN = Path(sys.prefix, "share", "deepspeed-win", "train.py")
#: Seconds: a process on a busy machine imports torch and DeepSpeed in 20, under Wine in 40.
TIMEOUT = 300
#: The lines of a process's output that are kept.
LOG_LINES = 60
#: How far the loss may be from stage 0's at any step, as a part of the first loss: stages differ in the order of sums, and in
#: 16 bits in what is rounded. On a CPU it is 5e-8 in fp32 and 4e-5 in bf16; a step too many in a bias correction makes 6e-2.
TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 1e-2}
BUILT = (".so", ".pyd", ".o", ".obj", ".dll")
ACCUMULATION = 2
#: What a script says is wrong, or an exception's line.
_LAST_WORDS = re.compile(r"^(?:\[rank\d+\]: ?)?(?:ERROR: (.+)|([\w.]+(?:Error|Exception): .+))$", re.MULTILINE)
_OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Check:
    """One thing that is looked at.

    :param result: passed, failed, skipped, or lacks: this machine has not what was asked for.
    :param what: one sentence on why it did not pass.
    :param log: the last lines that its process wrote, where it failed.
    """

    kind: str
    title: str
    result: str = "skipped"
    what: str = ""
    seconds: float = 0.0
    log: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def fail(self, what: str) -> None:
        """The first reason counts."""
        if self.result != "failed":
            self.result, self.what = "failed", what


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code, None where it was stopped, and all it wrote."""

    code: int | None
    output: str
    seconds: float


def run(command: Sequence[str], environment: dict[str, str], folder: Path) -> Ended:
    """Run a process and those it starts, and stop them all when the time is over."""
    started = time.monotonic()
    # A file, not a pipe: a grandchild that lives on would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        code = None
        try:
            code = process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            pass
        finally:
            stop(process)
        output.seek(0)
        text = output.read().decode("utf-8", "replace").replace("\r\n", "\n")
    return Ended(code, re.sub(r"\x1b\[[0-9;]*m", "", text), time.monotonic() - started)


def stop(process: subprocess.Popen) -> None:
    """End a process and what it has started, where anything of them still runs."""
    if sys.platform == "win32":
        if process.poll() is None:
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
            process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def find_port() -> str:
    """Return a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def explain(ended: Ended) -> str:
    """Return why a process did not do its work, in one sentence."""
    if ended.code is None:
        return f"It did not end within {TIMEOUT} s and was stopped."
    if not 0 <= ended.code <= 255:
        # Windows' codes are known in this form.
        return f"It crashed (exit code {f'0x{ended.code:08X}' if ended.code > 255 else ended.code})."
    said = _LAST_WORDS.findall(ended.output)
    return "".join(said[-1])[:300] if said else f"It ended with code {ended.code}."


class Examination:
    """All checks of one environment, one after the other."""

    def __init__(self, scratch: Path, arguments: argparse.Namespace) -> None:
        self.scratch = scratch
        self.arguments = arguments
        self.checks: list[Check] = []
        self.about: dict[str, Any] = {}
        self.said: list[str] = []
        self.jit = scratch / "torch_extensions"
        self.jit.mkdir()
        # As activation has it: programs of the environment first.
        folders = [Path(sys.executable).parent, Path(sys.prefix, "Library", "bin"), Path(sys.prefix, "Scripts")]
        path = os.pathsep.join([*(str(one) for one in folders if one.is_dir()), os.environ.get("PATH", "")])
        self.environment = {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}
        self.environment |= {"PATH": path, "TORCH_EXTENSIONS_DIR": str(self.jit), "PYTHONIOENCODING": "utf-8"}
        # What a check leaves there goes with the scratch folder.
        self.environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))

    # What is looked at

    def examine(self) -> None:
        """Run every check that this machine can run."""
        arguments = self.arguments
        if not self.check_environment():
            return
        device = self.choose_device()
        self.check_gpu(device)
        self.run_script("ops", "Ops compiled ahead of time load", "check_ops.py")
        if device is None:
            return
        self.environment["DS_ACCELERATOR"] = device
        self.check_recipe(device)
        for dtype in self.choose_dtypes(device):
            self.check_stages(dtype)
        for optimizer, where in {"FusedAdam": device.upper(), "DeepSpeedCPUAdam": "CPU"}.items():
            title = f"{optimizer} on {where} computes what torch computes"
            self.run_script("adam", title, "check_adam.py", "--optimizer", optimizer)
        self.check_ranks(device, arguments.ranks)

    def check_environment(self) -> bool:
        """Find out what this environment is; whether there is anything to check."""
        check = self.run_script("environment", "torch and DeepSpeed import", "check_environment.py")
        self.about, check.details = {"executable": sys.executable, **check.details}, {}
        return check.result == "passed"

    def choose_device(self) -> str | None:
        """Return what is trained on: the accelerator that the ops were built for, None where there is none."""
        built = self.about["deepspeed"]["accelerator"] or ("cuda" if self.about["gpus"] else "cpu")
        self.environment["DS_ACCELERATOR"] = built
        self.about["device"] = built if built == "cpu" or self.about["gpus"] else None
        return self.about["device"]

    def check_gpu(self, device: str | None) -> None:
        """A build for GPUs without one is skipped from here on; where a GPU is required, it is lacking."""
        if device == "cuda" or (device == "cpu" and not self.arguments.require_gpu):
            return
        blind = f"torch {self.about['torch']['version']} sees no GPU, so nothing was trained."
        what = "The package was built for the CPU." if device == "cpu" else blind
        self.note("gpu", "A GPU can be used", "lacks" if self.arguments.require_gpu else "skipped", what)

    def check_recipe(self, device: str) -> None:
        """The training step that the package itself was tested with."""
        check = self.begin("recipe", "The recipe's training step: ZeRO 2, loss to a tenth in 100 steps")
        script, out = self.arguments.train or TRAIN, self.scratch / "out.json"
        if script.is_file():
            command = [sys.executable, str(script), "--accelerator", device, "--json", str(out)]
            self.finish_process(check, run(command, self.environment, self.scratch), out)
            check.details = {"runs": check.details} if check.details else {}
        else:
            check.what = "The environment has no share/deepspeed-win/train.py, and --train names none."
        self.finish(check)

    def choose_dtypes(self, device: str) -> list[str]:
        """Return the precisions that this device has; skipped ones are noted."""
        generation = min((int(gpu["capability"].split(".")[0]) for gpu in self.about["gpus"]), default=0)
        cuda = device == "cuda"
        has = {"fp32": True, "bf16": generation >= 8 or not cuda, "fp16": cuda and generation >= 7}
        old = "This GPU is too old for it." if cuda else "A CPU is not trained in fp16."
        chosen = []
        for dtype, there in has.items():
            if not there:
                self.note("zero", f"ZeRO in {dtype}", "skipped", old)
            elif not self.arguments.quick or dtype == ("fp16" if device == "cuda" else "fp32"):
                chosen.append(dtype)
        return chosen

    def check_stages(self, dtype: str) -> None:
        """Stages 0 to 3, and 2 and 3 with the optimizer offloaded; each is compared with stage 0."""
        plan = ["0", "2", "2,offload"] if self.arguments.quick else ["0", "1", "2", "3", "2,offload", "3,offload"]
        self.train("zero", {run: f"{name_run(run)}, {dtype}" for run in plan}, dtype, ACCUMULATION)

    def check_ranks(self, device: str, asked: int | None) -> None:
        """Several processes through DeepSpeed's launcher: as many steps on the same batch as one process makes."""
        gpus = len(self.about["gpus"])
        ranks = asked or (gpus if device == "cuda" else 1)
        title = "Several ranks through DeepSpeed's launcher"
        if ranks < 2:
            one = "There is one GPU." if device == "cuda" else "--ranks 2 runs two processes on the CPU."
            self.note("ranks", title, "skipped", one)
            return
        if device == "cuda" and ranks > gpus:
            self.note("ranks", title, "lacks", f"{ranks} ranks were asked for, and there are {gpus} GPUs.")
            return
        dtype = "fp16" if device == "cuda" else "fp32"
        if ranks != ACCUMULATION:
            self.train("ranks", {"0": f"1 rank to compare with, ZeRO 0, {dtype}"}, dtype, ranks)
        plan = ["2"] if self.arguments.quick else ["0", "1", "2", "3"] if device == "cuda" else ["2", "3"]
        self.train("ranks", {run: f"{ranks} ranks, {name_run(run)}, {dtype}" for run in plan}, dtype, 1, ranks)

    # How

    def begin(self, kind: str, title: str) -> Check:
        """Add a check."""
        self.checks.append(check := Check(kind, title))
        return check

    def note(self, kind: str, title: str, result: str, what: str) -> None:
        """Add a check that is not made, and why."""
        self.checks.append(check := Check(kind, title, result, what))
        self.finish(check)

    def finish(self, check: Check) -> None:
        """Say how a check ended."""
        print(f"{check.result:8}{check.title}{f': {check.what}' if check.what else ''}", flush=True)

    def run_script(self, kind: str, title: str, script: str, *more: str) -> Check:
        """Make a check by a script that lies beside this one."""
        check, out = self.begin(kind, title), self.scratch / "out.json"
        command = [sys.executable, str(HERE / script), "--out", str(out), *more]
        self.finish_process(check, run(command, self.environment, self.scratch), out)
        self.finish(check)
        return check

    def train(self, kind: str, titles: dict[str, str], dtype: str, accumulation: int, ranks: int = 1) -> None:
        """Run check_training.py, through DeepSpeed's launcher where there are several ranks.

        On a GPU each run has a process of its own, so that its memory is its own. On the CPU the imports would take most of
        the time, so one process does all, and the next one what a crash has left.

        :param titles: by run, as check_training.py has it.
        """
        left = list(titles)
        while left:
            now = left[:1] if self.about["device"] == "cuda" else list(left)
            whole = self.begin(kind, "")
            self.start_training(whole, now, dtype, accumulation, ranks)
            self.checks.remove(whole)
            done = whole.details.get("runs", [])
            # The run that ended its process is done too.
            for number, run in enumerate(now[: len(done) + 1]):
                check = self.begin(kind, titles[run])
                check.result, check.seconds = "passed", round(whole.seconds / len(now), 2)
                if number == len(done):
                    check.fail(whole.what or "It measured nothing.")
                    check.log = whole.log
                else:
                    check.details = done[number]
                    if problem := check.details.pop("problem"):
                        check.fail(problem)
                    self.compare(check)
                self.finish(check)
                left.remove(run)

    def start_training(self, check: Check, runs: list[str], dtype: str, accumulation: int, ranks: int) -> None:
        """Run one process of check_training.py a rank."""
        out = self.scratch / "out.json"
        script = [str(HERE / "check_training.py"), "--out", str(out), "--dtype", dtype,
                  "--accumulation", str(accumulation), *(word for run in runs for word in ("--run", run))]  # fmt: skip
        environment = self.environment
        if ranks > 1:
            # What the command `deepspeed` runs.
            launcher = ["-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks), "--master_port", find_port()]
            script = [*launcher, *script]
        else:
            alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            environment = {**environment, **alone, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": find_port()}
        self.finish_process(check, run([sys.executable, *script], environment, self.scratch), out)

    def finish_process(self, check: Check, ended: Ended, out: Path) -> None:
        """Put what a process found and how it ended into a check; whatever it compiled fails it."""
        self.said.append(ended.output)
        check.seconds = round(ended.seconds, 2)
        if out.is_file():
            check.details = json.loads(out.read_text(encoding="utf-8"))
            out.unlink()
        check.result = "passed"
        if ended.code != 0:
            check.fail(explain(ended))
            check.log = "\n".join(ended.output.rstrip().splitlines()[-LOG_LINES:])
        built = sorted(path.name for path in self.jit.rglob("*") if path.suffix in BUILT)
        if built:
            check.fail(f"Compiled on the way, so not in the package: {', '.join(built)}")
            shutil.rmtree(self.jit)
            self.jit.mkdir()

    def compare(self, check: Check) -> None:
        """Hold a run's losses to those of stage 0 with the same batch on one rank."""
        found = check.details
        for base in self.checks:
            other = base.details
            if base is check or not other.get("losses") or (other["ranks"], other["stage"]) != (1, 0):
                continue
            if any(other[key] != found[key] for key in ("dtype", "train_batch")):
                continue
            apart, allowed = compare_losses(found["losses"], other["losses"]), TOLERANCE[found["dtype"]]
            found["against"] = {"name": base.title, "apart": apart, "allowed": allowed}
            if not apart <= allowed:
                check.fail(f"The loss is {apart:.1e} of the first one away from {base.title}'s.")
            return


def name_run(run: str) -> str:
    """Return a run of check_training.py in words.

    >>> name_run("2,offload")
    'ZeRO 2, optimizer offloaded'
    """
    stage, _, offload = run.partition(",")
    return f"ZeRO {stage}{', optimizer offloaded' if offload else ''}"


def compare_losses(losses: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference at any step, as a part of the first loss; infinite where they cannot be compared."""
    if len(losses) != len(others):
        return float("inf")
    return max(abs(one - other) for one, other in zip(losses, others)) / abs(others[0])  # noqa: B905


def conclude(checks: Iterable[Check]) -> int:
    """Return the exit code."""
    results = {check.result for check in checks}
    return 1 if "failed" in results else 3 if "lacks" in results else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="write there what was found")
    parser.add_argument("--train", type=Path, metavar="FILE", help="the recipe's train.py, if not the package's")
    parser.add_argument("--require-gpu", action="store_true", help="exit with 3 where no GPU can be used")
    parser.add_argument("--ranks", type=int, help="processes started by DeepSpeed's launcher; by default one a GPU")
    parser.add_argument("--quick", action="store_true", help="one precision, fewer stages")
    arguments = parser.parse_args()
    # Whoever ends this ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="verify-", ignore_cleanup_errors=True) as scratch:
        examination = Examination(Path(scratch), arguments)
        try:
            examination.examine()
        finally:
            document = {
                "environment": examination.about,
                "checks": [asdict(check) for check in examination.checks],
                "output": "\n".join(examination.said),
            }
            new = arguments.json.with_name(arguments.json.name + ".new")
            new.write_text(json.dumps(document, indent=1), encoding="utf-8")
            os.replace(new, arguments.json)
    return conclude(examination.checks)


if __name__ == "__main__":
    sys.exit(main())
