"""The table of what meta.yaml renders to, one a platform, made by conda-build and stored in tests/data/render.

    python tests/build/render_meta.py

with a Python that has conda-build. No channel is asked. The test that holds this table to the one of recipe.yaml needs no
conda-build: it compares what is stored, and fails when meta.yaml or conda_build_config.yaml changed since.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from pathlib import Path

# The folder of this file is not on the path where Python is started with -P.
sys.path.insert(0, str(Path(__file__).parent))
from render import PLATFORMS, RECIPE, TABLES, Row, tabulate, write

#: The files that the stored table depends on.
INPUTS = ("meta.yaml", "conda_build_config.yaml")


def digests() -> dict[str, str]:
    """Return the sha256 of each input as it is now."""
    return {name: hashlib.sha256((RECIPE / name).read_bytes()).hexdigest() for name in INPUTS}


def from_meta(platform: str) -> list[Row]:
    """Return one row for each variant of meta.yaml, under recipe.yaml's names and otherwise as conda-build has it."""
    from conda_build import api
    from conda_build.config import Config

    system, _, bits = platform.partition("-")
    config = Config(platform=system, arch=bits, verbose=False)
    rendered = api.render(RECIPE, config=config, finalize=False, bypass_env_check=True, no_download_source=True)
    rows = []
    for metadata, _, _ in rendered:
        meta = metadata.meta
        build, needs, test = meta["build"], meta["requirements"], meta["test"]
        sdist, windows = meta["source"]
        python = metadata.config.variant["python"]
        rows.append(
            {
                "variant": metadata.config.variant["ds_variant"],
                "python": python,
                "string": build["string"],
                "number": int(build["number"]),
                "env": dict(line.split("=", 1) for line in build["script_env"]),
                "build": needs["build"],
                # conda-build writes the variant's Python into the requirement; rattler-build does so when it solves.
                "host": ["python" if spec == f"python {python}.*" else spec for spec in needs["host"]],
                "run": needs["run"],
                "run_constraints": needs["run_constrained"],
                "test": test["commands"],
                "package": f"{meta['package']['name']} {meta['package']['version']}",
                "sdist": sdist["url"],
                "sha256": sdist["sha256"],
                "folder": windows["path"],
                "patches": windows["patches"],
                "ignore_run_exports": build["ignore_run_exports"],
                "missing_dso_allowlist": build["missing_dso_whitelist"],
                "skip_pyc_compilation": build["skip_compile_pyc"],
                "imports": test["imports"],
                "test_requires": test["requires"],
                "about": meta["about"],
            }
        )
        rows[-1]["extra"] = {k: v for k, v in meta["extra"].items() if k not in ("cuda_arch_list", "final")}
    return rows


def main() -> None:
    import conda_build

    warnings.simplefilter("ignore")
    for platform in PLATFORMS:
        table = {"conda-build": conda_build.__version__, "sha256": digests(), **tabulate(from_meta, platform)}
        file = TABLES / f"meta-{platform}.yaml"
        file.write_text(write(table), encoding="utf-8", newline="\n")
        print(file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file)


if __name__ == "__main__":
    main()
