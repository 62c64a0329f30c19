"""Runs recipe/bld.bat as conda-build and rattler-build do: a copy in the work folder, by cmd.exe, told where things are."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dswin.wine import Finished, Host

RECIPE = Path(__file__).parents[1] / "recipe"


@dataclass(frozen=True)
class Tree:
    """The folders of one build."""

    prefix: Path
    work: Path
    recipe: Path

    @property
    def site_packages(self) -> Path:
        return self.prefix / "Lib" / "site-packages"


def make_tree(folder: Path) -> Tree:
    """Make the folders of a build below ``folder``, with a copy of the recipe."""
    tree = Tree(folder / "prefix", folder / "work", folder / "recipe")
    tree.site_packages.mkdir(parents=True)
    tree.work.mkdir()
    shutil.copytree(RECIPE, tree.recipe)
    return tree


def run(
    host: Host, tree: Tree, python: Path, variant: str, env: Mapping[str, str], cmd: tuple[str, ...] = ("cmd", "/d")
) -> Finished:
    """Run bld.bat to its end.

    :param python: the program that bld.bat knows as %PYTHON%.
    :param env: variables beside those that a builder sets; an empty value is no variable on Windows.
    :param cmd: cmd.exe and its options.
    """
    shutil.copyfile(tree.recipe / "bld.bat", tree.work / "bld.bat")
    folders = {
        "PREFIX": tree.prefix,
        "SRC_DIR": tree.work,
        "RECIPE_DIR": tree.recipe,
        "SP_DIR": tree.site_packages,
        "PYTHON": python,
    }
    environment = {name: host.to_windows(path) for name, path in folders.items()}
    return host.run(
        [*cmd, "/c", "bld.bat"], cwd=tree.work, env={**environment, "ds_variant": variant, **env}, timeout=120
    )
