"""What is in a .conda package."""

from __future__ import annotations

import json
from pathlib import Path

from conda_package_streaming.package_streaming import stream_conda_component


def read_package(package: Path) -> dict[str, bytes]:
    """Return the content of every file, those of info/ too."""
    found = {}
    for component in ("pkg", "info"):
        for tar, member in stream_conda_component(package, component=component):
            found[member.name] = tar.extractfile(member).read()
    return found


def read_json(package: Path, name: str) -> dict:
    """Return a file of info/."""
    return json.loads(read_package(package)[f"info/{name}"])
