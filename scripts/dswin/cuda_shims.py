"""CUDA 13.0 for a rehearsal: conda-forge's packages for Windows, made of NVIDIA's wheels.

They have conda-forge's names, versions, requirements, run exports and places, so that a recipe has to put the compiler and the
libraries together as it has with the real ones. They hold what compiling and linking needs; the big DLLs stay out, and import
libraries that the wheels lack are made of the names that those DLLs export.

Sources, all of conda-forge: requirements as in the channel's records of the 13.0.88 builds for win-64; places as in the
recipes of cuda-nvcc-feedstock, cuda-nvcc-impl-feedstock (bld.bat, nvcc.profile.patch.win), cuda-cudart-feedstock,
libcublas-feedstock (their bld.bat moves libraries to Library\\lib\\x64 since CUDA 13.0) and cuda-profiler-api-feedstock. Where
cuda-cccl goes is what the patched nvcc.profile and libcublas's test say: Library\\include\\targets\\x64.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from .digests import hash_file
from .errors import BadInput
from .import_libraries import Tools, list_exports, make_import_library
from .redistributables import UCRT, VC
from .wheels import Member, Source, write_package

#: The CUDA that can be rehearsed, and the wheels of it. The libraries have version numbers of their own.
VERSION = "13.0"
WHEELS = (
    "nvidia-cuda-nvcc==13.0.*", "nvidia-nvvm==13.0.*", "nvidia-cuda-crt==13.0.*", "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*", "nvidia-cuda-profiler-api==13.0.*", "nvidia-cublas==13.0.*", "nvidia-curand==10.4.0.*",
    "nvidia-cusparse==12.6.*", "nvidia-cusolver==12.0.4.*",
)  # fmt: skip

_RELEASE = "cuda-version >=13.0,<13.1.0a0"
_RUNTIME = (UCRT, VC, "vc14_runtime")
_COMPILING = ("cuda-version >=13.0,<14",)
_SUMMARY = (
    "Rehearsal stand-in for conda-forge's {name}, made of {wheel}. Not for publication, and not for running programs."
)

#: A wheel's file and its place: a pattern of what follows nvidia/cu13/, and what to make of it.
_Places = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class _Shim:
    """A package that stands for one of conda-forge's.

    :param project: the wheel that it is made of and has its version from.
    :param depends: ``@`` is that version.
    :param dll: a DLL in the wheel to make an import library for.
    """

    name: str
    project: str
    places: _Places = ()
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    exports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dll: str = ""
    noarch: bool = False


def _list_library(name: str, project: str, dll: str, more: tuple[str, ...] = ()) -> tuple[_Shim, _Shim]:
    """The package that holds a library's DLLs on conda-forge, here empty, and the one to compile and link with."""
    major = dll.removesuffix(".dll").rpartition("_")[2]
    return (
        _Shim(name, project, depends=(_RELEASE, *_RUNTIME)),
        _Shim(
            f"{name}-dev",
            project,
            ((r"include/(.+)", r"Library/include/\1"),),
            (_RELEASE, f"{name} @", *more, *_RUNTIME),
            exports={"weak": (f"{name} >=@,<{int(major) + 1}.0a0",)},
            dll=dll,
        ),
    )


_HEADERS = ("cuda-cudart-dev_win-64", "cuda-crt-dev_win-64")
_CUDART = {"weak": ("cuda-cudart >=@,<14.0a0",)}
_NVCC, _CRT, _NVVM, _CUDA = "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime"

SHIMS: tuple[_Shim, ...] = (
    _Shim(
        "cuda-nvcc_win-64",
        _NVCC,
        depends=(
            "cuda-cudart-dev_win-64 13.0.*",
            "cuda-nvcc-dev_win-64 @.*",
            "cuda-nvcc-impl @.*",
            "cuda-nvcc-tools @.*",
        ),
        exports={"strong": _COMPILING},
        noarch=True,
    ),
    _Shim(
        "cuda-nvcc-impl",
        _NVCC,
        depends=("cuda-cudart-dev", "cuda-nvcc-dev_win-64 @", "cuda-nvcc-tools @", "cuda-nvvm-impl", _RELEASE),
        constrains=("vc >=14.2",),
        exports={"strong": _COMPILING},
    ),
    _Shim("cuda-nvcc-tools", _NVCC, depends=("cuda-crt-tools", "cuda-nvvm-tools", _RELEASE, *_RUNTIME)),
    _Shim(
        "cuda-nvcc-dev_win-64",
        _NVCC,
        (
            (r"bin/([^/]+\.exe|nvcc\.profile)", r"Library/bin/\1"),
            (r"include/(fatbinary_section\.h)", r"Library/include/\1"),
        ),
        ("cuda-crt-dev_win-64", "cuda-nvvm-dev_win-64", _RELEASE),
        exports={"strong": _COMPILING},
        noarch=True,
    ),
    _Shim("cuda-crt-tools", _NVCC, ((r"bin/crt/(.+)", r"Library/bin/crt/\1"),), (_RELEASE,)),
    _Shim(
        "cuda-crt-dev_win-64",
        _CRT,
        ((r"include/crt/(.+)", r"Library/include/crt/\1"),),
        (_RELEASE,),
        exports={"strong": _COMPILING},
        noarch=True,
    ),
    _Shim(
        "cuda-nvvm-tools",
        _NVVM,
        (
            (r"nvvm/(bin|libdevice)/(.+)", r"Library/nvvm/\1/\2"),
            (r"bin/x86_64/(nvvm.+\.dll)", r"Library/nvvm/bin/x64/\1"),
        ),
        (_RELEASE, *_RUNTIME),
    ),
    _Shim("cuda-nvvm-dev_win-64", _NVVM, depends=(_RELEASE,), noarch=True),
    _Shim("cuda-nvvm-impl", _NVVM, ((r"include/(.+)", r"Library/nvvm/include/\1"),), (_RELEASE, *_RUNTIME)),
    _Shim("cuda-cudart_win-64", _CUDA, depends=(_RELEASE,), noarch=True),
    _Shim(
        "cuda-cudart",
        _CUDA,
        ((r"bin/x86_64/(cudart.+\.dll)", r"Library/bin/\1"),),
        ("cuda-cudart_win-64 @", _RELEASE, *_RUNTIME),
    ),
    _Shim(
        "cuda-cudart-static_win-64",
        _CUDA,
        ((r"lib/x64/(cudart_static\.lib)", r"Library/lib/x64/\1"),),
        (_RELEASE,),
        noarch=True,
    ),
    _Shim("cuda-cudart-static", _CUDA, depends=("cuda-cudart-static_win-64 @", _RELEASE, *_RUNTIME)),
    _Shim(
        "cuda-cudart-dev_win-64",
        _CUDA,
        (
            (r"include/(.+)", r"Library/include/\1"),
            (r"lib/x64/((?:cuda|cudart|cudadevrt)\.lib)", r"Library/lib/x64/\1"),
        ),
        ("cuda-cccl_win-64", "cuda-cudart-static_win-64", "cuda-cudart_win-64", _RELEASE),
        exports=_CUDART,
        noarch=True,
    ),
    _Shim(
        "cuda-cudart-dev",
        _CUDA,
        depends=("cuda-cudart @", "cuda-cudart-dev_win-64 @", "cuda-cudart-static @", _RELEASE, *_RUNTIME),
        exports=_CUDART,
    ),
    _Shim(
        "cuda-cccl_win-64",
        "nvidia-cuda-cccl",
        ((r"include/(.+)", r"Library/include/targets/x64/\1"),),
        (_RELEASE,),
        noarch=True,
    ),
    _Shim(
        "cuda-profiler-api",
        "nvidia-cuda-profiler-api",
        ((r"include/(.+)", r"Library/include/\1"),),
        ("cuda-cudart-dev", _RELEASE),
    ),
    *_list_library("libcublas", "nvidia-cublas", "cublas64_13.dll", _HEADERS),
    *_list_library("libcurand", "nvidia-curand", "curand64_10.dll"),
    *_list_library("libcusparse", "nvidia-cusparse", "cusparse64_12.dll"),
    *_list_library("libcusolver", "nvidia-cusolver", "cusolver64_12.dll", ("libcublas", "libcusparse")),
)


def describe_cuda(wheels: Sequence[Path], tools: Tools) -> list[Source]:
    """The packages of CUDA's compiler, headers and import libraries, and ``cuda-version``.

    :param wheels: those of :data:`WHEELS`, and maybe others.
    :param tools: runs lib.exe.
    :raises BadInput: one of them is missing.
    """
    by_project = {str(canonicalize_name(wheel.name.partition("-")[0])): wheel for wheel in wheels}
    if missing := sorted({shim.project for shim in SHIMS} - by_project.keys()):
        raise BadInput(f"There is no wheel of {', '.join(missing)}.", fix="Get it and run again.")
    digests = {name: hash_file(wheel) for name, wheel in by_project.items()}
    return [
        Source("cuda-version", VERSION, f"packing cuda-version {VERSION}", _write_version),
        *(
            Source(
                shim.name,
                f"{digests[shim.project]} {shim}",
                f"packing {shim.name} (rehearsal)",
                lambda folder, digest, shim=shim: _write_shim(  # type: ignore[misc]
                    shim, by_project[shim.project], tools, folder, digest
                ),
            )
            for shim in SHIMS
        ),
    ]


def _write_version(folder: Path, digest: str) -> Path:
    index = {
        "name": "cuda-version",
        "version": VERSION,
        "build": f"rehearsal_h{digest[:7]}_3",
        "build_number": 3,
        "depends": [],
        "constrains": [f"cudatoolkit {VERSION}|{VERSION}.*", "__cuda >=13"],
        "subdir": "noarch",
        "noarch": "generic",
    }
    return write_package(folder, index, [], about={"summary": _SUMMARY.format(name="cuda-version", wheel="no wheel")})


def _write_shim(shim: _Shim, wheel: Path, tools: Tools, folder: Path, digest: str) -> Path:
    version = str(parse_wheel_filename(wheel.name)[1])

    def fill(lines: Sequence[str]) -> list[str]:
        return [line.replace("@", version) for line in lines]

    index: dict[str, object] = {
        "name": shim.name,
        "version": version,
        "build": f"rehearsal_h{digest[:7]}_0",
        "build_number": 0,
        "depends": fill(shim.depends),
        "constrains": fill(shim.constrains),
        "license": "LicenseRef-NVIDIA-End-User-License-Agreement",
        "subdir": "noarch" if shim.noarch else "win-64",
    }
    if shim.noarch:
        index["noarch"] = "generic"
    about = {"summary": _SUMMARY.format(name=shim.name, wheel=wheel.name)}
    info = {"run_exports.json": {kind: fill(lines) for kind, lines in shim.exports.items()}} if shim.exports else {}
    with zipfile.ZipFile(wheel) as archive:
        members = [*_list_members(shim, archive), *_make_library(shim, archive, tools), *_list_scripts(shim)]
        return write_package(folder, index, members, about=about, info=info)


def _list_members(shim: _Shim, archive: zipfile.ZipFile) -> Iterator[Member]:
    used = set()
    for entry in archive.infolist():
        path = re.sub(r"^nvidia/cu13/", "", entry.filename)
        for pattern, place in shim.places:
            if not entry.is_dir() and (match := re.fullmatch(pattern, path)):
                used.add(pattern)
                if path == "bin/nvcc.profile":
                    yield Member.from_bytes(match.expand(place), patch_profile(archive.read(entry)))
                else:
                    yield Member(match.expand(place), entry.file_size, lambda entry=entry: archive.open(entry))  # type: ignore[misc]
                break
    if unused := [pattern for pattern, _ in shim.places if pattern not in used]:
        raise BadInput(
            f"{archive.filename} holds no {' and no '.join(unused)}.", fix=f"Pin a wheel of CUDA {VERSION} that has it."
        )


def patch_profile(profile: bytes) -> bytes:
    """nvcc's profile as conda-forge patches it: cccl lies in include/targets/x64, libraries in lib/x64 or lib.

    :raises BadInput: the lines to change are not there.
    """
    changes = (
        (
            b'"-I$(TOP)/include" "-I$(TOP)/include/cccl" $(_SPACE_)',
            b'"-I$(TOP)/include" $(_SPACE_) "-I$(TOP)/include/targets/$(_WIN_PLATFORM_)/cccl" $(_SPACE_) '
            b'"-I$(TOP)/include/targets/$(_WIN_PLATFORM_)" $(_SPACE_)',
        ),
        (
            b'"/LIBPATH:$(TOP)/lib/$(_WIN_PLATFORM_)"',
            b'"/LIBPATH:$(TOP)/lib/$(_WIN_PLATFORM_)" $(_SPACE_) "/LIBPATH:$(TOP)/lib"',
        ),
    )
    for old, new in changes:
        if profile.count(old) != 1:
            raise BadInput("nvcc.profile is not what conda-forge patches.", fix=f"Pin an nvcc of CUDA {VERSION}.")
        profile = profile.replace(old, new)
    return profile


def _make_library(shim: _Shim, archive: zipfile.ZipFile, tools: Tools) -> Iterator[Member]:
    if shim.dll:
        found = [name for name in archive.namelist() if name.endswith(f"/{shim.dll}")]
        if not found:
            raise BadInput(f"{archive.filename} holds no {shim.dll}.", fix=f"Pin a wheel of CUDA {VERSION}.")
        library = make_import_library(tools, shim.dll, list_exports(archive.read(found[0])))
        name = re.sub(r"64_\d+\.dll$", ".lib", shim.dll)
        yield Member.from_bytes(f"Library/lib/x64/{name}", library)


# What cuda-nvcc-feedstock's activate.bat and deactivate.bat do.
_SCRIPTS = {
    "activate": '@if defined INCLUDE set "INCLUDE_CONDA_NVCC_BACKUP=%INCLUDE%"\r\n'
    '@set "INCLUDE=%INCLUDE%;%LIBRARY_INC%\\targets\\x64"\r\n',
    "deactivate": '@if defined INCLUDE_CONDA_NVCC_BACKUP set "INCLUDE=%INCLUDE_CONDA_NVCC_BACKUP%"\r\n'
    '@set "INCLUDE_CONDA_NVCC_BACKUP="\r\n',
}


def _list_scripts(shim: _Shim) -> Iterator[Member]:
    if shim.name == "cuda-nvcc_win-64":
        for name, text in _SCRIPTS.items():
            yield Member.from_bytes(f"etc/conda/{name}.d/~cuda-nvcc_{name}.bat", text.encode())
