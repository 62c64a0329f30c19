"""All that `dswin doctor` looks at, before anything is judged: the machine, one environment, and what the recipe asks for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Literal

from . import facts, installation, programs, torch_probe
from .errors import BadInput
from .facts import Fact
from .gpus import Archs, minor_of, parse_archs
from .installation import OURS, Installation

Purpose = Literal["run", "build"]

#: Where CUDA toolkits are when no variable says so: the installers' defaults.
_TOOLKITS = {
    "win-64": (r"%ProgramFiles%\NVIDIA GPU Computing Toolkit\CUDA", "v*"),
    "linux-64": ("/usr/local", "cuda*"),
}


@dataclass(frozen=True)
class Needs:
    """What the recipe says of one variant on one platform.

    :param torch: major.minor, or three numbers. :param cuda: major.minor; "" for the CPU. :param pythons: ``3.10`` ...
    :param glibc: Linux's C library, at least. :param channels: where conda finds what it needs.
    """

    variant: str
    torch: str
    cuda: str
    archs: Archs
    pythons: tuple[str, ...]
    glibc: str = ""
    channels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit. :param nvcc: its compiler's version; "" where it has none. :param origin: a variable's name, or PATH."""

    folder: str
    nvcc: str
    origin: str


@dataclass(frozen=True)
class Seen:
    """What was seen.

    :param variant: the one that is judged: named by the user, else that of the installed package; "" where there is none.
    :param needs: what the recipe says of it; None where it could not be read. :param needs_problem: why.
    :param python_on_path: what the command ``python`` starts. :param work: where builds are made.
    :param elsewhere: other environments that have deepspeed-win.
    """

    platform: str
    facts: Mapping[str, Fact]
    installation: Installation
    variables: Mapping[str, str] = field(default_factory=dict)
    variant: str = ""
    needs: Needs | None = None
    needs_problem: str = ""
    python_on_path: str = ""
    work: str = ""
    toolkits: tuple[Toolkit, ...] = ()
    elsewhere: tuple[str, ...] = ()

    @property
    def windows(self) -> bool:
        return self.platform == "win-64"

    def get(self, name: str) -> Any:
        """Return a fact's value; None where it has none."""
        return self.facts[name].value if name in self.facts else None

    def why(self, name: str) -> str:
        """Return why a fact has no value."""
        return (self.facts[name].problem if name in self.facts else None) or "it was not looked at"

    def path(self, text: str) -> PurePath:
        """Return a path of the machine that was looked at; on Windows letters' case does not count."""
        return PureWindowsPath(text) if self.windows else PurePosixPath(text)

    @property
    def cuda(self) -> str:
        """The CUDA that must work: the variant's, else torch's own; "" where none must."""
        if self.needs is not None:
            return self.needs.cuda
        torch, ops = self.installation.torch, self.installation.ops
        return (torch.cuda if torch else None) or (ops.cuda if ops else None) or ""


def look(
    purpose: Purpose,
    platform: str,
    recipe: Path,
    work: Path,
    *,
    prefix: Path | None = None,
    python: Path | None = None,
    variant: str = "",
) -> Seen:
    """Look at everything; takes seconds, most of them torch's.

    :param work: where builds are made. :param prefix: an environment's folder. :param python: or its Python.
    :raises BadInput: the environment or the variant that is named is not there.
    """
    folder, python, origin = choose_environment(platform, os.environ, prefix, python)
    with ThreadPoolExecutor(2) as pool:
        # Python's answer is waited for while the machine's programs answer; a build asks nothing of an environment.
        asked = pool.submit(torch_probe.ask, python) if python and purpose == "run" else None
        found = facts.collect(work if purpose == "build" else folder, without=("channels", "torch"))
        found += [facts.look_for_program("g++", "--version").take()] if platform != "win-64" else []
        probe = asked.result() if asked else torch_probe.Probe()
    if origin in ("--python", "PATH") and probe.prefix:  # a link or a shim lies elsewhere
        folder = Path(probe.prefix)
    installed = installation.read(folder, python, origin, probe)
    default = ("cuda121" if platform == "win-64" else "cpu") if purpose == "build" else installed.variant
    needs, problem = read_needs(recipe, platform, variant or default, must=bool(variant))
    return Seen(
        platform,
        {fact.name: fact for fact in found},
        installed,
        dict(os.environ),
        variant or default,
        needs,
        problem,
        shutil.which("python") or shutil.which("python3") or "",
        str(work),
        find_toolkits(platform, os.environ),
        tuple(list_environments(Path.home(), folder)),
    )


def choose_environment(
    platform: str, variables: Mapping[str, str], prefix: Path | None, python: Path | None
) -> tuple[Path, Path | None, str]:
    """Return (folder, Python, how it was found) of the environment to look at.

    By default the active conda environment, else the active virtual one, else what the Python on PATH belongs to.

    :raises BadInput: a named one is not there.
    """
    windows = platform == "win-64"
    if python is not None:
        if not python.is_file():
            raise BadInput(f"{python} is no file.", fix="Name the python.exe or bin/python of an environment.")
        return installation.prefix_of(python), python.absolute(), "--python"
    if prefix is not None:
        found = installation.find_python(prefix.absolute(), windows=windows) if prefix.is_dir() else None
        if found is None and not (prefix / "conda-meta").is_dir():
            raise BadInput(
                f"{prefix} is no environment: it has no Python and no conda-meta.",
                fix="Name the folder that `conda env list` shows, or a virtual environment's.",
            )
        return prefix.absolute(), found, "--prefix"
    for name in ("CONDA_PREFIX", "VIRTUAL_ENV"):
        if variables.get(name):
            folder = Path(variables[name])
            return folder, installation.find_python(folder, windows=windows), name
    first = shutil.which("python") or shutil.which("python3")
    return (installation.prefix_of(Path(first)), Path(first), "PATH") if first else (Path.cwd(), None, "PATH")


def read_needs(recipe: Path, platform: str, variant: str, *, must: bool) -> tuple[Needs | None, str]:
    """Return what the recipe says of a variant, or None and why.

    :raises BadInput: there ``must`` be such a variant and there is none.
    """
    if not variant:
        return None, "no package is installed and no --variant is named"
    try:
        from . import build, worker  # the builder may not load: Windows without the C++ runtime

        rendered = worker.render(recipe, platform)
    except Exception as error:
        return None, f"the recipe cannot be read: {type(error).__name__}: {error}"
    rows = {str(one.variant["ds_variant"]): one for one in rendered}
    if variant not in rows:
        if must:
            raise BadInput(
                f"There is no variant {variant!r} for {platform}.", fix=f"Variants: {', '.join(sorted(rows))}."
            )
        return None, f"the recipe has no variant {variant}"
    keys, run = rows[variant].variant, rows[variant].recipe.to_dict()["requirements"]["run"]
    torch = next(str(spec).split()[1] for spec in run if str(spec).startswith("pytorch "))
    cuda = keys.get("cuda_compiler_version")
    pythons = {str(one.variant["python"]) for one in rendered}
    return Needs(
        variant,
        minor_of(torch.lstrip("=")),
        str(cuda) if cuda and variant != "cpu" else "",
        parse_archs(str(keys["ds_arch_list"])),
        tuple(sorted(pythons, key=lambda text: [int(part) for part in text.split(".")])),
        str(keys.get("c_stdlib_version") or "") if platform == "linux-64" else "",
        build.CHANNELS.get(variant, ()),
    ), ""


def find_toolkits(platform: str, variables: Mapping[str, str]) -> tuple[Toolkit, ...]:
    """Return the CUDA toolkits that variables name, and those where the installers put them."""
    folder, pattern = _TOOLKITS[platform]
    places = [(variables[name], name) for name in ("CUDA_HOME", "CUDA_PATH") if variables.get(name)]
    places += [(str(one), "the default place") for one in sorted(Path(os.path.expandvars(folder)).glob(pattern))]
    nvcc = "bin/nvcc.exe" if platform == "win-64" else "bin/nvcc"

    def ask(place: str) -> str:
        try:
            code, said = programs.run(str(Path(place) / nvcc), "--version")
            return facts.parse_nvcc(said) if code == 0 else ""
        except programs.Absent:
            return ""

    known = {place: ask(place) for place in dict.fromkeys(place for place, _ in places)}
    return tuple(Toolkit(place, known[place], origin) for place, origin in places if known[place] or origin.isupper())


def list_environments(home: Path, besides: Path) -> Sequence[str]:
    """Return the environments with deepspeed-win among those that conda has noted, without one of them."""
    try:
        lines = (home / ".conda" / "environments.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        folders = [Path(line.strip()) for line in lines if line.strip()]
        return [
            str(folder)
            for folder in folders
            if folder != besides and any((folder / "conda-meta").glob(f"{OURS}-[0-9]*.json"))
        ]
    except (OSError, ValueError):
        return []
