"""What of the recipe a release of DeepSpeed breaks, as far as its source shows: one function a step, each gives its findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from . import ops, patches, pins, sdist, worker
from .errors import DswinError
from .patches import Applied, Placed
from .sdist import Sdist, UpstreamOp
from .wheels import CONDA_NAMES, choose_requirements

#: ``note``: it works, and someone should look. ``broke``: the recipe must change. ``lacks``: this machine could not try it.
Status = Literal["ok", "note", "broke", "lacks", "skipped"]

#: What the package requires beyond DeepSpeed's own requirements: its Python, its torch with what comes with it, and setuptools,
#: which torch.utils.cpp_extension imports.
OWN = frozenset(
    ("python", "setuptools", "pytorch", "pytorch-cuda", "cuda-version", "__cuda", "intel-openmp", "llvm-openmp")
)
_SCRIPTS = ("bld.bat", "build.sh")


@dataclass(frozen=True)
class Finding:
    """What a step found. :param fix: what to do, where something is to be done."""

    step: str
    status: Status
    found: str
    fix: str = ""


def guard(step: str, check: Callable[[], Iterator[Finding]], nothing: str) -> list[Finding]:
    """Return what a check finds, or that it found nothing; where it cannot read the source, that is the finding."""
    try:
        return list(check()) or [Finding(step, "ok", nothing)]
    except DswinError as error:
        return [Finding(step, "broke", error.what, error.fix)]


def check_windows_files(recipe: Path, tree: Path) -> Iterator[Finding]:
    """Does the sdist have a file by now that the recipe adds?"""
    for file in sorted(path for path in (recipe / "windows").rglob("*") if path.is_file()):
        name = file.relative_to(recipe / "windows")
        if not (tree / name).is_file():
            continue
        # Line ends are the recipe's own.
        same = file.read_bytes().split() == (tree / name).read_bytes().split()
        yield Finding(
            "windows files",
            "note",
            f"{name.as_posix()} is in the sdist now, {'the same' if same else 'with other content'} as the recipe's, which "
            "replaces it.",
            f"Delete recipe/windows/{name.as_posix()}" + ("." if same else " if upstream's serves."),
        )


def check_pythons(recipe: Path, upstream: Sdist, platform: str) -> Iterator[Finding]:
    """Does the release take the Pythons that the recipe builds for?"""
    ours = sorted({one.variant["python"] for one in worker.render(recipe, platform)}, key=Version)
    where = "in python of recipe/conda_build_config.yaml"
    refused = [one for one in ours if upstream.pythons and not _takes(upstream.pythons, one)]
    for one in refused:
        yield Finding(
            "python", "broke", f"It requires Python {upstream.pythons}: not {one}.", f"Take {one} out, {where}."
        )
    named = upstream.named_pythons
    silent = [one for one in ours if one not in named and one not in refused]
    if named and silent:
        yield Finding(
            "python",
            "note",
            f"It does not name Python {', '.join(silent)} among those it is for.",
            "Nothing, if it builds.",
        )
    if newer := [one for one in named if Version(one) > Version(ours[-1])]:
        fix = f"If the channels have its torch for it, add it, {where}, and to the table in README.md."
        yield Finding("python", "note", f"It names Python {', '.join(newer)}, which the recipe does not build.", fix)


def _takes(pythons: str, python: str) -> bool:
    # Some patch release of the minor version must do: >=3.10.2 takes 3.10.
    try:
        return any(SpecifierSet(pythons).contains(f"{python}.{patch}") for patch in range(31))
    except InvalidSpecifier:
        return False


def check_requirements(recipe: Path, upstream: Sdist, platform: str, variant: str, python: str) -> Iterator[Finding]:
    """Does the package require what DeepSpeed's metadata does?"""
    runs = {one.variant["ds_variant"]: _read_run(one) for one in worker.render(recipe, platform)}
    ours, every = runs[variant], {name for run in runs.values() for name in run}
    where = "requirements/run of recipe/recipe.yaml and meta.yaml"
    more = (
        f"Add it to {where}, to environments/*.yaml, and to PROJECTS in scripts/dswin/wheelhouse.py; its name on conda-forge, if "
        "it is another, to CONDA_NAMES in scripts/dswin/wheels.py."
    )
    wanted = {}
    for requirement in choose_requirements(upstream.requirements, platform, python):
        name = _name(requirement.name)
        wanted[name] = requirement.specifier
        text = f"{requirement.name}{requirement.specifier}"
        if name not in ours:
            yield Finding("requirements", "broke", f"It requires {text}, and the package does not.", more)
        elif name == "pytorch":
            if not _allows(requirement.specifier, ours[name]):
                fix = "Move torch in recipe/conda_build_config.yaml and both recipes, or stay with the older DeepSpeed."
                yield Finding("requirements", "broke", f"It requires {text}; the package has {ours[name]}.", fix)
        elif _parse(ours[name]) != requirement.specifier:
            said = f"It requires {text}; the package {name} {ours[name]}".rstrip() + "."
            yield Finding(
                "requirements", "broke" if requirement.specifier else "note", said, f"Write the same into {where}."
            )
    for one in upstream.perhaps:
        wanted[_name(one)] = SpecifierSet()
        if _name(one) not in every:
            said = f"Its setup.py adds {one} under a condition, and no variant requires it."
            yield Finding("requirements", "note", said, f"See the condition. {more}")
    for name in sorted(ours.keys() - wanted.keys() - OWN):
        yield Finding("requirements", "note", f"It does not require {name} any more.", f"Take it out of {where}.")
    if not (upstream.tree / "requirements/requirements.txt").is_file():
        fix = "Both build scripts give it to pin_torch.py, which pins torch in it, and patch 0006 changes it: name the new one."
        yield Finding("requirements", "broke", "requirements/requirements.txt is gone.", fix)


def _read_run(rendered: worker.rb.RenderedVariant) -> dict[str, str]:
    """{name: the rest of the requirement} of a variant."""
    specs = [one for one in rendered.recipe.to_dict()["requirements"]["run"] if isinstance(one, str)]
    return {name: rest for name, _, rest in (one.partition(" ") for one in specs)}


def _name(project: str) -> str:
    """conda-forge's name of a project on the package index."""
    name = canonicalize_name(project)
    return CONDA_NAMES.get(name, name)


def _parse(rest: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(rest)
    except InvalidSpecifier:
        return None


def _allows(specifier: SpecifierSet, pin: str) -> bool:
    """Does a requirement of torch allow what is pinned: ``2.10.* *cuda130*``, ``==2.5.1 *cuda12.1*``?"""
    found = re.match(r"=*(\d+\.\d+)(\.\d+)?", pin)
    return found is not None and specifier.contains(found[1] + (found[2] or ".0"))


def check_ops(recipe: Path, tree: Path) -> Iterator[Finding]:
    """Are its ops those of ops.yaml, with the same flags, modules and accelerators?"""
    theirs = {op.name: op for op in sdist.read_ops(tree)}
    ours = {op.name: op for op in ops.read(recipe)}
    scripts = "bld.bat and build.sh"
    for name, op in theirs.items():
        if name not in ours:
            fix = f"Give it a row in recipe/ops.yaml, with the reason, and its flag a line in {scripts}: 1 or 0."
            yield Finding("ops", "broke", f"New op {name}: {_describe(op)}.", fix)
            continue
        row = ours[name]
        pairs = [("flag", row.flag, op.flag), ("module", row.module, op.module)]
        pairs.append(("accelerators", ", ".join(sorted(row.accelerators)), ", ".join(sorted(op.accelerators))))
        for what, old, new in pairs:
            if new and old != new:
                places = f"recipe/ops.yaml, {scripts}" if what == "flag" else "recipe/ops.yaml"
                said = f"{what.capitalize()} of {name}: {old} in ops.yaml, {new} in the sdist."
                yield Finding("ops", "broke", said, f"Change it in {places}.")
    for name, row in ours.items():
        if name not in theirs:
            built = "" if row.platforms else " It was not built."
            fix = f"Delete its row in recipe/ops.yaml, {row.flag} in {scripts}" + (
                ", and its row in README.md." if row.platforms else "."
            )
            yield Finding("ops", "broke", f"The op {name} is gone.{built}", fix)


def _describe(op: UpstreamOp) -> str:
    return f"{op.flag or 'no flag'}, {op.module or 'a module that its class computes'}, for {' and '.join(op.accelerators)}"


def apply_patches(recipe: Path, tree: Path) -> list[Applied]:
    """Add the recipe's files for Windows to the tree and apply its patches, each as a whole or not at all."""
    for file in (path for path in (recipe / "windows").rglob("*") if path.is_file()):
        target = tree / file.relative_to(recipe / "windows")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return [patches.apply(patch, tree) for patch in sorted((recipe / "patches").glob("*.patch"))]


def check_patches(applied: list[Applied]) -> Iterator[Finding]:
    """What became of each patch."""
    for number, patch in enumerate(applied):
        bad = [one for one in patch.placed if one.state in ("fails", "upstream")]
        state = patch.state
        if state == "applies":
            yield Finding("patches", "ok", f"{patch.name} applies.")
        elif state == "offset":
            moved = ", ".join(f"{one.path} by {one.offset:+d}" for one in patch.placed if one.offset)
            yield Finding("patches", "ok", f"{patch.name} applies with offset: {moved}.")
        elif state == "fuzz":
            places = ", ".join(_locate(one) for one in patch.placed if one.fuzz)
            fix = "Look whether it stands where it belongs, and make the patch anew from there."
            yield Finding(
                "patches", "note", f"{patch.name} applies, but the lines around it are others: {places}.", fix
            )
        elif state == "upstream":
            fix = (
                "The patch below takes it out. Correct their number in both recipes' descriptions and recipe/README.md."
            )
            yield Finding("patches", "note", f"{patch.name} is upstream already.", fix)
        else:
            said = "; ".join(
                f"{_locate(one)}" + (" is upstream already" if one.state == "upstream" else " fails") for one in bad
            )
            before = [
                one.name for one in applied[:number] if one.state == "fails" and one.paths & {b.path for b in bad}
            ]
            after = f" It may want {', '.join(before)}, which does not apply either." if before else ""
            yield Finding(
                "patches",
                "broke",
                f"{patch.name}: {said}.{after}",
                "Make the change anew in the unpacked source, if it is still wanted: its reason stands at the patch's top.",
            )


def _locate(placed: Placed) -> str:
    return f"{placed.path} at hunk {placed.hunk.number} (line {placed.hunk.start})"


def check_variables(recipe: Path, tree: Path, applied: list[Applied]) -> Iterator[Finding]:
    """Does anything read the other DS_ variables that the build scripts set?"""
    flags = {op.flag for op in ops.read(recipe)}
    said = {name: (recipe / name).read_text(encoding="utf-8") for name in _SCRIPTS}
    failed = [recipe / "patches" / one.name for one in applied if one.state == "fails"]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (*_list_readers(tree), *failed)]
    for variable in sorted({name for text in said.values() for name in re.findall(r"\bDS_[A-Z_]+\b", text)} - flags):
        if not any(re.search(rf"\b{variable}\b", text) for text in texts):
            names = " and ".join(name for name, text in said.items() if variable in text)
            fix = f"See what took its place, and change {names}."
            yield Finding(
                "variables", "broke", f"Nothing in setup.py, op_builder or accelerator reads {variable}.", fix
            )


def _list_readers(tree: Path) -> list[Path]:
    return [
        tree / "setup.py",
        *(path for folder in ("op_builder", "accelerator") for path in (tree / folder).rglob("*.py")),
    ]


def drop_upstream(recipe: Path, applied: list[Applied]) -> None:
    """Take the patches that upstream has out of a copy of the recipe."""
    for one in applied:
        if one.state == "upstream":
            pins.drop_patch(recipe, one.name)
