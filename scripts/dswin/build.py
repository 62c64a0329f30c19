"""Build one variant of the recipe, test it, look into it, and put it into a local channel."""

from __future__ import annotations

import json
import os
import platform as host
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from conda_package_streaming.package_streaming import stream_conda_component
from filelock import FileLock

from . import binaries, channel, ops, source, wheelhouse, worker
from .errors import BadInput, CheckFailed, MachineLacks

Progress = Callable[[str], None]
Deps = Literal["auto", "conda", "pypi"]

NAME = "deepspeed-win"
#: The channels that a variant's dependencies come from, first one first. conda-forge before pytorch would, with strict
#: priority, hide the pytorch channel's builds that cuda121 is made for.
CHANNELS = {
    "cuda121": ("pytorch", "nvidia", "conda-forge"),
    "cuda130": ("conda-forge",),
    "cpu": ("conda-forge",),
}
CHANNEL_ALIAS = "https://conda.anaconda.org"
#: What a build and its test environments take at their largest, in bytes.
SPACE_NEEDED = 6 * 2**30
#: The ops that carry code for the CPU's vector unit.
VECTOR_OPS = ("cpu_adam", "cpu_adagrad", "cpu_lion")


@dataclass(frozen=True)
class Variant:
    """One package that the recipe can make."""

    keys: dict[str, str]
    build_string: str

    @property
    def accelerator(self) -> str:
        """DeepSpeed's name of what it computes on."""
        return "cpu" if self.keys["ds_variant"] == "cpu" else "cuda"


@dataclass
class Built:
    """What a build made."""

    package: Path
    wheel: Path
    binaries: list[binaries.Binary]
    channels: list[str] = field(default_factory=list)


def this_platform() -> str:
    """Return the conda subdir of this machine.

    :raises MachineLacks: the recipe has no variant for it.
    """
    subdir = {("Linux", "x86_64"): "linux-64", ("Windows", "AMD64"): "win-64"}.get((host.system(), host.machine()))
    if subdir is None:
        raise MachineLacks(
            f"deepspeed-win has no variant for {host.system()} on {host.machine()}.",
            fix="Build on 64-bit Windows or Linux with an Intel or AMD processor.",
        )
    return subdir


def this_python() -> str:
    """Return major.minor of the running interpreter."""
    return "{}.{}".format(*sys.version_info)


def choose(recipe: Path, platform: str, variant: str, python: str) -> Variant:
    """Return the one variant of the recipe that these words name.

    :raises BadInput: the recipe has none; says which it has.
    """
    rendered = worker.render(recipe, platform)
    for one in rendered:
        if one.variant["ds_variant"] == variant and one.variant["python"] == python:
            keys = {key: str(one.variant[key]) for key in ("ds_variant", "python")}
            return Variant(keys, one.recipe.build.string)
    names = sorted({v.variant["ds_variant"] for v in rendered})
    pythons = sorted({v.variant["python"] for v in rendered}, key=lambda v: tuple(map(int, v.split("."))))
    what = f"variant {variant!r}" if variant not in names else f"Python {python}"
    raise BadInput(
        f"The recipe has no {what} for {platform}.",
        fix=f"Variants: {', '.join(names)}. Pythons: {', '.join(pythons)}.",
    )


def torch_of(recipe: Path, platform: str, variant: str) -> str:
    """Return torch's major.minor for a variant, from conda_build_config.yaml by way of the rendered requirements."""
    for one in worker.render(recipe, platform):
        if one.variant["ds_variant"] == variant:
            specs = [str(spec) for spec in one.recipe.to_dict()["requirements"]["run"]]
            version = next(s for s in specs if s.startswith("pytorch ")).split()[1].lstrip("=")
            return ".".join(version.split(".")[:2])
    raise BadInput(f"The recipe has no variant {variant!r} for {platform}.", fix="Run dswin build --help.")


def next_number(out: Path, recipe: Path, variant: Variant) -> int:
    """Return the first build number that the channel ``out`` has no package for."""
    version = source.read(recipe).version
    stem = variant.build_string.rsplit("_", 1)[0]
    taken = [
        int(record["build"].rsplit("_", 1)[1])
        for record in channel.list_packages(out, NAME)
        if record["version"] == version and record["build"].rsplit("_", 1)[0] == stem
    ]
    return max(taken, default=-1) + 1


def is_reachable(name: str, timeout: float = 8.0) -> bool:
    """Say whether the conda channel ``name`` answers within ``timeout`` seconds."""
    request = urllib.request.Request(f"{CHANNEL_ALIAS}/{name}/noarch/repodata.json.zst", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def find_deps(how: Deps, cache: Path, recipe: Path, platform: str, variant: Variant, progress: Progress) -> list[str]:
    """Return the urls of the channels that serve the recipe's requirements.

    :param how: ``conda`` the public channels, ``pypi`` a channel made of wheels, ``auto`` the first that answers.
    :raises MachineLacks: neither can be had.
    """
    names = CHANNELS[variant.keys["ds_variant"]]
    if how != "pypi":
        silent = [name for name in names if not is_reachable(name)]
        if not silent:
            return [f"{CHANNEL_ALIAS}/{name}" for name in names]
        if how == "conda":
            raise MachineLacks(
                f"The conda channel {silent[0]} does not answer.",
                fix="Check the network, or use --deps pypi where a Python package index answers.",
            )
        progress(f"the conda channel {silent[0]} does not answer: the dependencies are made from wheels instead")
    if variant.accelerator == "cuda":
        raise MachineLacks(
            f"{variant.keys['ds_variant']} needs the CUDA compiler and libraries from the channels {', '.join(names)}.",
            fix="Build it where these channels answer (--deps conda), or build the cpu variant here (--variant cpu).",
        )
    python = variant.keys["python"]
    torch = torch_of(recipe, platform, variant.keys["ds_variant"])
    folder = wheelhouse.make_channel(cache / "deps", platform=platform, python=python, torch=torch, progress=progress)
    return [folder.as_uri()]


def check_space(folder: Path) -> None:
    """Make sure that a build fits on the disk.

    :raises MachineLacks: it does not.
    """
    free = shutil.disk_usage(folder).free
    if free < SPACE_NEEDED:
        raise MachineLacks(
            f"{folder} has {free / 2**30:.1f} GiB free; a build takes up to {SPACE_NEEDED / 2**30:.0f} GiB.",
            fix="Free some space. The folder .dswin is a cache and may be deleted.",
        )


def put_compiler_cache(cache: Path) -> Path:
    """Return a folder with the program that build.sh looks for: ccache, with its files below ``cache``.

    A build script hides the caller's variables, so that the settings are in the program.
    """
    folder = cache / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    ccache = shutil.which(
        "ccache", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    program = folder / "dswin-compiler-cache"
    if ccache is None or os.name != "posix":
        program.unlink(missing_ok=True)
        return folder
    text = f"""#!/bin/sh
export CCACHE_DIR='{cache / "ccache"}' CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK='%compiler% -v' CCACHE_MAXSIZE=2G
exec '{ccache}' "$@"
"""
    scratch = program.with_suffix(".new")
    scratch.write_text(text, encoding="utf-8")
    scratch.chmod(0o755)
    os.replace(scratch, program)
    return folder


def run_worker(job: dict, log: Path, cache: Path, environment: dict[str, str], progress: Progress) -> dict:
    """Run a job of worker.py, its output in ``log``, and return its result.

    Ctrl-C ends the whole process group, compilers too.

    :raises CheckFailed: the job failed; the error holds the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="job-", dir=cache) as folder:
        result = Path(folder) / "result.json"
        job_file = Path(folder) / "job.json"
        job_file.write_text(json.dumps({**job, "result": str(result)}), encoding="utf-8")
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, str(Path(worker.__file__)), str(job_file)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "RATTLER_CACHE_DIR": str(cache / "rattler"),
                    "PATH": os.pathsep.join([str(put_compiler_cache(cache)), os.environ.get("PATH", "")]),
                    **environment,
                },
                start_new_session=os.name == "posix",
            )
            try:
                _follow(process, log, progress)
            except BaseException:
                _end(process)
                raise
        if process.returncode == 0 and result.is_file():
            return json.loads(result.read_text(encoding="utf-8"))
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if any("No space left on device" in line for line in lines[-200:]):
        raise MachineLacks("The disk is full.", fix="Free some space and run again; nothing was added to the channel.")
    op = _name_failed_op(lines)
    what = f"Compiling the op {op} failed." if op else f"The {job['do']} failed."
    raise CheckFailed(what, fix=f"The whole log is {log}.", log="\n".join(_last_words(lines)))


def _follow(process: subprocess.Popen, log: Path, progress: Progress) -> None:
    """Wait for a process and report the steps that its log announces."""
    with log.open(encoding="utf-8", errors="replace") as file:
        while True:
            try:
                code = process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                code = None
            for line in file:
                if step := _name_step(line):
                    progress(step)
            if code is not None:
                return


def _name_op(line: str) -> str | None:
    """Return the op whose compilation a line of the log announces, or None."""
    found = re.search(r"building '([\w.]+)' extension", line)
    return found[1].rsplit(".", 1)[-1].removesuffix("_op") if found else None


def _name_failed_op(lines: list[str]) -> str | None:
    """Return the op that was being compiled when pip gave up, or None when it was something else that failed."""
    if not any("Failed building wheel" in line or "Failed to build" in line for line in lines):
        return None
    return next((op for line in reversed(lines) if (op := _name_op(line))), None)


def _name_step(line: str) -> str | None:
    """Return what a line of the log says to a person waiting, or None."""
    if op := _name_op(line):
        return f"compiling {op}"
    if line.startswith("== "):
        return line[3:].strip().lower()
    return None


def _last_words(lines: list[str], count: int = 40) -> list[str]:
    """Return the lines that explain a failure: those around the first error, else the last ones."""
    lines = [line for line in lines if line.strip()]
    marks = (": error", "fatal error", "error:", "ERROR:", "FAILED:", "Error:", "error C", "LNK", "Script failed")
    first = next((n for n, line in enumerate(lines) if any(mark in line for mark in marks)), None)
    if first is None:
        return lines[-count:]
    return lines[max(0, first - 12) : first + count - 12]


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()


def compile_package(
    recipe: Path,
    sdist: Path,
    platform: str,
    variant: Variant,
    channels: list[str],
    work: Path,
    cache: Path,
    environment: dict[str, str],
    progress: Progress,
) -> tuple[Path, Path]:
    """Build one variant below ``work`` and return the package and the wheel of the same build.

    :raises CheckFailed: the build failed.
    """
    # Relative to the recipe, so that no path of this machine is recorded in the package.
    environment = {**environment, "DEEPSPEED_SDIST": os.path.relpath(sdist, recipe)}
    job = {
        "do": "build",
        "recipe": str(recipe),
        "platform": platform,
        "variant": variant.keys,
        "channels": channels,
        "output": str(work),
    }
    result = run_worker(job, cache / "logs" / f"build-{variant.build_string}.log", cache, environment, progress)
    wheels = list(work.glob("bld/*/work/dist/*.whl"))
    if len(wheels) != 1:
        raise CheckFailed("The build made no wheel.", fix="build.sh and bld.bat make one in dist/; restore that step.")
    return Path(result["package"]), wheels[0]


def test_package(package: Path, channels: list[str], cache: Path, progress: Progress) -> None:
    """Run the tests that a package carries, each in a fresh environment.

    :raises CheckFailed: one of them fails, or not all of them ran.
    """
    job = {"do": "test", "package": str(package), "channels": channels}
    log = cache / "logs" / f"test-{package.stem}.log"
    result = run_worker(job, log, cache, {}, progress)
    # rattler-build stops at the first failure.
    passed = sum(result["tests"])
    if not all(result["tests"]) or not result["tests"]:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise CheckFailed(
            f"A test of the package fails ({passed} passed before it).",
            fix=f"The whole log is {log}. Nothing was added to the channel.",
            log="\n".join(_last_words(lines)),
        )
    progress(f"{passed} tests of the package passed")


def inspect(package: Path, recipe: Path, platform: str, variant: Variant, work: Path) -> list[binaries.Binary]:
    """Read every op of a package and return what is in it.

    :raises CheckFailed: an op is missing; a CPU optimizer holds no AVX2 code or AVX-512 code, or no OpenMP; or there is
        debug information or a path of this machine in one.
    """
    unpacked = work / "unpacked"
    for tar, member in stream_conda_component(str(package), component="pkg"):
        if member.isfile() and member.name.endswith((".so", ".pyd")):
            tar.extract(member, unpacked, filter="data")
    found = {file.name.split(".")[0]: binaries.read(file) for file in sorted(unpacked.rglob("*")) if file.is_file()}
    problems, result = [], []
    for op in ops.read(recipe):
        if not op.is_built(platform, variant.accelerator):
            continue
        binary = found.get(op.module.rsplit(".", 1)[1])
        if binary is None:
            problems.append(f"{op.name} is not in the package")
            continue
        result.append(binary)
        if op.name in VECTOR_OPS and binary.simd.level != "avx2":
            problems.append(f"{op.name} holds {binary.simd.level} code, not AVX2 ({binary.simd})")
        if op.name in VECTOR_OPS and binary.openmp is None:
            problems.append(f"{op.name} uses no OpenMP: it runs on one thread")
        if binary.debug_info:
            problems.append(f"{op.name} holds debug information")
        if binaries.find_folders(binary.path, [str(work), str(recipe)]):
            problems.append(f"{op.name} holds a path of this machine")
    if problems:
        raise CheckFailed("; ".join(problems) + ".", fix="build.sh and bld.bat set the flags; ops.yaml names the ops.")
    return result


@contextmanager
def work_folder(cache: Path, variant: Variant) -> Iterator[Path]:
    """Give an empty folder for one build, and take it away afterwards.

    Its name is the same each time, since the compiler cache knows files by their paths; a second build of the same variant
    waits for the first.
    """
    work = cache / "build" / variant.build_string.rsplit("_", 1)[0]
    work.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(work.with_suffix(".lock")):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def build(
    recipe: Path,
    out: Path,
    cache: Path,
    *,
    platform: str,
    variant: str,
    python: str,
    deps: Deps = "auto",
    number: int | None = None,
    require_gpu: bool = False,
    progress: Progress = lambda _: None,
) -> Built:
    """Build, test and inspect one variant, and add it to the channel folder ``out``.

    :param cache: a folder for the source, the deps channel and logs; may be deleted at any time.
    :param number: the build number; by default the first that ``out`` does not have.
    :param require_gpu: the package's training test fails where it finds no GPU.
    :raises DswinError: with the exit code of what went wrong; ``out`` is as it was then.
    """
    recipe, out, cache = recipe.absolute(), out.absolute(), cache.absolute()
    channel.check_folder(out)
    chosen = choose(recipe, platform, variant, python)
    if number is None:
        number = next_number(out, recipe, chosen)
        if number:
            progress(f"{out.name} has this version already: building it as number {number}")
    environment = {"DSWIN_BUILD_NUMBER": str(number), "DSWIN_REQUIRE_GPU": "1" if require_gpu else "0"}
    chosen = Variant(chosen.keys, f"{chosen.build_string.rsplit('_', 1)[0]}_{number}")
    if any(record["build"] == chosen.build_string for record in channel.list_packages(out, NAME)):
        raise BadInput(
            f"{out} has {NAME} {chosen.build_string} already, and a published file name is never replaced.",
            fix="Leave --build-number out to take the next one, or name another folder with --out.",
        )
    cache.mkdir(parents=True, exist_ok=True)
    check_space(cache)
    sdist = source.fetch(source.read(recipe), cache / "source", progress)
    channels = find_deps(deps, cache, recipe, platform, chosen, progress)
    with work_folder(cache, chosen) as work:
        package, wheel = compile_package(recipe, sdist, platform, chosen, channels, work, cache, environment, progress)
        progress("looking into the ops")
        inside = inspect(package, recipe, platform, chosen, work)
        progress("testing the package in fresh environments")
        test_package(package, [work.as_uri(), *channels], cache, progress)
        [placed] = channel.add(out, [package], [(chosen.build_string, wheel)])
    return Built(placed, out / channel.WHEELS / chosen.build_string / wheel.name, inside, [out.as_uri(), *channels])
