"""Which build of deepspeed-win a user gets, for channels in an order, a channel priority and a driver.

    python tests/variants.py             show the table
    python tests/variants.py --update    store it; then review the diff, and put it into locks/README.md

The records are those in locks/records. deepspeed-win's own are what recipe.yaml renders to, without what compilers and libraries
add when it is built; nothing of that decides the choice.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import rattler
import yaml
from rattler import MatchSpec, RepoDataRecord
from rattler.channel import ChannelPriority
from rattler.exceptions import SolverError

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "locks"
TABLE = ROOT / "tests" / "data" / "variant-choice.md"
PLATFORM = "win-64"
PYTHONS = ("3.10", "3.11")
#: None is a machine without an NVIDIA driver.
DRIVERS = (None, "12.1", "12.4", "13.0")
PRIORITIES = {"strict": ChannelPriority.Strict, "disabled": ChannelPriority.Disabled}
#: Ours with deepspeed-win alone, and ours with what locks name beside it.
OURS, MIRROR, GPU_MIRROR = "ours", "ours, mirrored", "ours, mirrored gpu locks"
CHANNELS = (
    (OURS, "pytorch", "nvidia", "conda-forge"),
    (OURS, "conda-forge", "pytorch", "nvidia"),
    (OURS, "conda-forge"),
    (MIRROR,),
    (GPU_MIRROR,),
    (MIRROR, "conda-forge"),
)
NOTHING = "no solution"

sys.path.insert(0, str(ROOT / "scripts"))
from dswin import lock, records, solver  # noqa: E402


@dataclass(frozen=True)
class Case:
    """:param arch: the lowest compute capability of the GPUs, where the client tells the solver (CEP 46)."""

    channels: tuple[str, ...]
    priority: str
    cuda: str | None
    arch: str | None = None

    def list_virtual(self) -> dict[str, str]:
        """What the solver is told of the machine."""
        told = {"__cuda": self.cuda, "__cuda_arch": self.arch}
        return {**solver.VIRTUAL[PLATFORM], **{name: version for name, version in told.items() if version}}


CASES = tuple(Case(*one) for one in [(c, p, d) for c in CHANNELS for p in PRIORITIES for d in DRIVERS])


def list_ours(table: Path = ROOT / "tests" / "data" / "render" / f"{PLATFORM}.yaml") -> list[records.Record]:
    """deepspeed-win as the recipe renders it."""
    rendered = yaml.safe_load(table.read_text(encoding="utf-8"))
    name, version = rendered["all"]["package"].split()
    return [
        make_record(
            OURS, name, version, row["builds"][python], row["number"],
            [resolve_pin(spec, python) for spec in row["run"]], row["run_constraints"],
        )
        for row in rendered["variants"]
        for python in PYTHONS
    ]  # fmt: skip


def resolve_pin(spec: str, python: str) -> str:
    """What a requirement of the rendered recipe is in a package for this Python."""
    if spec != "pin_compatible python x.x x.x":
        return spec
    major, minor = python.split(".")
    return f"python >={python},<{major}.{int(minor) + 1}.0a0"


def list_stand_ins() -> list[records.Record]:
    """conda-forge's torch 2.10 for CUDA 13.0. It lists such builds for win-64; no record of one was seen.

    They ask for what decides the choice: Python, a driver, and the MKL and OpenMP of its other builds of that time.
    """
    depends = ["__cuda", "cuda-version >=13.0,<14", "filelock", "jinja2", "libblas * *mkl", "llvm-openmp >=21.1.8",
               "mkl >=2025.3.0,<2026.0a0", "networkx", "numpy >=1.23,<3", "setuptools", "sympy >=1.13.3",
               "typing_extensions >=4.10.0"]  # fmt: skip
    return [
        make_record(
            "conda-forge", "pytorch", "2.10.0", f"cuda130_mkl_py{python.replace('.', '')}_standin_302", 302,
            [*depends, resolve_pin("pin_compatible python x.x x.x", python)], ["pytorch-cpu <0.0a0"],
        )
        for python in PYTHONS
    ]  # fmt: skip


def make_record(
    channel: str, name: str, version: str, build: str, number: int, depends: list[str], constrains: list[str]
) -> records.Record:
    """A record of a package that there is not, with hashes of its name."""
    fn = f"{name}-{version}-{build}.conda"
    repodata = {
        "name": name, "version": version, "build": build, "build_number": number, "subdir": PLATFORM,
        "depends": depends, "constrains": constrains,
        "md5": hashlib.md5(fn.encode()).hexdigest(), "sha256": hashlib.sha256(fn.encode()).hexdigest(),
    }  # fmt: skip
    return records.Record(channel, PLATFORM, fn, repodata, "", "")


def read_locked(folder: Path = LOCKS) -> dict[str, set[str]]:
    """{lock: the urls of its packages for Windows}."""
    paths = sorted(folder.glob(f"*{lock.SUFFIX}"))
    return {path.name.removesuffix(lock.SUFFIX): {one.url for one in lock.read(path).on(PLATFORM)} for path in paths}


class Choice:
    """The channels of all cases, written out once."""

    def __init__(self, known: Sequence[records.Record], locked: Mapping[str, set[str]], folder: Path) -> None:
        """:param known: the records. :param locked: what a mirrored channel has. :param folder: an empty one, for scratch."""
        self.folder = folder
        gpu = set().union(*(urls for name, urls in locked.items() if name.startswith("gpu-")))
        ours = list_ours()
        everything = [*known, *list_stand_ins(), *ours]
        for name, urls in ((MIRROR, set().union(*locked.values())), (GPU_MIRROR, gpu)):
            everything += [
                replace(one, channel=self.name(name)) for one in [*ours, *(r for r in known if r.url in urls)]
            ]
        records.write_repodata(everything, folder)

    @staticmethod
    def name(channel: str) -> str:
        """A channel's name as a folder and in a url."""
        return channel.replace(", ", "-").replace(" ", "-")

    def solve(self, case: Case, *specs: str) -> list[RepoDataRecord] | None:
        """The packages that the solver takes for the request, or nothing where there is no solution."""
        sources = list(records.open_repodata(self.folder, map(self.name, case.channels), PLATFORM))
        work = rattler.solve_with_sparse_repodata(
            [MatchSpec(spec, strict=False) for spec in specs],
            sources,
            virtual_packages=solver.list_virtual_packages(case.list_virtual()),
            channel_priority=PRIORITIES[case.priority],
        )
        try:
            return list(asyncio.run(_wait(work)))
        except SolverError:
            return None


async def _wait(work):  # asyncio.run takes coroutines only
    return await work


@contextmanager
def open_choice(known: Sequence[records.Record], locked: Mapping[str, set[str]]) -> Iterator[Choice]:
    """The channels of all cases, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield Choice(known, locked, Path(folder))


def describe(packages: Iterable[RepoDataRecord] | None) -> str:
    """The chosen build of deepspeed-win."""
    if packages is None:
        return NOTHING
    [build] = [one.build for one in packages if one.name.normalized == solver.PACKAGE]
    return str(build)


def write_table(builds: Mapping[Case, str]) -> str:
    """The table as Markdown: a row for channels and priority, a column for a driver."""
    columns = ["channels, first to last", "priority", *(f"CUDA {cuda}" if cuda else "no driver" for cuda in DRIVERS)]
    lines = [columns, ["---"] * len(columns)]
    for channels in CHANNELS:
        for priority in PRIORITIES:
            cells = [builds[Case(channels, priority, cuda)] for cuda in DRIVERS]
            lines.append(["; ".join(channels), priority, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="store the table")
    update = parser.parse_args().update
    with open_choice(records.read(LOCKS / "records"), read_locked()) as choice:
        text = write_table({case: describe(choice.solve(case, solver.PACKAGE)) for case in CASES})
    print(text)
    if update:
        TABLE.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
