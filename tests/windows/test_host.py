"""Windows programs on this machine: what runs here is Microsoft's compiler and a Windows Python, under Wine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dswin.errors import BadInput, CheckFailed
from dswin.wine import Host, download_wheels, install_wheels, make_python

ACCESS_VIOLATION = -1073741819  # 0xC0000005


@pytest.fixture(scope="module", autouse=True)
def nothing_runs_afterwards(wine_cache: Path) -> Iterator[None]:
    """Made before the host is opened, and so asked after it is closed."""
    yield
    assert list_running(wine_cache / "prefix") == []


def list_running(prefix: Path, what: str = "cmdline") -> list[str]:
    """The command lines, or something else that Linux knows, of all processes of the prefix, wineserver's too."""
    mark = f"WINEPREFIX={prefix.absolute()}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / what).read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return found


def test_the_layout_of_memory_is_fixed_where_that_is_allowed(host: Host) -> None:
    """By a bit of each process (ADDR_NO_RANDOMIZE), which programs that Windows programs start have as well."""
    with ThreadPoolExecutor() as pool:
        running = pool.submit(host.run, ["cmd", "/c", "ping -n 60 127.0.0.1"])
        try:
            while not any("ping" in line and "cmd" not in line for line in list_running(host.prefix)):
                assert not running.done(), running.result()
                time.sleep(0.1)
            found = list_running(host.prefix, "personality")
        finally:
            host.end_programs()
    with pytest.raises(CheckFailed, match="was killed"):
        running.result()
    assert len(found) > 5
    assert set(found) == {"00040000" if host.wine.before else "00000000"}


@pytest.mark.parametrize("code", [0, 7, 255, 256, -1, ACCESS_VIOLATION])
def test_exit_codes_arrive_whole(host: Host, code: int) -> None:
    assert host.run(["cmd", "/c", f"exit {code}"]).code == code


def test_a_program_that_is_not_there(host: Host) -> None:
    with pytest.raises(BadInput, match="cannot start no-such-program: it is not found"):
        host.run(["no-such-program"])


def test_a_failure_is_raised_with_its_output(host: Host) -> None:
    with pytest.raises(CheckFailed, match="ended with exit code 3") as caught:
        host.check(["cmd", "/c", "echo the reason & exit 3"])
    assert "the reason" in caught.value.log


def test_batch_guards_work_as_on_windows(host: Host, tmp_path: Path) -> None:
    script = tmp_path / "guard.bat"
    script.write_text("@echo off\r\ncd C:\\windows || exit /b 5\r\ncd C:\\nowhere 2>nul || exit /b 6\r\n")
    assert host.run(["cmd", "/c", script]).code == 6


def test_cxx17_with_openmp_in_a_folder_with_a_space_and_an_accent(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "a folder é"
    folder.mkdir()
    (folder / "sum.cpp").write_text(
        "#include <cstdio>\n#include <omp.h>\n#include <optional>\n"
        "int main() {\n  std::optional<long> sum = 0; long total = 0;\n"
        "#pragma omp parallel for reduction(+ : total) num_threads(2)\n"
        "  for (int i = 1; i <= 1000; i++) total += i;\n"
        '  sum = total; std::printf("%ld %d\\n", *sum, omp_get_max_threads() > 0);\n}\n'
    )
    host.check(["cl", "/nologo", "/std:c++17", "/O2", "/EHsc", "/openmp", "sum.cpp"], cwd=folder, timeout=300)
    assert host.check([folder / "sum.exe"]) == "500500 1\n"


def test_a_crash_is_a_negative_number_and_comes_at_once(host: Host, tmp_path: Path) -> None:
    (tmp_path / "crash.c").write_text("int main(void) { *(volatile int *)0 = 1; return 0; }\n")
    host.check(["cl", "/nologo", "crash.c"], cwd=tmp_path, timeout=300)
    assert host.run([tmp_path / "crash.exe"], timeout=60).code == ACCESS_VIOLATION


def test_output_goes_to_a_log_while_it_comes(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    seen = []
    watch = threading.Timer(3, lambda: seen.append(log.read_text()))
    watch.start()
    done = host.run(["cmd", "/c", "echo first & ping -n 8 127.0.0.1 >nul & echo last"], log=log)
    watch.join()
    assert seen[0].split() == ["before", "first"]
    assert done.output.split() == ["first", "last"]
    assert log.read_text() == f"before\n{done.output}"


def test_only_the_variables_that_are_given_arrive(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSWIN_OUTSIDE", "1")
    text = host.check(["cmd", "/c", "set"], env={"DSWIN_INSIDE": "a b é"})
    variables = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert "DSWIN_INSIDE" in variables
    assert "DSWIN_OUTSIDE" not in variables
    assert "/usr/bin" not in variables["PATH"]
    assert variables["PATH"].startswith(host.to_windows(host.msvc.programs[0]))


def test_a_service_that_a_program_wants_keeps_no_pipe_open(host: Host, python: Path) -> None:
    """py-cpuinfo, and so every DeepSpeed optimizer on the CPU, asks wmic and reads its output to the end."""
    code = "import subprocess; print(subprocess.run(['wmic', 'os', 'get', 'Version'], capture_output=True).returncode)"
    assert host.check([python, "-c", code], timeout=60) == "0\n"


def test_a_timeout_ends_the_whole_tree(host: Host, python: Path, tmp_path: Path) -> None:
    late = tmp_path / "late"
    child = f"import time; time.sleep(8); open({host.to_windows(late)!r}, 'w')"
    parent = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}], creationflags=0x200)\n"
        "print('started', flush=True); time.sleep(60)"
    )
    begin = time.monotonic()
    with pytest.raises(CheckFailed, match="did not end within 5 s") as caught:
        host.run([python, "-c", parent], timeout=5)
    assert caught.value.log == "started"
    assert time.monotonic() - begin < 50
    assert list_running(host.prefix) == []
    time.sleep(5)
    assert not late.exists()
    assert host.check(["cmd", "/c", "echo works again"]) == "works again\n"


def test_ctrl_c_ends_the_whole_tree(host: Host) -> None:
    threading.Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        host.run(["cmd", "/c", "ping -n 60 127.0.0.1"])
    assert list_running(host.prefix) == []


def test_a_program_that_leaves_another_one_behind_does_not_hang(host: Host) -> None:
    begin = time.monotonic()
    assert "ready" in host.check(["cmd", "/c", "start /b ping -n 60 127.0.0.1 & echo ready"], timeout=60)
    assert time.monotonic() - begin < 55


def test_paths_are_the_same_on_both_sides(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "a b é"
    folder.mkdir()
    text = host.check(["cmd", "/c", "cd"], cwd=host.prefix / "drive_c" / "windows")
    assert host.to_linux(text.strip()) == host.prefix / "drive_c" / "windows"
    (folder / "one.txt").write_text("hello")
    host.check(["cmd", "/c", "copy", folder / "one.txt", folder / "two é.txt"])
    assert (folder / "two é.txt").read_text() == "hello"


def test_python_and_its_pip(host: Host, python: Path, tmp_path: Path) -> None:
    program = "import sys, ctypes, bz2, lzma, zlib, decimal, asyncio, multiprocessing; print(sys.platform, 'é', 2**70)"
    assert host.check([python, "-c", program]) == "win32 é 1180591620717411303424\n"
    assert host.check([python, "-m", "pip", "--version"]).startswith("pip ")
    assert host.check([python.parent / "Scripts" / "pip.exe", "--version"]).startswith("pip ")
    assert host.run([python, "-c", "import sys; sys.exit(9)"]).code == 9
    assert host.run([python, "-c", "import ctypes; ctypes.string_at(0)"]).code != 0


def test_python_is_made_once(host: Host, python: Path, wine_cache: Path) -> None:
    assert make_python(host, wine_cache, pytest.fail) == python.parent


def test_setuptools_builds_an_extension(host: Host, python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "an extension é"
    folder.mkdir()
    (folder / "tiny.cpp").write_text(
        "#include <Python.h>\n#include <string>\n"
        "static PyObject *hello(PyObject *, PyObject *) "
        '{ return PyUnicode_FromString((std::string("hel") + "lo").c_str()); }\n'
        'static PyMethodDef methods[] = {{"hello", hello, METH_NOARGS, ""}, {}};\n'
        'static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", "", -1, methods};\n'
        "PyMODINIT_FUNC PyInit_tiny() { return PyModule_Create(&module); }\n"
    )
    (folder / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "setup(name='tiny', version='1', ext_modules=[Extension('tiny', ['tiny.cpp'])])\n"
    )
    host.check([python, "setup.py", "-q", "bdist_wheel"], cwd=folder, timeout=600)
    install_wheels(host, python.parent, folder / "dist", ["tiny"], target=tmp_path / "site")
    environment = {"PYTHONPATH": host.to_windows(tmp_path / "site")}
    assert host.check([python, "-c", "import tiny; print(tiny.hello())"], env=environment) == "hello\n"


def test_rattler_build_for_windows_imports(host: Host, python: Path, tmp_path: Path) -> None:
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wanted = ["py-rattler-build==0.73.0", "py-rattler==0.28.0"]
    download_wheels(wanted, "3.11", wheels, deps=True)
    install_wheels(host, python.parent, wheels, wanted, target=site)
    program = "import rattler, rattler_build, os; print(rattler.Platform.current(), flush=True); os._exit(0)"
    environment = {"PYTHONPATH": host.to_windows(site)}
    assert host.check([python, "-c", program], env=environment, timeout=300).strip() == "win-64"
