"""A Wine prefix: the folder that is a Windows machine's C: drive and registry, and the programs that Wine brings for it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..digests import hash_file
from ..errors import MachineLacks
from . import apt
from .msvc import Msvc
from .paths import to_windows

Progress = Callable[[str], None]

#: Changes when a prefix must be made again because of this file.
_LAYOUT = 1
_OLDEST_WINE = 8
_INSTALL_WINE = "Install Wine 8 or newer (Debian and Ubuntu: apt-get install wine64) and run again."
#: Beside the PATH: Debian's package wine64 alone puts nothing there; WineHQ's packages live below /opt.
_WINE_FOLDERS = ("/usr/lib/wine", "/opt/wine-stable/bin", "/opt/wine-devel/bin", "/opt/wine-staging/bin")

#: The Wine from which a prefix needs nothing else.
_GOOD_WINE = 10
#: What older ones need of it. Wine 8's cmd runs the right side of `builtin || x` even when the builtin succeeded, so no
#: guarded batch file works in it; programs of a current Rust (rattler) import bcryptprimitives, which it lacks.
_PARTS = ("cmd.exe", "bcryptprimitives.dll")
_PARTS_SUITE = "trixie"
#: Wine loads a program with this mark only as its own, of its own version.
_BUILTIN_MARK = (0x40, b"Wine builtin DLL")

#: Programs beside the one that runs, and Microsoft's C and C++ runtime, win over Wine's own. No desktop menus.
_OVERRIDES = (
    "cmd.exe=n,b;bcryptprimitives=n,b;winemenubuilder.exe=d;"
    "vcruntime140,vcruntime140_1,msvcp140,msvcp140_1,msvcp140_2,vcomp140,concrt140=n,b"
)


@dataclass(frozen=True)
class Wine:
    """Wine on this machine.

    :param program: starts a Windows program.
    :param server: the program that all Windows programs of a prefix talk to.
    :param version: what the program says of itself, ``wine-8.0 (Debian 8.0~repack-4)``.
    :param before: a command that starts the program with a layout of memory that is always the same, where the system allows
        it. Debian's Wine has no preloader, and Linux puts its heap at random into the 1 GiB above 0x7d000000. In about one
        start of 1,760 it lies on 0x7ffe0000, where each Windows program has a page of the system's, and ends at once.
    """

    program: Path
    server: Path
    version: str
    before: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What a Windows program's name and arguments are appended to. What it starts in turn has the same layout."""
        return [*self.before, str(self.program)]

    @property
    def major(self) -> int:
        """The first number of the version."""
        found = re.match(r"wine-(\d+)", self.version)
        return int(found[1]) if found else 0


def find_wine() -> Wine:
    """Find Wine on the PATH, or where its packages put it.

    :raises MachineLacks: there is none, it does not run, or it is too old.
    """
    program = _find_program("wine64", "wine")
    server = _find_program("wineserver64", "wineserver")
    if program is None or server is None:
        raise MachineLacks("This machine has no Wine, which runs Windows programs.", fix=_INSTALL_WINE)
    done = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace", check=False)
    wine = Wine(program, server, done.stdout.strip(), _find_fixed_layout())
    if done.returncode or wine.major < _OLDEST_WINE:
        raise MachineLacks(
            f"{program} says that it is {wine.version or 'nothing'}, not Wine {_OLDEST_WINE} or newer.",
            fix=_INSTALL_WINE,
            log=done.stderr.strip(),
        )
    return wine


def _find_fixed_layout() -> tuple[str, ...]:
    """setarch -R, of util-linux. Containers may forbid it."""
    setarch = shutil.which("setarch")
    allowed = setarch and not subprocess.run([setarch, "-R", "true"], capture_output=True, check=False).returncode
    return (setarch, "-R") if setarch and allowed else ()


def _find_program(*names: str) -> Path | None:
    for name in names:
        for found in (shutil.which(name), *(shutil.which(name, path=folder) for folder in _WINE_FOLDERS)):
            if found:
                return Path(found)
    return None


def list_drives(prefix: Path) -> dict[str, Path]:
    """Return the drives of a prefix as Wine makes them: C: in the prefix, Z: the whole machine."""
    return {"C": prefix / "drive_c", "Z": Path("/")}


def write_environment(wine: Wine, prefix: Path, msvc: Msvc) -> dict[str, str]:
    """Return the whole environment of Windows programs: Wine's settings, and MSVC as vcvars64.bat would set it.

    Nothing of the caller's own environment is in it: on Windows it would mean something else, or nothing.
    """
    drives = list_drives(prefix)

    def join(*folders: Path) -> str:
        return ";".join(to_windows(folder, drives) for folder in folders)

    return {
        # For Wine itself; it hands PATH and HOME to no Windows program.
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(prefix.parent / "home"),
        # Wine reads file names in the encoding of the locale.
        "LC_ALL": "C.UTF-8",
        "WINEPREFIX": str(prefix),
        "WINEARCH": "win64",
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": _OVERRIDES,
        "WINESERVER": str(wine.server),
        "WINEPATH": join(*msvc.programs),
        "INCLUDE": join(*msvc.includes),
        "LIB": join(*msvc.libraries),
        "VCToolsVersion": msvc.toolset,
        "WindowsSDKVersion": f"{msvc.sdk}\\",
        "VSCMD_ARG_TGT_ARCH": "x64",
        # setuptools and torch take the compiler from the PATH then; there is no vcvarsall.bat to ask.
        "DISTUTILS_USE_SDK": "1",
        "MSSdk": "1",
        "VSLANG": "1033",  # messages in English
        "PYTHONIOENCODING": "utf-8",
    }


def fetch_parts(wine: Wine, cache: Path, progress: Progress) -> dict[str, Path]:
    """Return what this Wine must take from a newer one, by file name: nothing from Wine 10 on.

    :raises MachineLacks: the files are not in ``cache`` and apt cannot get them.
    """
    if wine.major >= _GOOD_WINE:
        return {}
    parts = {name: cache / name for name in _PARTS}
    if all(file.is_file() for file in parts.values()):
        return parts
    progress(f"fetching {' and '.join(_PARTS)} of a newer Wine")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="parts-", dir=cache) as scratch:
            [package] = apt.fetch("deb", ["libwine"], _PARTS_SUITE, Path(scratch))
            for name, content in read_package(package, _PARTS).items():
                (Path(scratch) / name).write_bytes(clear_mark(name, content))
            for name, file in parts.items():
                (Path(scratch) / name).replace(file)
    except MachineLacks as error:
        fix = f"Install Wine {_GOOD_WINE} or newer, which needs nothing else. Or: {error.fix}"
        raise MachineLacks(f"{wine.version} is too old by itself. {error.what}", fix=fix, log=error.log) from error
    return parts


def read_package(package: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return the 64-bit Windows programs of these names that a Debian package of Wine holds.

    :raises MachineLacks: one of them is not in it.
    """
    found: dict[str, bytes] = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if name in names and folder.endswith("/wine/x86_64-windows") and (file := archive.extractfile(member)):
                    found[name] = file.read()
    if missing := set(names) - set(found):
        raise MachineLacks(
            f"{package.name} holds no {', '.join(sorted(missing))}.", fix="Use another mirror of Debian."
        )
    return found


def clear_mark(name: str, content: bytes) -> bytes:
    """Return a program of Wine without the mark that binds it to one version of Wine.

    :raises MachineLacks: it has no such mark where Wine puts it.
    """
    offset, mark = _BUILTIN_MARK
    end = offset + len(mark)
    if content[offset:end] != mark:
        raise MachineLacks(f"{name} of the newer Wine is not as expected.", fix="Use another mirror of Debian.")
    return content[:offset] + bytes(len(mark)) + content[end:]


def describe(wine: Wine, parts: Mapping[str, Path], launcher: str) -> dict[str, object]:
    """Return what a prefix is made from. Another answer means that it must be made again."""
    hashes = {name: hash_file(file) for name, file in sorted(parts.items())}
    return {"layout": _LAYOUT, "wine": wine.version, "parts": hashes, "launcher": _hash(launcher)}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_made(prefix: Path, inputs: Mapping[str, object]) -> bool:
    """Say whether a prefix was made, to its end, from these inputs."""
    try:
        return bool(json.loads((prefix / "made-from.json").read_text(encoding="utf-8")) == inputs)
    except (OSError, ValueError):
        return False


def mark_made(prefix: Path, inputs: Mapping[str, object]) -> None:
    """Note what a prefix was made from; the last step of making one."""
    (prefix / "made-from.json").write_text(json.dumps(inputs, indent=1), encoding="utf-8")
