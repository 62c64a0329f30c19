"""Healthy machines, what is said of others and how, and the report. Planted faults: test_doctor_faults.py."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import doctoring
from doctoring import NEEDS_130, NEEDS_CPU, SITE, make_installation, make_record, make_windows
from dswin import doctor, findings
from dswin.findings import Check, Finding
from dswin.installation import Installation, Ops, Package, Torch
from dswin.seen import Purpose, Seen

ROOT = Path(__file__).parents[2]

HEALTHY = make_installation()
PROBE = HEALTHY.probe


def find(purpose: Purpose, seen: Seen, check: str) -> Finding:
    [found] = [one for one in doctor.judge(purpose, seen).findings if one.id == check]
    return found


@pytest.mark.parametrize("purpose", ["run", "build"])
def test_a_healthy_machine(purpose: Purpose) -> None:
    report = doctor.judge(purpose, make_windows())
    assert [(one.id, one.verdict) for one in report.findings if one.verdict.status not in ("ok", "skipped")] == []
    assert report.exit_code == 0
    assert report.count()["ok"] >= 14


# What to type


def test_the_component_and_the_conda_package_are_named_as_a_pair() -> None:
    seen = make_windows(facts_={"visual_studio": doctoring.describe_studio("14.44.35207")})
    verdict = find("build", seen, "toolset").verdict
    name = "MSVC v143 - VS 2022 C++ x64/x86 build tools (v14.37-17.7)"
    assert name in verdict.needed
    # What people read elsewhere names no other.
    for path in ("recipe/README.md", "scripts/dswin/data/failures.yaml"):
        named = re.findall(
            r"MSVC v143 - VS 2022 C\+\+ x64/x86 build tools \(v14[^)]*\)", (ROOT / path).read_text("utf-8")
        )
        assert set(named) == {name}, path
    assert "vs2022_win-64 19.37.*" in verdict.needed
    assert "--add Microsoft.VisualStudio.Component.VC.14.37.17.7.x86.x64" in verdict.command
    assert doctoring.VSWHERE["installationPath"] in verdict.command


def test_cuda_13_takes_any_toolset_of_2022() -> None:
    seen = make_windows(
        facts_={"visual_studio": doctoring.describe_studio("14.44.35207")}, needs=NEEDS_130, variant="cuda130"
    )
    assert find("build", seen, "toolset").verdict.status == "ok"


def test_an_environment_with_a_space_is_quoted() -> None:
    seen = make_windows(
        make_installation(prefix=r"C:\my envs\ds", python=r"C:\my envs\ds\python.exe"), python_on_path=""
    )
    verdict = find("run", seen, "active").verdict
    assert verdict.command == r'conda activate "C:\my envs\ds"'
    assert "`python` starts nothing" in verdict.found


@pytest.mark.parametrize(
    ("changes", "variables", "says"),
    [
        ({"probe": replace(PROBE, user_site=r"C:\user")}, {}, "PYTHONNOUSERSITE=1"),
        ({}, {"PYTHONPATH": r"D:\x;C:\USER"}, "PYTHONPATH puts them there"),
    ],
)
def test_whence_a_second_torch_comes(changes: dict[str, Any], variables: dict[str, str], says: str) -> None:
    packages = (Package("torch", "2.6.0", r"C:\user", "pip"), *HEALTHY.packages)
    seen = make_windows(make_installation(packages=packages, **changes), variables=variables)
    assert says in find("run", seen, "copies").verdict.fix


def test_a_torch_outside_the_environment_alone() -> None:
    packages = tuple(replace(one, site=r"C:\user") if one.name == "torch" else one for one in HEALTHY.packages)
    found = find("run", make_windows(make_installation(packages=packages)), "copies").verdict
    assert (found.status, "not of this environment" in found.found) == ("fail", True)


def test_an_environment_that_is_named_need_not_be_active() -> None:
    seen = make_windows(make_installation(origin="--prefix"), python_on_path=r"C:\Python313\python.exe")
    assert find("run", seen, "active").verdict.status == "warn"


def test_a_hidden_gpu_is_named_by_its_variable() -> None:
    seen = make_windows(
        make_installation(probe=replace(PROBE, available=False)), variables={"CUDA_VISIBLE_DEVICES": "-1"}
    )
    assert "CUDA_VISIBLE_DEVICES is '-1'" in find("run", seen, "gpu_seen").verdict.found


def test_ninja_is_not_missed() -> None:
    verdict = find("run", make_windows(facts_={"ninja": None}), "ninja").verdict
    assert (verdict.status, "harms nothing" in verdict.found) == ("ok", True)


def test_a_cpu_package_asks_for_no_driver() -> None:
    installed = make_installation(
        torch=Torch("2.5.1+cpu", None, SITE), ops=Ops("0.19.8", ("cpu_adam",), "cpu", "2.5", None),
        records={"deepspeed-win": make_record("deepspeed-win", "0.19.8", "cpu_py311_0")}, code=None,
    )  # fmt: skip
    seen = make_windows(installed, {"gpus": None, "cuda_of_driver": None}, needs=NEEDS_CPU, variant="cpu")
    report = doctor.judge("run", seen)
    assert {one.id for one in report.findings if one.verdict.status == "skipped"} == {
        "wsl", "driver", "gpu_code", "gpu_torch", "gpu_seen",
    }  # fmt: skip
    assert report.exit_code == 0


def test_a_cuda_torch_beside_the_cpu_package() -> None:
    installed = make_installation(ops=Ops("0.19.8", ("cpu_adam",), "cpu", "2.5", None))
    assert find("run", make_windows(installed), "torch_build").verdict.status == "warn"


# Linux, and Linux under Windows


def make_linux(**values: Any) -> Seen:
    site = "/envs/ds/lib/python3.11/site-packages"
    packages = tuple(replace(one, site=site) for one in HEALTHY.packages)
    seen = make_windows(
        make_installation(prefix="/envs/ds", python="/envs/ds/bin/python", packages=packages),
        {"windows": None, "system": "Linux-6.1.0-x86_64-with-glibc2.36", "wsl": False, **values},
        needs=replace(doctoring.NEEDS, glibc="2.28"),
        variables={"PATH": "/envs/ds/bin"},
    )  # fmt: skip
    return replace(seen, platform="linux-64", python_on_path="/envs/ds/bin/python3", work="/home/me/dswin/.dswin/build")


def test_a_healthy_linux() -> None:
    report = doctor.judge("run", make_linux(**doctoring.describe_gpu(driver="535.104.05", serves="12.2")))
    assert [(one.id, one.verdict) for one in report.findings if one.verdict.status not in ("ok", "skipped")] == []


@pytest.mark.parametrize(
    ("system", "status"),
    [
        ("Linux-4.18.0-x86_64-with-glibc2.28", "ok"),
        ("Linux-3.10.0-x86_64-with-glibc2.17", "fail"),
        ("Linux-6.1.0-x86_64-with", "fail"),
    ],
)
def test_glibc(system: str, status: str) -> None:
    assert find("run", make_linux(system=system), "system").verdict.status == status


def test_wsl_has_the_driver_of_windows() -> None:
    """528.02 is newer than 525.60.13 and older than 531.14, and 527.41 is what Windows needs for any CUDA 12."""
    seen = make_linux(wsl=True, **doctoring.describe_gpu(driver="526.98", serves="12.0"))
    assert "NVML" in find("run", seen, "wsl").verdict.found
    assert "531.14" in find("run", seen, "driver").verdict.needed
    assert "on Windows, not in WSL" in find("run", seen, "driver").verdict.fix


def test_gcc_13_with_cuda_12_1() -> None:
    seen = make_linux(**{"g++": doctoring.describe_program("/usr/bin/g++", "13.2.0")})
    assert find("build", seen, "gxx").verdict.command == "sudo apt-get install g++-12"
    assert find("build", make_linux(), "gxx").verdict.status == "warn"


# The report


def test_the_keys_of_the_json_stay() -> None:
    report = doctor.judge("run", make_windows())
    document = json.loads(json.dumps(report.to_json()))
    assert list(document) == [
        "schema", "dswin", "purpose", "platform", "variant", "environment", "exit_code", "counts", "findings",
    ]  # fmt: skip
    assert document["schema"] == 1
    assert list(document["environment"]) == ["prefix", "python", "found_by", "conda"]
    assert list(document["counts"]) == ["ok", "warn", "fail", "unknown", "skipped"]
    assert sum(document["counts"].values()) == len(document["findings"])
    for finding in document["findings"]:
        assert list(finding) == ["id", "title", "status", "found", "needed", "fix", "command", "link"]
        assert all(isinstance(value, str) for value in finding.values())
    assert [one["id"] for one in document["findings"]] == [
        "system", "wsl", "long_paths", "cpu", "memory", "disk", "driver", "gpu_code", "gpu_torch", "active", "python",
        "torch", "torch_build", "gpu_seen", "copies", "deepspeed", "files", "requirements", "ninja", "readable",
    ]  # fmt: skip
    assert [one["id"] for one in doctor.judge("build", make_windows()).to_json()["findings"]] == [
        "system", "builder", "visual_studio", "toolset", "cl", "windows_sdk", "distutils_use_sdk", "code_page", "gxx",
        "nvcc", "cuda_home", "solver", "work", "long_paths", "jobs", "space",
    ]  # fmt: skip


def test_nothing_that_could_be_looked_at() -> None:
    seen = Seen("win-64", {}, Installation("C:\\", "--prefix", "python.exe"))
    unknown = [
        Check("a", "A", "Ops", lambda _: findings.unknown("no")),
        Check("b", "B", "Ops", lambda _: findings.skipped("no")),
    ]
    report = doctor.Report("run", seen, tuple(check.take(seen) for check in unknown))
    assert report.exit_code == 3


@pytest.mark.parametrize("purpose", ["run", "build"])
@pytest.mark.parametrize("platform", ["win-64", "linux-64"])
def test_a_machine_of_which_nothing_is_known(purpose: Purpose, platform: str) -> None:
    report = doctor.judge(purpose, Seen(platform, {}, Installation("", "PATH")))
    assert not [one for one in report.findings if "this check failed" in one.verdict.found]


def test_a_check_that_fails_is_unknown() -> None:
    def fail(_: Seen) -> findings.Verdict:
        raise RuntimeError("planted")

    verdict = Check("x", "X", "Ops", fail).take(make_windows()).verdict
    assert (verdict.status, "RuntimeError: planted" in verdict.found) == ("unknown", True)


def test_the_table_says_what_to_do_even_where_it_is_narrow() -> None:
    report = doctor.judge("run", make_windows(python_on_path=r"C:\Python313\python.exe"))
    output = io.StringIO()
    Console(file=output, width=60).print(doctor.table(report))
    text = " ".join(output.getvalue().split())
    assert "fail Active environment" in text
    assert r"type: conda activate C:\envs\ds" in text
    assert "README.md#troubleshooting" in text


def test_each_link_leads_to_a_heading_of_the_readme() -> None:
    headings = re.findall(r"(?m)^#+ (.+?)\s*$", (ROOT / "README.md").read_text(encoding="utf-8"))
    sections = {check.section for checks in doctor.CHECKS.values() for check in checks}
    assert sections <= set(headings)
    links = {one.link for one in doctor.judge("run", make_windows()).findings}
    assert "README.md#what-is-ready-and-what-was-run-where" in links
