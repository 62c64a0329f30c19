"""The Windows package as its users meet it: built by bld.bat, installed into a fresh prefix by Windows py-rattler, trained from
cmd, through activation and without it, started by the launcher, fine-tuned."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import lief
import pytest

from building import ROOT, USERS, Build
from dswin import channel, ops
from dswin.wine import Host, download_wheels, install_wheels
from dswin.wine.python import MINOR
from training import SCRIPT, check_training

VECTOR_OPS = {"cpu_adam": 500, "cpu_adagrad": 300, "cpu_lion": 300, "fused_adam": 300}
#: transformers 4 is what torch 2.5 is used with.
FINE_TUNING = ["transformers==4.57.*", "accelerate==1.12.*"]


def run_batch(host: Host, folder: Path, lines: list[str], **env: str) -> str:
    """Run lines in cmd, in ``folder``, stopping at the first that fails. They are ASCII: cmd reads them in the OEM code page."""
    script = folder / "run.bat"
    text = ["@echo off", *(f"{line} || exit /b 1" for line in lines), ""]
    script.write_bytes("\r\n".join(text).encode("ascii"))
    # As on a user's machine: no compiler on the PATH.
    bare = {"WINEPATH": "", "INCLUDE": "", "LIB": ""}
    done = host.run(["cmd", "/d", "/c", "run.bat"], cwd=folder, env={**bare, **env}, timeout=1200)
    assert done.code == 0, done.output
    return done.output


def test_the_package_is_in_the_channel(windows_build: Build) -> None:
    assert windows_build.package == windows_build.out / "win-64" / "deepspeed-win-0.19.8-cpu_py311_0.conda"
    [record] = channel.list_packages(windows_build.out, "deepspeed-win")
    depends = set(record["depends"])
    assert {"pytorch 2.5.* *cpu*", "python >=3.11,<3.12.0a0", "intel-openmp", "vc >=14.3,<15"} <= depends
    assert windows_build.wheel.name == "deepspeed-0.19.8-cp311-cp311-win_amd64.whl"


def test_the_ops_hold_avx2_and_the_openmp_that_torch_loads(windows_build: Build, prefix: Path) -> None:
    found = {op["op"]: op for op in windows_build.ops}
    assert set(found) == {op.name for op in ops.read(ROOT / "recipe") if op.is_built("win-64", "cpu")}
    torch = lief.PE.parse(prefix / "Lib" / "site-packages" / "torch" / "lib" / "torch_cpu.dll")
    runtimes = {library.name for library in torch.imports if "omp" in library.name.lower()}
    assert runtimes == {"libiomp5md.dll"}
    for name, least in VECTOR_OPS.items():
        op = found[name]
        assert op["simd"]["ymm"] > least, name
        assert op["simd"]["zmm"] == 0, name
        assert op["simd"]["evex"] == 0, name
        assert op["openmp"] == "kmp", name
        assert {library for library in op["libraries"] if "omp" in library.lower()} == runtimes, name


def test_from_cmd_without_activation(host: Host, prefix: Path, folder: Path) -> None:
    result = folder / "result.json"
    train = host.to_windows(SCRIPT)
    run_batch(host, folder, [rf'"an environment\python.exe" "{train}" --accelerator cpu --json {result.name}'])
    check_training(result)


def test_from_cmd_through_activation(host: Host, prefix: Path, folder: Path) -> None:
    result = folder / "activated.json"
    output = run_batch(
        host,
        folder,
        [
            "call activate.bat",
            "echo libuv=%USE_LIBUV%",
            "call ds_report.bat",
            f'python "{host.to_windows(SCRIPT)}" --accelerator cpu --json {result.name}',
        ],
        DS_ACCELERATOR="cpu",
    )
    assert "libuv=0" in output.split()
    report = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert re.search(r"^cpu_adam \.+ \[YES\] \.+ \[OKAY\]", report, re.MULTILINE)
    check_training(result)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_launcher(host: Host, prefix: Path, folder: Path, ranks: int) -> None:
    result = folder / f"ranks-{ranks}.json"
    shutil.copyfile(SCRIPT, folder / "train.py")
    output = run_batch(
        host,
        folder,
        [
            "call activate.bat",
            f"call deepspeed.bat --num_gpus {ranks} train.py --accelerator cpu --json {result.name}",
        ],
        DS_ACCELERATOR="cpu",
    )
    assert f"x {ranks} rank(s)" in output
    check_training(result)


def test_every_optimizer_computes_what_torch_computes(host: Host, prefix: Path, folder: Path) -> None:
    """The same cases as for Linux's binaries, on one thread and two, up to 50 million elements."""
    done = host.run(
        [prefix / "python.exe", ROOT / "tests" / "ops" / "numerics.py", "--json", "numerics.json"],
        cwd=folder,
        env={"WINEPATH": "", "DS_ACCELERATOR": "cpu"},
        timeout=1800,
    )
    found = json.loads((folder / "numerics.json").read_text(encoding="utf-8"))
    assert found["wrong"] == [], done.output[-4000:]
    assert done.code == 0, done.output[-4000:]
    assert {name.split()[0] for name in found["one"]["cases"]} == {"cpu_adam", "fused_adam", "cpu_adagrad", "cpu_lion"}
    assert all(case["outside"] == 0 for case in found["one"]["cases"].values())


def test_pip_is_content(host: Host, prefix: Path) -> None:
    assert "No broken requirements found" in host.check([prefix / "python.exe", "-m", "pip", "check"], timeout=300)


def test_a_fine_tune_with_transformers_and_accelerate(host: Host, prefix: Path, folder: Path, tmp_path: Path) -> None:
    # accelerate would bring a torch. What else it needs, the package or transformers needs too.
    transformers, accelerate = FINE_TUNING
    download_wheels([accelerate], MINOR, tmp_path / "wheels")
    download_wheels([transformers, "colorama"], MINOR, tmp_path / "wheels", deps=True)
    install_wheels(host, prefix, tmp_path / "wheels", FINE_TUNING)
    script = host.to_windows(USERS / "finetune.py")
    output = run_batch(host, folder, ["call activate.bat", f'python "{script}" out'],
                       DS_ACCELERATOR="cpu")  # fmt: skip
    assert "fine-tuned on cpu in fp32, saved, loaded, and went on as before" in output
