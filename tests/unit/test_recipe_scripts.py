"""The small programs that the recipe's build scripts and tests run. Compilers and toolkits are stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dswin.doctor_windows import load

RECIPE = Path(__file__).parents[2] / "recipe"
GIB = 2**30


toolset = load("toolset")
jobs = load("jobs")
pin_torch = load("pin_torch")
cuda_home = load("cuda_home")
openmp_library = load("openmp_library")
check_ops = load("tests/check_ops")
train = load("tests/train")

needs_sh = pytest.mark.skipif(os.name == "nt", reason="the stand-in programs are shell scripts")


def stand_in(folder: Path, name: str, stdout: bytes = b"", stderr: bytes = b"", status: int = 0) -> None:
    """A program that prints something, and keeps its arguments in NAME.arguments."""
    folder.mkdir(exist_ok=True)
    for stream, content in (("out", stdout), ("err", stderr)):
        (folder / f"{name}.{stream}").write_bytes(content)
    program = folder / name
    program.write_text(
        f'#!/bin/sh\nhere="{folder}/{name}"\necho "$@" >> "$here.arguments"\n'
        f'cat "$here.out"\ncat "$here.err" >&2\nexit {status}\n'
    )
    program.chmod(0o755)


def run(script: str, *arguments: str, path: Path | str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the recipe as bld.bat does, with ``path`` in front of PATH."""
    return subprocess.run(
        [sys.executable, str(RECIPE / script), *arguments],
        env={"PATH": f"{path}{os.pathsep}/usr/bin{os.pathsep}/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- toolset.py

#: What cl prints, with a gap for its version.
BANNERS = {
    "English": "Microsoft (R) C/C++ Optimizing Compiler Version {} for x64\r\nCopyright (C) Microsoft\r\n",
    "German": "Microsoft (R) C/C++-Optimierungscompiler Version {} für x64\r\nCopyright (C) Microsoft\r\n",
    "Chinese": "用于 x64 的 Microsoft (R) C/C++ 优化编译器 {} 版\r\n版权所有(C) Microsoft。\r\n",
}  # fmt: skip
CODE_PAGES = {"English": "ascii", "German": "cp850", "Chinese": "gbk"}
VERSIONS = {
    "19.29.30154": (19, 29),
    "19.36.32537": (19, 36),
    "19.38.33135": (19, 38),
    "19.39.33523": (19, 39),
    "19.40.33811": (19, 40),
    "19.44.35211": (19, 44),
    "19.16.27051.1": (19, 16),
}


def banner(language: str, version: str) -> bytes:
    return BANNERS[language].format(version).encode(CODE_PAGES[language])


@pytest.mark.parametrize("language", BANNERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_cl_version_is_read_in_every_language(language: str, version: str) -> None:
    text = banner(language, version).decode("utf-8", "replace")
    assert toolset.read_version(text) == VERSIONS[version]
    assert ("\ufffd" in text) == (language != "English")


@pytest.mark.parametrize(
    "text", ["", "usage: cl [ option... ] filename...", "x64 14", "Version 19", "\ufffd\ufffd 1.2"]
)
def test_cl_version_that_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no version"):
        toolset.read_version(text)


@pytest.mark.parametrize("minor", [29, 36, 38, 39])
def test_cuda_12_1_takes_toolsets_up_to_14_39(minor: int) -> None:
    assert toolset.judge((19, minor), "12.1") is None


@pytest.mark.parametrize("cl", [(19, 40), (19, 41), (19, 44), (20, 0)])
def test_cuda_12_1_refuses_newer_toolsets_and_says_which_to_install(cl: tuple[int, int]) -> None:
    problem = toolset.judge(cl, "12.1")
    assert "{}.{}".format(*cl) in problem
    assert "(v14.37-17.7)', and have vs2022_win-64 19.37 in" in problem
    assert "cuda130" in problem


@pytest.mark.parametrize("cuda", ["13.0", "None"])
@pytest.mark.parametrize("minor", [29, 39, 40, 44])
def test_other_variants_take_every_toolset_from_14_29(cuda: str, minor: int) -> None:
    assert toolset.judge((19, minor), cuda) is None


@pytest.mark.parametrize("cuda", ["12.1", "13.0", "None"])
@pytest.mark.parametrize("cl", [(19, 28), (19, 16), (18, 40)])
def test_toolsets_before_14_29_are_refused(cl: tuple[int, int], cuda: str) -> None:
    assert "older than 19.29" in toolset.judge(cl, cuda)


@needs_sh
@pytest.mark.parametrize("language", BANNERS)
def test_toolset_accepts_a_matching_cl(tmp_path: Path, language: str) -> None:
    stand_in(tmp_path, "cl", b"usage: cl [ option... ] filename...\r\n", banner(language, "19.39.33523"))
    done = run("toolset.py", path=tmp_path, cuda_compiler_version="12.1")
    assert (done.returncode, done.stdout) == (0, "cl.exe 19.39 for CUDA 12.1: accepted\n")


@needs_sh
def test_toolset_stops_at_a_cl_that_is_too_new(tmp_path: Path) -> None:
    stand_in(tmp_path, "cl", stderr=banner("Chinese", "19.44.35211"))
    done = run("toolset.py", path=tmp_path, cuda_compiler_version="12.1")
    assert done.returncode == 1
    assert done.stderr.startswith("ERROR: cl.exe 19.44 is too new for CUDA 12.1")
    assert run("toolset.py", path=tmp_path, cuda_compiler_version="13.0").returncode == 0
    assert run("toolset.py", path=tmp_path).returncode == 0


@needs_sh
def test_toolset_stops_at_a_cl_that_says_something_else(tmp_path: Path) -> None:
    stand_in(tmp_path, "cl", b"Common Lisp\n")
    done = run("toolset.py", path=tmp_path)
    assert (done.returncode, done.stderr) == (1, "ERROR: no version in what cl.exe printed: 'Common Lisp'\n")


def test_toolset_stops_without_cl(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RECIPE / "toolset.py")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ERROR: no cl.exe on PATH")


# ---- jobs.py


@pytest.mark.parametrize(
    ("cores", "gib", "cuda", "expected"),
    [
        (1, 64, False, (1, 1)),
        (4, 64, False, (4, 1)),
        (16, 9, False, (4, 1)),
        (16, 1, False, (1, 1)),
        (16, 0, False, (1, 1)),
        (1, 64, True, (1, 1)),
        (3, 64, True, (3, 1)),
        (4, 64, True, (2, 2)),
        (5, 64, True, (2, 2)),
        (16, 64, True, (8, 2)),
        (16, 16, True, (2, 2)),
        (16, 11, True, (3, 1)),
        (16, 2, True, (1, 1)),
    ],
)
def test_jobs_fit_cores_and_memory(cores: int, gib: int, cuda: bool, expected: tuple[int, int]) -> None:
    assert jobs.decide(cores, gib * GIB, cuda) == expected


@pytest.mark.parametrize("cores", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("gib", [1, 3, 8, 31, 512])
def test_jobs_never_take_more_than_there_is(cores: int, gib: int) -> None:
    for cuda, each in ((False, 2), (True, 3)):
        count, threads = jobs.decide(cores, gib * GIB, cuda)
        assert count >= 1
        assert threads >= 1
        assert count * threads <= cores
        assert count * threads * each <= max(gib, each)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with 8 cores and 64 GiB, and nothing set."""
    for name in ("CPU_COUNT", "DS_ACCELERATOR", "MAX_JOBS", "DS_NVCC_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 8)
    memory = SimpleNamespace(available=64 * GIB)
    monkeypatch.setattr(jobs, "psutil", SimpleNamespace(virtual_memory=lambda: memory))
    monkeypatch.setattr(jobs, "sys", SimpleNamespace(platform="linux"))
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("8", "1")),
        ({"DS_ACCELERATOR": "cpu"}, ("8", "1")),
        ({"DS_ACCELERATOR": "cuda"}, ("4", "2")),
        ({"CPU_COUNT": "2"}, ("2", "1")),
        ({"CPU_COUNT": "6", "DS_ACCELERATOR": "cuda"}, ("3", "2")),
        ({"MAX_JOBS": "5"}, ("5", "1")),
        ({"DS_NVCC_THREADS": "3", "DS_ACCELERATOR": "cuda"}, ("4", "3")),
        ({"MAX_JOBS": "", "DS_NVCC_THREADS": "", "CPU_COUNT": ""}, ("8", "1")),
    ],
)
def test_jobs_that_are_set_win(
    machine: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    expected: tuple[str, str],
) -> None:
    for name, value in environment.items():
        machine.setenv(name, value)
    jobs.main()
    assert capsys.readouterr().out == "export MAX_JOBS={}\nexport DS_NVCC_THREADS={}\n".format(*expected)


def test_jobs_are_written_for_cmd_on_windows(machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine.setattr(jobs, "sys", SimpleNamespace(platform="win32"))
    jobs.main()
    assert capsys.readouterr().out == 'set "MAX_JOBS=8"\nset "DS_NVCC_THREADS=1"\n'


@needs_sh
def test_jobs_can_be_sourced() -> None:
    done = run("jobs.py", MAX_JOBS="3", DS_NVCC_THREADS="2")
    shell = ["sh", "-c", f'{done.stdout}\necho "$MAX_JOBS $DS_NVCC_THREADS"']
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == "3 2\n"


# ---- pin_torch.py

REQUIREMENTS = "einops\nninja\npydantic>=2.0.0\ntorch>=2.0.0\ntorchvision>=0.1\ntqdm\n"


@pytest.mark.parametrize(
    ("torch", "pinned"),
    [("2.5.1", "2.5"), ("2.10.0", "2.10"), ("2.5.1+cpu", "2.5"), ("2.10.0a0+gitabc", "2.10"), ("2.13.0.dev1", "2.13")],
)
def test_torch_is_pinned_to_its_minor_and_nothing_else_changes(torch: str, pinned: str) -> None:
    assert pin_torch.pin(REQUIREMENTS, torch) == REQUIREMENTS.replace("torch>=2.0.0", f"torch=={pinned}.*")


def test_torch_is_found_with_spaces() -> None:
    assert pin_torch.pin("torch >= 2.0.0\ntqdm", "2.5.1") == "torch==2.5.*\ntqdm\n"


@pytest.mark.parametrize(
    ("requirements", "count"),
    [("einops\ntqdm\n", 0), ("", 0), ("torch==2.0.0\n", 0), ("torch>=2.0.0\ntorch >=2.1\n", 2)],
)
def test_requirements_without_one_torch_line_are_refused(requirements: str, count: int) -> None:
    with pytest.raises(SystemExit, match=f"found {count}; adapt pin_torch.py"):
        pin_torch.pin(requirements, "2.5.1")


def test_pin_torch_writes_the_file_with_the_torch_that_is_installed(tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "torch-2.5.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.1+cu121\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(REQUIREMENTS)
    assert run("pin_torch.py", str(requirements), PYTHONPATH=str(tmp_path / "site")).returncode == 0
    assert requirements.read_bytes() == REQUIREMENTS.replace("torch>=2.0.0", "torch==2.5.*").encode()


# ---- cuda_home.py


def plant(prefix: Path, names: str) -> None:
    """Files below ``prefix`` that hold their own path, given as words."""
    for name in words(names):
        file = prefix / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(file))


def words(text: str) -> set[str]:
    return set(text.split())


def tree(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}


@pytest.fixture
def build(tmp_path: Path) -> Path:
    return tmp_path / "build_env"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path / "host_env"


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_home, "WINDOWS", True)


def test_cuda_home_from_conda_forge_on_linux(tmp_path: Path, build: Path, host: Path) -> None:
    target = "targets/x86_64-linux"
    plant(
        build, "bin/nvcc bin/nvcc.profile bin/ptxas bin/cudafe++ bin/fatbinary bin/crt/link.stub bin/ninja bin/x86-gcc"
    )
    plant(build, f"nvvm/bin/cicc nvvm/libdevice/libdevice.10.bc {target}/include/crt/host_config.h lib/libz.so")
    plant(build, f"{target}/include/cuda_runtime.h {target}/lib/libcudart.so.12")
    plant(host, f"{target}/include/cuda_runtime.h {target}/include/cublas_v2.h {target}/include/thrust/pair.h")
    plant(host, f"{target}/lib/libcublas.so {target}/lib/libcudart.so.12 {target}/lib/stubs/libcuda.so")
    plant(host, "lib/libz.so lib/libcurand.so lib/python3.11/libcupy.so bin/python include/zlib.h")
    (host / target / "lib" / "libcudart.so").symlink_to("libcudart.so.12")

    into = tmp_path / "cuda"
    cuda_home.assemble([build, host], into, windows=False)
    assert tree(into) == words(
        "bin/nvcc bin/nvcc.profile bin/ptxas bin/cudafe++ bin/fatbinary bin/crt/link.stub "
        "nvvm/bin/cicc nvvm/libdevice/libdevice.10.bc "
        "include/crt/host_config.h include/cuda_runtime.h include/cublas_v2.h include/thrust/pair.h include/zlib.h "
        "lib64/libcudart.so lib64/libcudart.so.12 lib64/libcublas.so lib64/libcurand.so"
    )
    assert all(file.is_symlink() and file.exists() for file in into.rglob("*") if not file.is_dir())
    # nvcc's own headers and libraries come first.
    assert (into / "include" / "cuda_runtime.h").read_text() == str(build / target / "include" / "cuda_runtime.h")


def test_cuda_home_from_the_nvidia_channel_on_linux(tmp_path: Path, build: Path, host: Path) -> None:
    plant(build, "bin/nvcc bin/nvcc.profile bin/crt/link.stub bin/perl nvvm/bin/cicc include/crt/host_config.h")
    plant(
        host, "include/cuda_runtime.h include/curand.h lib/libcudart.so lib/libcurand.so lib/libnvrtc.so lib/libssl.so"
    )
    cuda_home.assemble([build, host], tmp_path / "cuda", windows=False)
    assert tree(tmp_path / "cuda") == words(
        "bin/nvcc bin/nvcc.profile bin/crt/link.stub "
        "nvvm/bin/cicc "
        "include/crt/host_config.h include/cuda_runtime.h include/curand.h "
        "lib64/libcudart.so lib64/libcurand.so lib64/libnvrtc.so"
    )


def test_cuda_home_from_conda_forge_on_windows(tmp_path: Path, build: Path, host: Path, windows: None) -> None:
    plant(build, "Library/bin/nvcc.exe Library/bin/nvcc.profile Library/bin/ptxas.exe Library/bin/cudafe++.exe")
    plant(build, "Library/bin/crt/link.stub Library/bin/7z.exe Library/bin/zlib.dll python.exe Scripts/pip.exe")
    plant(build, "Library/nvvm/bin/cicc.exe Library/nvvm/libdevice/libdevice.10.bc Library/include/crt/host_config.h")
    plant(
        host, "Library/include/cuda_runtime.h Library/lib/cudart.lib Library/lib/cublas.lib Library/lib/cmake/a.cmake"
    )
    plant(host, "Library/bin/cublas64_12.dll python.exe include/Python.h libs/python311.lib Lib/site-packages/x/y.lib")
    into = tmp_path / "cuda"
    cuda_home.assemble([build, host], into, windows=True)
    assert tree(into) == words(
        "bin/nvcc.exe bin/nvcc.profile bin/ptxas.exe bin/cudafe++.exe bin/crt/link.stub "
        "nvvm/bin/cicc.exe nvvm/libdevice/libdevice.10.bc "
        "include/crt/host_config.h include/cuda_runtime.h include/Python.h "
        "lib/x64/cudart.lib lib/x64/cublas.lib"
    )
    assert not any(file.is_symlink() for file in into.rglob("*"))


def test_cuda_home_from_the_nvidia_channel_on_windows(tmp_path: Path, build: Path, host: Path, windows: None) -> None:
    plant(
        build, "bin/nvcc.exe bin/nvcc.profile bin/crt/link.stub bin/other.exe nvvm/bin/cicc.exe Library/bin/ninja.exe"
    )
    plant(build, "include/crt/host_config.h")
    plant(
        host, "include/cuda_runtime.h lib/x64/cudart.lib lib/x64/cublas.lib lib/site-packages/x/y.lib Library/lib/z.lib"
    )
    cuda_home.assemble([build, host], tmp_path / "cuda", windows=True)
    assert tree(tmp_path / "cuda") == words(
        "bin/nvcc.exe bin/nvcc.profile bin/crt/link.stub "
        "nvvm/bin/cicc.exe "
        "include/crt/host_config.h include/cuda_runtime.h "
        "lib/x64/cudart.lib lib/x64/cublas.lib lib/x64/z.lib"
    )


@pytest.mark.parametrize("on_windows", [False, True])
def test_cuda_home_without_nvcc_says_where_it_looked(tmp_path: Path, build: Path, host: Path, on_windows: bool) -> None:
    plant(build, "bin/ninja Library/bin/ninja.exe targets/x86_64-linux/include/x.h")
    plant(host, "lib/libcudart.so Library/lib/cudart.lib")
    with pytest.raises(SystemExit) as stop:
        cuda_home.assemble([build, host], tmp_path / "cuda", on_windows)
    message = str(stop.value)
    assert message.startswith("ERROR: no nvcc in ")
    for root in ("Library", ".") if on_windows else (".", "targets/x86_64-linux"):
        assert str(build / root / "bin") in message
    assert str(host / "bin") in message
    assert not (tmp_path / "cuda").exists()


@pytest.mark.parametrize("on_windows", [False, True])
def test_cuda_home_without_cudart_says_where_it_looked(
    tmp_path: Path, build: Path, host: Path, monkeypatch: pytest.MonkeyPatch, on_windows: bool
) -> None:
    monkeypatch.setattr(cuda_home, "WINDOWS", on_windows)
    plant(build, "bin/nvcc Library/bin/nvcc.exe")
    plant(host, "targets/x86_64-linux/lib/libcublas.so Library/lib/cublas.lib")
    with pytest.raises(SystemExit) as stop:
        cuda_home.assemble([build, host], tmp_path / "cuda", on_windows)
    message = str(stop.value)
    assert message.startswith(f"ERROR: no {'cudart.lib' if on_windows else 'libcudart.so'} in ")
    assert str(host / ("Library/lib" if on_windows else "targets/x86_64-linux/lib")) in message


@pytest.mark.parametrize("on_windows", [False, True])
def test_cuda_home_without_any_library_says_where_it_looked(
    tmp_path: Path, build: Path, host: Path, monkeypatch: pytest.MonkeyPatch, on_windows: bool
) -> None:
    monkeypatch.setattr(cuda_home, "WINDOWS", on_windows)
    plant(build, "bin/nvcc bin/nvcc.exe")
    host.mkdir()
    with pytest.raises(SystemExit) as stop:
        cuda_home.assemble([build, host], tmp_path / "cuda", on_windows)
    assert str(host / "lib") in str(stop.value)


def test_cuda_home_takes_no_other_programs_whatever_the_prefix_is_called(tmp_path: Path) -> None:
    prefix = tmp_path / "crt" / "env"
    plant(prefix, "bin/nvcc bin/python bin/crt/link.stub lib/libcudart.so")
    cuda_home.assemble([prefix], tmp_path / "cuda", windows=False)
    assert tree(tmp_path / "cuda" / "bin") == words("nvcc crt/link.stub")


@needs_sh
def test_cuda_home_takes_its_prefixes_from_the_environment(tmp_path: Path, build: Path, host: Path) -> None:
    plant(build, "bin/nvcc")
    plant(host, "lib/libcudart.so")
    into = tmp_path / "cuda"
    done = run("cuda_home.py", "--into", str(into), BUILD_PREFIX=str(build), PREFIX=str(host))
    assert (done.returncode, done.stdout) == (0, f"CUDA_HOME: {into}\n")
    assert run("cuda_home.py", "--into", str(tmp_path / "other"), PREFIX=str(host)).returncode == 1


# ---- openmp_library.py

DEPENDENTS = r"""
Dump of file C:\bld\_h_env\Lib\site-packages\torch\lib\torch_cpu.dll

File Type: DLL

  Image has the following dependencies:

    c10.dll
    {}
    KERNEL32.dll
    VCRUNTIME140_1.dll

  Image has the following delay load dependencies:

    dbghelp.dll

  Summary

      1A5000 .data
      3C2000 .pdata
"""

#: As dumpbin lays the columns out: ordinal, hint, address and name.
EXPORTS = r"""
Dump of file C:\bld\_h_env\Library\bin\libomp.dll

File Type: DLL

  Section contains the following exports for libomp.dll

    00000000 characteristics
    20241020 time date stamp
        0.00 version
           1 ordinal base
        2516 number of functions
        1058 number of names

    ordinal hint RVA      name

          1    0 00001000 __kmpc_barrier
        117   1F 0002A3B0 __kmpc_fork_call
       2516  3FF 000FFFF0 omp_get_num_threads = omp_get_num_threads
        200    3          kmpc_set_blocktime (forwarded to libiomp5md.kmp_set_blocktime)
        201    4 0002A3C0 ?what@@YAXH@Z
        202      0002A3D0 [NONAME]

  Summary

        1000 .00cfg
       12000 .data
"""
CRLF = EXPORTS.replace("\n", "\r\n")
#: Both at once, for a stand-in that prints the same whatever it is asked.
DUMP = (DEPENDENTS.format("libiomp5md.dll") + EXPORTS).replace("libomp.dll", "libiomp5md.dll")


@pytest.mark.parametrize("name", ["libiomp5md.dll", "libomp.dll", "LIBIOMP5MD.DLL"])
def test_openmp_runtime_is_the_one_that_torch_imports(name: str) -> None:
    assert openmp_library.runtime_of(DEPENDENTS.format(name)) == name.lower()
    assert openmp_library.runtime_of(DEPENDENTS.format(f"{name}\n    {name.lower()}")) == name.lower()


@pytest.mark.parametrize("name", ["VCOMP140.DLL", "mylibomp.dll", "libomp.lib"])
def test_openmp_runtime_that_is_not_there_is_reported(name: str) -> None:
    with pytest.raises(SystemExit, match="found none"):
        openmp_library.runtime_of(DEPENDENTS.format(name))


def test_two_openmp_runtimes_are_reported() -> None:
    with pytest.raises(SystemExit, match=r"libiomp5md.*libomp"):
        openmp_library.runtime_of(DEPENDENTS.format("libomp.dll\n    libiomp5md.dll"))


@pytest.mark.parametrize("listing", [EXPORTS, CRLF], ids=["LF", "CRLF"])
def test_openmp_exports_are_read(listing: str) -> None:
    names = openmp_library.exports_of(listing)
    assert names[:3] == ["__kmpc_barrier", "__kmpc_fork_call", "omp_get_num_threads"]


def test_openmp_exports_that_are_forwarded_are_exports() -> None:
    assert "kmpc_set_blocktime" in openmp_library.exports_of(EXPORTS)


def test_openmp_exports_are_names_and_nothing_else() -> None:
    expected = {"__kmpc_barrier", "__kmpc_fork_call", "omp_get_num_threads", "kmpc_set_blocktime", "?what@@YAXH@Z"}
    assert set(openmp_library.exports_of(EXPORTS)) <= expected


@pytest.fixture
def openmp(tmp_path: Path) -> dict[str, str]:
    """What openmp_library.py is started with: torch with its runtime, and stand-ins for dumpbin and lib."""
    plant(tmp_path, "site-packages/torch/lib/torch_cpu.dll site-packages/torch/lib/libiomp5md.dll")
    stand_in(tmp_path / "tools", "dumpbin", DUMP.encode())
    stand_in(tmp_path / "tools", "lib")
    return {
        "path": str(tmp_path / "tools"),
        "SP_DIR": str(tmp_path / "site-packages"),
        "PREFIX": str(tmp_path / "prefix"),
    }


@needs_sh
def test_openmp_library_is_made_from_the_runtime_beside_torch(tmp_path: Path, openmp: dict[str, str]) -> None:
    into = tmp_path / "openmp"
    done = run("openmp_library.py", "--into", str(into), **openmp)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OpenMP: libiomp5md.dll (")
    lines = (into / "dswin_openmp.def").read_text().splitlines()
    assert lines[:3] == ["LIBRARY libiomp5md.dll", "EXPORTS", "    __kmpc_barrier"]
    assert "    __kmpc_fork_call" in lines
    runtime = tmp_path / "site-packages" / "torch" / "lib" / "libiomp5md.dll"
    assert f"/exports {runtime}" in (tmp_path / "tools" / "dumpbin.arguments").read_text()
    made = (tmp_path / "tools" / "lib.arguments").read_text()
    assert f"/machine:x64 /def:{into}/dswin_openmp.def /out:{into}/dswin_openmp.lib" in made


@needs_sh
def test_openmp_library_takes_the_runtime_from_the_prefix(tmp_path: Path, openmp: dict[str, str]) -> None:
    (tmp_path / "site-packages" / "torch" / "lib" / "libiomp5md.dll").unlink()
    plant(tmp_path, "prefix/Library/bin/libiomp5md.dll")
    assert run("openmp_library.py", "--into", str(tmp_path / "openmp"), **openmp).returncode == 0


@needs_sh
def test_openmp_library_says_where_the_runtime_is_not(tmp_path: Path, openmp: dict[str, str]) -> None:
    (tmp_path / "site-packages" / "torch" / "lib" / "libiomp5md.dll").unlink()
    done = run("openmp_library.py", "--into", str(tmp_path / "openmp"), **openmp)
    assert done.returncode == 1
    assert "libiomp5md.dll, which is in none of: " in done.stderr
    assert str(tmp_path / "prefix" / "Library" / "bin") in done.stderr


@needs_sh
def test_openmp_library_refuses_a_runtime_of_another_family(tmp_path: Path, openmp: dict[str, str]) -> None:
    stand_in(tmp_path / "tools", "dumpbin", DUMP.replace("__kmpc_fork_call", "_vcomp_fork").encode())
    done = run("openmp_library.py", "--into", str(tmp_path / "openmp"), **openmp)
    assert done.returncode == 1
    assert "does not export __kmpc_fork_call" in done.stderr


@needs_sh
@pytest.mark.parametrize("tool", ["dumpbin", "lib"])
def test_openmp_library_stops_when_a_tool_fails(tmp_path: Path, openmp: dict[str, str], tool: str) -> None:
    stand_in(tmp_path / "tools", tool, DUMP.encode(), status=3)
    done = run("openmp_library.py", "--into", str(tmp_path / "openmp"), **openmp)
    assert done.returncode == 1
    assert f"ERROR: {tool}" in done.stderr
    assert "ended with 3" in done.stderr


# ---- tests/check_ops.py

OPS = yaml.safe_load((RECIPE / "ops.yaml").read_text(encoding="utf-8"))["ops"]
CPU_OPS = {"fused_adam", "cpu_adam", "cpu_adagrad", "cpu_lion"}
CUDA_OPS = CPU_OPS | {
    "fused_lamb",
    "fused_lion",
    "transformer",
    "stochastic_transformer",
    "transformer_inference",
    "quantizer",
    "random_ltd",
    "spatial_inference",
    "inference_core_ops",
    "ragged_ops",
    "utils",
}


@pytest.mark.parametrize(
    ("platform", "accelerator", "expected"),
    [
        ("win-64", "cuda", CUDA_OPS),
        ("win-64", "cpu", CPU_OPS),
        ("linux-64", "cuda", CUDA_OPS | {"pin_memory"}),
        ("linux-64", "cpu", CPU_OPS | {"pin_memory", "deepspeed_shm_comm"}),
    ],
)
def test_expected_ops(platform: str, accelerator: str, expected: set[str]) -> None:
    found = check_ops.expected_ops(OPS, platform, accelerator)
    assert set(found) == expected
    assert found == {name: OPS[name]["module"] for name in expected}


def test_windows_has_fifteen_ops() -> None:
    assert len(check_ops.expected_ops(OPS, "win-64", "cuda")) == 15


GREEN, RED, YELLOW, END = "\033[92m", "\033[91m", "\033[93m", "\033[0m"


def write_report(rows: dict[str, tuple[bool, bool]]) -> str:
    """What op_report of deepspeed/env_report.py prints on a terminal."""
    okay, yes, no = (f"{color}[{word}]{END}" for color, word in ((GREEN, "OKAY"), (GREEN, "YES"), (YELLOW, "NO")))
    max_dots, max_dots2, color_len = 23, 11, len(GREEN) + len(END)
    head = ["op name", "installed", "compatible"]
    rule = "-" * (max_dots + max_dots2 + len(head[0]) + len(head[1]))
    lines = [rule, "DeepSpeed C++/CUDA extension op report", rule]
    lines += ["NOTE: Ops not installed will be just-in-time (JIT) compiled at\n      runtime if needed.", rule]
    lines += ["JIT compiled ops requires ninja", f"ninja {'.' * (max_dots - 5)} {okay}", rule]
    lines += [f"{head[0]} {'.' * (max_dots - 7)} {head[1]} {'.' * (max_dots2 - 9)} {head[2]}", rule]
    for name, (installed, compatible) in rows.items():
        if not compatible:
            lines.append(f"{YELLOW} [WARNING] {END} {name} requires the dev libraries of something [NO] [OKAY]")
        first, second = yes if installed else no, okay if compatible else no
        lines.append(
            f"{name} {'.' * (max_dots - len(name))} {first} {'.' * (max_dots2 - (len(first) - color_len))} {second}"
        )
    lines += [rule, "DeepSpeed general environment info:", f"torch version {'.' * 20} 2.5.1"]
    lines += [f"nvcc version {'.' * 21} {RED} [FAIL] cannot find CUDA_HOME {END}"]
    return "\n".join(lines) + "\n"


ROWS = {
    "async_io": (False, False),
    "fused_adam": (True, True),
    "cpu_adam": (True, False),
    "fp_quantizer": (False, True),
    "stochastic_transformer": (True, True),
    "transformer_inference": (True, False),
}


def test_report_is_read() -> None:
    text = write_report(ROWS)
    assert "fused_adam ............. \033[92m[YES]\033[0m ...... \033[92m[OKAY]\033[0m\n" in text
    assert check_ops.read_report(text) == ROWS


def test_report_is_read_without_colours() -> None:
    text = write_report(ROWS)
    for color in (GREEN, RED, YELLOW, END):
        text = text.replace(color, "")
    assert check_ops.read_report(text) == ROWS


@pytest.mark.parametrize("row", [(True, True), (False, True), (True, False), (False, False)])
def test_report_is_read_for_every_op(row: tuple[bool, bool]) -> None:
    """Names of 23 letters and more, such as deepspeed_not_implemented, have no dots behind them."""
    assert check_ops.read_report(write_report(dict.fromkeys(OPS, row))) == dict.fromkeys(OPS, row)


def test_report_without_ops_is_empty() -> None:
    assert check_ops.read_report(write_report({})) == {}


def test_ops_that_are_missing_or_too_many_are_named() -> None:
    assert check_ops.compare({"a", "b"}, {"a", "b"}, "here") == []
    assert check_ops.compare({"b", "a", "x"}, {"x", "c"}, "ds_report") == [
        "ds_report: op a is missing",
        "ds_report: op b is missing",
        "ds_report: op c is there and ops.yaml does not list it",
    ]


@pytest.mark.parametrize(
    ("platform", "file"),
    [("linux", "cpu_adam_op.cpython-311-x86_64-linux-gnu.so"), ("win32", "cpu_adam_op.cp311-win_amd64.pyd")],
)
def test_op_file_is_the_one_of_this_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, file: str
) -> None:
    monkeypatch.setattr(check_ops, "sys", SimpleNamespace(platform=platform))
    assert check_ops.op_file(tmp_path, "deepspeed.ops.adam.cpu_adam_op") is None
    plant(tmp_path / "deepspeed" / "ops" / "adam", f"cpu_adam_op.py cpu_adam_op.obj cpu_adam_op_2.so {file}")
    assert check_ops.op_file(tmp_path, "deepspeed.ops.adam.cpu_adam_op") == tmp_path / "deepspeed/ops/adam" / file
    suffix = file.rsplit(".", 1)[1]
    plant(tmp_path / "deepspeed" / "ops" / "adam", f"cpu_adam_op.another.{suffix}")
    assert check_ops.op_file(tmp_path, "deepspeed.ops.adam.cpu_adam_op") is None


SUFFIX = ".abi3.pyd" if sys.platform == "win32" else ".abi3.so"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages that holds the files that a CPU build for Linux should."""
    monkeypatch.setattr(check_ops, "PLATFORM", "linux-64")
    monkeypatch.setenv("DS_ACCELERATOR", "")
    for module in check_ops.expected_ops(OPS, "linux-64", "cpu").values():
        plant(tmp_path, module.replace(".", "/") + SUFFIX)
    return tmp_path


def record(site: Path, **changes: object) -> None:
    """Write what setup.py records, with ``changes``."""
    installed = {name: name in check_ops.expected_ops(OPS, "linux-64", "cpu") for name in OPS}
    info = {"version": "0.19.8", "git_hash": "unknown", "accelerator_name": "cpu", "installed_ops": installed} | changes
    text = "".join(f"{name}={value!r}\n" for name, value in info.items())
    (site / "deepspeed" / "git_version_info_installed.py").write_text(text)


def check_installed(site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run check_ops.py over ``site`` as the build scripts do, and return its errors."""
    arguments = ["check_ops.py", "--accelerator", "cpu", "--ops", str(RECIPE / "ops.yaml"), "--installed-in", str(site)]
    monkeypatch.setattr(sys, "argv", arguments)
    status = check_ops.main()
    captured = capsys.readouterr()
    errors = [line.removeprefix("ERROR: ") for line in captured.err.splitlines()]
    assert captured.out == f"6 ops expected on linux-64 for cpu: {len(errors)} problems\n"
    assert status == (1 if errors else 0)
    return errors


def test_check_of_a_complete_build_passes(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(site)
    assert check_installed(site, monkeypatch, capsys) == []


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"installed_ops": dict.fromkeys([*CPU_OPS, "pin_memory"], True)}, "op deepspeed_shm_comm is missing"),
        (
            {"installed_ops": dict.fromkeys([*CPU_OPS, "pin_memory", "deepspeed_shm_comm", "async_io"], True)},
            "op async_io is there and ops.yaml does not list it",
        ),
        ({"accelerator_name": "cuda"}, "built for accelerator cuda, not cpu"),
        ({"git_hash": "1a53e36"}, "git hash 1a53e36 of some other repository was recorded"),
        ({"version": "0.19.8 "}, "version '0.19.8 ' has spaces around it"),
    ],
)
def test_check_reads_what_the_build_recorded(
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    error: str,
) -> None:
    record(site, **changes)
    (found,) = check_installed(site, monkeypatch, capsys)
    assert found.endswith(error)


def test_check_looks_for_every_file(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(site)
    (site / f"deepspeed/ops/lion/cpu_lion_op{SUFFIX}").unlink()
    errors = check_installed(site, monkeypatch, capsys)
    assert errors == ["cpu_lion: no single compiled file for deepspeed.ops.lion.cpu_lion_op"]


# ---- tests/train.py


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_batch_sizes_agree(ranks: int, fp16: bool, offload: bool) -> None:
    config = train.configure(fp16=fp16, offload=offload, ranks=ranks)
    micro, accumulation = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert config["train_batch_size"] == micro * accumulation * ranks
    assert config["fp16"]["enabled"] is fp16
    assert config["zero_optimization"]["stage"] == 2
    assert ("offload_optimizer" in config["zero_optimization"]) == offload


def test_process_is_set_up_like_a_single_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr(train.os, "environ", environment)
    monkeypatch.setattr(train.tempfile, "tempdir", str(tmp_path))
    folder = train.set_up_process("cpu")
    assert 0 < int(environment.pop("MASTER_PORT")) < 65536
    assert environment == {
        "DS_ACCELERATOR": "cpu",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCH_EXTENSIONS_DIR": str(folder),
    }
    assert list(folder.iterdir()) == []


def test_values_of_a_launcher_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    environment = dict(launcher)
    monkeypatch.setattr(train.os, "environ", environment)
    monkeypatch.setattr(train.tempfile, "tempdir", str(tmp_path))
    train.set_up_process("cuda")
    assert {name: environment[name] for name in launcher} == launcher
    assert environment["DS_ACCELERATOR"] == "cuda"
