"""environments/*.yaml: conda-lock reads them, and what the recipe's package requires is in them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from rattler import MatchSpec

from dswin import solver
from variants import LOCKS, ROOT, list_ours

FOLDER = ROOT / "environments"
WHOLE = ("build", "cpu", "gpu", "gpu-cuda130")
#: Variant: its environment.
VARIANTS = {"cuda121": "gpu", "cuda130": "gpu-cuda130", "cpu": "cpu"}
PATHS = sorted(FOLDER.glob("*.yaml"))


def load(name: str) -> dict:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def read_specs(*names: str) -> dict[str, MatchSpec]:
    """{name: requirement} for Windows, as conda-lock reads the files together and rattler is asked."""
    sources = tuple(FOLDER / f"{name}.yaml" for name in names)
    spec = solver.read_sources(solver.Wanted(names[0], sources, ("win-64",)))
    return {one.name.normalized: one for one in solver.list_specs(spec.dependencies["win-64"])}


@cache
def read_required(variant: str) -> dict[str, list[MatchSpec]]:
    """{name: requirements} of the variant's packages for win-64, one for each Python."""
    required: dict[str, list[MatchSpec]] = {}
    for record in list_ours():
        if record.repodata["build"].startswith(f"{variant}_"):
            for text in record.repodata["depends"]:
                spec = MatchSpec(text, strict=False)
                required.setdefault(spec.name.normalized, []).append(spec)
    return required


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_conda_lock_reads_it(path: Path) -> None:
    asked = read_specs(path.stem)
    plain = [MatchSpec(text, strict=False) for text in load(path.stem)["dependencies"]]
    # Nothing is lost on the way: version and build are asked for as they stand there.
    assert {(one.name.normalized, str(one.version), str(one.build)) for one in asked.values()} <= {
        (one.name.normalized, str(one.version), str(one.build)) for one in plain
    }
    assert set(asked) == {one.name.normalized for one in plain}


@pytest.mark.parametrize("name", WHOLE)
def test_conda_env_create_takes_it_and_adds_no_channel(name: str) -> None:
    document = load(name)
    assert list(document) == ["name", "channels", "dependencies"]
    assert document["channels"][-2:] == ["conda-forge", "nodefaults"]
    assert all(isinstance(one, str) for one in document["dependencies"])
    # conda heeds no mark of a platform, so there is none.
    assert not re.search(r"#\s*\[\w+\]", (FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [path for path in PATHS if path.stem not in WHOLE], ids=lambda path: path.name)
def test_what_is_read_beside_another_brings_no_channel_and_is_used_by_a_lock(path: Path) -> None:
    assert load(path.stem)["channels"] == []
    assert any(path in wanted.sources for wanted in solver.read_wanted(LOCKS).values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_requirement_of_the_package_is_there(variant: str) -> None:
    beside = ["cpu-windows"] if variant == "cpu" else []
    asked, required = read_specs(VARIANTS[variant], *beside), read_required(variant)
    missing = {name for name in required if not name.startswith("__")} - set(asked)
    assert missing == set()
    for name, specs in required.items():
        if name.startswith("__") or name == "python":
            continue
        wanted = [one for one in specs if one.version or one.build]
        if wanted:
            assert asked[name].version, name
        for one in wanted:
            if one.build:
                assert str(asked[name].build) == str(one.build), name


def test_what_cpu_yaml_leaves_to_torch_is_openmp_alone() -> None:
    # A requirement on Windows only; on Linux it would be a second runtime.
    assert {name for name in read_required("cpu") if name not in read_specs("cpu")} == {"intel-openmp"}
    assert "intel-openmp, which this torch brings" in (FOLDER / "cpu.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("variant", "pin"), [("cuda121", "2.5.1"), ("cuda130", "2.10.*"), ("cpu", "2.5.*")])
def test_torch_is_the_one_that_the_recipe_builds_for(variant: str, pin: str) -> None:
    [text] = [one for one in load(VARIANTS[variant])["dependencies"] if one.startswith("pytorch ")]
    [*_, recipe] = read_required(variant)["pytorch"]
    assert text.split()[1] == pin == str(recipe.version).removeprefix("==")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_variants_python_is_among_those_of_the_environment(variant: str) -> None:
    from rattler import Version, VersionSpec

    asked = VersionSpec(str(read_specs(VARIANTS[variant])["python"].version))
    for one in read_required(variant)["python"]:
        lowest = str(one.version).removeprefix(">=").partition(",")[0]
        assert asked.matches(Version(lowest))


def test_the_order_of_channels_gives_torch_with_cuda() -> None:
    # With strict priority the first channel that has a name wins, and conda-forge has torch without CUDA 12.1.
    assert load("gpu")["channels"] == ["pytorch", "nvidia", "conda-forge", "nodefaults"]
