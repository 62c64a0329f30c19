"""The workflows name things that exist: actions by commit, files, commands of dswin, variants, channels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from channels import make_variant
from documents import ROOT, check_command, split_commands
from dswin.build import CHANNELS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONFIG = yaml.safe_load((ROOT / "recipe" / "conda_build_config.yaml").read_text(encoding="utf-8"))
RECIPE = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
#: All that a step in PowerShell may start: keywords, its own cmdlets, programs.
POWERSHELL = {
    *("if", "throw"),
    *("Add-Content", "ConvertFrom-Json", "Start-Process", "Test-Path", "Where-Object", "Write-Output"),
    *("conda", "conda-build", "rattler-build", "scripts\\dswin.cmd"),
    *("cl.exe", "python.exe", "setup.exe", "vswhere.exe"),
}


def read(file: Path) -> dict:
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    # YAML 1.1 takes the key `on` for true.
    return {"on" if key is True else key: value for key, value in workflow.items()}


def steps(file: Path) -> Iterator[dict]:
    for job in read(file)["jobs"].values():
        yield from job["steps"]


def matrix(job: str) -> dict:
    return read(ROOT / ".github" / "workflows" / "windows.yml")["jobs"][job]["strategy"]["matrix"]


def test_workflows_are_found() -> None:
    assert [file.name for file in FILES] == ["ci.yml", "windows.yml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_action_is_pinned_by_its_commit_and_names_its_version(file: Path) -> None:
    lines = re.findall(r"^ +(?:- )?uses: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == len([step for step in steps(file) if "uses" in step])
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_action_has_one_commit(file: Path) -> None:
    pinned = {step["uses"] for step in steps(file) if "uses" in step}
    assert len(pinned) == len({one.split("@")[0] for one in pinned})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_workflow_may_read_and_nothing_else(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == ({"publish": {"contents": "read", "actions": "read"}} if file.name == "ci.yml" else {})
    checkouts = [step for step in steps(file) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_job_ends_and_does_not_run_twice_at_once(file: Path) -> None:
    workflow = read(file)
    assert workflow["concurrency"]["group"]
    assert [name for name, job in workflow["jobs"].items() if not 0 < job["timeout-minutes"] <= 360] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_machine_of_ours_runs_no_pull_request(file: Path) -> None:
    workflow = read(file)
    assert "pull_request_target" not in workflow["on"]
    ours = [job for job in workflow["jobs"].values() if "self-hosted" in job["runs-on"]]
    assert [job for job in ours if "github.event_name == 'workflow_dispatch' &&" not in job["if"]] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_paths_that_start_it_are_there(file: Path) -> None:
    paths = set((read(file)["on"].get("pull_request") or {}).get("paths", []))
    assert [path for path in paths if not (ROOT / path.removesuffix("/**")).exists()] == []


# ---- what the steps run


@dataclass(frozen=True)
class Script:
    """What a step runs, with the first values of its matrix."""

    name: str
    shell: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """Its commands, as words."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("#")]
        return [words for line in lines for words in split_commands(line)]


def list_scripts(file: Path) -> list[Script]:
    workflow = read(file)
    found = []
    for name, job in workflow["jobs"].items():
        table = job.get("strategy", {}).get("matrix", {})
        values = {key: value[0] for key, value in table.items()}
        values |= values.pop("include", {})
        default = workflow.get("defaults", {}).get("run", {}).get("shell", "bash")
        for number, step in enumerate(job["steps"]):
            if "run" in step:
                text = step["run"]
                for key, value in values.items():
                    text = text.replace(f"${{{{ matrix.{key} }}}}", value)
                found.append(Script(f"{file.stem}-{name}-{number}", step.get("shell", default), text))
    return found


SCRIPTS = [script for file in FILES for script in list_scripts(file)]
by_name = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


def test_scripts_are_found() -> None:
    assert {script.shell for script in SCRIPTS} == {"bash", "pwsh"}
    assert len([words for script in SCRIPTS for words in script.commands if "dswin" in words[0]]) > 8


@by_name
def test_a_script_has_no_expression_but_the_matrix(script: Script) -> None:
    """What somebody typed into a form comes by the environment, where no shell takes it for a command."""
    assert "${{" not in script.text


@by_name
def test_commands_and_files_of_a_script_exist(script: Script) -> None:
    assert [what for words in script.commands for what in check_command(words, ROOT)] == []


@pytest.mark.parametrize("script", [one for one in SCRIPTS if one.shell == "bash"], ids=lambda script: script.name)
def test_bash_can_read_it(script: Script) -> None:
    done = subprocess.run(["bash", "-n"], input=script.text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", [".ci/run", "scripts/dswin.sh", "recipe/build.sh"])
def test_bash_can_read_what_it_runs(file: str) -> None:
    subprocess.run(["bash", "-n", ROOT / file], check=True)


def list_programs(text: str) -> set[str]:
    """What PowerShell starts: what a line, a pipe, a bracket or an assignment begins with, cmdlets, and .exe in any place."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = set(re.findall(r"[\w-]+\.exe", text))
    code = re.sub(r'"[^"]*"', '""', text.replace('`"', ""))
    found |= set(re.findall(r"\b[A-Z][a-z]+-[A-Z]\w+", code))
    found |= set(re.findall(r"(?:^|[|({;&]|\$\w+ =)[ \t]*([A-Za-z][\w\\./-]*)", code, re.MULTILINE))
    return found


@pytest.mark.parametrize("script", [one for one in SCRIPTS if one.shell == "pwsh"], ids=lambda script: script.name)
def test_powershell_starts_only_what_is_listed(script: Script) -> None:
    assert list_programs(script.text) - POWERSHELL == set()


def test_programs_of_powershell_are_found() -> None:
    text = (
        '$a = curl x | tar y\n& "$b\\evil.exe" z\nif (Test-Thing) { git q }\n# sed\n"wget"\nInvoke-WebRequest x; rm y'
    )
    assert list_programs(text) == {"curl", "tar", "evil.exe", "if", "Test-Thing", "git", "Invoke-WebRequest", "rm"}


def test_the_schema_of_workflows_is_kept(tmp_path: Path) -> None:
    def check(*files: Path) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            *map(str, files),
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = check(*FILES)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(
        FILES[0].read_text(encoding="utf-8").replace("timeout-minutes:", "timeout-hours:", 1), encoding="utf-8"
    )
    assert "timeout-hours" in check(wrong).stdout


# ---- ci.yml


CI = ROOT / ".github" / "workflows" / "ci.yml"


def job(name: str) -> dict:
    return read(CI)["jobs"][name]


def find_step(name: str, key: str, word: str) -> dict:
    """The only step of a job of ci.yml whose ``key`` holds a word."""
    [step] = [step for step in job(name)["steps"] if word in step.get(key, "")]
    return step


def test_the_compilers_licence_is_not_accepted_by_default() -> None:
    variable = "DSWIN_ACCEPT_MSVC_LICENSE"
    assert job("test")["env"] == {variable: f"${{{{ vars.{variable} || 'no' }}}}"}
    assert variable not in "".join(str(one) for name, one in read(CI)["jobs"].items() if name != "test")
    assert find_step("test", "run", ".ci/run")["if"] == f"env.{variable} == 'yes'"
    for word in ("::notice", "dswin.sh test"):
        assert find_step("test", "run", word)["if"] == f"env.{variable} != 'yes'"


def test_the_linux_part_is_all_but_the_tests_that_need_the_compiler() -> None:
    [line] = [line for line in find_step("test", "run", "dswin.sh test")["run"].splitlines() if "dswin.sh" in line]
    assert line.split() == ["scripts/dswin.sh", "test", "tests", "--ignore", "tests/windows"]
    skip = 'pytest.skip(f"no ' + "MSVC"
    skipping = [file for file in (ROOT / "tests").rglob("*.py") if skip in file.read_text(encoding="utf-8")]
    assert skipping == [ROOT / "tests" / "windows" / "conftest.py"]


def test_nothing_of_the_compiler_is_cached() -> None:
    paths = find_step("test", "uses", "actions/cache")["with"]["path"].split()
    assert paths == [".dswin/source", ".dswin/ccache"]
    assert [name for name in read(CI)["jobs"] if name != "test" and "actions/cache" in str(job(name))] == []


def test_packages_are_built_for_the_pythons_of_the_recipe_from_conda_channels() -> None:
    text = find_step("packages", "run", " build ")["run"]
    assert re.findall(r"for python in (.+); do", text) == [" ".join(CONFIG["python"])]
    assert "--deps conda" in text


def test_artifacts_that_are_downloaded_are_uploaded() -> None:
    uploaded = find_step("packages", "uses", "upload-artifact")["with"]
    ours, theirs = (step["with"] for step in job("publish")["steps"] if "download-artifact" in step.get("uses", ""))
    assert (ours["name"], ours["path"]) == (uploaded["name"], uploaded["path"])
    rows = matrix("build")
    names = [f"{variant}-{builder}" for variant in rows["variant"] for builder in rows["builder"]]
    [step] = [step for step in steps(CI.with_name("windows.yml")) if "upload-artifact" in step.get("uses", "")][:1]
    assert step["with"]["name"] == "${{ matrix.variant }}-${{ matrix.builder }}"
    assert [name for name in names if fnmatch(name, theirs["pattern"])] == [
        f"{one}-rattler-build" for one in rows["variant"]
    ]


def test_publishing_is_by_hand_after_all_else_and_has_the_logins_alone() -> None:
    publish = job("publish")
    assert sorted(publish["needs"]) == sorted(set(read(CI)["jobs"]) - {"publish"})
    assert publish["if"].startswith("github.event_name == 'workflow_dispatch' &&")
    assert publish["environment"] == "publish"
    assert publish["concurrency"]["cancel-in-progress"] is False
    text = CI.read_text(encoding="utf-8")
    secrets = re.findall(r"secrets\.\w+", text)
    assert secrets == re.findall(r"secrets\.\w+", str(find_step("publish", "run", " publish ")))
    assert "pull_request_target" not in text


def test_tools_of_the_lint_job_are_pinned() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert [one for one in extras["lint"] if "==" not in one] == []
    text = "\n".join(step.get("run", "") for step in job("lint")["steps"])
    tools = set(re.findall(r"\.venv/bin/(?:python -m )?(?!python)(\w+)", text)) - {"pip"}
    assert tools == {"ruff", "mypy", "zizmor"}
    assert tools <= {one.split("==")[0] for one in extras["lint"]}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")
def test_publishing_works(tmp_path: Path) -> None:
    """The steps of the job as they are, in a folder with packages, on a target that is a folder."""
    (tmp_path / "scripts").mkdir()
    start = tmp_path / "scripts" / "dswin.sh"
    start.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dswin "$@"\n', encoding="utf-8")
    start.chmod(0o755)
    for python in CONFIG["python"]:
        make_variant(tmp_path / "channel", "cpu", python=python, subdir="linux-64")
    for variant in CONFIG["ds_variant"]:
        make_variant(tmp_path / "channel", variant)
    target = tmp_path / "a target"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "TARGET": str(target)}
    for step in [step for step in job("publish")["steps"] if "run" in step]:
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step['run']}\n{done.stdout}{done.stderr}"
    sent = sorted(path.name for path in target.rglob("*.conda"))
    assert sent == sorted(path.name for path in (tmp_path / "channel").rglob("*.conda"))
    assert len(sent) == len(CONFIG["python"]) + len(CONFIG["ds_variant"])


# ---- windows.yml


def test_every_variant_is_built_by_both_builders_for_its_cuda() -> None:
    build = matrix("build")
    assert build["variant"] == CONFIG["ds_variant"]
    assert build["builder"] == ["rattler-build", "conda-build"]
    cuda = {row["variant"]: row["cuda"] or "None" for row in build["include"]}
    assert cuda == dict(zip(CONFIG["ds_variant"], CONFIG["cuda_compiler_version"], strict=True))


def test_the_gpu_trains_with_every_cuda_variant() -> None:
    assert matrix("gpu")["variant"] == [name for name in CONFIG["ds_variant"] if name != "cpu"]


@pytest.mark.parametrize("job", ["build", "gpu"])
def test_channels_are_those_of_dswin_build(job: str) -> None:
    rows = matrix(job)["include"]
    assert [row["variant"] for row in rows] == matrix(job)["variant"]
    for row in rows:
        assert row["channels"] == " ".join(f"-c {name}" for name in CHANNELS[row["variant"]])


def test_pythons_are_those_of_the_recipe() -> None:
    workflow = read(ROOT / ".github" / "workflows" / "windows.yml")
    choice = workflow["on"]["workflow_dispatch"]["inputs"]["python"]
    assert choice["options"] == CONFIG["python"]
    assert choice["default"] in CONFIG["python"]
    assert workflow["jobs"]["build"]["env"]["PYTHON_OF_PACKAGE"] == f"${{{{ inputs.python || '{choice['default']}' }}}}"


def test_the_toolset_that_is_installed_is_the_one_the_recipe_asks_for() -> None:
    [bound] = re.findall(r"^ +then: (vs2022_win-64) (<[\d.]+)$", RECIPE, re.MULTILINE)
    assert f'"{"".join(bound)}"' in "\n".join(step.get("run", "") for step in steps(CI.with_name("windows.yml")))
