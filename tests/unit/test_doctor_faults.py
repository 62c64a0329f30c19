"""Planted faults, each found and named. The checks look at nothing themselves, so any machine can be planted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import doctoring
from doctoring import PREFIX, SITE, make_installation, make_windows
from dswin import doctor, facts, torch_probe
from dswin.findings import Finding
from dswin.installation import Installation, Package, Torch
from dswin.seen import Purpose, Seen, Toolkit

ROOT = Path(__file__).parents[2]
LONG_PATHS = r"reg add HKLM\SYSTEM\CurrentControlSet\Control\FileSystem /v LongPathsEnabled /t REG_DWORD /d 1 /f"
TOOLKIT = r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v12.1"


def find(purpose: Purpose, seen: Seen, check: str) -> Finding:
    [found] = [one for one in doctor.judge(purpose, seen).findings if one.id == check]
    return found


def plant(**changes: Any) -> Callable[[], Seen]:
    return lambda: make_windows(make_installation(**changes))


def plant_facts(**values: Any) -> Callable[[], Seen]:
    return lambda: make_windows(facts_=values)


HEALTHY = make_installation()
PROBE = HEALTHY.probe
USER_SITE = r"C:\Users\me\AppData\Roaming\Python\Python311\site-packages"
NO_DLL = 'OSError: [WinError 126] The specified module could not be found. Error loading "fbgemm.dll"'
NO_TORCH = torch_probe.Probe("import torch", "ModuleNotFoundError: No module named 'torch'")
NVCC_124 = doctoring.describe_program(r"C:\CUDA\v12.4\bin\nvcc.exe", facts.parse_nvcc(doctoring.NVCC.format("12.4")))
BARE = Toolkit(rf"{PREFIX}\Library", "", "CUDA_HOME")
STUDIO_2019 = {
    "name": "VS 2019",
    "version": "16.11.5",
    "folder": "C:\\VS",
    "complete": True,
    "toolsets": ["14.29.30133"],
}
#: (what is planted, the check, its status, what it must say)
RUN = {
    "driver too old": (
        plant_facts(**doctoring.describe_gpu(driver="516.94", serves="11.7")),
        "driver",
        "fail",
        "516.94",
    ),
    "driver of an earlier minor": (
        plant_facts(**doctoring.describe_gpu(driver="528.02", serves="12.0")),
        "driver",
        "warn",
        "minor version compatibility",
    ),
    "no driver": (plant_facts(gpus=None, cuda_of_driver=None), "driver", "fail", "no NVIDIA driver answers"),
    "CPU torch": (
        plant(torch=Torch("2.5.1+cpu", None, SITE)),
        "torch_build",
        "fail",
        r"2\.5\.1\+cpu, for the CPU: a build without CUDA",
    ),
    "CPU torch that imports": (
        plant(probe=replace(PROBE, torch="2.5.1+cpu", cuda=None, available=False, devices=())),
        "gpu_seen",
        "fail",
        "built for the CPU",
    ),
    "torch minor changed under the package": (
        plant(torch=Torch("2.6.0+cu121", "12.1", SITE)),
        "torch_build",
        "fail",
        r"2\.6\.0.*than 2\.5",
    ),
    "torch of another CUDA": (
        plant(torch=Torch("2.5.1+cu124", "12.4", SITE)),
        "torch_build",
        "fail",
        r"another CUDA than 12\.1",
    ),
    "wrong Python": (plant(probe=replace(PROBE, version="3.13.1")), "python", "fail", r"3\.13\.1"),
    "32 bits": (plant(probe=replace(PROBE, bits=32)), "python", "fail", "32 bits"),
    "PyPy": (plant(probe=replace(PROBE, implementation="PyPy")), "python", "fail", "PyPy"),
    "a Python that does not start": (
        plant(probe=torch_probe.Probe(error="it crashed: a DLL was not found (0xC0000135)")),
        "python",
        "fail",
        "does not start",
    ),
    "no code for this GPU": (
        plant_facts(**doctoring.describe_gpu("NVIDIA GeForce GTX 1080", capability="6.1")),
        "gpu_code",
        "fail",
        r"GTX 1080 \(6\.1\): nothing that runs on it",
    ),
    "PTX for this GPU": (
        plant_facts(**doctoring.describe_gpu("NVIDIA GeForce RTX 5090", "576.02", "12.9", "12.0")),
        "gpu_code",
        "warn",
        r"RTX 5090 \(12\.0\): PTX",
    ),
    "torch without code for this GPU": (
        plant_facts(**doctoring.describe_gpu("NVIDIA GeForce RTX 5090", "576.02", "12.9", "12.0")),
        "gpu_torch",
        "fail",
        r"RTX 5090 \(12\.0\): nothing",
    ),
    "PTX that the driver does not know": (
        lambda: make_windows(facts_=doctoring.describe_gpu("NVIDIA Thor", "528.02", "12.0", "11.0")),
        "gpu_code",
        "fail",
        "nothing that runs on it",
    ),
    "two torches": (
        plant(packages=(Package("torch", "2.6.0", USER_SITE, "pip"), *HEALTHY.packages)),
        "copies",
        "fail",
        r"torch 2\.6\.0 \(pip\) in C:\\Users.* and torch 2\.5\.1 \(conda\)",
    ),
    "pip's torch over conda's": (
        plant(
            packages=tuple(replace(one, version="2.6.0") if one.name == "torch" else one for one in HEALTHY.packages)
        ),
        "copies",
        "fail",
        r"2\.6\.0.*over conda's pytorch 2\.5\.1",
    ),
    "pip's deepspeed over ours, another version": (
        plant(packages=(Package("deepspeed", "0.16.5", SITE, "pip"), *HEALTHY.packages[1:])),
        "files",
        "fail",
        r"deepspeed-win 0\.19\.8 cuda121_py311_0 is recorded, and deepspeed is 0\.16\.5, by pip",
    ),
    "pip's deepspeed over ours, the same version": (
        plant(changed=("Lib/site-packages/deepspeed/git_version_info_installed.py", "a.pyd", "b.pyd")),
        "files",
        "fail",
        r"not as the package brought them: .*_installed\.py, a\.pyd and 1 more",
    ),
    "forgotten activate": (
        lambda: make_windows(python_on_path=r"C:\Python313\python.exe"),
        "active",
        "fail",
        r"`python` starts C:\\Python313\\python\.exe, which is not of C:\\envs\\ds",
    ),
    "half an activation": (
        lambda: make_windows(variables={"PATH": PREFIX}),
        "active",
        "fail",
        r"C:\\envs\\ds\\Library\\bin, where conda keeps DLLs, is not",
    ),
    "no environment": (
        lambda: make_windows(
            Installation(r"C:\Python313", "PATH", r"C:\Python313\python.exe"), elsewhere=(r"C:\envs\ds",)
        ),
        "active",
        "fail",
        "no environment is active",
    ),
    "an old pydantic": (
        plant(
            packages=tuple(
                replace(one, version="1.10.4") if one.name == "pydantic" else one for one in HEALTHY.packages
            )
        ),
        "requirements",
        "fail",
        r"pydantic is 1\.10\.4, not >=2\.0\.0",
    ),
    "no numpy": (
        plant(packages=tuple(one for one in HEALTHY.packages if one.name != "numpy")),
        "requirements",
        "fail",
        "numpy is not installed",
    ),
    "no setuptools on 3.12": (
        plant(
            probe=replace(PROBE, version="3.12.8"),
            packages=tuple(one for one in HEALTHY.packages if one.name != "setuptools"),
        ),
        "requirements",
        "fail",
        "setuptools is not installed",
    ),
    "no torch": (
        plant(torch=None, packages=HEALTHY.packages[:1], probe=NO_TORCH),
        "torch",
        "fail",
        "torch is not installed",
    ),
    "a DLL is missing": (
        plant(probe=replace(PROBE, stage="import torch", torch="", error=NO_DLL)),
        "torch",
        "fail",
        r"WinError 126.*fbgemm",
    ),
    "torch's CUDA fails": (
        plant(probe=replace(PROBE, available=False, devices=(), why="RuntimeError: CUDA driver initialization failed")),
        "gpu_seen",
        "fail",
        "driver initialization failed",
    ),
    "no deepspeed": (plant(ops=None, packages=HEALTHY.packages[1:], records={}), "deepspeed", "fail", "not installed"),
    "a deepspeed without ops": (plant(ops=replace(HEALTHY.ops, ops=())), "deepspeed", "fail", "without compiled ops"),
    "long paths": (plant_facts(long_paths=0), "long_paths", "warn", "260"),
    "no AVX2": (
        plant_facts(cpu={"name": "Celeron", "cores": 2, "avx2": False, "avx512": False}),
        "cpu",
        "warn",
        "without AVX2",
    ),
    "little memory": (plant_facts(memory_bytes=4 * 2**30), "memory", "warn", r"4\.0 GiB"),
    "a full disk": (plant_facts(free_disk_bytes=2**30), "disk", "warn", r"1\.0 GiB free"),
    "Windows 8": (
        plant_facts(windows={"name": "Windows 8.1 Pro", "release": None, "build": "9600.1"}),
        "system",
        "fail",
        r"Windows 8\.1",
    ),
    "Wine": (plant_facts(wine="8.0"), "system", "warn", r"Wine 8\.0"),
    "a broken record": (plant(problems=("conda-meta/x.json: it is no record",)), "readable", "warn", r"x\.json"),
}
BUILD = {
    "nvcc off PATH": (
        lambda: make_windows(facts_={"nvcc": None}, toolkits=(Toolkit(TOOLKIT, "12.1.105", "CUDA_PATH"),)),
        "nvcc",
        "warn",
        r"nvcc is not on PATH; nvcc 12\.1\.105 is in .*v12\.1\\bin \(CUDA_PATH\)",
    ),
    "no nvcc at all": (plant_facts(nvcc=None), "nvcc", "warn", "nvcc is not on PATH"),
    "nvcc of another CUDA": (
        plant_facts(nvcc=NVCC_124),
        "nvcc",
        "warn",
        r"12\.4\.105.*not of CUDA 12\.1",
    ),
    "CUDA_PATH of another toolkit": (
        lambda: make_windows(toolkits=(Toolkit(r"C:\CUDA\v12.4", "12.4.131", "CUDA_PATH"),)),
        "cuda_home",
        "warn",
        r"has CUDA 12\.4 and torch 2\.5\.1 is for 12\.1",
    ),
    "CUDA_HOME without nvcc": (
        lambda: make_windows(toolkits=(BARE, Toolkit(TOOLKIT, "12.1.105", "CUDA_PATH"))),
        "cuda_home",
        "warn",
        r"has no nvcc in bin; CUDA_HOME is .* and CUDA_PATH is",
    ),
    "cl 19.44 with CUDA 12.1": (
        plant_facts(
            cl=doctoring.describe_program("cl.exe", facts.parse_cl(doctoring.CL.format("19.44.35207.1"))),
            visual_studio=doctoring.describe_studio("14.44.35207"),
        ),
        "cl",
        "fail",
        r"cl 19\.44.*CUDA 12\.1 does not accept",
    ),
    "cl 19.44, and an older toolset": (
        plant_facts(cl=doctoring.describe_program("cl.exe", facts.parse_cl(doctoring.CL.format("19.44.35207.1")))),
        "cl",
        "warn",
        r"14\.37\.32822 is installed too",
    ),
    "only a toolset that is too new": (
        plant_facts(visual_studio=doctoring.describe_studio("14.40.33807", "14.44.35207")),
        "toolset",
        "fail",
        r"none that CUDA 12\.1 accepts",
    ),
    "a toolset without its conda package": (
        plant_facts(visual_studio=doctoring.describe_studio("14.39.33519")),
        "toolset",
        "warn",
        r"14\.39\.33519",
    ),
    "no C++ workload": (plant_facts(visual_studio=doctoring.describe_studio()), "visual_studio", "fail", "without C"),
    "no Visual Studio": (plant_facts(visual_studio=None), "visual_studio", "fail", "none"),
    "Visual Studio 2019": (
        plant_facts(visual_studio=[STUDIO_2019]),
        "visual_studio",
        "fail",
        "2019",
    ),
    "no Windows SDK": (plant_facts(windows_sdks=None), "windows_sdk", "fail", "none"),
    "a VS prompt": (
        lambda: make_windows(variables={"VSINSTALLDIR": "C:\\VS"}),
        "distutils_use_sdk",
        "warn",
        "DISTUTILS_USE_SDK is not set",
    ),
    "a Chinese code page": (
        plant_facts(code_pages={"ansi": 936, "oem": 936, "console": 936}),
        "code_page",
        "warn",
        "936",
    ),
    "a deep folder": (lambda: make_windows(work="C:\\" + "d" * 60), "work", "warn", "63 characters"),
    "a folder of a user": (lambda: make_windows(work="C:\\Jos\u00e9 P"), "work", "warn", "beyond ASCII.*space"),
    "memory for no compiler": (plant_facts(memory_bytes=2 * 2**30), "jobs", "fail", r"2\.0 GiB"),
    "memory for one compiler": (plant_facts(memory_bytes=5 * 2**30), "jobs", "warn", "1 compilers at once"),
    "a full disk": (plant_facts(free_disk_bytes=5 * 2**30), "space", "fail", r"5\.0 GiB free"),
    "no driver": (plant_facts(gpus=None, cuda_of_driver=None), "solver", "warn", "no driver"),
    "no builder": (lambda: make_windows(needs=None, needs_problem="it cannot be read"), "builder", "fail", "cannot be"),
}


def check_fault(purpose: Purpose, seen: Seen, check: str, status: str, says: str) -> None:
    found = find(purpose, seen, check)
    assert found.verdict.status == status
    assert re.search(says, found.verdict.found)
    assert found.verdict.needed
    assert found.verdict.fix
    if status == "fail":
        assert doctor.judge(purpose, seen).exit_code == 1


@pytest.mark.parametrize(("seen", "check", "status", "says"), RUN.values(), ids=RUN)
def test_a_fault_of_a_run(seen: Callable[[], Seen], check: str, status: str, says: str) -> None:
    check_fault("run", seen(), check, status, says)


@pytest.mark.parametrize(("seen", "check", "status", "says"), BUILD.values(), ids=BUILD)
def test_a_fault_of_a_build(seen: Callable[[], Seen], check: str, status: str, says: str) -> None:
    check_fault("build", seen(), check, status, says)


@pytest.mark.parametrize(
    ("check", "name", "command"),
    [
        ("active", "forgotten activate", r"conda activate C:\envs\ds"),
        ("active", "no environment", r"conda activate C:\envs\ds"),
        ("torch", "a DLL is missing", "winget install Microsoft.VCRedist.2015+.x64"),
        ("gpu_code", "PTX for this GPU", 'conda install "deepspeed-win=*=cuda130*"'),
        ("copies", "two torches", rf'"{PREFIX}\python.exe" -m pip uninstall torch'),
        ("nvcc", "nvcc off PATH", rf'set "PATH={TOOLKIT}\bin;%PATH%"'),
        ("long_paths", "long paths", LONG_PATHS),
    ],
)  # fmt: skip
def test_what_to_type(check: str, name: str, command: str) -> None:
    purpose: Purpose = "run" if name in RUN else "build"
    seen = (RUN | BUILD)[name][0]()
    assert find(purpose, seen, check).verdict.command == command
