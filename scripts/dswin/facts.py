"""What a machine has that decides whether deepspeed-win can be built and run on it: each fact with how it was found.

Nothing here judges. A fact that cannot be had says why, and never stops the others.
"""

from __future__ import annotations

import csv
import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .programs import Absent, ask, find_program

#: What json can write.
Value = bool | int | str | list | dict | None

QUERY = "--query-gpu=name,driver_version,memory.total"
CURRENT_VERSION = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion"
PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
KITS = r"SOFTWARE\WOW6432Node\Microsoft\Windows Kits\Installed Roots"
#: Features by their numbers for IsProcessorFeaturePresent (processthreadsapi.h); older Windows builds deny them all.
AVX2, AVX512F, ASKABLE_SINCE = 40, 41, 19041


@dataclass(frozen=True)
class Fact:
    """One thing about this machine.

    :param value: what was found; None where nothing was.
    :param source: where it was looked for.
    :param problem: why there is no value.
    """

    name: str
    value: Value
    source: str
    problem: str | None = None


@dataclass(frozen=True)
class Look:
    """How a fact is found. ``find`` raises :class:`Absent` or anything else where there is none."""

    name: str
    source: str
    find: Callable[[], Value]

    def take(self) -> Fact:
        """Find the fact; whatever goes wrong is a part of it."""
        try:
            return Fact(self.name, self.find(), self.source)
        except Absent as absent:
            return Fact(self.name, None, self.source, str(absent))
        except Exception as error:
            return Fact(self.name, None, self.source, f"{type(error).__name__}: {error}")


def collect(folder: Path, without: Collection[str] = ()) -> list[Fact]:
    """Return all facts of this machine, always the same ones for one system and in the same order.

    :param folder: where builds are made; its disk is looked at.
    :param without: names of facts that are not looked for.
    """
    looks = [look for look in list_looks(folder) if look.name not in without]
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(Look.take, looks))


def list_looks(folder: Path) -> list[Look]:
    """Return what is looked for on this system."""
    return [
        Look("system", "platform.platform()", platform.platform),
        *(_WINDOWS if os.name == "nt" else _POSIX),
        Look("memory_bytes", "psutil", measure_memory),
        Look("free_disk_bytes", f"the disk of {folder}", lambda: shutil.disk_usage(find_existing(folder)).free),
        Look("python", "sys", describe_python),
        Look("gpus", f"nvidia-smi {QUERY},compute_cap", find_gpus),
        Look("cuda_of_driver", "the banner of nvidia-smi", lambda: parse_driver_cuda(ask("nvidia-smi", *NVIDIA_SMI))),
        look_for_program("nvcc", "--version", parse=parse_nvcc),
        *(Look(name.lower(), f"variable {name}", partial(read_variable, name)) for name in _VARIABLES),
        # Without arguments cl prints its banner and ends with 0.
        look_for_program("cl", parse=parse_cl),
        look_for_program("conda", "--version", elsewhere="${CONDA_EXE}"),
        look_for_program("micromamba", "--version", elsewhere="${MAMBA_EXE}"),
        *(look_for_program(name, "--version") for name in ("mamba", "pixi", "ninja", "git")),
        Look("torch", "importlib.metadata, this Python", find_torch),
        Look("channels", "the head of each one's repodata", ask_channels),
    ]


_VARIABLES = ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VSINSTALLDIR", "VCToolsVersion")
#: Where nvidia-smi is when it is not on PATH: drivers before 2020, and Linux under Windows.
NVIDIA_SMI = (r"%ProgramFiles%\NVIDIA Corporation\NVSMI\nvidia-smi.exe", "/usr/lib/wsl/lib/nvidia-smi")


def look_for_program(
    name: str, *arguments: str, elsewhere: str = "", parse: Callable[[str], str] | None = None
) -> Look:
    """Return a look for a program on PATH or ``elsewhere``, whose value is ``{"version": ..., "path": ...}``."""

    def find() -> Value:
        path = find_program(name, elsewhere)
        return {"version": (parse or parse_version)(ask(name, elsewhere, arguments=arguments)), "path": path}

    return Look(name, " ".join([name, *arguments]), find)


# What programs say


def search(pattern: str, text: str) -> str:
    """Return the first group of a pattern.

    :raises Absent: it does not match; says what was read.
    """
    found = re.search(pattern, text)
    if found is None:
        raise Absent(f"not understood: {' '.join(text.split())[:200]!r}")
    return found[1]


def parse_version(said: str) -> str:
    """Return the first version number in what a program says of itself."""
    return search(r"(?<![\w.])v?(\d+(?:\.\w+)+)", said)


def parse_cl(banner: str) -> str:
    """Return the compiler's version from its banner, in whatever language; ``x64`` there is no version."""
    return search(r"(?<![\w.])(\d+\.\d+\.\d+(?:\.\d+)?)(?![\w.])", banner)


def parse_nvcc(said: str) -> str:
    """Return the version of nvcc."""
    return search(r"\bV(\d+\.\d+\.\d+)", said)


def parse_driver_cuda(banner: str) -> str:
    """Return the newest CUDA that the driver serves; drivers from 610 on call it the UMD's version."""
    return search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", banner)


def parse_gpus(said: str) -> list[dict[str, Value]]:
    """Return a dict a GPU from nvidia-smi's csv without a header: name, driver, memory_mib, compute_capability.

    What nvidia-smi does not know, such as ``[N/A]``, is None.
    """
    gpus: list[dict[str, Value]] = []
    for row in csv.reader(said.splitlines(), skipinitialspace=True):
        if len(row) not in (3, 4):
            continue
        name, driver, memory, capability = [None if cell.startswith("[") else cell for cell in [*row, "[none]"][:4]]
        mib = int(memory.split()[0]) if memory else None
        gpus.append({"name": name, "driver": driver, "memory_mib": mib, "compute_capability": capability})
    return gpus


def find_gpus() -> Value:
    """Return what nvidia-smi knows of each GPU."""
    try:
        said = ask("nvidia-smi", *NVIDIA_SMI, arguments=[f"{QUERY},compute_cap", "--format=csv,noheader"])
    except Absent:
        # Drivers before 2021 do not know the last field, and then say nothing of the others.
        said = ask("nvidia-smi", *NVIDIA_SMI, arguments=[QUERY, "--format=csv,noheader"])
    gpus = parse_gpus(said)
    if not gpus:
        raise Absent(f"nvidia-smi names none: {' '.join(said.split())[:200]!r}")
    return list(gpus)


# This Python, this machine


def describe_python() -> Value:
    """Return version, bits, and the path of what runs this."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "bits": 64 if sys.maxsize > 2**32 else 32,
        "path": sys.executable,
        "utf8_mode": bool(sys.flags.utf8_mode),
    }


def find_torch() -> Value:
    """Return the version of the torch that this Python would import."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        raise Absent("it is not installed") from error


def measure_memory() -> Value:
    """Return the machine's memory in bytes."""
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().total)


def find_existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    folder = folder.absolute()
    return next(one for one in (folder, *folder.parents) if one.exists())


def read_variable(name: str) -> Value:
    """Return the value of an environment variable.

    :raises Absent: it is not set.
    """
    if not os.environ.get(name):
        raise Absent("it is not set")
    return os.environ[name]


def ask_channels() -> Value:
    """Say of each conda channel that a variant is built from whether it answers."""
    # Imported here: a builder that does not load must not keep the other facts away.
    from . import build

    names = sorted({name for channels in build.CHANNELS.values() for name in channels})
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(build.is_reachable, names), strict=True))


# Linux


def parse_cpuinfo(text: str) -> dict[str, Value]:
    """Return name, logical cores, and what vector code runs, from the text of /proc/cpuinfo."""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set(search(r"(?m)^flags\s*:\s*(.+)$", text).split())
    return {
        "name": name[1].strip() if name else None,
        "cores": len(re.findall(r"^processor\s*:", text, re.MULTILINE)),
        "avx2": "avx2" in flags,
        "avx512": "avx512f" in flags,
    }


def describe_cpu() -> dict[str, Value]:
    """Return what :func:`parse_cpuinfo` does, of this Linux."""
    return parse_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8"))


def is_wsl() -> Value:
    """Say whether this Linux runs under Windows."""
    return "microsoft" in platform.release().lower()


_POSIX = (
    Look("cpu", "/proc/cpuinfo", describe_cpu),
    Look("wsl", "the kernel's release", is_wsl),
)


# Windows


def read_registry(key: str) -> dict[str, Value]:
    """Return the numbers and texts below a key of HKEY_LOCAL_MACHINE.

    :raises Absent: there is no such key.
    """
    if sys.platform != "win32":
        raise Absent("this is not Windows")
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key, access=winreg.KEY_READ | winreg.KEY_WOW64_64KEY) as opened:
            rows = [winreg.EnumValue(opened, number) for number in range(winreg.QueryInfoKey(opened)[1])]
    except FileNotFoundError as error:
        raise Absent(rf"there is no HKLM\{key}") from error
    return {name: value for name, value, _ in rows if isinstance(value, (int, str))}


def read_registry_value(key: str, name: str) -> Value:
    """Return one value below a key of HKEY_LOCAL_MACHINE.

    :raises Absent: it is not set.
    """
    values = read_registry(key)
    if name not in values:
        raise Absent(rf"it is not set in HKLM\{key}")
    return values[name]


def describe_windows(values: dict[str, Value]) -> Value:
    """Return name, release and build from the registry's CurrentVersion, where Windows 11 still calls itself 10."""
    build, name = str(values.get("CurrentBuild", "")), str(values.get("ProductName", "Windows"))
    if build.isdigit() and int(build) >= 22000:
        name = name.replace("Windows 10", "Windows 11")
    release = values.get("DisplayVersion") or values.get("ReleaseId")
    return {"name": name, "release": release, "build": f"{build}.{values.get('UBR', 0)}"}


def describe_windows_cpu() -> Value:
    """Return what :func:`parse_cpuinfo` does; what this Windows cannot say of vector code is None."""
    if sys.platform != "win32":
        raise Absent("this is not Windows")
    name = str(read_registry_value(PROCESSOR, "ProcessorNameString")).strip()
    result: dict[str, Value] = {"name": name, "cores": os.cpu_count(), "avx2": None, "avx512": None}
    if sys.getwindowsversion().build >= ASKABLE_SINCE:
        has = ctypes.windll.kernel32.IsProcessorFeaturePresent
        result |= {"avx2": bool(has(AVX2)), "avx512": bool(has(AVX512F))}
    return result


def read_code_pages() -> Value:
    """Return the code pages for windows, for consoles, and of this console; 0 where there is none."""
    if sys.platform != "win32":
        raise Absent("this is not Windows")
    kernel = ctypes.windll.kernel32
    return {"ansi": kernel.GetACP(), "oem": kernel.GetOEMCP(), "console": kernel.GetConsoleOutputCP()}


def is_wine() -> Value:
    """Return the version of the Wine that plays this Windows, or False: only Wine's ntdll has that function."""
    if sys.platform != "win32":
        raise Absent("this is not Windows")
    version = getattr(ctypes.windll.ntdll, "wine_get_version", None)
    if version is None:
        return False
    version.restype = ctypes.c_char_p
    return version().decode("ascii", "replace")


def parse_vswhere(said: str) -> list[dict[str, Value]]:
    """Return a dict a Visual Studio from vswhere's JSON: name, version, folder, complete.

    :raises Absent: it is no JSON, or there is none.
    """
    try:
        rows = json.loads(said)
    except ValueError as error:
        raise Absent(f"vswhere's answer is no JSON: {said.strip()[:200]!r}") from error
    if not rows:
        raise Absent("vswhere knows of none")
    names = {
        "name": "displayName",
        "version": "installationVersion",
        "folder": "installationPath",
        "complete": "isComplete",
    }
    return [{ours: row.get(theirs) for ours, theirs in names.items()} for row in rows]


def list_folders(folder: Path, pattern: str = "[0-9]*", holding: str = "") -> list[str]:
    """Return the names of the folders in ``folder`` that match, those with a file or folder ``holding``, by version."""
    found = [one.name for one in folder.glob(pattern) if one.is_dir() and (one / holding).exists()]
    return sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])


def find_visual_studios() -> Value:
    """Return what vswhere says, each with the toolsets that are in its folder."""
    program = r"%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\vswhere.exe"
    found = parse_vswhere(ask("vswhere", program, arguments=["-products", "*", "-format", "json", "-utf8"]))
    return [{**one, "toolsets": list_toolsets(Path(str(one["folder"])))} for one in found]


def list_toolsets(installation: Path) -> list[str]:
    """Return the versions of the C++ compilers for 64 bits in a Visual Studio's folder."""
    return list_folders(installation / "VC" / "Tools" / "MSVC", holding="bin/Hostx64/x64/cl.exe")


def find_sdks() -> Value:
    """Return the versions of the Windows SDK that have headers for programs."""
    root = Path(str(read_registry_value(KITS, "KitsRoot10")))
    found = list_folders(root / "Include", "10.*", "um/windows.h")
    if not found:
        raise Absent(f"{root} holds none")
    return list(found)


_WINDOWS = (
    Look("windows", rf"HKLM\{CURRENT_VERSION}", lambda: describe_windows(read_registry(CURRENT_VERSION))),
    Look("wine", "ntdll.dll", is_wine),
    Look(
        "long_paths",
        r"HKLM\SYSTEM\CurrentControlSet\Control\FileSystem, LongPathsEnabled",
        lambda: read_registry_value(r"SYSTEM\CurrentControlSet\Control\FileSystem", "LongPathsEnabled"),
    ),
    Look("code_pages", "kernel32.dll", read_code_pages),
    Look("cpu", rf"HKLM\{PROCESSOR} and IsProcessorFeaturePresent", describe_windows_cpu),
    Look("visual_studio", "vswhere", find_visual_studios),
    Look("windows_sdks", rf"HKLM\{KITS}", find_sdks),
)
