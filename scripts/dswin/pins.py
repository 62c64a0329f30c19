"""What the recipe pins of DeepSpeed and of torch, changed in a copy of it; and the difference, as a patch."""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
from pathlib import Path

import yaml

from . import reproducible, source
from .errors import BadInput
from .sdist import Sdist

#: conda_build_config.yaml's word for a platform.
SELECTORS = {"win-64": "win", "linux-64": "linux"}
_FORMATS = ("recipe.yaml", "meta.yaml")


def copy(recipe: Path, into: Path) -> None:
    """Copy a recipe's folder, in place of what is there."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(recipe, into, ignore=shutil.ignore_patterns("__pycache__"))


def place(file: Path) -> str:
    """Return where PyPI and its mirrors store a file: its blake2b-256 digest, cut 2/2/rest."""
    digest = hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest()
    return f"{digest[:2]}/{digest[2:4]}/{digest[4:]}"


def set_deepspeed(recipe: Path, sdist: Sdist, file: Path) -> None:
    """Make a recipe that of another sdist: version, hashes, and the day that builds count as their time.

    :raises BadInput: the recipe does not pin as expected.
    """
    old = source.read(recipe)
    stored = yaml.safe_load((recipe / "recipe.yaml").read_text(encoding="utf-8"))["context"].get("stored_at", "")
    epoch = str(reproducible.read_epoch(recipe))
    for name in _FORMATS:
        _replace(recipe / name, f'"{old.version}"', f'"{sdist.source.version}"')
        _replace(recipe / name, old.sha256, sdist.source.sha256)
        _replace(recipe / name, stored, place(file))
    _replace(recipe / "ops.yaml", f'"{old.version}"', f'"{sdist.source.version}"')
    for name in ("bld.bat", "build.sh"):
        _replace(recipe / name, f"SOURCE_DATE_EPOCH={epoch}", f"SOURCE_DATE_EPOCH={sdist.epoch}")


def set_torch(recipe: Path, platform: str, torch: str) -> None:
    """Make a recipe's cpu variant that of another torch.

    :param torch: ``2.13``.
    :raises BadInput: it is no minor version, or the recipe does not pin as expected.
    """
    if not re.fullmatch(r"\d+\.\d+", torch):
        raise BadInput(f"{torch!r} is no minor version of torch.", fix="Write it like 2.13.")
    path = recipe / "conda_build_config.yaml"
    row = rf'(^ds_torch:\n(?:  - [^\n]*\n)*?  - )"[\d.]+"( +# \[{SELECTORS[platform]}\]\n)'
    _write(path, *re.subn(row, rf'\g<1>"{torch}"\g<2>', _read(path), count=1, flags=re.MULTILINE), what="ds_torch")


def drop_patch(recipe: Path, name: str) -> None:
    """Take a patch out of a recipe.

    :raises BadInput: a format of the recipe does not list it in a line of its own.
    """
    for one in _FORMATS:
        text, count = re.subn(rf"^ *- patches/{re.escape(name)}\n", "", _read(recipe / one), flags=re.MULTILINE)
        _write(recipe / one, text, count, what=name)
    (recipe / "patches" / name).unlink()


def compare(old: Path, new: Path, name: str = "recipe") -> str:
    """Return the patch that makes one folder of texts the other, for ``git apply`` beside a folder called ``name``."""
    files = sorted({path.relative_to(folder) for folder in (old, new) for path in folder.rglob("*") if path.is_file()})
    result = ""
    for file in files:
        if "__pycache__" in file.parts:
            continue
        before, after = (_read(folder / file) if (folder / file).is_file() else None for folder in (old, new))
        if before == after:
            continue
        names = [
            f"{side}/{name}/{file.as_posix()}" if text is not None else "/dev/null"
            for side, text in (("a", before), ("b", after))
        ]
        # Lines as the builders' tools count them: splitlines would end one at a form feed.
        one, other = (re.findall(r"[^\n]*\n|[^\n]+\Z", text or "") for text in (before, after))
        result += "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(one, other, names[0], names[1])
        )
    return result


def _replace(path: Path, old: str, new: str) -> None:
    text = _read(path)
    _write(path, text.replace(old, new), text.count(old) if old else 0, what=old or "stored_at")


def _read(path: Path) -> str:
    """A text with its line ends, which differ in a recipe: cmd.exe wants its own."""
    return path.read_bytes().decode("utf-8")


def _write(path: Path, text: str, count: int, what: str) -> None:
    if count != 1:
        raise BadInput(
            f"{path} has {what} in {count} places, not in one.", fix="Compare the recipe with the repository's."
        )
    path.write_bytes(text.encode())
