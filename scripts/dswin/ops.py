"""The ops of DeepSpeed, as recipe/ops.yaml names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from .errors import BadInput

#: The values of DS_ACCELERATOR under which an op may exist, in the order in which a row has them.
ACCELERATORS = ("cuda", "cpu")


@dataclass(frozen=True)
class Op:
    """One row of ops.yaml.

    :param name: DeepSpeed's name of the op, as in ``installed_ops`` and ds_report.
    :param flag: the ``DS_BUILD_`` variable that setup.py reads.
    :param module: what the compiled extension is imported as.
    :param accelerators: the ``DS_ACCELERATOR`` values under which the op exists.
    :param platforms: the conda subdirs for which it is compiled ahead of time.
    """

    name: str
    flag: str
    module: str
    accelerators: tuple[str, ...]
    platforms: tuple[str, ...]
    reason: str

    def is_built(self, platform: str, accelerator: str) -> bool:
        """Say whether a package for this platform and accelerator holds the op."""
        return platform in self.platforms and accelerator in self.accelerators


def read(recipe: Path) -> list[Op]:
    """Return the ops of the recipe in folder ``recipe``, in the file's order.

    :raises BadInput: the file is missing or a row lacks something.
    """
    path = recipe / "ops.yaml"
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))["ops"]
        return [_read_op(name, row) for name, row in rows.items()]
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", fix="Name the folder of the recipe.") from error
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"{path} is not a list of ops: {error}.", fix="Compare it with the file in the repository."
        ) from error


def _read_op(name: str, row: dict) -> Op:
    accelerators = tuple(one for one in ACCELERATORS if one in row["accelerators"])
    if not isinstance(row["accelerators"], list) or list(accelerators) != row["accelerators"] or not accelerators:
        raise ValueError(f"the accelerators of {name} are not {' and '.join(ACCELERATORS)}, or one of them")
    texts = (name, row["flag"], row["module"], row["reason"])
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"the name, flag, module or reason of {name} is no text")
    platforms = tuple(platform for platform in ("win-64", "linux-64") if row[platform] == 1)
    return Op(name, row["flag"], row["module"], accelerators, platforms, row["reason"])


def write_table(ops: list[Op]) -> str:
    """Return the Markdown rows of the README's table: which variants hold an op, per platform, or why none does."""

    def cell(op: Op, platform: str) -> str:
        if platform not in op.platforms:
            return "-"
        names = {("cuda", "cpu"): "all variants", ("cuda",): "CUDA", ("cpu",): "CPU"}
        return names[op.accelerators]

    return "".join(f"| `{op.name}` | {cell(op, 'win-64')} | {cell(op, 'linux-64')} |\n" for op in ops if op.platforms)
