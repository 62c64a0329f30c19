from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dswin.errors import BadInput, MachineLacks
from dswin.wine import msvc

UNPACK = Path(__file__).parents[2] / "scripts" / "ci" / "unpack_msvc.py"


def write_program(path: Path, machine: int = 0x8664) -> None:
    head = bytearray(256)
    head[:2] = b"MZ"
    struct.pack_into("<I4sH", head, 0x3C, 0x80, b"", 0)
    struct.pack_into("<4sH", head, 0x80, b"PE\0\0", machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head)


def write_tree(root: Path, *toolsets: str, sdk: str = "10.0.26100.0", kit: str = "Windows Kits") -> Path:
    for toolset in toolsets:
        tools = root / "VC" / "Tools" / "MSVC" / toolset
        for name in ("cl", "link", "lib", "dumpbin", "ml64"):
            write_program(tools / "bin" / "Hostx64" / "x64" / f"{name}.exe")
        for file in ("include/vcruntime.h", "lib/x64/msvcrt.lib"):
            (tools / file).parent.mkdir(parents=True)
            (tools / file).touch()
    base = root / kit / "10"
    for name in ("rc", "mt"):
        write_program(base / "bin" / sdk / "x64" / f"{name}.exe")
    for file in ("ucrt/stdio.h", "um/Windows.h", "shared/winerror.h"):
        (base / "Include" / sdk / file).parent.mkdir(parents=True, exist_ok=True)
        (base / "Include" / sdk / file).touch()
    for file in ("ucrt/x64/ucrt.lib", "um/x64/kernel32.Lib"):
        (base / "Lib" / sdk / file).parent.mkdir(parents=True, exist_ok=True)
        (base / "Lib" / sdk / file).touch()
    return root


def test_the_newest_toolset_is_taken(tmp_path: Path) -> None:
    found = msvc.find(write_tree(tmp_path, "14.9.1", "14.44.35207", "14.39.33519"), {})
    assert (found.toolset, found.sdk, found.compiler) == ("14.44.35207", "10.0.26100.0", "19.44")
    assert found.includes[0] == tmp_path / "VC/Tools/MSVC/14.44.35207/include"
    assert found.libraries[-1] == tmp_path / "Windows Kits/10/Lib/10.0.26100.0/um/x64"


def test_a_variable_picks_a_toolset_and_another_names_the_folder(tmp_path: Path) -> None:
    write_tree(tmp_path, "14.44.35207", "14.39.33519", "14.3.1")
    named = {"DSWIN_MSVC": str(tmp_path)}
    assert msvc.find(None, {**named, "DSWIN_MSVC_TOOLSET": "14.39"}).toolset == "14.39.33519"
    assert msvc.find(None, {**named, "DSWIN_MSVC_TOOLSET": "14.3"}).toolset == "14.3.1"
    with pytest.raises(BadInput, match=r"no MSVC toolset 14\.29") as caught:
        msvc.find(None, {**named, "DSWIN_MSVC_TOOLSET": "14.29"})
    assert "14.39.33519" in caught.value.fix


def test_msvc_wine_calls_the_kit_otherwise(tmp_path: Path) -> None:
    assert msvc.find(write_tree(tmp_path, "14.44.1", kit="kits"), {}).sdk == "10.0.26100.0"


def test_without_a_folder_the_message_says_how_to_get_one_and_whose_it_is() -> None:
    with pytest.raises(MachineLacks, match="No MSVC tree") as caught:
        msvc.find(None, {})
    for word in (
        "--msvc",
        "DSWIN_MSVC",
        "Visual Studio 2022",
        "vsdownload.py",
        "portablemsvc",
        "Microsoft's",
        "licence",
    ):
        assert word in caught.value.fix


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no folder"):
        msvc.find(tmp_path / "nowhere", {})


@pytest.mark.parametrize(("part", "what"), [("VC", "no MSVC toolset"), ("Windows Kits", "no Windows SDK")])
def test_a_folder_with_half_of_it(tmp_path: Path, part: str, what: str) -> None:
    write_tree(tmp_path, "14.44.1")
    (tmp_path / part).rename(tmp_path / "elsewhere")
    with pytest.raises(MachineLacks, match=what):
        msvc.find(tmp_path, {})


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path, "14.44.1")
    tools = tmp_path / "VC/Tools/MSVC/14.44.1"
    (tools / "lib/x64/msvcrt.lib").unlink()
    (tmp_path / "Windows Kits/10/Include/10.0.26100.0/um/Windows.h").unlink()
    write_program(tools / "bin/Hostx64/x64/link.exe", machine=0x14C)
    with pytest.raises(MachineLacks, match="lacks 3 of the files") as caught:
        msvc.find(tmp_path, {})
    assert caught.value.log.splitlines() == [
        "VC/Tools/MSVC/14.44.1/bin/Hostx64/x64/link.exe for x64 (it is for another processor)",
        "Windows Kits/10/Include/10.0.26100.0/um/windows.h",
        "VC/Tools/MSVC/14.44.1/lib/x64/msvcrt.lib",
    ]


def test_read_machine_of_what_is_no_program(tmp_path: Path) -> None:
    file = tmp_path / "x.exe"
    for content in (b"", b"MZ", b"#!/bin/sh\n" * 20, b"MZ" + bytes(100)):
        file.write_bytes(content)
        assert msvc.read_machine(file) is None


@pytest.mark.parametrize("consent", ["", "no", "YES"])
def test_ci_unpacks_nothing_without_consent(tmp_path: Path, consent: str) -> None:
    environment = {**os.environ, "DSWIN_ACCEPT_MSVC_LICENSE": consent}
    command = [sys.executable, str(UNPACK), str(tmp_path / "msvc")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Microsoft's" in done.stderr
    assert "DSWIN_ACCEPT_MSVC_LICENSE=yes" in done.stderr
    assert not (tmp_path / "msvc").exists()


def test_ci_unpacks_into_no_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    environment = {**os.environ, "DSWIN_ACCEPT_MSVC_LICENSE": "yes"}
    command = [sys.executable, str(UNPACK), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.txt"]
