"""Build one variant of the recipe, test it, look into it, and put it into a local channel."""

from __future__ import annotations

import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from conda_package_streaming.package_streaming import stream_conda_component

from . import binaries, channel, job, mutex, ops, pins, reproducible, source, wheelhouse, worker
from .errors import BadInput, CheckFailed, MachineLacks
from .machine import Here, Machine, check_target, open_machine

Progress = Callable[[str], None]
Deps = Literal["auto", "conda", "pypi"]
#: A url, or a folder of this machine.
Channel = str | Path

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
    specs = [str(spec) for spec in _render(recipe, platform, variant)["requirements"]["run"]]
    version = next(s for s in specs if s.startswith("pytorch ")).split()[1].lstrip("=")
    return ".".join(version.split(".")[:2])


def read_archs(recipe: Path, platform: str, variant: str) -> str:
    """Return the compute capabilities that a variant is compiled for, as ``TORCH_CUDA_ARCH_LIST`` has them."""
    return str(_render(recipe, platform, variant)["extra"]["cuda_arch_list"])


def _render(recipe: Path, platform: str, variant: str) -> dict:
    for one in worker.render(recipe, platform):
        if one.variant["ds_variant"] == variant:
            return one.recipe.to_dict()
    raise BadInput(f"The recipe has no variant {variant!r} for {platform}.", fix="Run dswin build --help.")


def next_number(out: Path, recipe: Path, platform: str, variant: Variant) -> int:
    """Return the first build number that the channel ``out`` has no package for."""
    version = source.read(recipe).version
    stem = variant.build_string.rsplit("_", 1)[0]
    taken = [
        int(record["build"].rsplit("_", 1)[1])
        for record in channel.list_packages(out, NAME)
        if (record["subdir"], record["version"], record["build"].rsplit("_", 1)[0]) == (platform, version, stem)
    ]
    return max(taken, default=-1) + 1


def give_number(out: Path, recipe: Path, platform: str, variant: Variant, number: int | None) -> tuple[Variant, int]:
    """Return the variant under a build number, by default the next, and that number.

    :raises BadInput: the channel ``out`` has a package of that number.
    """
    if number is None:
        number = next_number(out, recipe, platform, variant)
    numbered = Variant(variant.keys, f"{variant.build_string.rsplit('_', 1)[0]}_{number}")
    if any(
        record["build"] == numbered.build_string and record["subdir"] == platform
        for record in channel.list_packages(out, NAME)
    ):
        raise BadInput(
            f"{out} has {NAME} {numbered.build_string} already, and a published file name is never replaced.",
            fix="Leave --build-number out to take the next one, or name another folder with --out.",
        )
    return numbered, number


def is_reachable(name: str, timeout: float = 8.0) -> bool:
    """Say whether the conda channel ``name`` answers within ``timeout`` seconds."""
    request = urllib.request.Request(f"{CHANNEL_ALIAS}/{name}/noarch/repodata.json.zst", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError, ValueError):
        return False


def find_deps(
    how: Deps, cache: Path, recipe: Path, platform: str, variant: Variant, machine: Machine, progress: Progress
) -> list[Channel]:
    """Return the channels that serve the recipe's requirements, public ones by their urls.

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
    folder = wheelhouse.make_channel(
        cache / "deps", platform=platform, python=python, torch=torch, windows=machine.windows, progress=progress
    )
    return [folder]


def name_channels(channels: list[Channel], machine: Machine) -> list[str]:
    """Return the urls by which programs on ``machine`` know these channels."""
    return [machine.url(one) if isinstance(one, Path) else one for one in channels]


def choose_priority(channels: list[Channel]) -> str:
    """Return the channel priority that the requirements can be solved with.

    The nvidia channel has newer versions only of some packages that CUDA 12.1 needs of conda-forge; strict priority would
    hide these (seen in the public records of both channels).
    """
    return "disabled" if f"{CHANNEL_ALIAS}/nvidia" in channels else "strict"


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


def check_name(folder: Path) -> None:
    """Make sure that compilers can be told of a folder on Linux, where their flags are one variable, divided by spaces.

    :raises BadInput: its path has a space in it.
    """
    if re.search(r"\s", str(folder)):
        raise BadInput(
            f"{folder} has a space in its path, and the compiler's flags cannot name such a folder.",
            fix="Set the variable DSWIN_CACHE to a folder without one; packages and channels may lie anywhere.",
        )


def compile_package(
    recipe: Path,
    sdist: Path,
    platform: str,
    variant: Variant,
    channels: list[Channel],
    machine: Machine,
    work: Path,
    cache: Path,
    environment: dict[str, str],
    progress: Progress,
) -> tuple[Path, Path]:
    """Build one variant below ``work`` and return the package and the wheel of the same build.

    :raises CheckFailed: the build failed.
    """
    # A copy: the builder packs all that lies in the recipe's folder, caches of Python too.
    pins.copy(recipe, work / "recipe")
    shutil.copyfile(sdist, work / sdist.name)
    # Relative to the recipe, so that no path of this machine is recorded in the package.
    environment = {**environment, "DEEPSPEED_SDIST": f"../{sdist.name}"}
    what = {
        "do": "build",
        "recipe": machine.name(work / "recipe"),
        "platform": platform,
        "variant": variant.keys,
        "channels": name_channels(channels, machine),
        "priority": choose_priority(channels),
        "output": machine.name(work),
    }
    log = cache / "logs" / f"build-{platform}-{variant.build_string}.log"
    result = job.run(what, machine, log, cache, environment, progress)
    wheels = list(work.glob("bld/*/work/dist/*.whl"))
    if len(wheels) != 1:
        raise CheckFailed("The build made no wheel.", fix="build.sh and bld.bat make one in dist/; restore that step.")
    return machine.find(result["package"]), wheels[0]


def test_package(package: Path, channels: list[Channel], machine: Machine, cache: Path, progress: Progress) -> None:
    """Run the tests that a package carries, each in a fresh environment.

    :raises CheckFailed: one of them fails, or none ran.
    """
    what = {
        "do": "test",
        "package": machine.name(package),
        "channels": name_channels(channels, machine),
        "priority": choose_priority(channels),
    }
    log = cache / "logs" / f"test-{package.parent.name}-{package.stem}.log"
    result = job.run(what, machine, log, cache, {}, progress)
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


def inspect(
    package: Path, recipe: Path, platform: str, variant: Variant, machine: Machine, work: Path
) -> list[binaries.Binary]:
    """Read every op of a package and return what is in it.

    :param machine: that built it; the names of its folders ``work`` and ``recipe`` must not be in an op.

    :raises CheckFailed: an op is missing; a CPU optimizer holds no AVX2 code or AVX-512 code, or no OpenMP; or there is
        debug information or a path of this machine in one.
    """
    folders = [name for one in (work, recipe) for name in (str(one), machine.name(one))]
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
        if binaries.find_folders(binary.path, folders):
            problems.append(f"{op.name} holds a path of this machine")
    if problems:
        raise CheckFailed("; ".join(problems) + ".", fix="build.sh and bld.bat set the flags; ops.yaml names the ops.")
    return result


@contextmanager
def work_folder(parent: Path, variant: Variant, progress: Progress) -> Iterator[Path]:
    """Give an empty folder for one build, and take it away afterwards.

    Its name is the same each time, since the compiler cache knows files by their paths; a second build of the same variant
    waits for the first.
    """
    work = parent / variant.build_string.rsplit("_", 1)[0]
    work.parent.mkdir(parents=True, exist_ok=True)
    with mutex.hold_file(work.with_suffix(".lock"), f"waiting for another build of {work.name}", progress):
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
    msvc: Path | None = None,
    number: int | None = None,
    require_gpu: bool = False,
    progress: Progress = lambda _: None,
) -> Built:
    """Build, test and inspect one variant, and add it to the channel folder ``out``.

    :param cache: a folder for the source, the deps channel and logs; may be deleted at any time.
    :param msvc: the compiler's folder, for a Windows package on Linux; see :func:`machine.open_machine`.
    :param number: the build number; by default the first that ``out`` does not have.
    :param require_gpu: the package's training test fails where it finds no GPU.
    :raises DswinError: with the exit code of what went wrong; ``out`` is as it was then.
    """
    recipe, out, cache = recipe.absolute(), out.absolute(), cache.absolute()
    check_target(platform)
    channel.check_folder(out)
    chosen = choose(recipe, platform, variant, python)
    give_number(out, recipe, platform, chosen, number)
    if platform == "linux-64":
        check_name(cache)
    cache.mkdir(parents=True, exist_ok=True)
    check_space(cache)
    with open_machine(platform, cache, msvc, progress) as machine:
        sdist = source.fetch(source.read(recipe), cache / "source", progress)
        channels = find_deps(deps, cache, recipe, platform, chosen, machine, progress)
        with work_folder(machine.work, chosen, progress) as work:
            # Now: another build may have taken the next number while this one waited.
            chosen, number = give_number(out, recipe, platform, chosen, number)
            if number:
                progress(f"{out.name} has this version already: building it as number {number}")
            environment = {"DSWIN_BUILD_NUMBER": str(number), "DSWIN_REQUIRE_GPU": "1" if require_gpu else "0"}
            package, wheel = compile_package(
                recipe, sdist, platform, chosen, channels, machine, work, cache, environment, progress
            )
            progress("looking into the ops")
            inside = inspect(package, recipe, platform, chosen, machine, work)
            reproducible.settle(package, reproducible.read_epoch(recipe))
            progress("testing the package in fresh environments")
            test_package(package, [work, *channels], machine, cache, progress)
            [placed] = channel.add(out, [package], [(chosen.build_string, wheel)])
    urls = name_channels([out, *channels], Here(cache))
    return Built(placed, out / channel.WHEELS / chosen.build_string / wheel.name, inside, urls)
