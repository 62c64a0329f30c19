"""What can be known of cuda121 without nvcc 12.1, which no package index has: Microsoft's compiler takes all C++ sources of its
ops, with torch 2.5.1's headers and CUDA 12.1's. Rehearsed, not built. What nvcc would compile is not in it."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from building import ROOT
from dswin import ops, source
from dswin.machine import UnderWine
from dswin.wine import Host, download_wheels
from dswin.wine.python import MINOR

#: NVIDIA's headers of 12.1, in the wheels of its libraries.
HEADERS = [
    # For nv/target and cuda_profiler_api.h alone, which the wheels of 12.1 lack.
    "nvidia-cuda-cccl-cu12==12.4.127.post1",
    "nvidia-cuda-profiler-api-cu12==12.9.79",
    "nvidia-cublas-cu12==12.1.3.1",
    "nvidia-cuda-nvcc-cu12==12.1.105",
    "nvidia-cuda-runtime-cu12==12.1.105",
    "nvidia-curand-cu12==10.3.2.106",
    "nvidia-cusolver-cu12==11.4.5.107",
    "nvidia-cusparse-cu12==12.1.0.106",
]
RECIPE = ROOT / "recipe"


@pytest.fixture(scope="module")
def folder(host: Host) -> Iterator[Path]:
    """A folder with a plain name: ccache for Windows ends where it meets a letter beyond ASCII."""
    folder = host.prefix / "drive_c" / "cuda121"
    folder.mkdir(exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSpeed's source as the recipe compiles it."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(source.fetch(source.read(RECIPE), ROOT / ".dswin" / "source", print)) as archive:
        archive.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    shutil.copytree(RECIPE / "windows", tree, dirs_exist_ok=True)
    for patch in sorted((RECIPE / "patches").iterdir()):
        subprocess.run(["patch", "-p1", "--silent", "--input", str(patch)], cwd=tree, check=True)
    return tree


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    wheels = folder / "wheels"
    download_wheels(HEADERS, MINOR, wheels)
    include = folder / "include"
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/include/" in name and not name.endswith("/"):
                    target = include / name.split("/include/", 1)[1]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
    shutil.rmtree(wheels)
    # What a CUDA build of torch generates, and PyPI's torch for Windows lacks.
    macros = include / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n", encoding="ascii")
    return include


def test_cl_takes_every_cpp_file_with_torch_2_5_and_cuda_12_1(
    host: Host, machine: UnderWine, prefix: Path, patched: Path, headers: Path, tmp_path: Path
) -> None:
    wanted = [op.name for op in ops.read(RECIPE) if op.is_built("win-64", "cuda")]
    words = [prefix / "python.exe", Path(__file__).with_name("host_sources.py"), patched, headers, tmp_path]
    batch = tmp_path / "run.bat"
    batch.write_text(
        "@echo off\n"
        f'call "{machine.name(machine.packages / "bin" / "dswin-compiler-cache.bat")}"\n'
        + " ".join([*(f'"{machine.name(word)}"' for word in words), "12.1", *wanted])
        + "\n",
        encoding="cp437",  # the OEM code page, in which cmd reads it
        newline="\r\n",
    )
    done = host.run(["cmd", "/d", "/c", batch], timeout=3600)
    assert done.code == 0, done.output
    assert "failed, torch 2.5.1" in done.output
    compiled = [line for line in done.output.splitlines() if line.startswith("compiled ")]
    assert len(compiled) == len(list(tmp_path.glob("*.obj"))) >= 15
