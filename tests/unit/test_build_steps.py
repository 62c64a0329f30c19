"""The parts of `dswin build` that need no compiler; tests/build has the whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dswin import build, channel, job, machine, rehearsal
from dswin.errors import BadInput, CheckFailed, MachineLacks
from dswin.machine import Here

RECIPE = Path(__file__).parents[2] / "recipe"
CPU = build.Variant({"ds_variant": "cpu", "python": "3.11"}, "cpu_py311_0")
CUDA = build.Variant({"ds_variant": "cuda121", "python": "3.11"}, "cuda121_py311_0")


def test_a_variant_is_chosen_by_its_words() -> None:
    assert build.choose(RECIPE, "linux-64", "cpu", "3.11") == CPU
    assert build.choose(RECIPE, "win-64", "cuda121", "3.10").build_string == "cuda121_py310_0"
    assert CUDA.accelerator == "cuda"
    assert CPU.accelerator == "cpu"


@pytest.mark.parametrize(("variant", "python", "named"), [("rocm", "3.11", "'rocm'"), ("cpu", "3.9", "Python 3.9")])
def test_a_variant_that_is_not_there_is_bad_input(variant: str, python: str, named: str) -> None:
    with pytest.raises(BadInput, match=named) as caught:
        build.choose(RECIPE, "win-64", variant, python)
    assert caught.value.fix == "Variants: cpu, cuda121, cuda130. Pythons: 3.10, 3.11, 3.12."


@pytest.mark.parametrize(
    ("platform", "variant", "torch"),
    [
        ("win-64", "cuda121", "2.5"),
        ("win-64", "cuda130", "2.10"),
        ("win-64", "cpu", "2.5"),
        ("linux-64", "cpu", "2.13"),
    ],
)
def test_torch_is_read_from_the_recipe(platform: str, variant: str, torch: str) -> None:
    assert build.torch_of(RECIPE, platform, variant) == torch


def test_the_next_number_is_one_more_than_the_channel_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.next_number(tmp_path, RECIPE, "linux-64", CPU) == 0
    records = [
        {"version": "0.19.8", "build": "cpu_py311_0"},
        {"version": "0.19.8", "build": "cpu_py311_4"},
        {"version": "0.19.8", "build": "cpu_py312_7"},
        {"version": "0.18.0", "build": "cpu_py311_9"},
        {"version": "0.19.8", "build": "cpu_py311_8", "subdir": "win-64"},
    ]
    records = [{"subdir": "linux-64", **record} for record in records]
    monkeypatch.setattr(channel, "list_packages", lambda *_: records)
    assert build.next_number(tmp_path, RECIPE, "linux-64", CPU) == 5


def test_conda_channels_are_taken_where_they_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_reachable", lambda _: True)
    urls = build.find_deps("auto", tmp_path, RECIPE, "win-64", CUDA, Here(tmp_path), lambda _: None)
    assert [url.rsplit("/", 1)[1] for url in urls] == ["pytorch", "nvidia", "conda-forge"]


def test_without_them_wheels_serve_the_cpu_variant_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_reachable", lambda _: False)
    made: dict[str, str] = {}

    def make_channel(root: Path, **what: object) -> Path:
        made.update({key: str(value) for key, value in what.items()})
        return root / "made"

    monkeypatch.setattr(build.wheelhouse, "make_channel", make_channel)
    said: list[str] = []
    [url] = build.find_deps("auto", tmp_path, RECIPE, "linux-64", CPU, Here(tmp_path), said.append)
    assert url == tmp_path / "deps" / "made"
    assert (made["torch"], made["python"]) == ("2.13", "3.11")
    assert "conda-forge does not answer" in said[0]
    with pytest.raises(MachineLacks, match="CUDA compiler"):
        build.find_deps("auto", tmp_path, RECIPE, "linux-64", CUDA, Here(tmp_path), lambda _: None)
    with pytest.raises(MachineLacks, match="does not answer"):
        build.find_deps("conda", tmp_path, RECIPE, "linux-64", CPU, Here(tmp_path), lambda _: None)


def test_a_full_disk_is_seen_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 2**30})()
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(MachineLacks, match=r"1\.0 GiB free"):
        build.check_space(tmp_path)


LOG = """\
== build: running
building 'deepspeed.ops.adam.cpu_adam_op' extension
  [1/2] c++ -c cpu_adam.cpp
building 'deepspeed.ops.lion.cpu_lion_op' extension
  [1/2] c++ -c csrc/lion/cpu_lion.cpp
  FAILED: csrc/lion/cpu_lion.o
  csrc/lion/cpu_lion.cpp:7:10: fatal error: nothing.h: No such file or directory
  ninja: build stopped: subcommand failed.
  ERROR: Failed building wheel for deepspeed
"""


def test_a_folder_with_a_space_is_refused_before_a_compiler_meets_it(tmp_path: Path) -> None:
    build.check_name(tmp_path)
    with pytest.raises(BadInput, match="has a space in its path") as caught:
        build.check_name(tmp_path / "my models" / ".dswin")
    assert "DSWIN_CACHE" in str(caught.value.fix)


def use_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    program = tmp_path / "worker.py"
    program.write_text(code)
    monkeypatch.setattr(job.worker, "__file__", str(program))


def test_a_failing_op_is_named_with_the_log_that_explains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_worker(tmp_path, monkeypatch, f"import sys\nprint({LOG!r})\nsys.exit(1)\n")
    said: list[str] = []
    with pytest.raises(CheckFailed, match="the op cpu_lion failed") as caught:
        job.run({"do": "build"}, Here(tmp_path), tmp_path / "logs" / "x.log", tmp_path, {}, said.append)
    assert "fatal error: nothing.h" in caught.value.log
    assert str(tmp_path / "logs" / "x.log") in caught.value.fix
    assert said == ["build: running", "compiling cpu_adam", "compiling cpu_lion"]


def test_a_failure_of_something_else_names_no_op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LOG.splitlines()[1] + "\nrattler-build: linking check error\n"
    use_worker(tmp_path, monkeypatch, f"import sys\nprint({log!r})\nsys.exit(1)\n")
    with pytest.raises(CheckFailed, match="The build failed") as caught:
        job.run({"do": "build"}, Here(tmp_path), tmp_path / "x.log", tmp_path, {}, lambda _: None)
    assert "linking check error" in caught.value.log


def test_the_last_words_are_the_failure_and_not_the_script(tmp_path: Path) -> None:
    lines = [
        "%SRC_DIR%>if not defined DS_ACCELERATOR (",
        "    echo ERROR: ds_variant is nothing",
        "exit /b 1",
        ")",
        ":: ---- ERROR: a comment",
        "  LINK : fatal error LNK1181: cannot open input file 'aio.lib'",
        "%SRC_DIR%>call jobs.bat",
        *["  copying a file"] * 60,
        "  x.obj : error LNK2019: unresolved external symbol f",
        "ERROR: Failed building wheel for deepspeed",
    ]
    words = job.find_last_words(lines)
    assert "error LNK2019" in words[12]
    assert not [line for line in words if "ds_variant" in line or "a comment" in line or "aio" in line]


def test_the_builder_sees_the_recipe_without_what_python_leaves_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It packs all that lies there: a doctor or a test that ran before would change the package's bytes."""
    recipe, work, sdist = tmp_path / "recipe", tmp_path / "work", tmp_path / "another folder" / "deepspeed-1.tar.gz"
    for file in (
        recipe / "recipe.yaml",
        recipe / "tests/__pycache__/train.pyc",
        recipe / "__pycache__/jobs.pyc",
        sdist,
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    seen: list[str] = []

    def run(what: dict, machine: Here, log: Path, cache: Path, environment: dict[str, str], _: object) -> dict:
        folder = Path(what["recipe"])
        seen.extend(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        assert (folder / environment["DEEPSPEED_SDIST"]).read_text() == "x"
        assert not Path(environment["DEEPSPEED_SDIST"]).is_absolute()
        wheel = work / "bld/a/work/dist/x.whl"
        wheel.parent.mkdir(parents=True)
        wheel.touch()
        return {"package": "x.conda"}

    monkeypatch.setattr(job, "run", run)
    work.mkdir()
    build.compile_package(recipe, sdist, "linux-64", CPU, [], Here(tmp_path), work, tmp_path, {}, lambda _: None)
    assert seen == ["recipe.yaml"]


def test_a_disk_that_fills_up_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_worker(tmp_path, monkeypatch, "import sys\nprint('cc1plus: No space left on device')\nsys.exit(1)\n")
    with pytest.raises(MachineLacks, match="disk is full"):
        job.run({"do": "build"}, Here(tmp_path), tmp_path / "x.log", tmp_path, {}, lambda _: None)


def test_ctrl_c_ends_the_compilers_too(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "pathlib.Path(sys.argv[1]).with_name('child').write_text(str(child.pid))\n"
        "pathlib.Path(sys.argv[0]).with_name('pid').write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    code = (
        "import sys; from pathlib import Path; from dswin import job, machine, worker\n"
        f"worker.__file__ = {str(tmp_path / 'worker.py')!r}\n"
        f"cache = Path({str(tmp_path)!r})\n"
        "job.run({'do': 'build'}, machine.Here(cache), cache / 'x.log', cache, {}, print)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 120
    while not pid.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)
    child = int(pid.read_text())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert b"KeyboardInterrupt" in said
    deadline = time.monotonic() + 60
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has waited for is gone for our purpose.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_rehearsal_asks_for_archs_as_torch_does() -> None:
    wanted = rehearsal.list_archs("7.5;8.6;9.0+PTX")
    assert (wanted.sass, wanted.ptx) == (("7.5", "8.6", "9.0"), ("9.0",))
    assert str(wanted) == "7.5 8.6 9.0+PTX"
    assert build.read_archs(RECIPE, "win-64", "cuda130") == "7.5;8.0;8.6;8.9;9.0;10.0;12.0+PTX"


def test_only_a_cuda_variant_is_rehearsed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be rehearsed"):
        rehearsal.rehearse(RECIPE, tmp_path, variant="cpu", python="3.11")


def test_a_windows_build_without_a_compiler_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSWIN_MSVC", raising=False)
    with pytest.raises(MachineLacks, match="No MSVC tree is named") as caught:
        build.build(RECIPE, tmp_path / "out", tmp_path / "cache", platform="win-64", variant="cpu", python="3.11")
    assert "DSWIN_MSVC" in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_the_compiler_cache_of_windows_stands_in_front_of_cl(tmp_path: Path) -> None:
    program = tmp_path / "ccache.exe"
    program.write_bytes(b"MZ")
    folder = tmp_path / "bin"
    folder.mkdir()
    machine.put_windows_cache(program, folder)
    assert {file.name for file in folder.iterdir()} == {"cl.exe", "ccache.exe", "dswin-compiler-cache.bat", "nvcc.bat"}
    lines = (folder / "dswin-compiler-cache.bat").read_bytes().decode().split("\r\n")
    assert lines.index('@set "DSWIN_COMPILERS=%PATH%"') < lines.index('@set "PATH=%~dp0;%PATH%"')
    assert '@set "CCACHE_DEPEND=1"' in lines
    assert '@set PYTORCH_NVCC="%~dp0nvcc.bat"' in lines
    nvcc = (folder / "nvcc.bat").read_bytes().decode().split("\r\n")
    assert nvcc[-2:] == ['@"%~dp0ccache.exe" "%CUDA_HOME%\\bin\\nvcc.exe" %*', ""]
    assert '@set "PATH=%DSWIN_COMPILERS%"' in nvcc
