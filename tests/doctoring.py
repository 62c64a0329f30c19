"""Machines and environments for the tests of `dswin doctor`: healthy ones, which a test then breaks in one place."""

from __future__ import annotations

import json
import sys
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

from dswin import facts
from dswin.digests import hash_file
from dswin.facts import Fact
from dswin.gpus import Archs
from dswin.installation import Installation, Ops, Package, Torch
from dswin.prefixes import Installed
from dswin.seen import Needs, Seen
from dswin.torch_probe import Probe

# What the programs print, in the forms that their makers document.
NVIDIA_SMI = "| NVIDIA-SMI {0}         Driver Version: {0}         CUDA Version: {1}     |"
GPUS = "{}, {}, 24564 MiB, {}\n"
NVCC = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2023 NVIDIA Corporation
Built on Mon_Apr__3_17:36:15_Pacific_Daylight_Time_2023
Cuda compilation tools, release {0}, V{0}.105
Build cuda_{0}.r{0}/compiler.32688072_0
"""
CL = "Microsoft (R) C/C++ Optimizing Compiler Version {} for x64\nCopyright (C) Microsoft Corporation.  All rights reserved.\n"
VSWHERE = {
    "instanceId": "2f3a1b4c",
    "installationPath": r"C:\Program Files (x86)\Microsoft Visual Studio\2022\BuildTools",
    "installationVersion": "17.14.36109.1",
    "isComplete": True,
    "displayName": "Visual Studio Build Tools 2022",
}
PREFIX = r"C:\envs\ds"
SITE = rf"{PREFIX}\Lib\site-packages"
NEEDS = Needs(
    "cuda121",
    "2.5",
    "12.1",
    Archs(("7.5", "8.0", "8.6", "8.9", "9.0"), ("9.0",)),
    ("3.10", "3.11", "3.12"),
    channels=("pytorch", "nvidia", "conda-forge"),
)
NEEDS_130 = replace(
    NEEDS,
    variant="cuda130",
    torch="2.10",
    cuda="13.0",
    archs=Archs(("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"), ("12.0",)),
    channels=("conda-forge",),
)
NEEDS_CPU = replace(NEEDS, variant="cpu", cuda="", archs=Archs(), channels=("conda-forge",))
#: What torch.cuda.get_arch_list of torch 2.5.1 with CUDA 12.1 says.
TORCH_ARCHS = ("sm_50", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def describe_gpu(
    name: str = "NVIDIA GeForce RTX 4090", driver: str = "551.86", serves: str = "12.4", capability: str = "8.9"
) -> dict:
    return {
        "gpus": facts.parse_gpus(GPUS.format(name, driver, capability)),
        "cuda_of_driver": facts.parse_driver_cuda(NVIDIA_SMI.format(driver, serves)),
    }


def describe_studio(*toolsets: str) -> list[dict]:
    [one] = facts.parse_vswhere(json.dumps([VSWHERE]))
    return [{**one, "toolsets": list(toolsets)}]


def describe_program(path: str, version: str) -> dict[str, str]:
    return {"version": version, "path": path}


WINDOWS_FACTS: dict[str, Any] = {
    "system": "Windows-10-10.0.22631-SP0",
    "windows": {"name": "Windows 11 Pro", "release": "23H2", "build": "22631.3447"},
    "wine": False,
    "long_paths": 1,
    "code_pages": {"ansi": 65001, "oem": 65001, "console": 65001},
    "cpu": {"name": "AMD Ryzen 9 7950X", "cores": 32, "avx2": True, "avx512": True},
    "memory_bytes": 64 * 2**30,
    "free_disk_bytes": 500 * 2**30,
    "python": {"version": "3.11.9", "bits": 64, "path": r"C:\dswin\.venv\Scripts\python.exe"},
    "nvcc": describe_program(
        r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v12.1\bin\nvcc.exe", facts.parse_nvcc(NVCC.format("12.1"))
    ),
    "visual_studio": describe_studio("14.37.32822", "14.44.35207"),
    "windows_sdks": ["10.0.22621.0"],
    "ninja": describe_program(r"C:\envs\ds\Library\bin\ninja.exe", "1.11.1"),
    **describe_gpu(),
}


def make_record(name: str, version: str, build: str) -> Installed:
    return Installed(Path(f"{name}-{version}-{build}.json"), name, version, build, "", None, "0" * 64, ())


def make_installation(**changes: Any) -> Installation:
    """A healthy cuda121 environment on Windows."""
    probe = Probe(
        stage="done",
        version="3.11.9",
        implementation="CPython",
        bits=64,
        prefix=PREFIX,
        path=(SITE,),
        torch="2.5.1",
        file=rf"{SITE}\torch\__init__.py",
        cuda="12.1",
        archs=TORCH_ARCHS,
        available=True,
        devices=(("NVIDIA GeForce RTX 4090", "8.9"),),
    )
    records = [("deepspeed-win", "0.19.8", "cuda121_py311_0"), ("pytorch", "2.5.1", "py3.11_cuda12.1_cudnn9_0")]
    healthy = Installation(
        PREFIX,
        "CONDA_PREFIX",
        rf"{PREFIX}\python.exe",
        probe,
        tuple(
            Package(name, version, SITE, "conda")
            for name, version in (
                ("deepspeed", "0.19.8"),
                ("torch", "2.5.1"),
                ("numpy", "2.1.3"),
                ("pydantic", "2.10.3"),
                ("setuptools", "75.6.0"),
            )
        ),
        Torch("2.5.1", "12.1", SITE),
        Ops("0.19.8", ("cpu_adam", "fused_adam"), "cuda", "2.5", "12.1"),
        ("numpy", "pydantic>=2.0.0", "torch==2.5.*", 'sphinx; extra == "dev"'),
        {name: make_record(name, version, build) for name, version, build in records},
        (),
        NEEDS.archs,
        (),
        True,
    )
    return replace(healthy, **changes)


def make_windows(installed: Installation | None = None, facts_: dict[str, Any] | None = None, **changes: Any) -> Seen:
    """A healthy Windows machine with an RTX 4090 and two toolsets; ``facts_`` replaces facts, None takes one away."""
    values = {**WINDOWS_FACTS, **(facts_ or {})}
    healthy = Seen(
        "win-64",
        {
            name: Fact(name, value, "a test", None if value is not None else f"{name} is not on PATH")
            for name, value in values.items()
        },
        installed or make_installation(),
        {"Path": rf"{PREFIX};{PREFIX}\Library\bin;C:\Windows\system32", "CONDA_PREFIX": PREFIX},
        "cuda121",
        NEEDS,
        "",
        rf"{PREFIX.upper()}\python.EXE",
        r"C:\dswin\build",
    )
    return replace(healthy, **changes)


# Environments that are there


def make_prefix(folder: Path) -> Path:
    """Make an environment with the running Python and nothing in it, and return its site-packages."""
    venv.create(folder, with_pip=False, symlinks=sys.platform != "win32")
    [site] = [*folder.glob("lib/python3*/site-packages"), *folder.glob("Lib/site-packages")][:1]
    return site


def put_distribution(site: Path, name: str, version: str, installer: str = "pip", metadata: str = "") -> Path:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\n", "utf-8")
    (folder / "INSTALLER").write_text(f"{installer}\n", "utf-8")
    return folder


#: A torch that answers as one for the CPU does.
TORCH = """
class cuda:
    is_available = staticmethod(lambda: False)
    get_arch_list = staticmethod(lambda: [])
    device_count = staticmethod(lambda: 0)
def zeros(*_):
    return 0
"""
VERSION = "from typing import Optional\n__version__ = {!r}\ndebug = False\ncuda: Optional[str] = {!r}\n"
INFO = """version='0.19.8'
git_hash='unknown'
git_branch='unknown'
installed_ops={{'async_io': False, 'cpu_adam': 1, 'fused_adam': 1}}
accelerator_name='{}'
torch_info={{'version': '{}', 'bf16_support': False, 'cuda_version': '{}', 'nccl_version': '0.0', 'hip_version': '0.0'}}
"""


def put_torch(site: Path, version: str = "2.5.1+cpu", cuda: str | None = None, code: str = TORCH) -> None:
    """Put a torch that is none there."""
    (site / "torch").mkdir()
    text = f"from . import version\n__version__ = version.__version__\n{code}"
    (site / "torch" / "__init__.py").write_text(text, encoding="utf-8")
    (site / "torch" / "version.py").write_text(VERSION.format(version, cuda), encoding="utf-8")
    put_distribution(site, "torch", version)


def put_deepspeed(site: Path, torch: str = "2.5", cuda: str = "0.0", accelerator: str = "cpu") -> None:
    """Put a deepspeed with prebuilt ops there, without the ops."""
    (site / "deepspeed").mkdir()
    (site / "deepspeed" / "__init__.py").touch()
    (site / "deepspeed" / "git_version_info_installed.py").write_text(
        INFO.format(accelerator, torch, cuda), encoding="utf-8"
    )
    put_distribution(site, "deepspeed", "0.19.8", "conda", f"Requires-Dist: numpy\nRequires-Dist: torch=={torch}.*")


def put_record(prefix: Path, site: Path, build: str = "cpu_py311_0") -> Path:
    """Record what is in a deepspeed's folders as our package, with the hashes that the files have."""
    files = [*(site / "deepspeed").rglob("*"), *site.glob("deepspeed-*.dist-info/*")]
    paths = [
        {"_path": file.relative_to(prefix).as_posix(), "path_type": "hardlink", "sha256": hash_file(file)}
        for file in files
        if file.is_file()
    ]
    record = {"name": "deepspeed-win", "version": "0.19.8", "build": build, "paths_data": {"paths": paths}}
    meta = prefix / "conda-meta"
    meta.mkdir(exist_ok=True)
    file = meta / f"deepspeed-win-0.19.8-{build}.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    return file
