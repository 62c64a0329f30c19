"""A small lock that nothing is wrong with, and the same lock altered."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

FORGE = "https://conda.anaconda.org/conda-forge"
SOURCE = "channels: [conda-forge]\ndependencies: [python 3.11.*, numpy]\n"


def make_entry(name: str, version: str, build: str = "0", subdir: str = "win-64", **depends: str) -> dict[str, Any]:
    """A package of a lock for win-64, from conda-forge."""
    return {
        "name": name,
        "version": version,
        "manager": "conda",
        "platform": "win-64",
        "dependencies": depends,
        "url": f"{FORGE}/{subdir}/{name}-{version}-{build}.conda",
        "hash": {"md5": f"{len(name):032x}", "sha256": f"{len(name):064x}"},
        "category": "main",
        "optional": False,
    }


def make_document(folder: Path) -> dict[str, Any]:
    """A lock as a table; its source is written into ``folder``."""
    from dswin import lock_writer, solver

    source = folder / "environment.yaml"
    source.write_text(SOURCE, encoding="utf-8")
    spec = solver.read_sources(solver.Wanted("small", (source,), ("win-64",)))
    return {
        "version": 1,
        "metadata": {
            "content_hash": lock_writer.hash_sources(spec),
            "channels": [{"url": "conda-forge", "used_env_vars": []}],
            "platforms": ["win-64"],
            "sources": ["environment.yaml"],
            "custom_metadata": {"virtual_packages.win-64": "__win=0 __archspec=1=x86_64 __cuda=12.1"},
        },
        "package": [
            make_entry("numpy", "2.4.6", "py311_0", python=">=3.11,<3.12.0a0", tzdata="", __cuda=">=12"),
            make_entry("python", "3.11.9", "h1_0_cpython", __win=""),
            make_entry("tzdata", "2026c", "pyh_0", "noarch"),
        ],
    }


Alter = Callable[[dict[str, Any]], object]


def write(folder: Path, *alter: Alter, document: dict[str, Any] | None = None, name: str = "small") -> Path:
    """Write a lock, altered by functions that change the table in place."""
    document = copy.deepcopy(document or make_document(folder))
    for one in alter:
        one(document)
    path = folder / f"{name}.conda-lock.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def on_package(number: int, **fields: object) -> Alter:
    """Set fields of a package; a field that is set to ``...`` is taken away."""

    def alter(document: dict[str, Any]) -> None:
        for name, value in fields.items():
            if value is ...:
                del document["package"][number][name]
            else:
                document["package"][number][name] = value

    return alter


def on_metadata(**fields: object) -> Alter:
    """Set fields of the metadata."""
    return lambda document: document["metadata"].update(fields)


def add(*entries: dict[str, Any]) -> Alter:
    """Add packages."""
    return lambda document: document["package"].extend(entries)
