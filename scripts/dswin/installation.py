"""What is installed in an environment, read from its files: it needs no torch that works, and survives files that are broken."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from .digests import hash_file
from .gpus import Archs
from .prefixes import Installed, read_records
from .torch_probe import Probe

#: The package of this project, and the distribution that it installs.
OURS, DEEPSPEED, TORCH = "deepspeed-win", "deepspeed", "torch"
_METADATA = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info$")
_ASSIGNMENT = re.compile(r"(?m)^(\w+)[ \t]*(?::[^=\n]*)?=[ \t]*(.+?)[ \t]*$")
#: A version.py is a few lines; what is larger is something else.
_LARGEST = 2**20


@dataclass(frozen=True)
class Package:
    """A distribution that Python finds. :param site: the folder of sys.path that it lies in. :param installer: pip, conda, ..."""

    name: str
    version: str
    site: str
    installer: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}" + (f" ({self.installer})" if self.installer else "") + f" in {self.site}"


@dataclass(frozen=True)
class Torch:
    """What torch/version.py says. :param cuda: None in a build for the CPU."""

    version: str
    cuda: str | None
    site: str


@dataclass(frozen=True)
class Ops:
    """What DeepSpeed's setup.py wrote of the ops that it compiled.

    :param ops: those compiled ahead of time. :param torch: major.minor that they load under.
    :param cuda: major.minor, None for the CPU.
    """

    version: str
    ops: tuple[str, ...]
    accelerator: str
    torch: str
    cuda: str | None


@dataclass(frozen=True)
class Installation:
    """An environment.

    :param origin: how it was found: ``--prefix``, ``--python``, ``CONDA_PREFIX``, ``VIRTUAL_ENV`` or ``PATH``.
    :param python: its Python's path; "" where it has none.
    :param packages: every distribution that its Python finds, in sys.path's order.
    :param requires: the requirements of deepspeed's METADATA. :param changed: files that are not as conda-meta has them.
    :param code: the GPU code in the ops; None where none was read. :param problems: files that cannot be read.
    """

    prefix: str
    origin: str = "PATH"
    python: str = ""
    probe: Probe = field(default_factory=Probe)
    packages: tuple[Package, ...] = ()
    torch: Torch | None = None
    ops: Ops | None = None
    requires: tuple[str, ...] = ()
    records: Mapping[str, Installed] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    code: Archs | None = None
    problems: tuple[str, ...] = ()
    is_conda: bool = False

    @property
    def variant(self) -> str:
        """The variant of what is installed: by the package's build, else by what its ops were compiled for; or ""."""
        if OURS in self.records:
            return self.records[OURS].build.split("_")[0]
        if self.ops is None:
            return ""
        return f"cuda{self.ops.cuda.replace('.', '')}" if self.ops.cuda else "cpu"

    @property
    def python_version(self) -> str:
        """As Python says, else as its conda package does."""
        return self.probe.version or (self.records["python"].version if "python" in self.records else "")

    def find(self, name: str) -> list[Package]:
        """Return all copies of a distribution; Python takes the first."""
        return [one for one in self.packages if one.name == name]


def find_python(prefix: Path, *, windows: bool) -> Path | None:
    """Return the Python of an environment, conda's or a virtual one."""
    names = ("python.exe", "Scripts/python.exe") if windows else ("bin/python", "bin/python3")
    return next((prefix / name for name in names if os.path.lexists(prefix / name)), None)


def prefix_of(python: Path) -> Path:
    """Return the folder of the environment that a Python belongs to, by where it lies; links are not followed."""
    folder = python.absolute().parent
    return folder.parent if folder.name.lower() in ("bin", "scripts") else folder


def read(prefix: Path, python: Path | None, origin: str, probe: Probe) -> Installation:
    """Read what an environment holds. Nothing is raised: what cannot be read is among the problems.

    :param probe: what its Python said; without that, the environment's own folders are read.
    """
    problems: list[str] = []
    sites = list_sites(prefix, probe)
    packages = tuple(package for site in sites for package in list_packages(site, problems))
    try:
        records, broken = read_records(prefix)
    except OSError as error:
        records, broken = {}, []
        problems.append(f"{prefix / 'conda-meta'}: {error.strerror or error}")
    problems += [f"{file}: it is no record of a package" for file in broken]
    ops = read_ops(sites, problems)
    ours = records.get(OURS)
    return Installation(
        str(prefix),
        origin,
        str(python or ""),
        probe,
        packages,
        read_torch(sites, problems),
        ops,
        read_requirements(packages, problems),
        records,
        tuple(find_changes(prefix, ours)) if ours else (),
        read_code(sites, problems) if ops and ops.cuda else None,
        tuple(problems),
        (prefix / "conda-meta").is_dir(),
    )


def list_sites(prefix: Path, probe: Probe) -> list[Path]:
    """Return the folders that packages are imported from: sys.path's, else those that an environment has."""
    folders = [Path(folder) for folder in probe.path]
    if not folders:
        folders = [prefix / "Lib" / "site-packages", *sorted(prefix.glob("lib/python3.*/site-packages"))]
    return list({os.path.realpath(folder): folder for folder in reversed(folders) if folder.is_dir()}.values())[::-1]


def list_packages(site: Path, problems: list[str]) -> Iterator[Package]:
    """Give the distributions of a folder, by the names of their metadata."""
    try:
        names = sorted(entry.name for entry in os.scandir(site))
    except OSError as error:
        problems.append(f"{site}: {error.strerror or error}")
        return
    for name in names:
        if found := _METADATA.match(name):
            yield Package(
                canonicalize_name(found["name"]),
                found["version"],
                str(site),
                _read(site / name / "INSTALLER", []).strip()[:20],
            )


def _read(file: Path, problems: list[str]) -> str:
    try:
        if not file.is_file():
            return ""
        with file.open("rb") as opened:
            return opened.read(_LARGEST).decode("utf-8", "replace")
    except OSError as error:
        problems.append(f"{file}: {error.strerror or error}")
        return ""


def parse_assignments(text: str) -> dict[str, Any]:
    """Return the plain values that a Python file gives to names, a line each, without running it."""
    found = {}
    for name, value in _ASSIGNMENT.findall(text):
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return found


def read_torch(sites: Iterable[Path], problems: list[str]) -> Torch | None:
    """Read the torch that Python would import."""
    for site in sites:
        if not (site / TORCH / "__init__.py").is_file() and not (site / TORCH / "version.py").is_file():
            continue
        says = parse_assignments(_read(site / TORCH / "version.py", problems))
        version, cuda = says.get("__version__"), says.get("cuda")
        if not isinstance(version, str) or not re.match(r"\d+\.\d+", version):
            problems.append(f"{site / TORCH / 'version.py'}: it says no version")
            version = ""
        return Torch(version, cuda if isinstance(cuda, str) else None, str(site))
    return None


def read_ops(sites: Iterable[Path], problems: list[str]) -> Ops | None:
    """Read what is recorded of the ops of the deepspeed that Python would import."""
    for site in sites:
        folder = site / DEEPSPEED
        if not (folder / "__init__.py").is_file():
            continue
        file = folder / "git_version_info_installed.py"
        says = parse_assignments(_read(file, problems))
        try:
            about = says["torch_info"]
            return Ops(
                str(says["version"]).strip(),
                tuple(sorted(name for name, built in says["installed_ops"].items() if built)),
                str(says["accelerator_name"]),
                str(about["version"]),
                None if str(about["cuda_version"]) == "0.0" else str(about["cuda_version"]),
            )
        except (KeyError, TypeError, AttributeError):
            problems.append(f"{file}: it does not say what was compiled")
            return None
    return None


def read_requirements(packages: Sequence[Package], problems: list[str]) -> tuple[str, ...]:
    """Return what deepspeed's METADATA requires."""
    for package in packages:
        if package.name == DEEPSPEED:
            [*folders] = Path(package.site).glob(f"{DEEPSPEED}-{package.version}*-info")
            try:
                return tuple(importlib.metadata.PathDistribution(folders[0]).requires or ())
            except Exception as error:  # the parser's own kinds, for whatever stands there
                problems.append(f"{folders[0] if folders else package}: {type(error).__name__}: {error}")
    return ()


def find_changes(prefix: Path, record: Installed) -> Iterator[str]:
    """Give the files by which pip's deepspeed is told from ours, where they are not what the package brought."""
    for one in record.paths:
        path = str(one["_path"])
        if not re.search(rf"site-packages/{DEEPSPEED}(-[^/]*\.dist-info/|/.*(\.so|\.pyd|_installed\.py)$)", path):
            continue
        expected = one.get("sha256_in_prefix") or one.get("sha256")
        try:
            if expected and hash_file(prefix / path) != expected:
                yield path
        except OSError as error:
            yield f"{path} ({error.strerror or error})"


def read_code(sites: Iterable[Path], problems: list[str]) -> Archs | None:
    """Return the GPU architectures of the smallest op that has GPU code: all ops of a package are compiled for one list."""
    for site in sites:
        files = [file for end in ("so", "pyd") for file in (site / DEEPSPEED / "ops").rglob(f"*_op*.{end}")]
        try:
            # Imported here: on a Windows that lacks the C++ runtime it does not load, and that is to be said, not to happen.
            from . import binaries

            for file in sorted(files, key=lambda one: one.stat().st_size):
                code = binaries.read(file).gpu
                if code.sass or code.ptx:
                    return Archs(code.sass, code.ptx)
        except Exception as error:
            problems.append(f"the ops in {site}: {error}")
        if files:
            break
    return None
