"""A release of DeepSpeed as its sdist has it: taken with pip, unpacked, and read as text. Nothing of it is imported."""

from __future__ import annotations

import ast
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from .digests import hash_file
from .errors import BadInput, CheckFailed, MachineLacks
from .package_index import run_pip
from .source import Source, download

PROJECT = "deepspeed"


@dataclass(frozen=True)
class Sdist:
    """An unpacked sdist.

    :param tree: the folder with setup.py. :param epoch: the day of its newest file, in seconds since 1970.
    :param pythons: ``Requires-Python`` of its metadata, or nothing. :param named_pythons: those that its classifiers name.
    :param requirements: its metadata's, with their markers. :param perhaps: names that setup.py adds under a condition.
    """

    source: Source
    tree: Path
    epoch: int
    pythons: str
    named_pythons: tuple[str, ...]
    requirements: tuple[str, ...]
    perhaps: tuple[str, ...]


@dataclass(frozen=True)
class UpstreamOp:
    """An op as its builder class has it.

    :param module: what it is imported as; nothing where the class computes it in a way that is not understood.
    :param accelerators: those under which setup.py finds it.
    """

    name: str
    flag: str
    module: str
    accelerators: tuple[str, ...]


def parse_version(text: str) -> str:
    """Return the version of a release in its normal form.

    :raises BadInput: it is none, or no release.
    """
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise BadInput(
            f"{text!r} is neither a version of DeepSpeed nor an sdist.", fix="Write it like 0.19.8, or name a .tar.gz."
        ) from error
    if version.is_prerelease or version.local:
        raise BadInput(
            f"{version} is no release. {name_newest()}",
            fix="Name a release, or give the file of an sdist that you have.",
        )
    return str(version)


def name_newest() -> str:
    """Return a sentence with the newest release that the user's package index has, or that it has none."""
    code, said = run_pip(["index", "versions", PROJECT])
    found = re.search(rf"^{PROJECT} \(([^)]+)\)", said, re.MULTILINE)
    if code or not found:
        return "The package index names no release."
    return f"The newest on the package index is {found[1]}."


def take(version: str, cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the sdist of a version: from ``cache``, or by pip as :func:`source.fetch` does.

    pip runs its setup.py for the metadata, after the download; nothing but TLS vouches for a hash that is new.

    :raises BadInput: the index has no such version.
    :raises CheckFailed: its setup.py fails.
    :raises MachineLacks: pip cannot get it.
    """
    name = Source(version, "").file_name
    target = cache / name
    if not target.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        progress(f"downloading {name}")
        with tempfile.TemporaryDirectory(dir=cache, prefix="scratch-") as scratch:
            code, log = download([f"{PROJECT}=={version}"], scratch)
            if code:
                raise _explain(version, log, cache)
            os.replace(Path(scratch) / name, target)
    return target


def _explain(version: str, log: str, cache: Path) -> BadInput | CheckFailed | MachineLacks:
    """Return the error that pip's last words stand for."""
    if found := re.search(r"from versions: (.*)\)", log):
        if found[1] == "none":
            return MachineLacks(
                f"pip finds no version of {PROJECT}.", fix="Check the network and pip config list.", log=log
            )
        return BadInput(f"There is no DeepSpeed {version}. {name_newest()}", fix="Name one of the releases.")
    if "metadata-generation-failed" in log or "egg_info" in log:
        return CheckFailed(
            f"The setup.py of DeepSpeed {version} fails when pip asks it for the metadata.",
            fix="A build will fail there too, unless what it wants is in the host requirements. To see the rest, download the "
            "sdist with a browser and name the file.",
            log=log,
        )
    return MachineLacks(
        f"pip could not get DeepSpeed {version}.",
        fix=f"Check the network and pip config list, or put the sdist into {cache} yourself.",
        log=log,
    )


def unpack(file: Path, folder: Path) -> Sdist:
    """Unpack an sdist into ``folder``, which is emptied first, and read what it says of itself.

    :raises BadInput: it is no sdist of DeepSpeed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with tarfile.open(file) as tar:
            newest = max((member.mtime for member in tar.getmembers() if member.isfile()), default=0)
            tar.extractall(folder, filter="data")
        [tree] = folder.iterdir()
        metadata = HeaderParser().parsestr((tree / "PKG-INFO").read_text(encoding="utf-8"))
        required = [str(Requirement(one)) for one in metadata.get_all("Requires-Dist", [])]
        setup = (tree / "setup.py").read_text(encoding="utf-8")
    except (OSError, tarfile.TarError, ValueError) as error:
        raise BadInput(
            f"{file} is no sdist of DeepSpeed: {error}.", fix="Name a deepspeed-VERSION.tar.gz, as PyPI has them."
        ) from error
    if str(metadata["Name"]).lower() != PROJECT:
        raise BadInput(f"{file} is an sdist of {metadata['Name']}.", fix="Name one of DeepSpeed.")
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(metadata.get_all("Classifier", [])), re.MULTILINE)
    return Sdist(
        Source(str(metadata["Version"]), hash_file(file)),
        tree,
        int(newest) // 86400 * 86400,
        str(metadata["Requires-Python"] or ""),
        tuple(sorted(named, key=Version)),
        tuple(required),
        tuple(dict.fromkeys(re.findall(r"""install_requires\.append\(\s*f?['"]([\w.-]+)""", setup))),
    )


def read_ops(tree: Path) -> list[UpstreamOp]:
    """Return the ops that setup.py can build, read from the classes of their builders.

    setup.py collects them likewise (op_builder/all_ops.py, accelerator/): the classes in an accelerator's folder whose names end
    in Builder. The CPU's takes some from CUDA's by import, and the CUDA accelerator some of the CPU's by name.

    :raises CheckFailed: there is no such folder, or a file of it is no Python.
    """
    cuda, _ = _read_builders(tree, "op_builder")
    cpu, taken = _read_builders(tree, "op_builder/cpu")
    cpu = {**{name: cuda[name] for name in taken if name in cuda}, **cpu}
    accelerator = tree / "accelerator/cuda_accelerator.py"
    named = {
        node.value for node in ast.walk(_parse(accelerator, tree)) if isinstance(node, ast.Constant)
    } if accelerator.is_file() else set()  # fmt: skip
    cuda |= {name: said for name, said in cpu.items() if name in named}
    found: dict[str, UpstreamOp] = {}
    for which, builders in (("cuda", cuda), ("cpu", cpu)):
        for said in builders.values():
            name = said["NAME"]
            others = found[name].accelerators if name in found else ()
            module = said.get("module", "").replace("\0", name)
            found[name] = UpstreamOp(name, said.get("BUILD_VAR", ""), module, (*others, which))
    return list(found.values())


def _parse(file: Path, tree: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise CheckFailed(
            f"{file.relative_to(tree).as_posix()} cannot be read: {error}.", fix="Is it written for a newer Python?"
        ) from error


def _read_builders(tree: Path, folder: str) -> tuple[dict[str, dict[str, str]], set[str]]:
    """{class: what it says of its op}, and the names of builders that the folder's files import."""
    classes: dict[str, ast.ClassDef] = {}
    imported: set[str] = set()
    files = sorted((tree / folder).glob("*.py"))
    if not files:
        raise CheckFailed(f"{folder} is gone from the sdist.", fix="See how setup.py finds its ops now.")
    for file in files:
        parsed = _parse(file, tree)
        classes |= {one.name: one for one in parsed.body if isinstance(one, ast.ClassDef)}
        imports = [node for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom)]
        imported |= {one.name for node in imports for one in node.names if one.name.endswith("Builder")}
    said = {name: _read_class(name, classes) for name in classes if name.endswith("Builder")}
    return {name: one for name, one in said.items() if "NAME" in one}, imported


def _read_class(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, str]:
    """{NAME, BUILD_VAR, module: value} of a class and of those in the folder that it is made of; NUL is the name in a module."""
    said: dict[str, str] = {}
    if name not in classes:
        return said
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id != name:
            said |= _read_class(base.id, classes)
    for node in classes[name].body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            said |= {one: str(node.value.value) for one in names if one in ("NAME", "BUILD_VAR")}
        if isinstance(node, ast.FunctionDef) and node.name == "absolute_name":
            returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
            said["module"] = _read_text(returned[0]) if len(returned) == 1 else ""
    return said


def _read_text(node: ast.expr | None) -> str:
    """The text of an f-string that holds nothing but ``self.NAME``, a NUL in its place; nothing of any other."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = ""
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue) and ast.unparse(part.value) in ("self.NAME", "self.name"):
            text += "\0"
        else:
            return ""
    return text
