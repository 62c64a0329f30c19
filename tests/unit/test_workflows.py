"""The workflows name things that exist: actions by commit, files, commands of dswin, variants, channels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from dswin.build import CHANNELS
from dswin.cli import dswin

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONFIG = yaml.safe_load((ROOT / "recipe" / "conda_build_config.yaml").read_text(encoding="utf-8"))
RECIPE = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8")


def read(file: Path) -> dict:
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    # YAML 1.1 takes the key `on` for true.
    return {"on" if key is True else key: value for key, value in workflow.items()}


def steps(file: Path) -> Iterator[dict]:
    for job in read(file)["jobs"].values():
        yield from job["steps"]


def commands(file: Path) -> str:
    return "\n".join(step["run"] for step in steps(file) if "run" in step)


def matrix(job: str) -> dict:
    return read(ROOT / ".github" / "workflows" / "windows.yml")["jobs"][job]["strategy"]["matrix"]


def test_workflows_are_found() -> None:
    assert "windows.yml" in [file.name for file in FILES]


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
    assert [name for name, job in workflow["jobs"].items() if "permissions" in job] == []
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
def test_files_that_are_named_are_there(file: Path) -> None:
    """Words with a slash, but what a step makes (it starts with a dot), variables, and paths of the whole machine."""
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', commands(file))]
    paths = {
        word.replace("\\", "/") for word in words if re.search(r"[\\/]", word) and not re.search(r"[$:]|^\.", word)
    }
    assert "recipe/tests/train.py" in paths or file.name != "windows.yml"
    paths |= set(read(file)["on"].get("pull_request", {}).get("paths", []))
    assert [path for path in paths if not (ROOT / path.removesuffix("/**")).exists()] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_commands_of_dswin_that_are_named_exist(file: Path) -> None:
    lines = re.findall(r"dswin\.(?:cmd|sh) (.+)", commands(file))
    assert lines or file.name != "windows.yml"
    for line in lines:
        command: click.Command = dswin
        for word in line.split():
            if not isinstance(command, click.Group):
                break
            assert word in command.commands, f"dswin {line}"
            command = command.commands[word]
        assert not isinstance(command, click.Group), f"dswin {line}"


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
    assert f'"{"".join(bound)}"' in commands(ROOT / ".github" / "workflows" / "windows.yml")
