"""`dswin doctor` under a Windows Python: what it reads from the registry, from Microsoft's cl, and from environments."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from building import ROOT
from dswin.wine import Host, keep_packages
from dswin.wine.python import MINOR

#: What dswin imports for this command; with the packages that they need.
NEEDS = ("capstone", "click", "click-default-group", "conda-package-streaming", "filelock", "lief", "packaging", "psutil",
         "py-rattler-build", "pyyaml", "rich")  # fmt: skip


@pytest.fixture(scope="module")
def tools(host: Host, python: Path, wine_cache: Path) -> Path:
    """A folder with what dswin imports, for Windows."""
    wanted = [f"{name}=={version(name)}" for name in NEEDS]
    return keep_packages(host, python.parent, wine_cache, "doctor", wanted, print, deps=True)


def ask(
    host: Host, python: Path, tools: Path, *arguments: str | Path, more: tuple[Path, ...] = ()
) -> tuple[int, dict[str, Any]]:
    """Run the command and return its exit code and its findings by id; ``more`` folders come first on Python's path."""
    folders = ";".join(host.to_windows(one) for one in (*more, ROOT / "scripts", tools))
    done = host.run(
        [python, "-m", "dswin", "doctor", "--json", *arguments],
        env={"PYTHONPATH": folders, "PYTHONUTF8": "1"},
        timeout=600,
    )
    assert "Traceback" not in done.output
    document = json.loads(done.output[done.output.index("{") :])
    assert document["platform"] == "win-64"
    return done.code, {finding["id"]: finding for finding in document["findings"]}


def test_a_python_without_torch(host: Host, python: Path, tools: Path) -> None:
    code, found = ask(host, python, tools, "--python", python)
    assert code == 1
    assert (found["system"]["status"], "Wine" in found["system"]["found"]) == ("warn", True)
    assert found["python"]["status"] == "ok"
    assert found["python"]["found"].startswith(f"{MINOR}.")
    assert (found["torch"]["status"], found["torch"]["found"]) == ("fail", "torch is not installed")
    assert {found[name]["status"] for name in ("long_paths", "cpu")} <= {"ok", "warn", "unknown"}
    assert {found[name]["status"] for name in ("memory", "disk")} <= {"ok", "warn"}
    assert [one["id"] for one in found.values() if "this check failed" in one["found"]] == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import ctypes; raise ctypes.WinError(126)", "WinError 126"),
        ("import os; os._exit(-1073741795)", "illegal instruction"),
        ("import ctypes; ctypes.string_at(0)", "torch 2.5.1 does not import"),
    ],
)
def test_a_broken_torch(host: Host, python: Path, tools: Path, folder: Path, code: str, says: str) -> None:
    site = folder / f"a torch {says[:7]}"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(code, encoding="utf-8")
    (site / "torch" / "version.py").write_bytes(b"__version__ = '2.5.1'\r\ncuda = '12.1'\r\n")
    exit_code, found = ask(host, python, tools, "--python", python, more=(site,))
    assert (exit_code, found["torch"]["status"]) == (1, "fail")
    assert says in found["torch"]["found"]
    assert "torch 2.5.1, CUDA 12.1" in found["torch_build"]["found"]


def test_microsofts_own_compiler_is_judged(host: Host, python: Path, tools: Path) -> None:
    _, found = ask(host, python, tools, "--for", "build", "--variant", "cuda121")
    minor = int(host.msvc.toolset.split(".")[1])
    assert found["cl"]["status"] == ("fail" if minor >= 40 else "ok")
    assert f"cl 19.{minor}" in found["cl"]["found"]
    # No Visual Studio is installed there, and so no vswhere.
    assert found["visual_studio"]["status"] == "fail"
    assert "vswhere" in found["visual_studio"]["found"]
    assert found["builder"]["status"] == "ok"
    assert [one["id"] for one in found.values() if "this check failed" in one["found"]] == []


def test_an_environment_with_the_package(host: Host, python: Path, tools: Path, prefix: Path) -> None:
    """Not active, and otherwise well; then pip's deepspeed comes over it."""
    code, found = ask(host, python, tools, "--prefix", prefix)
    bad = {one["id"]: one["found"] for one in found.values() if one["status"] == "fail"}
    assert (code, bad) == (0, {})
    assert found["active"]["status"] == "warn"
    assert found["torch_build"]["status"] == "ok"
    assert found["files"]["status"] == "ok"
    assert "4 ops for cpu" in found["deepspeed"]["found"]
    info = prefix / "Lib" / "site-packages" / "deepspeed" / "git_version_info_installed.py"
    before = info.read_bytes()
    try:
        info.write_bytes(before.replace(b"'version': '2.5'", b"'version': '2.6'"))
        code, found = ask(host, python, tools, "--prefix", prefix)
    finally:
        info.write_bytes(before)
    assert code == 1
    assert (found["files"]["status"], found["torch_build"]["status"]) == ("fail", "fail")
