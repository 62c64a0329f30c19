"""The contenders of the optimizer's benchmark on Windows, under Wine: our op, the same source compiled as upstream did, and the
ops of the official wheels, each with the torch that it was built for."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from conda_package_streaming.package_streaming import stream_conda_component

from . import bench, channel, source
from .bench import Contender
from .build import NAME
from .errors import BadInput
from .facts import describe_cpu
from .machine import UnderWine
from .wine import download_wheels, keep_packages
from .wine.python import MINOR

Progress = Callable[[str], None]

#: What torch needs on Windows, without what its wheels ask for on the machine that downloads them.
_TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "markupsafe", "mpmath<1.4", "networkx", "numpy==1.26.4", "sympy==1.13.1",
                "typing-extensions")  # fmt: skip
#: What torch 2.3 needs beside that.
_MKL = ("mkl==2021.4.0", "intel-openmp==2021.4.0", "tbb==2021.*")
#: The torch of our own Windows packages for CPUs, which Wine runs.
OURS = "2.5.1"
#: Official wheels of DeepSpeed for Windows, with the torch that each was built for (torch_info in the wheel).
OFFICIAL = {"0.16.5": "2.6.0", "0.14.5": "2.3.1"}


UPSTREAM = "upstream's flags"
#: What its setup.py gave MSVC for this op up to 0.19.7, beside what setuptools and torch give. cl ignores the first two, and for
#: want of the macro ``or`` drops the vector code. In 0.19.8 -Wno-reorder joined them, at which cl stops (D8021).
UPSTREAM_FLAGS = ("-march=native", "-fopenmp", "-D__AVX256__", "-D__DISABLE_CUDA__")
#: Without ninja, torch 2.5 hands flags to the compiler's class of that time.
_SETUPTOOLS = ["setuptools==75.8.2"]
_SETUP = """
import sys
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
sources = ["csrc/adam/cpu_adam.cpp", "csrc/adam/cpu_adam_impl.cpp"]
op = CppExtension("cpu_adam_op", sources, include_dirs=["csrc/includes"], extra_compile_args=sys.argv.pop().split())
setup(name="cpu_adam_op", ext_modules=[op], cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)})
"""


def find_ours(out: Path, folder: Path) -> Path:
    """Take cpu_adam out of the newest CPU package for Windows of a channel folder.

    :raises BadInput: there is none.
    """
    records = [
        record
        for record in channel.list_packages(out, NAME)
        if record["subdir"] == "win-64" and record["build"].startswith(f"cpu_py{MINOR.replace('.', '')}_")
    ]
    if not records:
        raise BadInput(
            f"{out} holds no CPU package of {NAME} for Windows and Python {MINOR}.",
            fix="Build one: dswin build --target win-64 --variant cpu.",
        )
    newest = max(records, key=lambda record: record["build_number"])
    for tar, member in stream_conda_component(str(out / "win-64" / newest["fn"]), component="pkg"):
        if Path(member.name).name.startswith("cpu_adam_op."):
            target = folder / Path(member.name).name
            target.write_bytes(tar.extractfile(member).read())
            return target
    raise BadInput(f"{newest['fn']} holds no cpu_adam.", fix="Build it again.")


def find_official(version: str, folder: Path) -> Path:
    """Download an official wheel and take cpu_adam out of it. :raises MachineLacks: pip cannot get it."""
    folder.mkdir(parents=True, exist_ok=True)
    if found := list(folder.glob("cpu_adam_op.*")):
        return found[0]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        download_wheels([f"deepspeed=={version}"], MINOR, Path(scratch))
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if Path(name).name.startswith("cpu_adam_op.")]
            target = folder / Path(name).name
            target.write_bytes(archive.read(name))
    return target


def build_upstream(machine: UnderWine, recipe: Path, packages: Path, cache: Path, progress: Progress) -> Path:
    """Compile the op from the recipe's source, without its patches, as upstream last could.

    :param packages: the folder of the torch to compile for. :param cache: its folder ``upstream-VERSION`` keeps the result.
    :raises CheckFailed: it does not compile.
    """
    wanted = source.read(recipe)
    kept = cache / f"upstream-{wanted.version}"
    if found := list(kept.glob("cpu_adam_op.*")):
        return found[0]
    sdist = source.fetch(wanted, cache / "source", progress)
    tools = keep_packages(machine.host, machine.python, cache, "setuptools", _SETUPTOOLS, progress)
    progress("compiling cpu_adam as upstream did")
    machine.work.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=machine.work) as scratch, tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
        tree = Path(scratch) / sdist.name.removesuffix(".tar.gz")
        (tree / "build_op.py").write_text(_SETUP, encoding="utf-8")
        python: Path | str = machine.python / "python.exe"
        command = [python, "build_op.py", "-q", "build_ext", "--inplace", " ".join(UPSTREAM_FLAGS)]
        environment = {"PYTHONPATH": ";".join(map(machine.name, (tools, packages)))}
        machine.host.check(command, cwd=tree, env=environment, timeout=1800)
        [built] = tree.glob("cpu_adam_op.*.pyd")
        kept.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(built, kept / built.name))


def install_torch(machine: UnderWine, version: str, cache: Path, progress: Progress) -> Path:
    """Return a folder, for PYTHONPATH, with a CPU torch for the Windows Python of ``machine``."""
    wanted = [f"torch=={version}", *_TORCH_NEEDS, *(_MKL if version.startswith("2.3.") else ())]
    return keep_packages(machine.host, machine.python, cache, f"torch-{version}", wanted, progress)


def choose(
    machine: UnderWine, recipe: Path, out: Path, cache: Path, more: Sequence[tuple[str, Path]], progress: Progress
) -> list[Contender]:
    """Return the contenders: ours, upstream's, the official ones that this processor can run, more ops, torch's and the memory.

    :param recipe: names the source of upstream's.
    :param out: the channel folder with our package.
    :param more: (name, file) of other ops that were built for torch 2.5.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "ours"
    folder.mkdir(exist_ok=True)

    def make(name: str, torch: str, kind: str, op: Path | None = None) -> Contender:
        packages = install_torch(machine, torch, cache, progress)
        environment = {
            **machine.host.environment,
            "PYTHONPATH": machine.name(packages),
            "WINEPATH": machine.name(packages / "Library" / "bin"),
            # Wine 8 lacks what newer OpenMP runtimes of Intel ask Windows for.
            **({} if torch == OURS else {"KMP_AFFINITY": "disabled"}),
        }
        command = [*machine.host.wine.command, machine.name(machine.python / "python.exe")]
        script = machine.name(bench.SCRIPT)
        return Contender(name, command, kind, machine.name(op) if op else "", script, environment)

    ours, torch = find_ours(out, folder), install_torch(machine, OURS, cache, progress)
    upstream = build_upstream(machine, recipe, torch, cache, progress)
    chosen = [make("deepspeed-win", OURS, "op", ours), make(UPSTREAM, OURS, "op", upstream)]
    for version, its_torch in OFFICIAL.items():
        if version == "0.14.5" and not describe_cpu()["avx512"]:
            progress(f"official {version} is left out: it holds AVX-512 code, which this processor cannot run")
            continue
        chosen.append(make(f"official {version}", its_torch, "op", find_official(version, cache / version)))
    chosen += [make(name, OURS, "op", file) for name, file in more]
    return [*chosen, make(bench.TORCH_FUSED, OURS, "torch-fused"), make(bench.MEMORY, OURS, "memory")]
