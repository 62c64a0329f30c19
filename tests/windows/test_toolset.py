"""The toolset gate: a Windows Python runs toolset.py, and bld.bat, with a cl.exe that claims to be another version."""

from __future__ import annotations

from pathlib import Path

import pytest

import bld_bat
from bld_bat import RECIPE
from dswin.wine import Finished, Host

#: Plays cl.exe without arguments: the bytes of STANDIN_BANNER, in hexadecimal, on stderr, and exit code 0.
STAND_IN = r"""
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    unsigned byte;
    if (count != 1) return 99;
    for (const char *at = getenv("STANDIN_BANNER"); sscanf(at, "%2x", &byte) == 1; at += 2) fputc(byte, stderr);
    return 0;
}
"""
ENGLISH = "Microsoft (R) C/C++ Optimizing Compiler Version {} for x64\r\nCopyright (C) Microsoft\r\n"
GERMAN = "Microsoft (R) C/C++-Optimierungscompiler Version {} für x64\r\nAlle Rechte vorbehalten.\r\n"
CHINESE = "用于 x64 的 Microsoft (R) C/C++ 优化编译器 {} 版\r\n版权所有(C) Microsoft Corporation。\r\n"
LANGUAGES = {"English": (ENGLISH, "ascii"), "German": (GERMAN, "cp850"), "Chinese": (CHINESE, "gbk")}

BUILDS = {28: "29913", 29: "30154", 37: "32825", 39: "33523", 40: "33811", 41: "34123", 43: "34810", 44: "35211"}
ACCEPTED = [29, 37, 39]
TOO_NEW = [40, 41, 43, 44]


@pytest.fixture(scope="module")
def stand_in(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cl.exe that is none."""
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "cl.c").write_text(STAND_IN)
    host.check(["cl", "/nologo", "/W3", "/WX", "/D_CRT_SECURE_NO_WARNINGS", "cl.c"], cwd=folder, timeout=300)
    return folder


def play(host: Host, stand_in: Path, minor: int, language: str = "English") -> dict[str, str]:
    """Return the environment in which cl.exe is version 19.minor: the stand-in is first on PATH."""
    text, code_page = LANGUAGES[language]
    banner = text.format(f"19.{minor}.{BUILDS[minor]}").encode(code_page)
    path = f"{host.to_windows(stand_in)};{host.environment['WINEPATH']}"
    return {"WINEPATH": path, "STANDIN_BANNER": banner.hex()}


def judge(host: Host, python: Path, env: dict[str, str], cuda: str) -> Finished:
    return host.run([python, RECIPE / "toolset.py"], env={**env, "cuda_compiler_version": cuda}, timeout=120)


@pytest.mark.parametrize("minor", ACCEPTED)
def test_cuda_12_1_takes_toolsets_up_to_14_39(host: Host, python: Path, stand_in: Path, minor: int) -> None:
    done = judge(host, python, play(host, stand_in, minor), "12.1")
    assert (done.code, done.output) == (0, f"cl.exe 19.{minor} for CUDA 12.1: accepted\n")


@pytest.mark.parametrize("minor", TOO_NEW)
def test_cuda_12_1_refuses_newer_ones_and_names_the_pair(host: Host, python: Path, stand_in: Path, minor: int) -> None:
    done = judge(host, python, play(host, stand_in, minor), "12.1")
    assert done.code == 1
    assert done.output.startswith(f"ERROR: cl.exe 19.{minor} is too new for CUDA 12.1")
    assert "MSVC v143 - VS 2022 C++ x64/x86 build tools (v14.37-17.7)" in done.output
    assert "vs2022_win-64 19.37 in the build environment" in done.output


@pytest.mark.parametrize("cuda", ["13.0", "None"])
@pytest.mark.parametrize("minor", [*ACCEPTED, *TOO_NEW])
def test_other_variants_take_them_all(host: Host, python: Path, stand_in: Path, minor: int, cuda: str) -> None:
    done = judge(host, python, play(host, stand_in, minor), cuda)
    assert (done.code, done.output) == (0, f"cl.exe 19.{minor} for CUDA {cuda}: accepted\n")


@pytest.mark.parametrize("cuda", ["12.1", "13.0", "None"])
def test_a_toolset_that_is_too_old_is_refused(host: Host, python: Path, stand_in: Path, cuda: str) -> None:
    done = judge(host, python, play(host, stand_in, 28), cuda)
    assert done.code == 1
    assert done.output.startswith("ERROR: cl.exe 19.28 is older than 19.29")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_banner_in_another_language_is_understood(host: Host, python: Path, stand_in: Path, language: str) -> None:
    assert judge(host, python, play(host, stand_in, 39, language), "12.1").code == 0
    done = judge(host, python, play(host, stand_in, 44, language), "12.1")
    assert done.code == 1
    assert done.output.startswith("ERROR: cl.exe 19.44 is too new for CUDA 12.1")


def test_the_real_compiler_is_read(host: Host, python: Path) -> None:
    """This one is no stand-in, and its toolset 14.x.y is cl.exe 19.x."""
    minor = host.msvc.toolset.split(".")[1]
    assert judge(host, python, {}, "None").output == f"cl.exe 19.{minor} for CUDA None: accepted\n"


def test_without_a_compiler_there_is_a_message(host: Host, python: Path) -> None:
    done = judge(host, python, {"WINEPATH": host.to_windows(python.parent)}, "12.1")
    assert done.code == 1
    assert done.output.startswith("ERROR: no cl.exe on PATH. Install the C++ build tools of Visual Studio 2022")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_build_ends_before_anything_is_compiled(
    host: Host, python: Path, stand_in: Path, tmp_path: Path, language: str
) -> None:
    tree = bld_bat.make_tree(tmp_path / "a folder é")
    environment = {**play(host, stand_in, 44, language), "cuda_compiler_version": "12.1"}
    done = bld_bat.run(host, tree, python, "cuda121", environment)
    assert done.code == 1
    assert "ERROR: cl.exe 19.44 is too new for CUDA 12.1" in done.output
    assert sorted(path.name for path in tree.work.iterdir()) == ["bld.bat"]
    assert list(tree.prefix.rglob("*.*")) == []


def test_the_build_goes_on_with_a_compiler_that_is_accepted(
    host: Host, python: Path, stand_in: Path, tmp_path: Path
) -> None:
    """It ends at the next step, jobs.py: this Python has no psutil."""
    tree = bld_bat.make_tree(tmp_path / "a folder é")
    environment = {**play(host, stand_in, 39), "cuda_compiler_version": "12.1"}
    done = bld_bat.run(host, tree, python, "cuda121", environment)
    assert done.code == 1
    assert "cl.exe 19.39 for CUDA 12.1: accepted\n" in done.output
    assert "No module named 'psutil'" in done.output
