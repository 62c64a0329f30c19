"""What is read from what programs print; each sample has the form that the program's own documentation shows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from dswin import build, facts, programs
from dswin.facts import Look
from dswin.programs import Absent, ask, decode, find_program, run


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_reachable", lambda name: name == "nvidia")


# A fact


def test_a_fact_says_where_it_is_from_and_why_it_is_not_there() -> None:
    def fail() -> None:
        raise Absent("it is not set")

    def break_down() -> None:
        raise ValueError("odd")

    assert Look("x", "here", lambda: 7).take() == facts.Fact("x", 7, "here", None)
    assert Look("x", "here", fail).take() == facts.Fact("x", None, "here", "it is not set")
    assert Look("x", "here", break_down).take() == facts.Fact("x", None, "here", "ValueError: odd")


def test_a_machine_without_anything_has_the_same_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = facts.collect(tmp_path / "not" / "there")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_PATH", "CONDA_EXE", "MAMBA_EXE", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(facts, "NVIDIA_SMI", ())
    empty = {fact.name: fact for fact in facts.collect(tmp_path)}
    assert [fact.name for fact in full] == list(empty)
    assert empty["cl"].problem == "cl is not on PATH"
    assert empty["gpus"].problem == "nvidia-smi is not on PATH"
    assert empty["cuda_path"].problem == "it is not set"
    for fact in empty.values():
        assert (fact.value is None) == (fact.problem is not None), fact
        assert fact.source
    json.dumps([fact.value for fact in empty.values()])


def test_facts_of_every_machine_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    found = {fact.name: fact.value for fact in facts.collect(tmp_path)}
    assert found["cpu"]["cores"] >= 1
    assert found["memory_bytes"] > 2**28
    assert found["free_disk_bytes"] > 0
    assert found["python"]["version"] == "{}.{}.{}".format(*sys.version_info)
    assert found["cuda_home"] == "/opt/cuda"
    assert found["channels"] == {"conda-forge": False, "nvidia": True, "pytorch": False}


# Programs


def put_program(folder: Path, name: str, text: str, code: int = 0) -> Path:
    """Put a program that prints a text and ends with a code onto a folder for PATH."""
    (folder / "says.py").write_text(f"import sys\nprint({text!r})\nsys.exit({code})\n", encoding="utf-8")
    if os.name == "nt":
        program = folder / f"{name}.bat"
        program.write_text(f'@"{sys.executable}" "{folder / "says.py"}"\n@exit /b %ERRORLEVEL%\n')
    else:
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder / "says.py"}"\n')
        program.chmod(0o755)
    return program


def test_a_program_is_asked_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = put_program(tmp_path, "conda", "conda 24.9.2")
    with pytest.raises(Absent, match="dswin-conda is not on PATH"):
        find_program("dswin-conda", "${DSWIN_NO_SUCH}", str(tmp_path / "nothing"))
    monkeypatch.setenv("SOME_EXE", str(program))
    assert find_program("dswin-conda", "${SOME_EXE}") == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    [look] = [look for look in facts.list_looks(tmp_path) if look.name == "conda"]
    assert look.take().value["version"] == "24.9.2"
    assert Path(look.take().value["path"]).stem == "conda"


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    said = "a line\nFailed to initialize NVML: Driver/library version mismatch\n\n"
    program = put_program(tmp_path, "nvidia-smi", said, code=18)
    with pytest.raises(Absent, match="ended with code 18 and said: Failed to initialize NVML"):
        ask(str(program))


def test_a_program_that_hangs_or_does_not_start_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TIMEOUT", 0.5)
    with pytest.raises(Absent, match="no answer"):
        run(sys.executable, "-c", "import time; time.sleep(60)")
    with pytest.raises(Absent, match="does not start"):
        run(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("said", "code_page", "text"),
    [
        ("用于 x64 的 Microsoft".encode("gbk"), "cp936", "用于 x64 的 Microsoft"),
        ("für x64".encode("cp850"), "cp850", "für x64"),
        ("für x64\r\n".encode(), "cp850", "für x64\n"),
        ("für\n".encode() + "für".encode("cp850"), "cp850", "für\nfür"),
        (b"caf\xe9", "cp99999", "caf\ufffd"),
    ],
)
def test_each_line_is_read_in_its_own_encoding(said: bytes, code_page: str, text: str) -> None:
    assert decode(said, code_page) == text


# What programs say


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("conda 24.9.2\n", "24.9.2"),
        ("mamba 1.5.8\nconda 24.3.0\n", "1.5.8"),
        ("2.0.5\n", "2.0.5"),
        ("pixi 0.40.0\n", "0.40.0"),
        ("git version 2.45.1.windows.1\n", "2.45.1.windows.1"),
        ("1.12.1.git.kitware\n", "1.12.1.git.kitware"),
    ],
)
def test_versions(said: str, version: str) -> None:
    assert facts.parse_version(said) == version


@pytest.mark.parametrize(
    "banner",
    [
        "Microsoft (R) C/C++ Optimizing Compiler Version 19.39.33523 for x64\nCopyright (C) Microsoft Corporation.\n",
        "Microsoft (R) C/C++-Optimierungscompiler Version 19.39.33523 für x64\nCopyright (C) Microsoft Corporation.\n",
        "用于 x64 的 Microsoft (R) C/C++ 优化编译器 19.39.33523 版\n版权所有(C) Microsoft Corporation。保留所有权利。\n",
    ],
)
def test_cl_in_three_languages(banner: str) -> None:
    assert facts.parse_cl(banner) == "19.39.33523"


def test_what_is_not_understood_is_quoted() -> None:
    with pytest.raises(Absent, match="'Zugriff verweigert'"):
        facts.parse_cl("Zugriff\nverweigert\n")


def test_nvcc() -> None:
    banner = "Cuda compilation tools, release 12.1, V12.1.105\nBuild cuda_12.1.r12.1/compiler.32688072_0\n"
    assert facts.search(r"\bV(\d+\.\d+\.\d+)", banner) == "12.1.105"


@pytest.mark.parametrize(
    "banner",
    [
        "| NVIDIA-SMI 551.86                 Driver Version: 551.86         CUDA Version: 12.4     |",
        "| NVIDIA-SMI 610.47                 KMD Version: 610.47        CUDA UMD Version: 12.4     |",
    ],
)
def test_the_cuda_of_the_driver(banner: str) -> None:
    assert facts.parse_driver_cuda(banner) == "12.4"
    with pytest.raises(Absent):
        facts.parse_driver_cuda("| NVIDIA-SMI 551.86   Driver Version: 551.86   CUDA Version: N/A |")


def test_gpus() -> None:
    said = "NVIDIA GeForce RTX 4090, 551.86, 24564 MiB, 8.9\nTesla K80, 470.1, [N/A], [N/A]\n"
    assert facts.parse_gpus(said) == [
        {"name": "NVIDIA GeForce RTX 4090", "driver": "551.86", "memory_mib": 24564, "compute_capability": "8.9"},
        {"name": "Tesla K80", "driver": "470.1", "memory_mib": None, "compute_capability": None},
    ]
    assert facts.parse_gpus("Quadro P400, 456.71, 2048 MiB\n")[0]["compute_capability"] is None
    assert facts.parse_gpus("No devices were found\n") == []


def test_an_old_nvidia_smi_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: str, arguments: list[str]) -> str:
        if "compute_cap" in arguments[0]:
            raise Absent('Field "compute_cap" is not a valid field to query.')
        return "Quadro P400, 456.71, 2048 MiB\n"

    monkeypatch.setattr(facts, "ask", answer)
    assert facts.find_gpus()[0]["name"] == "Quadro P400"
    monkeypatch.setattr(facts, "ask", lambda *_, **__: "No devices were found\n")
    with pytest.raises(Absent, match="No devices were found"):
        facts.find_gpus()


def test_a_linux_processor() -> None:
    one = "processor\t: {}\nmodel name\t: Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz\nflags\t\t: fpu avx avx2 {}\n\n"
    assert facts.parse_cpuinfo(one.format(0, "") + one.format(1, "")) == {
        "name": "Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz",
        "cores": 2,
        "avx2": True,
        "avx512": False,
    }
    assert facts.parse_cpuinfo(one.format(0, "avx512f"))["avx512"] is True


# Windows


@pytest.mark.parametrize(
    ("build", "name", "expected"),
    [
        ("22631", "Windows 10 Pro", "Windows 11 Pro"),
        ("19045", "Windows 10 Pro", "Windows 10 Pro"),
        ("20348", "Windows Server 2022 Standard", "Windows Server 2022 Standard"),
    ],
)
def test_windows_11_calls_itself_10(build: str, name: str, expected: str) -> None:
    # The owner's name stands in the same key.
    values = {
        "ProductName": name,
        "CurrentBuild": build,
        "UBR": 3447,
        "DisplayVersion": "23H2",
        "RegisteredOwner": "me",
    }
    assert facts.describe_windows(values) == {"name": expected, "release": "23H2", "build": f"{build}.3447"}


def test_visual_studios_and_their_toolsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for toolset in ("14.9.1", "14.39.33519", "14.40.33807", "14.29.30133"):
        folder = tmp_path / "VC" / "Tools" / "MSVC" / toolset / "bin" / "Hostx64" / "x64"
        folder.mkdir(parents=True)
        if toolset != "14.40.33807":  # what an uninstalled one leaves
            (folder / "cl.exe").touch()
    said = json.dumps(
        [
            {
                "instanceId": "2f3a1b4c",
                "installDate": "2024-03-01T10:00:00Z",
                "installationPath": str(tmp_path),
                "installationVersion": "17.9.34701.34",
                "isComplete": True,
                "displayName": "Visual Studio 生成工具 2022",
                "catalog": {"productDisplayVersion": "17.9.4"},
            }
        ],
        ensure_ascii=False,
    )
    asked = []
    monkeypatch.setattr(facts, "ask", lambda *names, arguments: asked.append((names, arguments)) or said)
    assert facts.find_visual_studios() == [
        {
            "name": "Visual Studio 生成工具 2022",
            "version": "17.9.34701.34",
            "folder": str(tmp_path),
            "complete": True,
            "toolsets": ["14.9.1", "14.29.30133", "14.39.33519"],
        }
    ]
    [((_, place), arguments)] = asked
    assert place == r"%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\vswhere.exe"
    assert arguments == ["-products", "*", "-format", "json", "-utf8"]


def test_vswhere_without_a_visual_studio() -> None:
    with pytest.raises(Absent, match="knows of none"):
        facts.parse_vswhere("[]\n")
    with pytest.raises(Absent, match="no JSON"):
        facts.parse_vswhere("Fehler 0x57: Falscher Parameter\n")


def test_sdks_that_have_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("10.0.9999.0", "10.0.22621.0", "10.0.19041.0", "wdf"):
        (tmp_path / "Include" / name / "um").mkdir(parents=True)
    monkeypatch.setattr(facts, "read_registry_value", lambda *_: str(tmp_path))
    with pytest.raises(Absent, match="holds none"):
        facts.find_sdks()
    for name in ("10.0.9999.0", "10.0.22621.0", "wdf"):
        (tmp_path / "Include" / name / "um" / "windows.h").touch()
    assert facts.find_sdks() == ["10.0.9999.0", "10.0.22621.0"]


def test_what_the_registry_does_not_have_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "read_registry", lambda _: {"LongPathsEnabled": 0})
    assert facts.read_registry_value("SYSTEM\\X", "LongPathsEnabled") == 0
    with pytest.raises(Absent, match=r"not set in HKLM\\SYSTEM\\X"):
        facts.read_registry_value("SYSTEM\\X", "Other")
