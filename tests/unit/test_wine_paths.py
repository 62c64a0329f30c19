from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dswin.errors import BadInput
from dswin.wine.paths import to_linux, to_windows

DRIVES = {"C": Path("/cache/prefix/drive_c"), "Z": Path("/")}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "Z:\\"),
        ("/opt/a b/é/x.txt", "Z:\\opt\\a b\\é\\x.txt"),
        ("/opt/a/../b", "Z:\\opt\\b"),
        ("/cache/prefix/drive_c", "C:\\"),
        ("/cache/prefix/drive_c/windows/system32", "C:\\windows\\system32"),
        ("/cache/prefix/drive_cc", "Z:\\cache\\prefix\\drive_cc"),
    ],
)
def test_to_windows_takes_the_nearest_drive(path: str, name: str) -> None:
    assert to_windows(Path(path), DRIVES) == name


def test_a_relative_path_is_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert to_windows(Path("a/b"), DRIVES) == "Z:" + str(tmp_path / "a" / "b").replace("/", "\\")


@pytest.mark.parametrize("name", ["a:b", "a\\b", "what?", 'a"b', "a<b", "a|b", "a*", "end ", "end.", "line\nbreak"])
def test_names_that_windows_does_not_allow_are_refused(name: str) -> None:
    for path in (Path("/tmp") / name, Path("/tmp") / name / "file"):
        with pytest.raises(BadInput, match="cannot be named on Windows"):
            to_windows(path, DRIVES)


def test_a_path_that_no_drive_holds_is_refused() -> None:
    with pytest.raises(BadInput, match="No drive holds"):
        to_windows(Path("/etc"), {"C": Path("/cache")})


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("Z:\\opt\\a b\\é", "/opt/a b/é"),
        ("z:/opt/a", "/opt/a"),
        ("C:\\windows", "/cache/prefix/drive_c/windows"),
        ("\\\\?\\C:\\windows", "/cache/prefix/drive_c/windows"),
        ("C:\\a\\.\\b\\..\\c", "/cache/prefix/drive_c/a/c"),
        ("a\\b", "a/b"),
        ("Z:\\", "/"),
    ],
)
def test_to_linux(name: str, path: str) -> None:
    assert to_linux(name, DRIVES) == Path(path)


@pytest.mark.parametrize("name", ["\\\\server\\share\\x", "//server/share", "\\\\?\\UNC\\server\\share"])
def test_network_paths_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="network path"):
        to_linux(name, DRIVES)


@pytest.mark.parametrize("name", ["\\windows", "C:file", "C:"])
def test_paths_that_depend_on_a_current_drive_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="depends on"):
        to_linux(name, DRIVES)


def test_an_unknown_drive_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="not there") as caught:
        to_linux("D:\\x", DRIVES)
    assert "C, Z" in caught.value.fix


def test_to_linux_finds_a_name_in_another_case(tmp_path: Path) -> None:
    file = tmp_path / "Program Files" / "Tool.EXE"
    file.parent.mkdir()
    file.touch()
    drives = {"C": tmp_path}
    assert to_linux("c:\\PROGRAM FILES\\tool.exe", drives) == file
    assert to_linux("C:\\program files\\New", drives) == file.parent / "New"


@given(st.lists(st.text("abcXYZ09 é-_.", min_size=1).filter(lambda name: name[-1] not in " ."), min_size=1))
def test_there_and_back_again(parts: list[str]) -> None:
    path = Path("/nowhere", *parts)
    assert to_linux(to_windows(path, DRIVES), DRIVES) == path
