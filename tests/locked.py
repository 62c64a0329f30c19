"""A lock of a package that was built here and of all that it needs."""

from __future__ import annotations

from pathlib import Path

import yaml

from building import Build, run_dswin


def lock_build(build: Build, folder: Path, platform: str, python: str) -> Path:
    """Lock an environment with a built package, from the channels that it was built with, and return the lock."""
    environment = {"channels": build.channels, "dependencies": [f"python {python}.*", "pip", "deepspeed-win"]}
    (folder / "environment.yaml").write_text(yaml.safe_dump(environment), encoding="utf-8")
    (folder / "locks.toml").write_text(
        f'[ours]\nsources = ["environment.yaml"]\nplatforms = ["{platform}"]\n', encoding="utf-8"
    )
    done = run_dswin("lock", "ours", "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    return folder / "ours.conda-lock.yml"
