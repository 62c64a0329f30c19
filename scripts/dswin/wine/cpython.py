"""CPython for Windows from its source: its own project files, compiled by Microsoft's tools and no MSBuild.

Not built: _ssl, _hashlib, _sqlite3, _tkinter, _msi, the launcher py.exe, and most modules that only CPython's own tests use.
Nothing in the source is patched; profile-guided optimization and debug information are off.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import CheckFailed, MachineLacks
from . import vcxproj
from .prefix import Progress
from .toolchain import Toolchain

EXTENSIONS = (
    "_asyncio", "_bz2", "_ctypes", "_decimal", "_elementtree", "_lzma", "_multiprocessing", "_overlapped", "_queue",
    "_socket", "_uuid", "_zoneinfo", "pyexpat", "select", "unicodedata", "winsound", "_testcapi", "_testinternalcapi",
    "_ctypes_test",
)  # fmt: skip
#: What runs in a virtual environment instead of python.exe, by the name that the venv module looks for.
_VENV_LAUNCHERS = {"python.exe": "venvlauncher.exe", "pythonw.exe": "venvwlauncher.exe"}

_FFI_VALUES = {"VERSION": "3.4", "TARGET": "X86_WIN64", "HAVE_LONG_DOUBLE": "0", "FFI_EXEC_TRAMPOLINE_TABLE": "0"}
_FFI_CONFIG = """\
#define HAVE_ALLOCA 1
#define HAVE_INTTYPES_H 1
#define HAVE_MEMCPY 1
#define HAVE_STDINT_H 1
#define HAVE_STDLIB_H 1
#define HAVE_STRING_H 1
#define SIZEOF_DOUBLE 8
#define SIZEOF_LONG_DOUBLE 8
#define SIZEOF_SIZE_T 8
#define STDC_HEADERS 1
#ifdef LIBFFI_ASM
#define FFI_HIDDEN(name)
#else
#define FFI_HIDDEN
#endif
"""


class Build:
    """One build.

    :param tools: where it is built.
    :param sources: the unpacked sources: CPython as ``python``, and ``zlib``, ``bzip2``, ``xz`` and ``libffi``.
    :param host_python: a Python for this machine of the same major.minor; it compiles the modules that are frozen.
    :param jobs: compilers that run at a time.
    """

    def __init__(self, tools: Toolchain, sources: Path, host_python: Path, jobs: int, progress: Progress) -> None:
        self.tools = tools
        self.sources = sources
        self.source = sources / "python"
        self.host_python = host_python
        self.jobs = jobs
        self.progress = progress
        patch = (self.source / "Include" / "patchlevel.h").read_text(encoding="utf-8")
        major, minor, micro = (
            _find(rf"define\s+PY_{part}_VERSION\s+(\d+)", patch) for part in ("MAJOR", "MINOR", "MICRO")
        )
        self.digits = major + minor
        # The third number of the file version: micro * 1000 + release level and serial (PCbuild/python.props).
        self.file_version = int(micro) * 1000 + 150
        self.properties = {
            "Platform": "x64",
            "Configuration": "Release",
            "ArchName": "amd64",
            "PySourcePath": f"{self.source}/",
            "PyVPath": r"..\\..",
            "SysWinVer": f"{major}.{minor}",
            "PyDllName": f"python{self.digits}",
            "Py3DllName": "python3",
            "MajorVersionNumber": major,
            "MinorVersionNumber": minor,
            "IncludeExternals": "true",
            "zlibDir": str(sources / "zlib"),
            "bz2Dir": f"{sources / 'bzip2'}/",
            "lzmaDir": f"{sources / 'xz'}/",
        }
        self.includes = [self.source / "Include", self.source / "Include" / "internal", self.source / "PC"]
        # With Windows SDK 10.0.26100, NAN is a constant of C only with _UCRT_NOISY_NAN.
        self.defines = [
            "WIN32", 'PY3_DLLNAME=L"python3"', "_WIN32", "_WIN64", "_M_X64", "NDEBUG", "_UCRT_NOISY_NAN",
        ]  # fmt: skip

    def run(self) -> None:
        """Build everything.

        :raises MachineLacks: the host's Python has another bytecode.
        :raises CheckFailed: something does not compile.
        """
        self.progress("freezing the modules that Python starts with")
        self.freeze()
        core = f"python{self.digits}"
        self.progress(f"compiling {core}.dll (the longest step: 1 to 2 minutes)")
        self.build("pythoncore", f"{core}.dll", jobs=self.jobs)
        self.build("python3dll", "python3.dll")
        for name in ("python", "pythonw"):
            self.build(name, f"{name}.exe", libraries=[f"{core}.lib"])
        for name in ("venvlauncher", "venvwlauncher"):
            self.build(name, f"{name}.exe")
        self.progress("compiling libffi and liblzma")
        ffi = self.build_libffi()
        self.build_liblzma()
        self.progress(f"compiling {len(EXTENSIONS)} extension modules")
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                list(pool.map(lambda name: self.build_extension(name, ffi), EXTENSIONS))
            except BaseException:
                # Only the main thread hears of Ctrl-C, and the pool waits for the others.
                self.tools.host.end_programs()
                raise

    def freeze(self) -> None:
        """Write the frozen and deep-frozen modules as C, as PCbuild/_freeze_module.vcxproj would."""
        check_bytecode(self.host_python, self.source)
        project = (self.source / "PCbuild" / "_freeze_module.vcxproj").read_text(encoding="utf-8-sig")
        pairs = re.findall(r'<(?:None|GetPath) Include="([^"]+\.py)">\s*<ModName>([\w.]+)</ModName>', project)
        headers = []
        for path, module in pairs:
            header = self.source / "Python" / "frozen_modules" / f"{module}.h"
            source = self.source / "PCbuild" / path.replace("\\", "/")
            self._run_host("Programs/_freeze_module.py", module, str(source), str(header))
            if module != "getpath":
                headers.append(f"{header}:{module}")
        target = self.source / "Python" / "deepfreeze" / "deepfreeze.c"
        self._run_host("Tools/scripts/deepfreeze.py", *headers, "-o", str(target))

    def _run_host(self, script: str, *arguments: str) -> None:
        command = [str(self.host_python), "-E", "-s", str(self.source / script), *arguments]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
        )
        if done.returncode:
            raise CheckFailed(f"CPython's {script} failed.", fix="See its words below.", log=done.stdout[-4000:])

    def build(
        self,
        name: str,
        target: str,
        libraries: list[str] | None = None,
        includes: list[Path] | None = None,
        defines: list[str] | None = None,
        jobs: int = 1,
    ) -> None:
        """Compile and link one of CPython's projects."""
        project = vcxproj.read(self.source / "PCbuild" / f"{name}.vcxproj", self.properties)
        options = ["/MT" if project.static_runtime else "/MD", *([] if project.security_check else ["/GS-"])]
        objects = self.tools.compile(
            name,
            project.sources,
            [*project.defines, *self.defines, *(defines or [])],
            [*project.includes, *self.includes, *(includes or [])],
            options,
            jobs,
        )
        objects += [self.tools.assemble(name, file) for file in project.assembly]
        values = [f'ORIGINAL_FILENAME="{target}"', f"FIELD3={self.file_version}", "NDEBUG", *project.resource_defines]
        folders = [self.source / "PC", self.source / "Include"]
        objects += [self.tools.compile_resource(name, file, values, folders) for file in project.resources]
        # PCbuild's liblzma is for xz 5.2; build_liblzma gives the one to link, by the same name.
        wanted = [one for one in project.libraries if one != "liblzma.lib"] + (libraries or [])
        self.tools.link(
            name, target, objects, wanted, [*project.link_options, f"/SUBSYSTEM:{project.subsystem.upper()}"]
        )

    def build_extension(self, name: str, ffi: Path) -> None:
        """Build an extension module; ``ffi`` is the folder of libffi's headers."""
        libraries = [f"python{self.digits}.lib"]
        if name == "_ctypes":
            self.build(name, f"{name}.pyd", [*libraries, "libffi.lib"], [ffi], ["FFI_BUILDING"])
        else:
            self.build(name, f"{name}.pyd", [*libraries, *(["liblzma.lib"] if name == "_lzma" else [])])

    def build_libffi(self) -> Path:
        """Build libffi as a static library and return the folder of its headers."""
        source = self.sources / "libffi"
        headers = self.tools.folder / "ffi-include"
        headers.mkdir(exist_ok=True)
        text = (source / "include" / "ffi.h.in").read_text(encoding="utf-8")
        for key, value in _FFI_VALUES.items():
            text = text.replace(f"@{key}@", value)
        (headers / "ffi.h").write_text(text, encoding="utf-8")
        (headers / "fficonfig.h").write_text(_FFI_CONFIG, encoding="utf-8")
        shutil.copy(source / "src" / "x86" / "ffitarget.h", headers)
        includes = [headers, source / "include", source / "src" / "x86", source / "src"]
        names = ("prep_cif.c", "types.c", "raw_api.c", "closures.c", "tramp.c", "x86/ffiw64.c")
        files: list[tuple[Path, tuple[str, ...]]] = [(source / "src" / name, ()) for name in names]
        objects = self.tools.compile("libffi", files, ["FFI_BUILDING", "WIN32", "NDEBUG"], includes)
        intel = source / "src" / "x86" / "win64_intel.S"
        assembly = self.tools.folder / "libffi" / "win64_intel.asm"
        assembly.write_text(
            self.tools.preprocess("libffi", intel, ["LIBFFI_ASM", "FFI_BUILDING"], includes), encoding="utf-8"
        )
        self.tools.archive("libffi", [*objects, self.tools.assemble("libffi", assembly)])
        return headers

    def build_liblzma(self) -> None:
        """Build liblzma as a static library, from the list in xz's own project for Visual Studio 2019."""
        folder = self.sources / "xz" / "windows" / "vs2019"
        project = (folder / "liblzma.vcxproj").read_text(encoding="utf-8-sig")
        names = re.findall(r'<ClCompile Include="([^"]+)"', project)
        files: list[tuple[Path, tuple[str, ...]]] = [((folder / n.replace("\\", "/")).resolve(), ()) for n in names]
        library = self.sources / "xz" / "src" / "liblzma"
        parts = ("common", "lzma", "check", "delta", "lz", "rangecoder", "simple")
        includes = [folder, library.parent / "common", library / "api", *(library / part for part in parts)]
        objects = self.tools.compile(
            "liblzma", files, ["WIN32", "HAVE_CONFIG_H", "NDEBUG", "_LIB"], includes, jobs=self.jobs
        )
        self.tools.archive("liblzma", objects)

    def install(self, tree: Path) -> None:
        """Put what was built into ``tree``, laid out as python.org's installer does."""
        skip = shutil.ignore_patterns("__pycache__", "test", "tests", "idle_test", "*.pyc", "turtledemo")
        shutil.copytree(self.source / "Lib", tree / "Lib", ignore=skip)
        shutil.copytree(self.source / "Include", tree / "include")
        shutil.copy(self.source / "PC" / "pyconfig.h", tree / "include")
        shutil.copy(self.source / "LICENSE", tree / "LICENSE.txt")
        core = f"python{self.digits}"
        for folder, names in (
            (tree, ("python.exe", "pythonw.exe", f"{core}.dll", "python3.dll")),
            (tree / "DLLs", [f"{name}.pyd" for name in EXTENSIONS]),
            (tree / "libs", (f"{core}.lib", "python3.lib")),
        ):
            folder.mkdir(exist_ok=True)
            for name in names:
                shutil.copy(self.tools.bin / name, folder)
        for name, launcher in _VENV_LAUNCHERS.items():
            shutil.copy(self.tools.bin / launcher, tree / "Lib" / "venv" / "scripts" / "nt" / name)


def check_bytecode(host_python: Path, source: Path) -> None:
    """Make sure that a Python writes the bytecode of the Python in ``source``.

    :raises MachineLacks: it does not.
    """
    text = (source / "Lib" / "importlib" / "_bootstrap_external.py").read_text(encoding="utf-8")
    wanted = int(_find(r"MAGIC_NUMBER = \((\d+)\)", text))
    ask = "import importlib.util as u; print(int.from_bytes(u.MAGIC_NUMBER[:2], 'little'))"
    found = subprocess.run(
        [str(host_python), "-I", "-c", ask], capture_output=True, text=True, check=False
    ).stdout.strip()
    if found != str(wanted):
        raise MachineLacks(
            f"{host_python} writes bytecode {found or '(none)'}; the Python to build needs {wanted}.",
            fix="Install a release of Python 3.11, no alpha or beta, and run again.",
        )


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise CheckFailed(f"CPython's source has no {pattern!r}.", fix="This version of CPython is not known here.")
    return found[1]
