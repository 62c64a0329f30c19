"""Environments with torch absent, broken, hanging and for the CPU, asked by a real Python; and files full of garbage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from doctoring import NVCC, make_prefix, put_deepspeed, put_distribution, put_record, put_torch
from dswin import cli, facts, installation, programs, seen, torch_probe
from dswin.errors import BadInput
from dswin.facts import Fact
from dswin.programs import Absent
from dswin.torch_probe import Probe

RECIPE = Path(__file__).parents[2] / "recipe"
VERSION = "{}.{}".format(*sys.version_info)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this machine's programs nor its active environment are looked at."""
    monkeypatch.setattr(
        facts, "collect", lambda *_, **__: [Fact("system", "Linux-6.1.0-x86_64-with-glibc2.36", "a test")]
    )
    for name in ("CONDA_PREFIX", "VIRTUAL_ENV", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return tmp_path / "an environment é"


@pytest.fixture
def site(prefix: Path) -> Path:
    return make_prefix(prefix)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command and return its exit code and its findings by id."""
    code = cli.main(["doctor", "--json", *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    document = json.loads(output.out)
    return code, {finding["id"]: finding for finding in document["findings"]}


def test_without_torch(capsys: pytest.CaptureFixture[str], prefix: Path, site: Path) -> None:
    code, found = ask(capsys, "--prefix", str(prefix))
    assert code == 1
    assert (found["torch"]["status"], found["torch"]["found"]) == ("fail", "torch is not installed")
    assert (found["deepspeed"]["status"], found["deepspeed"]["found"]) == ("fail", "deepspeed is not installed")
    assert found["python"]["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "says", "fix"),
    [
        (
            "raise ImportError('libx.so.12: cannot open shared object file')",
            "ImportError: libx.so.12",
            "LD_LIBRARY_PATH",
        ),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('the last') from e",
            "ZeroDivisionError: division by zero",
            "fresh environment",
        ),
        ("raise OSError('[WinError 126] The specified module could not be found')", "WinError 126", "Visual C++"),
        ("import numpy_that_is_not_there", "No module named 'numpy_that_is_not_there'", "NumPy"),
        ("import sys; sys.exit('gone')", "SystemExit: gone", "fresh environment"),
        ("def zeros(", "SyntaxError", "fresh environment"),
        ("import os; os.abort()", "crashed: SIGABRT" if os.name == "posix" else "ended with code", "fresh environment"),
        ("import os; os._exit(7)", "ended with code 7", "fresh environment"),
        ("import os; os._exit(0)", "ended with code 0", "fresh environment"),
    ],
)
def test_a_broken_torch_is_named_by_its_first_cause(
    capsys: pytest.CaptureFixture[str], prefix: Path, site: Path, code: str, says: str, fix: str
) -> None:
    put_torch(site, code=code)
    exit_code, found = ask(capsys, "--prefix", str(prefix))
    assert exit_code == 1
    assert found["torch"]["status"] == "fail"
    assert says in found["torch"]["found"]
    assert fix in found["torch"]["fix"]
    assert "\n" not in found["torch"]["found"]


def test_a_torch_that_hangs(
    capsys: pytest.CaptureFixture[str], prefix: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_probe, "TIMEOUT", 3)
    put_torch(site, code="import time; time.sleep(600)")
    _, found = ask(capsys, "--prefix", str(prefix))
    assert found["torch"]["status"] == "fail"
    assert "no answer in 3 s" in found["torch"]["found"]


def test_a_cpu_torch_under_the_package_for_cuda(capsys: pytest.CaptureFixture[str], prefix: Path, site: Path) -> None:
    put_torch(site)
    put_deepspeed(site, "2.5", "12.1", "cuda")
    code, found = ask(capsys, "--prefix", str(prefix))
    assert code == 1
    assert found["torch"]["status"] == "ok"
    assert (found["torch_build"]["status"], found["gpu_seen"]["status"]) == ("fail", "fail")
    assert "torch 2.5.1+cpu, for the CPU: a build without CUDA" in found["torch_build"]["found"]
    assert "numpy is not installed" in found["requirements"]["found"]


def test_a_torch_minor_that_changed(capsys: pytest.CaptureFixture[str], prefix: Path, site: Path) -> None:
    put_torch(site, "2.6.0+cpu")
    put_deepspeed(site, "2.5")
    put_distribution(site, "numpy", "2.1.3")
    put_distribution(site, "setuptools", "80.0.0")
    code, found = ask(capsys, "--prefix", str(prefix))
    assert (code, found["torch_build"]["status"]) == (1, "fail")
    assert [one["id"] for one in found.values() if one["status"] == "fail"] == ["torch_build"]


def test_a_torch_in_pythonpath_comes_first(
    capsys: pytest.CaptureFixture[str], prefix: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_torch(site)
    other = tmp_path / "other"
    other.mkdir()
    put_torch(other, "2.7.0+cpu")
    monkeypatch.setenv("PYTHONPATH", str(other))
    _, found = ask(capsys, "--prefix", str(prefix))
    assert found["copies"]["status"] == "fail"
    assert f"torch 2.7.0+cpu (pip) in {other} and torch 2.5.1+cpu (pip) in {site}" in found["copies"]["found"]
    assert "PYTHONPATH" in found["copies"]["fix"]


def test_pip_over_ours(capsys: pytest.CaptureFixture[str], prefix: Path, site: Path) -> None:
    put_torch(site)
    put_deepspeed(site)
    (site / "deepspeed" / "ops").mkdir()
    (site / "deepspeed" / "ops" / "cpu_adam_op.so").write_bytes(b"the package's")
    put_record(prefix, site)
    _, found = ask(capsys, "--prefix", str(prefix))
    assert found["files"]["status"] == "ok"
    (site / "deepspeed" / "ops" / "cpu_adam_op.so").write_bytes(b"another one's")
    (site / "deepspeed-0.19.8.dist-info" / "INSTALLER").unlink()
    code, found = ask(capsys, "--prefix", str(prefix))
    assert (code, found["files"]["status"]) == (1, "fail")
    assert "deepspeed/ops/cpu_adam_op.so" in found["files"]["found"]
    assert "INSTALLER (No such file or directory)" in found["files"]["found"]
    assert f"-c OURCHANNEL deepspeed-win=0.19.8=cpu_py311_0" in found["files"]["command"]  # noqa: F541


def test_an_egg_info_of_the_pytorch_channel(site: Path) -> None:
    (site / "torch-2.5.1-py3.11.egg-info").mkdir()
    (site / "Jinja2-3.1.4.dist-info").mkdir()
    (site / "no_version.dist-info").mkdir()
    packages = [(one.name, one.version) for one in installation.list_packages(site, [])]
    assert packages == [("jinja2", "3.1.4"), ("torch", "2.5.1")]


# Which environment


def test_the_active_environment_is_looked_at(
    capsys: pytest.CaptureFixture[str], prefix: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(prefix))
    python = installation.find_python(prefix, windows=os.name == "nt")
    assert python is not None
    monkeypatch.setenv("PATH", os.pathsep.join([str(python.parent), os.environ["PATH"]]))
    _, found = ask(capsys)
    assert found["active"]["status"] == "ok"
    assert str(prefix) in found["python"]["found"]


def test_forgotten_activate(
    capsys: pytest.CaptureFixture[str], prefix: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    make_prefix(other)
    (prefix / "conda-meta").mkdir()
    monkeypatch.setenv("CONDA_PREFIX", str(prefix))
    monkeypatch.setenv("PATH", str(installation.find_python(other, windows=os.name == "nt").parent))
    code, found = ask(capsys)
    assert (code, found["active"]["status"]) == (1, "fail")
    assert found["active"]["command"] == f'conda activate "{prefix}"'
    assert str(other) in found["active"]["found"]


def test_an_environment_that_conda_knows_is_named(
    capsys: pytest.CaptureFixture[str], prefix: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_deepspeed(site)
    put_record(prefix, site)
    home = tmp_path / "home"
    (home / ".conda").mkdir(parents=True)
    (home / ".conda" / "environments.txt").write_text(f"{tmp_path / 'gone'}\r\n{prefix}\r\n\r\n", encoding="utf-8")
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, found = ask(capsys)
    assert (code, found["active"]["status"]) == (1, "fail")
    assert "no Python is on PATH" in found["active"]["found"]
    assert found["active"]["command"] == f'conda activate "{prefix}"'


def test_an_environment_that_is_gone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "gone"))
    code, found = ask(capsys)
    assert (code, found["active"]["status"]) == (1, "fail")
    assert "gone, which has no Python" in found["active"]["found"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prefix", "no-such-folder"],
        ["--prefix", "."],
        ["--python", "no-such-python"],
        ["--for", "sale"],
        ["--variant", "rocm"],
        ["--prefix", ".", "--python", "x"],
    ],
    ids=" ".join,
)
def test_bad_input_is_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch_probe, "ask", lambda *_: Probe())
    assert cli.main(["doctor", *arguments]) == 2
    output = capsys.readouterr()
    assert output.err.strip()
    assert output.out == ""


def test_a_link_to_a_python_is_followed_by_python_itself(tmp_path: Path, prefix: Path, site: Path) -> None:
    python = installation.find_python(prefix, windows=os.name == "nt")
    found = seen.look("run", "linux-64", RECIPE, tmp_path, python=python)
    assert (found.installation.prefix, found.installation.origin) == (str(prefix), "--python")
    assert str(site) in [str(one) for one in installation.list_sites(prefix, found.installation.probe)]


def test_the_recipe_says_what_a_variant_needs() -> None:
    needs, problem = seen.read_needs(RECIPE, "win-64", "cuda121", must=True)
    assert needs is not None
    assert (needs.torch, needs.cuda, needs.glibc, problem) == ("2.5", "12.1", "", "")
    assert needs.pythons == ("3.10", "3.11", "3.12")
    assert needs.archs.sass == ("7.5", "8.0", "8.6", "8.9", "9.0")
    assert needs.archs.ptx == ("9.0",)
    linux, _ = seen.read_needs(RECIPE, "linux-64", "cuda130", must=True)
    assert linux is not None
    assert (linux.torch, linux.cuda, linux.glibc, linux.channels) == ("2.10", "13.0", "2.28", ("conda-forge",))
    cpu, _ = seen.read_needs(RECIPE, "linux-64", "cpu", must=True)
    assert cpu is not None
    assert (cpu.torch, cpu.cuda, cpu.archs.sass) == ("2.13", "", ())
    assert seen.read_needs(RECIPE, "linux-64", "cuda124", must=False) == (None, "the recipe has no variant cuda124")
    with pytest.raises(BadInput, match="'cuda124'"):
        seen.read_needs(RECIPE, "linux-64", "cuda124", must=True)


def test_toolkits_are_asked_where_variables_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(program: str, *_: str) -> tuple[int, str]:
        if "none" in program:
            raise Absent("it does not start")
        return 0, NVCC.format("12.1")

    monkeypatch.setattr(programs, "run", run)
    variables = {"CUDA_HOME": str(tmp_path / "none"), "CUDA_PATH": str(tmp_path)}
    found = [one for one in seen.find_toolkits("linux-64", variables) if one.origin in variables]
    assert [(one.folder, one.nvcc) for one in found] == [(str(tmp_path / "none"), ""), (str(tmp_path), "12.1.105")]


def test_dswin_itself_as_a_user_starts_it(prefix: Path, site: Path) -> None:
    """With this machine's own programs and variables, in a process of its own."""
    put_torch(site)
    command = [sys.executable, "-m", "dswin", "doctor", "--prefix", str(prefix)]
    variables = {**os.environ, "PYTHONPATH": str(RECIPE.parent / "scripts"), "COLUMNS": "60", "PYTHONUTF8": "1"}
    done = subprocess.run(command, capture_output=True, check=False, env=variables, timeout=120, encoding="utf-8")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "deepspeed is not installed" in " ".join(done.stdout.split())
    assert "README.md#troubleshooting" in done.stdout


def test_a_console_that_cannot_show_a_letter(prefix: Path, site: Path) -> None:
    """A Greek one, and an accent of French."""
    command = [sys.executable, "-m", "dswin", "doctor", "--prefix", str(prefix)]
    variables = {
        **os.environ,
        "PYTHONPATH": str(RECIPE.parent / "scripts"),
        "PYTHONIOENCODING": "cp1253",
        "PYTHONUTF8": "0",
    }
    done = subprocess.run(command, capture_output=True, check=False, env=variables, timeout=120, encoding="cp1253")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert r"an environment \xe9" in done.stdout


def test_facts_that_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real one
    names = {look.name for look in facts.list_looks(tmp_path)}
    assert {"channels", "torch", "system"} <= names
    assert [fact.name for fact in facts.collect(tmp_path, without=names - {"system"})] == ["system"]
