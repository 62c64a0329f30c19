"""Which NVIDIA driver a CUDA needs, and whether compiled GPU code runs on a GPU. Nothing here looks at a machine."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

#: CUDA -> the driver that came with it, (Linux, Windows): CUDA release notes, table "CUDA Toolkit and Corresponding Driver
#: Versions", https://docs.nvidia.com/cuda/archive/12.1.1/cuda-toolkit-release-notes and .../13.0.0/... Since 13.0 it has no
#: entry for Windows; there it is the branch that NVIDIA's CUDA compatibility guide names.
DRIVERS = {"12.1": ("530.30.02", "531.14"), "13.0": ("580.65.06", "580")}
#: CUDA's major -> the driver that runs programs of all its minors, without compiling PTX of a newer one: the same notes, table
#: "Minimum Required Driver Version for CUDA Minor Version Compatibility", and
#: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MINOR_DRIVERS = {"12": ("525.60.13", "527.41"), "13": ("580.65.06", "580")}

#: ``full``: all works. ``minor``: by CUDA's minor version compatibility. ``old``: not at all.
DriverLevel = Literal["full", "minor", "old"]
#: How GPU code runs: ``exact`` machine code; machine code of the same ``major``; ``ptx``, compiled at the first start; not.
Way = Literal["exact", "major", "ptx", "nothing"]


class Archs(NamedTuple):
    """What GPU code is for, as torch writes it (``8.6``): machine code, and PTX. As :class:`dswin.binaries.GpuCode`, which takes
    libraries to import that a broken Windows does not load."""

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: (530, 30, 2) for 530.30.02."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def minor_of(version: str) -> str:
    """Return major.minor of a version, as DeepSpeed compares it: 2.5 for 2.5.1+cu121."""
    return ".".join(version.split("+")[0].split(".")[:2])


def judge_driver(driver: str, serves: str | None, cuda: str, *, windows: bool) -> DriverLevel:
    """Say what a driver does with programs of a CUDA.

    :param driver: its version. :param serves: the newest CUDA that it says it serves, if that is known.
    :param windows: the driver is Windows', in WSL too.
    """
    version, minor = parse_version(driver), minor_of(cuda)
    row = DRIVERS.get(minor)
    if row and version >= parse_version(row[windows]):
        return "full"
    if serves and parse_version(serves) >= parse_version(minor):
        return "full"
    row = MINOR_DRIVERS.get(cuda.split(".")[0])
    same = serves is not None and serves.split(".")[0] == cuda.split(".")[0]
    return "minor" if (row and version >= parse_version(row[windows])) or same else "old"


def name_driver(cuda: str, *, windows: bool) -> str:
    """Return the driver that a CUDA needs, in words."""
    row = DRIVERS.get(minor_of(cuda)) or MINOR_DRIVERS.get(cuda.split(".")[0])
    return f"{row[windows]} or newer" if row else f"one that serves CUDA {cuda}"


def parse_archs(text: str) -> Archs:
    """Read ``TORCH_CUDA_ARCH_LIST``: ``8.6;8.9+PTX``, or with spaces."""
    words = [word for word in re.split(r"[;\s]+", text) if re.match(r"\d+\.\d+[af]?(\+PTX)?$", word)]
    names = [word.removesuffix("+PTX") for word in words]
    return Archs(tuple(names), tuple(name for name, word in zip(names, words, strict=True) if word.endswith("+PTX")))


def parse_torch_archs(names: tuple[str, ...]) -> Archs:
    """Read what torch.cuda.get_arch_list says: ``sm_86``, ``sm_90a``, ``compute_120``."""
    found: dict[str, list[str]] = {"sm": [], "compute": []}
    for name in names:
        if match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name):
            found[match[1]].append(f"{match[2]}.{match[3]}{match[4]}")
    return Archs(tuple(found["sm"]), tuple(found["compute"]))


def find_way(capability: str, code: Archs) -> Way:
    """Say how code runs on a GPU.

    Machine code runs on GPUs of the same major and an equal or higher minor, PTX is compiled for any later GPU, code for 9.0a
    runs on that one only, for 10.0f on its family: CUDA C++ programming guide, "Binary Compatibility" and "PTX Compatibility".

    :param capability: the GPU's, as 8.6.
    """
    major, minor = parse_version(capability)[:2]

    def fits(arch: str, *, ptx: bool) -> bool:
        here = parse_version(arch)[:2]
        if arch.endswith("a"):
            return here == (major, minor)
        return here <= (major, minor) and (here[0] == major or (ptx and not arch.endswith("f")))

    if any(parse_version(arch)[:2] == (major, minor) for arch in code.sass):
        return "exact"
    if any(fits(arch, ptx=False) for arch in code.sass):
        return "major"
    return "ptx" if any(fits(arch, ptx=True) for arch in code.ptx) else "nothing"
