"""A conda channel made of wheels, for networks where a package index answers and no conda channel does.

The same recipe, with the same requirements, solves and builds against it: the packages carry conda-forge's names.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from . import cuda_shims, cuda_torch, mutex
from .channel import FIXTURE_MARK, index_subdir, read_subdir
from .digests import digest, hash_file
from .errors import BadInput, MachineLacks
from .import_libraries import Tools
from .interpreter import describe_python, describe_windows_python
from .msvc_shims import describe_msvc
from .package_index import run_pip
from .package_store import keep, link, write_size
from .redistributables import REDISTRIBUTABLES
from .shims import describe_gcc
from .wheels import CONVERTER_VERSION, Source, choose_requirements, convert_wheel, read_metadata

if TYPE_CHECKING:
    from .wine.msvc import Msvc

Progress = Callable[[str], None]

_FIXTURE_TEXT = """\
BUILD FIXTURE - DO NOT PUBLISH

The packages in this folder were made of wheels and of parts of this machine, to build and test deepspeed-win where no
conda channel answers. They carry the names of conda-forge's packages and are not those packages.
"""

#: What DeepSpeed needs to build and to run beside torch, by its name on the package index.
PROJECTS = (
    "einops", "hjson", "msgpack", "ninja", "numpy", "packaging", "pip", "psutil", "py-cpuinfo", "pydantic", "pyyaml",
    "setuptools", "tqdm", "wheel",
)  # fmt: skip

#: What it needs beside that, or otherwise, on Windows. conda-forge's torch 2.5 has the OpenMP runtime of 2024, and PyPI's
#: brings the same. numpy 2.1 and later call functions of the C library that Wine 8 lacks (crealf).
WINDOWS_PROJECTS: Mapping[str, str] = {"colorama": "", "intel-openmp": "<2025", "msvc-runtime": "", "numpy": "<2.1"}

_ACCELERATED = re.compile(r"(nvidia|cuda|rocm)\b.*", re.IGNORECASE)

#: What a platform takes from the machine itself: each function gives sources for a version of Python.
LOCAL_SOURCES: Mapping[str, tuple[Callable[[str], list[Source]], ...]] = {
    "linux-64": (describe_python, describe_gcc),
}


@dataclass(frozen=True)
class WindowsParts:
    """What the packages for win-64 that do not come from wheels are made from, on whatever machine.

    :param python: the folder that holds python.exe, as python.org's installer leaves it.
    :param msvc: the compiler; its packages name its folder, on a machine that is no Windows as Wine does (``Z:``).
    :param tools: runs programs of that tree, as an open Wine host does. Only a rehearsal of CUDA needs it, for lib.exe.
    """

    python: Path
    msvc: Msvc
    tools: Tools | None = None


@dataclass(frozen=True)
class Deps:
    """What a variant of the recipe needs.

    :param platform: a conda subdir, ``linux-64``.
    :param python: ``3.11``.
    :param torch: ``2.13``; a third number pins the patch release.
    :param pins: versions of other projects, by their name on the package index: ``{"numpy": "==1.26.*"}``.
    :param cuda: ``13.0`` for the rehearsal of a CUDA build, on win-64 only.
    """

    platform: str
    python: str
    torch: str
    pins: Mapping[str, str] = field(default_factory=dict)
    cuda: str | None = None

    def __post_init__(self) -> None:
        for what, value, pattern in (
            ("Python", self.python, r"3\.\d+"),
            ("torch", self.torch, r"\d+\.\d+(\.\d+)?"),
        ):
            if not re.fullmatch(pattern, value):
                raise BadInput(f"{value!r} is no version of {what}.", fix="Write it like 3.11, torch like 2.13.")
        if self.cuda not in (None, cuda_shims.VERSION) or (self.cuda and self.platform != "win-64"):
            raise BadInput(
                f"CUDA {self.cuda} on {self.platform} cannot be rehearsed.",
                fix=f"Only CUDA {cuda_shims.VERSION} on win-64 can.",
            )

    @property
    def requirements(self) -> list[str]:
        """The requirements in pip's words, torch first."""
        wanted = dict.fromkeys(PROJECTS, "")
        if self.platform == "win-64":
            wanted.update(WINDOWS_PROJECTS)
        if self.cuda:
            wanted["nvidia-ml-py"] = ""
            del wanted["intel-openmp"]  # the stand-in of llvm-openmp takes its place
        wanted.update({name: spec if not spec[:1].isdigit() else f"=={spec}" for name, spec in self.pins.items()})
        return [f"torch=={self.torch}.*", *(name + wanted[name] for name in sorted(wanted) if name != "torch")]

    @property
    def label(self) -> str:
        # Not the platform first: conda cuts a folder that begins like a subdir out of a channel's url.
        rehearsal = f"rehearsal-cuda{self.cuda}-" if self.cuda else ""
        return f"{rehearsal}torch{self.torch}-py{self.python}-{self.platform}"


def make_channel(
    root: Path,
    *,
    platform: str,
    python: str,
    torch: str,
    pins: Mapping[str, str] | None = None,
    windows: WindowsParts | None = None,
    cuda: str | None = None,
    progress: Progress = lambda _: None,
) -> Path:
    """Make the channel, or find it made, and return its folder, ``root/torch<torch>-py<python>-<platform>-<digest>``.

    The digest covers the requirements, this machine's Python and compilers, and the converter. So the folder's being
    there means that nothing is to be done, and neither pip nor the network is asked. Each package is kept by its own
    input too: after a change, only what changed is made again.

    :param root: a cache folder, shared by all channels. A second process waits for the first.
    :param windows: for win-64, and only there: the Python and the compiler, which are then not this machine's own.
    :param cuda: ``13.0`` makes a channel to rehearse a CUDA build with, and its name says so: CUDA's compiler and
        libraries to compile and link with, and a torch that only claims to have CUDA. Wants ``windows.tools``.
    :raises BadInput: a platform, Python or CUDA that this machine cannot serve.
    :raises MachineLacks: no compiler, no CPU build of torch, no network, no space.
    """
    root = Path(root).absolute()
    deps = Deps(platform, python, torch, pins or {}, cuda)
    tools = windows.tools if windows else None
    if cuda and tools is None:
        raise BadInput(
            "A rehearsal of CUDA makes import libraries, and has no lib.exe.", fix="Open a Wine host for it."
        )
    if windows and platform == "win-64":
        local = [*describe_windows_python(windows.python, python), *describe_msvc(windows.msvc)]
    else:
        local = list_local_sources(platform, python)
    inputs = {
        "requirements": deps.requirements,
        "local": {source.name: source.identity for source in local},
        "converter": CONVERTER_VERSION,
        **({"cuda": [cuda_shims.WHEELS, cuda_torch.identify(cuda)]} if cuda else {}),
    }
    channel = root / f"{deps.label}-{digest(inputs)[:8]}"
    if channel.is_dir():
        return channel
    with (
        _report_full_disk(root),
        _lock(root, progress),
        tempfile.TemporaryDirectory(dir=root, prefix=_SCRATCH, ignore_cleanup_errors=True) as scratch,
    ):
        if not channel.is_dir():
            _fill(channel, root / "packages", Path(scratch), deps, local, inputs, tools, progress)
    return channel


_SCRATCH = "scratch-"


def _fill(
    channel: Path,
    store: Path,
    scratch: Path,
    deps: Deps,
    local: list[Source],
    inputs: Mapping[str, object],
    tools: Tools | None,
    progress: Progress,
) -> None:
    wheels = download_wheels(deps, scratch / "wheels", progress)
    sources = [*local, *(source for wheel in wheels for source in _describe_wheel(wheel, deps, tools))]
    if deps.cuda and tools:
        progress(f"downloading CUDA {deps.cuda} (1 GB)")
        _run_pip(["download", "--dest", str(scratch / "cuda"), "--no-deps", *_aim(deps), *cuda_shims.WHEELS])
        sources += cuda_shims.describe_cuda(sorted((scratch / "cuda").glob("*.whl")), tools)
    packages = [keep(store, source, scratch, progress) for source in sources]
    progress(f"indexing {len(packages)} packages")
    new = scratch / "channel"
    for file in packages:
        link(file, new / read_subdir(file) / file.name)
    for subdir in (deps.platform, "noarch"):
        index_subdir(new, subdir, compressed=False)
    (new / FIXTURE_MARK).write_text(_FIXTURE_TEXT, encoding="utf-8")
    (new / "inputs.json").write_text(json.dumps(inputs, indent=1), encoding="utf-8")
    new.replace(channel)


def list_local_sources(platform: str, python: str) -> list[Source]:
    """What the packages for *platform* that do not come from wheels are made from: parts of this machine.

    :raises BadInput: there is no recipe for that platform, or *python* is not the one that runs.
    :raises MachineLacks: no compiler, or a Python that cannot be moved.
    """
    if platform not in LOCAL_SOURCES:
        raise BadInput(
            f"A deps channel for {platform} cannot be made from wheels.",
            fix=f"Use one of: {', '.join(LOCAL_SOURCES)}, or win-64 with a Windows Python and an MSVC tree; or take what is "
            "needed from conda channels (--deps conda).",
        )
    return [source for describe in LOCAL_SOURCES[platform] for source in describe(python)]


def download_wheels(deps: Deps, folder: Path, progress: Progress) -> list[Path]:
    """Let pip resolve the requirements for the target and put the wheels into *folder*.

    torch is resolved first, on its metadata alone where the index serves it: a CUDA build would be gigabytes.

    :raises MachineLacks: pip resolves torch to a build for an accelerator, or fails.
    """
    folder.mkdir()
    report = folder / "report.json"
    torch, *others = deps.requirements
    target = _aim(deps)
    progress(f"resolving {torch}")
    # pip before 24 resolves for another machine only into a folder, even when it installs nothing.
    place = ["--target", str(folder)] if _is_foreign(deps) else []
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report), *place]
    _run_pip(["install", *options, *target, torch])
    metadata = json.loads(report.read_text(encoding="utf-8"))["install"][0]["metadata"]
    report.unlink()
    check_cpu_build(metadata, deps)
    version = metadata["version"]
    progress(f"downloading torch {version} and what DeepSpeed needs")
    if _is_foreign(deps):
        # pip takes every marker as this machine's: resolving torch for Windows on Linux, it would look for Triton.
        _run_pip(["download", "--dest", str(folder), "--no-deps", *target, f"torch=={version}"])
        wanted = set(others)
        while missing := _list_missing(deps, folder, wanted):
            wanted |= missing
            _run_pip(["download", "--dest", str(folder), *target, *sorted(wanted)])
    else:
        _run_pip(["download", "--dest", str(folder), *target, f"torch=={version}", *others])
    return sorted(folder.glob("*.whl"))


def _list_missing(deps: Deps, folder: Path, wanted: set[str]) -> set[str]:
    """The requirements of the wheels in *folder*, as the target reads them, and of *wanted*, that no wheel there serves."""
    wheels = list(folder.glob("*.whl"))
    here = {canonicalize_name(wheel.name.partition("-")[0]) for wheel in wheels}
    lines = [*wanted, *(line for wheel in wheels for line in read_metadata(wheel).get_all("Requires-Dist", []))]
    requirements = choose_requirements(lines, deps.platform, deps.python)
    return {f"{r.name}{r.specifier}" for r in requirements if canonicalize_name(r.name) not in here}


def check_cpu_build(metadata: Mapping[str, object], deps: Deps) -> None:
    """Refuse a torch that needs an accelerator's libraries.

    :param metadata: the wheel's metadata as JSON, as in pip's report.
    :raises MachineLacks: it is a CUDA, ROCm or XPU build.
    """
    version = str(metadata["version"])
    lines = [str(line) for line in metadata.get("requires_dist", [])]  # type: ignore[attr-defined]
    requires = choose_requirements(lines, deps.platform, deps.python)
    heavy = [r.name for r in requires if _ACCELERATED.fullmatch(r.name)]
    if heavy or re.search(r"\+(cu|rocm|xpu)", version):
        raise MachineLacks(
            f"pip finds torch {version}, a build for an accelerator, and no CPU build of torch {deps.torch}.",
            fix="Point pip at a CPU wheel of torch (its version ends in +cpu): give pip an index or a folder that has "
            "it, with PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, and run again.",
            log="\n".join(f"requires {name}" for name in heavy),
        )


def _is_foreign(deps: Deps) -> bool:
    return deps.platform == "win-64" and sys.platform != "win32"


def _aim(deps: Deps) -> list[str]:
    """pip's options for the target. On the machine itself pip knows best which tags fit."""
    options = ["--only-binary", ":all:"]
    if _is_foreign(deps):
        tag = "cp" + deps.python.replace(".", "")
        options += ["--platform", "win_amd64", "--python-version", deps.python, "--implementation", "cp", "--abi", tag]
    return options


def _run_pip(arguments: list[str]) -> None:
    code, log = run_pip(arguments)
    if not code:
        return
    if missing := re.search(r"No matching distribution found for (.+)", log):
        what = f"pip finds no wheel for {missing[1].strip()}."
        fix = "Check the version, and that pip's index has a wheel for this platform and Python (pip config list)."
    elif "No space left on device" in log:
        what, fix = "There is no space left for pip to download to.", "Free some space and run again."
    elif "No module named pip" in log:
        what, fix = f"{sys.executable} has no pip.", f"Run {sys.executable} -m ensurepip and try again."
    else:
        what, fix = "pip could not get the wheels.", "See pip's own words below; check the network and pip config list."
    raise MachineLacks(what, fix=fix, log=log)


def _describe_wheel(wheel: Path, deps: Deps, tools: Tools | None) -> list[Source]:
    project, version = wheel.name.split("-")[:2]
    if describe := REDISTRIBUTABLES.get(canonicalize_name(project)):
        return describe(wheel)
    source = Source(
        project,
        f"{hash_file(wheel)} {deps.platform} {deps.python}",
        f"converting {project} {version} ({write_size(wheel)})",
        lambda folder, digest: convert_wheel(wheel, folder, platform=deps.platform, python=deps.python, digest=digest),
    )
    if project == "torch" and deps.cuda and tools:
        return cuda_torch.describe_torch(wheel, source, deps.cuda, tools)
    return [source]


@contextmanager
def _lock(root: Path, progress: Progress) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with mutex.hold(root, f"waiting for another process that works in {root}", progress):
        # Whoever holds the lock is alone here: what is left over belongs to a process that was killed.
        for left in root.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def _report_full_disk(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise MachineLacks(
            f"There is no space left below {root} or in {tempfile.gettempdir()}.",
            fix="A channel needs about 2 GB while it is made. Free some space, or set TMPDIR, and run again.",
        ) from error
