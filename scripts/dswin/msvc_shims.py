"""An MSVC tree as conda packages: they hold a script that names the tree, and nothing of Microsoft's.

They carry conda-forge's names and honour its contracts (the activation script's variables, run exports), so a recipe meets
the same names and requirements as with conda-forge, whose packages name an installed Visual Studio.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from .errors import BadInput
from .redistributables import UCRT, VC
from .wheels import Member, Source, write_package

if TYPE_CHECKING:
    from .wine.msvc import Msvc

_YEAR = "2022"
_MAJOR = "17"
#: The toolsets of Visual Studio 2022, the last of which is 14.44.
_TOOLSET = re.compile(r"14\.([34]\d)\.\d+(\.\d+)?")
#: From the number of the toolset to that of Visual Studio's update: 14.44 came with 17.14.
_FIRST_TOOLSET = 30


@dataclass(frozen=True)
class _Shim:
    """A package that stands for one of conda-forge's compiler packages."""

    name: str
    version: str
    summary: str
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    script: str | None = None


def describe_msvc(msvc: Msvc) -> list[Source]:
    """The tree's compiler as ``vs2022_win-64``, and ``vs_win-64``, which is what ``stdlib("c")`` asks for.

    :raises BadInput: the toolset is not one of Visual Studio 2022, or the tree's path cannot stand in a batch file.
    """
    toolset = _TOOLSET.fullmatch(msvc.toolset)
    if toolset is None:
        raise BadInput(
            f"The MSVC toolset {msvc.toolset} is not one of Visual Studio {_YEAR} (14.30 to 14.49).",
            fix=f"Name a tree with a toolset of Visual Studio {_YEAR}, or pick one of the tree's: DSWIN_MSVC_TOOLSET=14.44.",
        )
    # The compiler's number runs five ahead of its toolset's: cl 19.44.35207 is in 14.44.35207.
    compiler = "19." + msvc.toolset.split(".", 1)[1]
    update = f"{_YEAR}.{int(toolset[1]) - _FIRST_TOOLSET}"
    exports = [VC, f"vc14_runtime >=14.{toolset[1]}", UCRT]
    shims = (
        _Shim(
            f"vs{_YEAR}_win-64",
            compiler,
            f"Shim that puts the MSVC toolset {msvc.toolset} and the Windows SDK {msvc.sdk} of a folder on the PATH.",
            constrains=(f"vs_win-64 {update}",),
            script=write_activation(msvc),
        ),
        _Shim(
            "vs_win-64",
            update,
            "Stands for the Windows SDK, which comes with the compiler.",
            depends=(f"vs{_YEAR}_win-64 {compiler}.*",),
        ),
    )
    return [
        Source(
            shim.name,
            f"{shim} {exports}",
            f"packing {shim.name} (MSVC {msvc.toolset})",
            lambda folder, digest, shim=shim: _write_shim(shim, msvc.toolset, exports, folder, digest),  # type: ignore[misc]
        )
        for shim in shims
    ]


def _write_shim(shim: _Shim, toolset: str, exports: list[str], folder: Path, digest: str) -> Path:
    index = {
        "name": shim.name,
        "version": shim.version,
        "build": f"system_msvc_{toolset}_h{digest[:7]}_0",
        "build_number": 0,
        "depends": list(shim.depends),
        "constrains": list(shim.constrains),
        "subdir": "win-64",
    }
    path = f"etc/conda/activate.d/vs{_YEAR}_compiler_vars.bat"
    members = [] if shim.script is None else [Member.from_bytes(path, shim.script.encode("ascii"))]
    about = {"summary": f"{shim.summary} Not for publication."}
    return write_package(folder, index, members, about=about, info={"run_exports.json": {"strong": exports}})


def name_on_windows(path: Path) -> str:
    """The name that Windows programs know a path by; on another system under Wine, whose drive Z: is the whole machine."""
    text = str(path)
    return text if PureWindowsPath(text).drive else "Z:" + text.replace("/", "\\")


def write_activation(msvc: Msvc) -> str:
    """The batch file that does what conda-forge's does, for a tree without Visual Studio's own vcvarsall.bat.

    :raises BadInput: the path of the tree has characters that do not survive in a batch file.
    """

    def join(*folders: Path) -> str:
        names = [name_on_windows(folder) for folder in folders]
        for name in names:
            if not name.isascii() or re.search(r'["%!;\x00-\x1f]', name):
                raise BadInput(
                    f"{name} cannot be named in a batch file.",
                    fix='Put the MSVC tree where the path has neither letters beyond ASCII nor any of " % ! ;',
                )
        return ";".join(names)

    text = _ACTIVATE
    for word, value in {
        "MAJOR": _MAJOR,
        "YEAR": _YEAR,
        "TOOLSET": msvc.toolset,
        "SDK": msvc.sdk,
        "PROGRAMS": join(*msvc.programs),
        "INCLUDES": join(*msvc.includes),
        "LIBRARIES": join(*msvc.libraries),
    }.items():
        text = text.replace(f"@{word}@", value)
    return text.replace("\n", "\r\n")


# Names and meanings are those of conda-forge's vc feedstock and of Microsoft's vcvars64.bat. No parenthesised blocks: a
# value with a parenthesis in it, such as PATH's "Program Files (x86)", would end them. No CMAKE_GENERATOR: MSBuild, which
# Visual Studio's generator starts, is no part of the tree.
_ACTIVATE = r"""@rem Made by dswin. Puts an MSVC toolset and a Windows SDK to use.
@set "DISTUTILS_USE_SDK=1"
@set "MSSdk=1"
@set "VS_VERSION=@MAJOR@.0"
@set "VS_MAJOR=@MAJOR@"
@set "VS_YEAR=@YEAR@"
@set "MSYS2_ARG_CONV_EXCL=/AI;/AL;/OUT;/out"
@set "MSYS2_ENV_CONV_EXCL=CL"
@set "PY_VCRUNTIME_REDIST=%PREFIX%\bin\vcruntime140.dll"
@set "CXX=cl.exe"
@set "CC=cl.exe"
@set "VCToolsVersion=@TOOLSET@"
@set "WindowsSDKVersion=@SDK@\"
@set "VSCMD_ARG_HOST_ARCH=x64"
@set "VSCMD_ARG_TGT_ARCH=x64"
@rem Inside a build, compile and link against the host environment; outside, against this one.
@if "%CONDA_BUILD%" == "" set "_dswin_library=%CONDA_PREFIX%\Library"
@if not "%CONDA_BUILD%" == "" set "_dswin_library=%LIBRARY_PREFIX%"
@if "%CONDA_BUILD%" == "" set "_dswin_include=%CONDA_PREFIX%\Library\include"
@if not "%CONDA_BUILD%" == "" set "_dswin_include=%LIBRARY_INC%"
@if "%CONDA_BUILD%" == "" set "_dswin_lib=%CONDA_PREFIX%\Library\lib"
@if not "%CONDA_BUILD%" == "" set "_dswin_lib=%LIBRARY_LIB%"
@set "INCLUDE=%_dswin_include%;@INCLUDES@;%INCLUDE%"
@set "LIB=%_dswin_lib%;@LIBRARIES@;%LIB%"
@set "CMAKE_PREFIX_PATH=%_dswin_library%;%CMAKE_PREFIX_PATH%"
@set "_dswin_library="
@set "_dswin_include="
@set "_dswin_lib="
@set "CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release"
@set "MESON_ARGS=-Dbuildtype=release"
@rem The environments' own programs stay in front of the compiler's.
@set "PATH=@PROGRAMS@;%PATH%"
@if "%CONDA_BUILD%" == "" set "PATH=%CONDA_PREFIX%;%CONDA_PREFIX%\Library\bin;%CONDA_PREFIX%\Scripts;%CONDA_PREFIX%\bin;%PATH%"
@if not "%CONDA_BUILD%" == "" set "PATH=%PREFIX%;%PREFIX%\Library\bin;%PREFIX%\Scripts;%PREFIX%\bin;%PATH%"
@if not "%CONDA_BUILD%" == "" set "PATH=%BUILD_PREFIX%\Scripts;%BUILD_PREFIX%\bin;%PATH%"
@if not "%CONDA_BUILD%" == "" set "PATH=%BUILD_PREFIX%;%BUILD_PREFIX%\Library\bin;%PATH%"
"""
