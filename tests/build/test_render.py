"""recipe.yaml and meta.yaml are held to the tables in tests/data/render, and so to each other. render.py writes them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

# render.py and render_meta.py are programs too, so they import each other from their own folder.
sys.path.insert(0, str(Path(__file__).parent))
import render
import render_meta

UPDATE = "python tests/build/render.py --update"
UPDATE_META = "python tests/build/render_meta.py   (with a Python that has conda-build)"

#: about's keys in conda-build's older format.
ABOUT = {"home": "homepage", "dev_url": "repository", "doc_url": "documentation"}


@pytest.fixture(params=render.PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return request.param


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((render.TABLES / f"{name}.yaml").read_text(encoding="utf-8"))


def test_recipe_yaml_renders_to_the_stored_table(platform: str) -> None:
    now = yaml.safe_load(render.write(render.tabulate(render.from_recipe, platform)))
    assert now == load(platform), f"recipe.yaml renders to something else. If that is meant, run {UPDATE} and review."


def test_each_variant_has_its_own_file_name(platform: str) -> None:
    names = [name for row in load(platform)["variants"] for name in row["builds"].values()]
    assert len(names) == len(set(names)) == 9
    assert all(re.fullmatch(r"(cuda121|cuda130|cpu)_py3\d+_0", name) for name in names)


def test_the_default_is_preferred_and_cpu_comes_last() -> None:
    numbers = {row["variant"]: row["number"] for row in load("win-64")["variants"]}
    assert numbers["cuda121"] > numbers["cuda130"] > numbers["cpu"]


def test_the_render_of_meta_yaml_is_fresh(platform: str) -> None:
    stale = [
        name for name, digest in render_meta.digests().items() if load(f"meta-{platform}")["sha256"][name] != digest
    ]
    assert not stale, f"{', '.join(stale)} changed since meta.yaml was rendered. Run {UPDATE_META} and review."


def test_meta_yaml_says_what_recipe_yaml_says(platform: str) -> None:
    meta = in_terms_of_recipe(load(f"meta-{platform}"))
    recipe = without_the_unsayable(load(platform))
    for part in ("all", "variants", "with variables"):
        assert in_any_order(meta[part]) == in_any_order(recipe[part])


def test_meta_yaml_pins_python_as_recipe_yaml_does() -> None:
    # conda-build resolves pin_compatible when it has solved the host environment; before that it says "python".
    text = (render.RECIPE / "meta.yaml").read_text(encoding="utf-8")
    assert '- {{ pin_compatible("python", min_pin="x.x", max_pin="x.x") }}\n' in text
    run = load("win-64")["variants"][0]["run"]
    assert [spec for spec in run if "python" in spec.split()] == ["pin_compatible python x.x x.x"]


def in_any_order(value: Any) -> Any:
    """Return ``value`` with each list of words sorted; the order of sources, patches and commands matters and stays."""
    if isinstance(value, dict):
        return {
            name: part if name in ("sdist", "patches", "test") else in_any_order(part) for name, part in value.items()
        }
    if isinstance(value, list):
        return sorted(value) if all(isinstance(part, str) for part in value) else [in_any_order(part) for part in value]
    return value


def without_the_unsayable(table: dict[str, Any]) -> dict[str, Any]:
    """Return recipe.yaml's table without what meta.yaml says elsewhere, or only when it is built."""
    # The last of meta.yaml's test commands, and what check_ops.py looks for.
    del table["all"]["contents"]
    for row in table["variants"]:
        row["run"] = ["python" if spec.startswith("pin_compatible python ") else spec for spec in row["run"]]
    return table


def in_terms_of_recipe(table: dict[str, Any]) -> dict[str, Any]:
    """Return meta.yaml's table in recipe.yaml's terms. Each step is a difference between the formats that is meant."""
    everywhere = table["all"]
    about = {ABOUT.get(name, name): value for name, value in everywhere["about"].items()}
    # rattler-build ends an address without a path with a slash, and takes the line end off a text.
    everywhere["about"] = {
        **about,
        **{name: about[name] + "/" for name in ("homepage", "documentation")},
        "description": about["description"].rstrip("\n"),
    }
    # conda-build's patterns have no **: their * goes across folders.
    for name in ("missing_dso_allowlist", "skip_pyc_compilation"):
        everywhere[name] = ["**/" + pattern.removeprefix("*/") for pattern in everywhere[name]]
    # There is one environment for all tests; rattler-build has pip for pip check by itself.
    assert everywhere.pop("test_requires") == ["pip", "pyyaml"]
    for row in table["variants"] + table["with variables"]["variants"]:
        # rattler-build leaves an empty variable away. jobs.py takes an empty one for a missing one.
        row["env"] = {name: value for name, value in row["env"].items() if value}
        *row["test"], contents = row["test"]
        assert contents.startswith('python -c "from importlib.metadata import files;')
    return table
