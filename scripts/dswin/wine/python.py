"""A Windows Python without a Windows machine: CPython of Debian's source, Microsoft's runtime DLLs, pip and setuptools."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ..digests import digest
from ..errors import CheckFailed, MachineLacks
from ..package_index import QUIET, run_pip
from . import apt
from .cpython import Build
from .host import Host
from .prefix import Progress
from .toolchain import Toolchain

#: The version that Debian 12 has the source of.
VERSION = "3.11.2"
#: The major.minor of it, which packages that are built with it are for.
MINOR = "3.11"
_SUITE = "bookworm"
#: Debian's source packages, by the folder that each is unpacked to.
_SOURCES = {"python": "python3.11", "zlib": "zlib", "bzip2": "bzip2", "xz": "xz-utils", "libffi": "libffi"}
#: Microsoft's C and C++ runtime DLLs, and what installs and builds packages (wheel requires packaging).
_WHEELS = ("msvc-runtime==14.44.35112", "packaging==26.4", "pip==26.3", "setuptools==84.2.1", "wheel==0.48.0")
#: Changes when a tree must be made again because of these files.
_SCRIPT = 1
#: Written into a tree as the last step.
_STAMP = "made-from.json"


def make_python(host: Host, cache: Path, progress: Progress = lambda _: None) -> Path:
    """Make a Windows Python, or find it made, and return its folder, with python.exe in it and Scripts, Lib, libs, include.

    It is compiled in four minutes on two idle cores, and kept by what it is made from; other versions of pip or setuptools
    do not compile it again.

    :param cache: a folder for it; may be deleted at any time. The host's lock guards it too.
    :raises MachineLacks: no Python 3.11 on this machine, no Debian mirror, no package index.
    :raises CheckFailed: something does not compile, or the Python does not run.
    """
    compiled = _describe(host)
    inputs = {**compiled, "wheels": _WHEELS}
    tree = _name(cache.absolute(), "python", inputs)
    if (tree / _STAMP).is_file():
        return tree
    bare = _name(cache.absolute(), "compiled-python", compiled)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=cache) as scratch:
        if not bare.is_dir():
            _compile(host, Path(scratch), progress).rename(bare)
        progress("installing pip, setuptools, wheel and Microsoft's runtime DLLs")
        wheels = Path(scratch) / "wheels"
        download_wheels(list(_WHEELS), MINOR, wheels)
        # In its place from the start: Scripts/pip.exe holds the whole path of python.exe.
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(bare, tree)
        install_runtime(wheels, tree)
        install_wheels(host, tree, wheels, ["pip", "setuptools", "wheel"])
        (tree / _STAMP).write_text(json.dumps(inputs, indent=1), encoding="utf-8")
    return tree


def _describe(host: Host) -> dict[str, object]:
    return {"python": VERSION, "toolset": host.msvc.toolset, "sdk": host.msvc.sdk, "script": _SCRIPT}


def _name(cache: Path, what: str, inputs: Mapping[str, object]) -> Path:
    return cache / f"{what}-{VERSION}-{digest(inputs)[:8]}"


def _compile(host: Host, scratch: Path, progress: Progress) -> Path:
    """Compile CPython and return its tree, in ``scratch``."""
    host_python = find_host_python()
    # On C:, where every path is short and plain, whatever the cache's folder is called.
    work = host.prefix / "drive_c" / "build-python"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        progress(f"downloading the source of Python {VERSION}")
        unpack_sources(scratch / "sources", work)
        build = Build(Toolchain(host, work / "objects"), work, host_python, min(os.cpu_count() or 1, 4), progress)
        build.run()
        tree = scratch / "compiled"
        tree.mkdir()
        build.install(tree)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return tree


def find_host_python() -> Path:
    """Return a Python 3.11 of this machine: it compiles the modules that are frozen into the Windows one.

    :raises MachineLacks: there is none.
    """
    if sys.version_info[:2] == (3, 11):
        return Path(sys.executable)
    for folder in os.get_exec_path():
        # A shim of pyenv is there for every version and runs only some.
        if program := shutil.which(f"python{MINOR}", path=folder):
            done = subprocess.run([program, "-I", "-c", "import sys"], capture_output=True, check=False)
            if done.returncode == 0:
                return Path(program)
    raise MachineLacks(
        f"Building Python {VERSION} for Windows takes a Python {MINOR} on this machine, and there is none on the PATH.",
        fix=f"Install one (Debian 12: apt-get install python{MINOR}; elsewhere: pyenv or uv) and run again.",
    )


def unpack_sources(download: Path, folder: Path) -> None:
    """Get the sources as their authors released them, without Debian's changes, and unpack each into its folder.

    :raises MachineLacks: Debian's archive is not to be had, or holds another version of Python.
    """
    files = apt.fetch("deb-src", list(_SOURCES.values()), _SUITE, download)
    for name, package in _SOURCES.items():
        pattern = re.compile(rf"{re.escape(package)}_[^/]+\.orig\.tar\.\w+")
        [archive] = [file for file in files if pattern.fullmatch(file.name)]
        if name == "python" and f"_{VERSION}.orig" not in archive.name:
            raise MachineLacks(
                f"Debian's {_SUITE} holds {archive.name}, not Python {VERSION}.", fix="Use another mirror of Debian."
            )
        with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=folder) as scratch:
            tar.extractall(scratch, filter="data")
            [top] = Path(scratch).iterdir()
            top.rename(folder / name)


def download_wheels(requirements: list[str], python: str, folder: Path, *, deps: bool = False) -> None:
    """Let this machine's pip download wheels for Windows, so that the user's own index or mirror serves them.

    :param python: the major.minor that they are for.
    :param deps: what they require too. pip reads its conditions as for this machine: name what only Windows needs.
    :raises MachineLacks: pip cannot get them.
    """
    options = [
        "--only-binary",
        ":all:",
        "--platform",
        "win_amd64",
        "--python-version",
        python,
        "--implementation",
        "cp",
    ]
    options += [] if deps else ["--no-deps"]
    code, log = run_pip(["download", "--dest", str(folder), *options, *requirements])
    if code:
        raise MachineLacks(
            f"pip could not get {', '.join(requirements)} for Windows.",
            fix="See pip's own words below; check the network and pip config list.",
            log=log,
        )


def install_runtime(wheels: Path, tree: Path) -> None:
    """Put Microsoft's runtime DLLs beside python.exe, where every Windows program looks first."""
    [wheel] = wheels.glob("msvc_runtime-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.lower().endswith(".dll"):
                (tree / Path(member.filename).name).write_bytes(archive.read(member))


def install_wheels(
    host: Host, tree: Path, wheels: Path, requirements: list[str], *, target: Path | None = None
) -> None:
    """Install packages from a folder of wheels into a Windows Python, without any index.

    :param target: a folder to put them into instead, for PYTHONPATH.
    :raises CheckFailed: its pip, or for a new tree the pip among the wheels, fails.
    """
    python = tree / "python.exe"
    environment = dict(QUIET)
    options = [
        "--no-index",
        "--find-links",
        host.to_windows(wheels),
        "--no-warn-script-location",
        "--no-cache-dir",
        "--no-compile",
    ]
    if not (tree / "Lib" / "site-packages" / "pip").is_dir():
        [wheel] = wheels.glob("pip-*.whl")
        environment["PYTHONPATH"] = host.to_windows(wheel)  # pip runs out of its wheel
    if target:
        options += ["--target", host.to_windows(target)]
    command: list[str | Path] = [python, "-m", "pip", "install", *options, *requirements]
    done = host.run(command, env=environment, timeout=3600.0)
    if done.code:
        raise CheckFailed(
            f"pip could not install {', '.join(requirements)} into the Windows Python.",
            fix=f"See its words below; delete {tree} if that Python is broken, and run again.",
            log="\n".join(done.output.strip().splitlines()[-20:]),
        )


def keep_packages(
    host: Host,
    tree: Path,
    cache: Path,
    name: str,
    requirements: list[str],
    progress: Progress,
    *,
    deps: bool = False,
    finish: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Return a folder ``cache/name-<digest>``, for PYTHONPATH, with packages for a Windows Python; made now if it is not there.

    :param deps: as in :func:`download_wheels`.
    :param finish: changes the new folder before it is moved into its place.
    """
    folder = cache / f"{name}-{digest([requirements, tree.name])[:8]}"
    if not folder.is_dir():
        progress(f"installing {name} for the Windows Python")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=cache) as scratch:
            wheels, ready = Path(scratch) / "wheels", Path(scratch) / "ready"
            download_wheels(requirements, MINOR, wheels, deps=deps)
            install_wheels(host, tree, wheels, requirements, target=ready)
            finish(ready)
            ready.rename(folder)
    return folder
