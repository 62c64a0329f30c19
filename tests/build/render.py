"""The table of what recipe.yaml renders to, one a platform, in tests/data/render: for a person to read and a diff to show.

    python tests/build/render.py             show how the recipe differs from the stored tables
    python tests/build/render.py --update    store what the recipe renders to now; then review the diff

Needs what `dswin` needs. render_meta.py stores the same table for meta.yaml.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipe"
TABLES = ROOT / "tests" / "data" / "render"
PLATFORMS = ("win-64", "linux-64")
#: The variables that both recipes read, with values that stand out. The main part of a table is rendered without any.
VARIABLES = {
    "DEEPSPEED_SDIST": "given.tar.gz",
    "DSWIN_BUILD_NUMBER": "7",
    "DSWIN_REQUIRE_GPU": "1",
    "DS_NVCC_THREADS": "2",
    "MAX_JOBS": "3",
}
#: Fields of a row that name the row; the others are what it holds.
NAMES = ("variant", "python", "string")

Row = dict[str, Any]

sys.path.insert(0, str(ROOT / "scripts"))


def from_recipe(platform: str) -> list[Row]:
    """Return one row for each variant of recipe.yaml."""
    # Here, since render_meta.py runs without rattler_build.
    from dswin import worker

    rows = []
    for rendered in worker.render(RECIPE, platform):
        recipe = rendered.recipe.to_dict()
        build, needs = recipe["build"], recipe["requirements"]
        sdist, windows = recipe["source"]
        rows.append(
            {
                "variant": rendered.variant["ds_variant"],
                "python": rendered.variant["python"],
                "string": build["string"],
                "number": int(build.get("number", 0)),
                "env": build["script"]["env"],
                "build": needs["build"],
                "host": needs["host"],
                "run": [_write_spec(spec) for spec in needs["run"]],
                "run_constraints": needs["run_constraints"],
                "test": _test_commands(recipe),
                # The rest is the same in every variant.
                "package": f"{recipe['package']['name']} {recipe['package']['version']}",
                "sdist": [sdist["path"]] if "path" in sdist else sdist["url"],
                "sha256": sdist["sha256"],
                "folder": windows["path"],
                "patches": windows["patches"],
                "ignore_run_exports": needs["ignore_run_exports"]["by_name"],
                "missing_dso_allowlist": build["dynamic_linking"]["missing_dso_allowlist"],
                "skip_pyc_compilation": build["python"]["skip_pyc_compilation"],
                "imports": recipe["tests"][0]["python"]["imports"],
                "contents": recipe["tests"][-1]["package_contents"]["files"],
                "about": recipe["about"],
            }
        )
        rows[-1]["extra"] = {k: v for k, v in recipe["extra"].items() if k != "cuda_arch_list"}
    return rows


def _write_spec(spec: str | dict) -> str:
    if isinstance(spec, str):
        return spec
    pin = spec["pin_compatible"]
    return f"pin_compatible {pin['name']} {pin['lower_bound']} {pin['upper_bound']}"


def _test_commands(recipe: dict) -> list[str]:
    """Return the commands of all script tests; rattler-build puts the context's values in when it packs."""
    commands = []
    if recipe["tests"][0]["python"].get("pip_check", True):
        commands.append("python -m pip check")
    for test in recipe["tests"]:
        script = test.get("script", [])
        commands += [script] if isinstance(script, str) else script
    for name, value in recipe["context"].items():
        commands = [command.replace(f"${{{{ {name} }}}}", str(value)) for command in commands]
    return [command.strip() for command in commands]


def tabulate(make_rows: Callable[[str], list[Row]], platform: str) -> dict[str, Any]:
    """Return the table that ``make_rows`` gives for a platform: what all variants share, and what each has of its own."""
    with mock.patch.dict(os.environ):
        for name in VARIABLES:
            os.environ.pop(name, None)
        rows = make_rows(platform)
        os.environ.update(VARIABLES)
        changed = make_rows(platform)
    own = [name for name in rows[0] if name in NAMES or any(row[name] != rows[0][name] for row in rows)]
    changes = [
        {name: new[name] for name in new if name in NAMES or new[name] != old[name]}
        for old, new in zip(rows, changed, strict=True)
    ]
    return {
        "all": {name: value for name, value in rows[0].items() if name not in own},
        "variants": _group({name: row[name] for name in own} for row in rows),
        "with variables": {"set": VARIABLES, "variants": _group(changes)},
    }


def _group(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with those that differ in Python only put together."""
    groups: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: (row["variant"], row["python"])):
        content = {name: value for name, value in row.items() if name not in NAMES}
        key = json.dumps([row["variant"], content], sort_keys=True)
        group = groups.setdefault(key, {"variant": row["variant"], "builds": {}, **content})
        group["builds"][row["python"]] = row["string"]
    return list(groups.values())


def write(table: dict[str, Any]) -> str:
    """Return a table as YAML, in an order that does not change from run to run."""
    # A copy by JSON, since YAML marks an object that occurs twice.
    plain = json.loads(json.dumps(table))
    return yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="store the tables")
    update = parser.parse_args().update
    differ = False
    for platform in PLATFORMS:
        file = TABLES / f"{platform}.yaml"
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        new = write(tabulate(from_recipe, platform))
        differ |= old != new
        sys.stdout.writelines(
            difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"{file.name} as stored", "recipe.yaml")
        )
        if update:
            file.write_text(new, encoding="utf-8", newline="\n")
    return 1 if differ and not update else 0


if __name__ == "__main__":
    sys.exit(main())
