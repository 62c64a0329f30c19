"""Build one variant of the recipe, test it, look into it, and put it into a local channel."""

from __future__ import annotations

import os
import platform as host
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from conda_package_streaming.package_streaming import stream_conda_component
from filelock import FileLock

from . import binaries, channel, job, ops, source, wheelhouse, worker
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
    if variant.accelerator == "cuda":
        raise MachineLacks(
            f"{variant.keys['ds_variant']} needs the CUDA compiler and libraries from the channels {', '.join(names)}.",
            fix="Build it where these channels answer (--deps conda), or build the cpu variant here (--variant cpu).",
        )
    if how == "auto":
        progress(f"the conda channel {silent[0]} does not answer: the dependencies are made from wheels instead")
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
    what = {
        "do": "build",
        "recipe": str(recipe),
        "platform": platform,
        "variant": variant.keys,
        "channels": channels,
        "output": str(work),
    }
    result = job.run(what, cache / "logs" / f"build-{variant.build_string}.log", cache, environment, progress)
    wheels = list(work.glob("bld/*/work/dist/*.whl"))
    if len(wheels) != 1:
        raise CheckFailed("The build made no wheel.", fix="build.sh and bld.bat make one in dist/; restore that step.")
    return Path(result["package"]), wheels[0]


def test_package(package: Path, channels: list[str], cache: Path, progress: Progress) -> None:
    """Run the tests that a package carries, each in a fresh environment.

    :raises CheckFailed: one of them fails, or none ran.
    """
    what = {"do": "test", "package": str(package), "channels": channels}
    log = cache / "logs" / f"test-{package.stem}.log"
    result = job.run(what, log, cache, {}, progress)
    # rattler-build stops at the first failure.
    passed = sum(result["tests"])
    if not all(result["tests"]) or not result["tests"]:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise CheckFailed(
            f"A test of the package fails ({passed} passed before it).",
            fix=f"The whole log is {log}. Nothing was added to the channel.",
            log="\n".join(job.find_last_words(lines)),
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
