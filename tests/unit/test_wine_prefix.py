from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from dswin.errors import BadInput, MachineLacks
from dswin.wine import apt, launcher, prefix
from dswin.wine import python as windows_python
from dswin.wine.msvc import Msvc

WINE = prefix.Wine(Path("/usr/lib/wine/wine64"), Path("/usr/lib/wine/wineserver64"), "wine-8.0 (Debian 8.0~repack-4)")


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one folder, and no other place that Wine is looked for in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(prefix, "_WINE_FOLDERS", ())
    return folder


def test_no_wine(empty_machine: Path) -> None:
    with pytest.raises(MachineLacks, match="no Wine") as caught:
        prefix.find_wine()
    assert "apt-get install wine64" in caught.value.fix


def test_a_wine_that_is_too_old_or_does_not_run(empty_machine: Path) -> None:
    write_program(empty_machine / "wineserver", "exit 0")
    write_program(empty_machine / "wine", "echo wine-6.0.3")
    with pytest.raises(MachineLacks, match=r"wine-6\.0\.3, not Wine 8 or newer"):
        prefix.find_wine()
    write_program(empty_machine / "wine", "echo cannot open display >&2; exit 1")
    with pytest.raises(MachineLacks, match="it is nothing") as caught:
        prefix.find_wine()
    assert caught.value.log == "cannot open display"


def test_the_64_bit_program_is_preferred(empty_machine: Path) -> None:
    write_program(empty_machine / "wineserver", "exit 0")
    for name in ("wine", "wine64"):
        write_program(empty_machine / name, f"echo 'wine-10.0 ({name})'")
    found = prefix.find_wine()
    assert (found.program.name, found.server.name, found.major) == ("wine64", "wineserver", 10)


@pytest.mark.parametrize(("allowed", "before"), [(True, ["setarch", "-R"]), (False, []), (None, [])])
def test_the_layout_of_memory_is_fixed_where_that_is_allowed(
    empty_machine: Path, allowed: bool | None, before: list[str]
) -> None:
    write_program(empty_machine / "wineserver", "exit 0")
    write_program(empty_machine / "wine64", "echo wine-8.0")
    if allowed is not None:
        write_program(empty_machine / "setarch", f"exit {0 if allowed else 1}")
    command = prefix.find_wine().command
    assert [word.removeprefix(f"{empty_machine}/") for word in command] == [*before, "wine64"]


def test_environment_holds_msvc_and_nothing_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/linux/only")
    root = Path("/opt/ms vc")
    msvc = Msvc(root, "14.44.1", "10.0.1.0", (root / "bin", root / "sdk"), (root / "include",), (root / "lib",))
    made = prefix.write_environment(WINE, Path("/cache/prefix"), msvc)
    assert "PYTHONPATH" not in made
    assert made["WINEPATH"] == "Z:\\opt\\ms vc\\bin;Z:\\opt\\ms vc\\sdk"
    assert made["INCLUDE"] == "Z:\\opt\\ms vc\\include"
    assert made["LIB"] == "Z:\\opt\\ms vc\\lib"
    assert made["WINEPREFIX"] == "/cache/prefix"
    assert "cmd.exe=n,b" in made["WINEDLLOVERRIDES"].split(";")


def test_a_prefix_is_made_again_when_wine_or_a_part_changes(tmp_path: Path) -> None:
    part = tmp_path / "cmd.exe"
    part.write_bytes(b"one")
    inputs = prefix.describe(WINE, {"cmd.exe": part}, "source")
    assert not prefix.is_made(tmp_path, inputs)
    prefix.mark_made(tmp_path, inputs)
    assert prefix.is_made(tmp_path, prefix.describe(WINE, {"cmd.exe": part}, "source"))
    newer = prefix.Wine(WINE.program, WINE.server, "wine-9.0")
    assert not prefix.is_made(tmp_path, prefix.describe(newer, {"cmd.exe": part}, "source"))
    assert not prefix.is_made(tmp_path, prefix.describe(WINE, {"cmd.exe": part}, "another source"))
    part.write_bytes(b"two")
    assert not prefix.is_made(tmp_path, prefix.describe(WINE, {"cmd.exe": part}, "source"))
    (tmp_path / "made-from.json").write_text("{")
    assert not prefix.is_made(tmp_path, inputs)


def test_wine_10_needs_no_parts(tmp_path: Path) -> None:
    assert prefix.fetch_parts(prefix.Wine(WINE.program, WINE.server, "wine-10.0"), tmp_path, pytest.fail) == {}


def test_parts_that_are_there_are_not_fetched(tmp_path: Path) -> None:
    for name in ("cmd.exe", "bcryptprimitives.dll"):
        (tmp_path / name).touch()
    assert set(prefix.fetch_parts(WINE, tmp_path, pytest.fail)) == {"cmd.exe", "bcryptprimitives.dll"}


def test_parts_where_apt_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt.platform, "freedesktop_os_release", lambda: {"ID": "fedora", "PRETTY_NAME": "Fedora 42"})
    with pytest.raises(MachineLacks, match=r"too old by itself\. Fedora 42 is not a Debian with apt") as caught:
        prefix.fetch_parts(WINE, tmp_path / "parts", lambda _: None)
    assert "Wine 10 or newer" in caught.value.fix


def write_package(path: Path, members: dict[str, bytes]) -> Path:
    """A Debian package with these files, made by dpkg-deb's own format: an ar archive of three members."""
    tars = []
    for files in ({"control": b"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"}, members):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(f"./{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        tars.append(buffer.getvalue())
    parts = zip(("debian-binary", "control.tar", "data.tar"), (b"2.0\n", *tars), strict=True)
    data = b"!<arch>\n"
    for name, content in parts:
        data += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        data += b"\n" * (len(content) % 2)
    path.write_bytes(data)
    return path


def test_parts_are_read_from_a_package(tmp_path: Path) -> None:
    if not Path("/usr/bin/dpkg-deb").is_file():
        pytest.skip("no dpkg-deb")
    folder = "usr/lib/x86_64-linux-gnu/wine"
    files = {f"{folder}/x86_64-windows/cmd.exe": b"64", f"{folder}/i386-windows/cmd.exe": b"32"}
    package = write_package(tmp_path / "libwine.deb", files)
    assert prefix.read_package(package, ("cmd.exe",)) == {"cmd.exe": b"64"}
    with pytest.raises(MachineLacks, match=r"holds no bcryptprimitives\.dll"):
        prefix.read_package(package, ("cmd.exe", "bcryptprimitives.dll"))


def test_the_mark_of_wine_is_cleared() -> None:
    content = bytes(range(64)) + b"Wine builtin DLL" + b"rest"
    assert prefix.clear_mark("x.dll", content) == bytes(range(64)) + bytes(16) + b"rest"
    with pytest.raises(MachineLacks, match="not as expected"):
        prefix.clear_mark("x.dll", bytes(200))


def test_mirrors_are_those_of_the_own_release(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "http://mirror/debian/ bookworm\nhttp://mirror/debian/ bookworm\nhttp://mirror/debian/ bookworm-updates\n"
        "http://mirror/debian-security/ bookworm-security\nhttp://other/apt/ nodistro\n"
    )
    monkeypatch.setattr(apt, "_run", lambda command, _: subprocess.CompletedProcess(command, 0, stdout=said))
    monkeypatch.setattr(apt.platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"})
    assert apt.list_mirrors() == ["http://mirror/debian/"]


@pytest.mark.parametrize(("text", "code"), [("0", 0), ("7", 7), ("256", 256), ("3221225477", -1073741819)])
def test_exit_codes_are_signed(tmp_path: Path, text: str, code: int) -> None:
    file = tmp_path / "code"
    file.write_text(text)
    assert launcher.read_code(file, "x") == code


def test_a_launcher_that_wrote_nothing_or_an_error(tmp_path: Path) -> None:
    file = tmp_path / "code"
    assert launcher.read_code(file, "x") is None
    file.write_text("")
    assert launcher.read_code(file, "x") is None
    for number, words in ((2, "it is not found"), (87, "error 87")):
        file.write_text(f"error {number}")
        with pytest.raises(BadInput, match=f"cannot start x: {words}"):
            launcher.read_code(file, "x")


def test_a_python_for_the_host_that_only_says_that_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_python.sys, "version_info", (3, 12, 1))
    shim = write_program(tmp_path / "shims" / "python3.11", "echo not installed >&2; exit 127")
    monkeypatch.setenv("PATH", str(shim.parent))
    with pytest.raises(MachineLacks, match=r"takes a Python 3\.11"):
        windows_python.find_host_python()
    real = write_program(tmp_path / "bin" / "python3.11", "exit 0")
    monkeypatch.setenv("PATH", f"{shim.parent}:{real.parent}")
    assert windows_python.find_host_python() == real
