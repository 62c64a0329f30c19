"""This machine's compilers and their runtime libraries as conda packages.

They carry conda-forge's names and honour its contracts (activation scripts, run exports), so a recipe meets the same
names and requirements as with conda-forge. What they hold fits this machine only.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import MachineLacks
from .wheels import Member, Source, write_package

_TRIPLET = "x86_64-conda-linux-gnu"
_COMPILER_MAJOR = "12"
_SYSROOT_VERSION = "2.28"

_OPTIMISE = (
    "-march=nocona -mtune=haswell -ftree-vectorize -fPIC -fstack-protector-strong -fno-plt -O2 -ffunction-sections "
    "-pipe"
)
_LINK = (
    "-Wl,-O2 -Wl,--sort-common -Wl,--as-needed -Wl,-z,relro -Wl,-z,now -Wl,--disable-new-dtags -Wl,--gc-sections "
    "-Wl,--allow-shlib-undefined"
)


@dataclass(frozen=True)
class _Shim:
    """A package that stands for one of conda-forge's compiler packages."""

    name: str
    summary: str
    members: Callable[[], Iterable[Member]]
    depends: tuple[str, ...] = ()
    strong: tuple[str, ...] = ()
    version: str | None = None
    noarch: bool = False


def describe_gcc(_python: str) -> list[Source]:
    """This machine's gcc, g++ and binutils under the names of conda-forge's compiler packages."""
    gcc, gxx = (_find(tool) for tool in ("gcc", "g++"))
    real = _run(gcc, "-dumpfullversion")
    banner = _run(gxx, "--version").splitlines()[0]
    # Recipes pin the compiler's major version; the build string says what really runs.
    version = real if real.split(".")[0] == _COMPILER_MAJOR else f"{_COMPILER_MAJOR}.0.0"
    at_least = f">={_COMPILER_MAJOR}"
    shims = (
        _Shim(
            "gcc_linux-64",
            f"Shim that runs this machine's C compiler, gcc {real}.",
            lambda: _list_compiler("gcc_linux-64", _GCC_COMMANDS, _GCC_VARIABLES),
            depends=("sysroot_linux-64", f"libgcc {at_least}"),
            strong=(f"libgcc {at_least}",),
        ),
        _Shim(
            "gxx_linux-64",
            f"Shim that runs this machine's C++ compiler, g++ {real}.",
            lambda: _list_compiler("gxx_linux-64", _GXX_COMMANDS, _GXX_VARIABLES),
            depends=(f"gcc_linux-64 {version}", "sysroot_linux-64", f"libstdcxx {at_least}"),
            strong=(f"libstdcxx {at_least}", f"libgcc {at_least}"),
        ),
        _Shim(
            "sysroot_linux-64",
            "This machine's own C library. The compilers use the one in its place; a builder reads here what a system brings.",
            lambda: [_take_library(gxx, library, f"{_TRIPLET}/sysroot/lib64") for library in _C_LIBRARIES],
            strong=(f"__glibc >={_SYSROOT_VERSION},<3.0.a0",),
            version=_SYSROOT_VERSION,
            noarch=True,
        ),
        *(
            _Shim(
                name,
                f"This machine's own {library}.",
                lambda library=library: [_take_library(gxx, library)],  # type: ignore[misc]
                depends=depends,
            )
            for name, library, depends in (
                ("libgcc", "libgcc_s.so.1", ()),
                ("libstdcxx", "libstdc++.so.6", ("libgcc",)),
            )
        ),
    )
    return [
        Source(
            shim.name,
            f"{gcc} {gxx} {banner} {real}",
            f"packing {shim.name} (this machine's gcc {real})",
            lambda folder, digest, shim=shim: _write_shim(shim, version, real, folder, digest),  # type: ignore[misc]
        )
        for shim in shims
    ]


def _find(tool: str) -> str:
    found = shutil.which(tool)
    if not found:
        raise MachineLacks(
            f"This machine has no C++ compiler: {tool} is not on the PATH.",
            fix="Install one (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++) and run again.",
        )
    return found


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MachineLacks(
            f"{command[0]} does not run.", fix="Reinstall the compiler and run again.", log=result.stderr.strip()
        )
    return result.stdout.strip()


def _write_shim(shim: _Shim, version: str, real: str, folder: Path, digest: str) -> Path:
    index: dict[str, object] = {
        "name": shim.name,
        "version": shim.version or version,
        "build": f"system_gcc_{real}_h{digest[:7]}_0",
        "build_number": 0,
        "depends": sorted(shim.depends),
        "subdir": "noarch" if shim.noarch else "linux-64",
    }
    if shim.noarch:
        index["noarch"] = "generic"
    info = {"run_exports.json": {"strong": list(shim.strong)}} if shim.strong else {}
    return write_package(
        folder, index, shim.members(), about={"summary": f"{shim.summary} Not for publication."}, info=info
    )


def _take_library(gxx: str, library: str, folder: str = "lib") -> Member:
    found = Path(_run(gxx, f"-print-file-name={library}"))
    if not found.is_file():
        raise MachineLacks(f"{gxx} does not find its own {library}.", fix="Reinstall the compiler and run again.")
    return Member.from_file(f"{folder}/{library}", found.resolve())


_C_LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2")


_GCC_COMMANDS: Mapping[str, str] = {
    "cc": "gcc",
    **{
        name: name
        for name in (
            "gcc", "cpp", "gcc-ar", "gcc-nm", "gcc-ranlib", "addr2line", "ar", "as", "c++filt", "elfedit", "gprof",
            "ld", "nm", "objcopy", "objdump", "ranlib", "readelf", "size", "strings", "strip",
        )
    },
}  # fmt: skip
_GXX_COMMANDS: Mapping[str, str] = {"c++": "g++", "g++": "g++"}


def _name_variable(command: str) -> str:
    return command.upper().replace("++", "XX").replace("-", "_")


def _write_tool(command: str) -> str:
    return f"${{CONDA_PREFIX}}/bin/{_TRIPLET}-{command}"


# Names and meanings are those of conda-forge's ctng-compiler-activation and binutils feedstocks.
_GCC_VARIABLES: Mapping[str, str] = {
    "HOST": _TRIPLET,
    "BUILD": _TRIPLET,
    "host_alias": _TRIPLET,
    "build_alias": _TRIPLET,
    "CONDA_TOOLCHAIN_HOST": _TRIPLET,
    "CONDA_TOOLCHAIN_BUILD": _TRIPLET,
    "CONDA_BUILD_CROSS_COMPILATION": "",
    "CONDA_BUILD_SYSROOT": f"${{CONDA_PREFIX}}/{_TRIPLET}/sysroot",
    **{_name_variable(command): _write_tool(command) for command in _GCC_COMMANDS},
    "CC_FOR_BUILD": _write_tool("cc"),
    "CPP_FOR_BUILD": _write_tool("cpp"),
    "CPPFLAGS": "-DNDEBUG -D_FORTIFY_SOURCE=2 -O2 -isystem ${_dswin_prefix}/include${CPPFLAGS:+ }${CPPFLAGS:-}",
    "CFLAGS": f"{_OPTIMISE}${{_dswin_flags}} -isystem ${{_dswin_prefix}}/include${{CFLAGS:+ }}${{CFLAGS:-}}",
    "LDFLAGS": f"{_LINK} -Wl,-rpath,${{_dswin_prefix}}/lib -Wl,-rpath-link,${{_dswin_prefix}}/lib "
    "-L${_dswin_prefix}/lib${LDFLAGS:+ }${LDFLAGS:-}",
}
_GXX_VARIABLES: Mapping[str, str] = {
    "CXX": _write_tool("c++"),
    "CXX_FOR_BUILD": _write_tool("c++"),
    "GXX": _write_tool("g++"),
    "CXXFLAGS": f"-fvisibility-inlines-hidden -fmessage-length=0 {_OPTIMISE}${{_dswin_flags}} "
    "-isystem ${_dswin_prefix}/include${CXXFLAGS:+ }${CXXFLAGS:-}",
}


def _list_compiler(name: str, commands: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[Member]:
    for command, tool in commands.items():
        # binutils differ in what they install; a missing one shows when something asks for it.
        if found := shutil.which(tool):
            script = f'#!/bin/sh\nexec "{found}" "$@"\n'
            yield Member.from_bytes(f"bin/{_TRIPLET}-{command}", script.encode(), executable=True)
    yield Member.from_bytes(f"etc/conda/activate.d/activate-{name}.sh", write_activation(variables).encode())
    yield Member.from_bytes(f"etc/conda/deactivate.d/deactivate-{name}.sh", write_deactivation(variables).encode())


def write_activation(variables: Mapping[str, str]) -> str:
    """A script that sets *variables* and keeps what they were as ``CONDA_BACKUP_<name>``."""
    return _ACTIVATE.replace("@SET@", "".join(f'_dswin_set {name} "{value}"\n' for name, value in variables.items()))


def write_deactivation(variables: Iterable[str]) -> str:
    """The script that undoes :func:`write_activation`."""
    return _DEACTIVATE.replace("@NAMES@", " ".join(variables))


_ACTIVATE = """\
# Inside a build, compile and link against the host environment; outside, against this one.
if [ "${CONDA_BUILD:-0}" = "1" ]; then
  _dswin_prefix="${PREFIX}"
  _dswin_flags=" -fno-merge-constants -fdebug-prefix-map=${SRC_DIR}=/usr/local/src/conda/${PKG_NAME}-${PKG_VERSION}"
  _dswin_flags="${_dswin_flags} -fdebug-prefix-map=${PREFIX}=/usr/local/src/conda-prefix"
else
  _dswin_prefix="${CONDA_PREFIX}"
  _dswin_flags=""
fi
_dswin_set() {
  eval "_dswin_old=\\${$1:-}"
  if [ -n "${_dswin_old}" ]; then export "CONDA_BACKUP_$1=${_dswin_old}"; else unset "CONDA_BACKUP_$1"; fi
  export "$1=$2"
}
@SET@unset _dswin_prefix _dswin_flags _dswin_old
unset -f _dswin_set
"""
_DEACTIVATE = """\
for _dswin_name in @NAMES@; do
  eval "_dswin_old=\\${CONDA_BACKUP_${_dswin_name}:-}"
  if [ -n "${_dswin_old}" ]; then export "${_dswin_name}=${_dswin_old}"; else unset "${_dswin_name}"; fi
  unset "CONDA_BACKUP_${_dswin_name}"
done
unset _dswin_name _dswin_old
"""
