"""The parts of a CUDA rehearsal, made of tiny wheels; lib.exe is played by a function. tests/windows has the real one."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from dswin import cuda_shims, cuda_torch, import_libraries, nvcc_host, torch_symbols, wheelhouse
from dswin.errors import BadInput, CheckFailed
from dswin.torch_symbols import Symbol, sign_linux, sign_windows
from dswin.wheels import convert_wheel
from dswin.wine.msvc import Msvc
from packages import read_package

PROFILE = (
    b'TOP = $(_HERE_)/..\n\nINCLUDES        += "-I$(TOP)/include" "-I$(TOP)/include/cccl" $(_SPACE_)\n\n'
    b'LIBRARIES        =+ $(_SPACE_) "/LIBPATH:$(TOP)/lib/$(_WIN_PLATFORM_)"\n'
)
#: The wheels of CUDA 13.0, what each holds that a package takes, and something that none does.
WHEELS = {
    "nvidia_cuda_nvcc-13.0.88": (
        "bin/nvcc.exe", "bin/nvcc.profile", "bin/crt/link.stub", "include/fatbinary_section.h", "other",
    ),
    "nvidia_nvvm-13.0.88": ("nvvm/bin/cicc.exe", "nvvm/libdevice/a.bc", "bin/x86_64/nvvm64_40_0.dll", "include/nvvm.h"),
    "nvidia_cuda_crt-13.0.88": ("include/crt/host_config.h",),
    "nvidia_cuda_runtime-13.0.96": (
        "bin/x86_64/cudart64_13.dll", "include/cuda_runtime.h", "include/cooperative_groups/scan.h", "lib/x64/cuda.lib",
        "lib/x64/cudart.lib", "lib/x64/cudadevrt.lib", "lib/x64/cudart_static.lib",
    ),
    "nvidia_cuda_cccl-13.0.85": ("include/cccl/cub/cub.cuh", "include/nv/target", ".metadata/provenance.txt"),
    "nvidia_cuda_profiler_api-13.0.85": ("include/cuda_profiler_api.h",),
    "nvidia_cublas-13.0.2.14": ("bin/x86_64/cublas64_13.dll", "bin/x86_64/cublasLt64_13.dll", "include/cublas.h"),
    "nvidia_curand-10.4.0.35": ("bin/x86_64/curand64_10.dll", "include/curand.h"),
    "nvidia_cusparse-12.6.3.3": ("bin/x86_64/cusparse64_12.dll", "include/cusparse.h"),
    "nvidia_cusolver-12.0.4.66": ("bin/x86_64/cusolver64_12.dll", "include/cusolverDn.h"),
}  # fmt: skip


class Tools:
    """Plays lib.exe: the library that it makes is its definition."""

    def check(self, command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
        assert cwd is not None
        assert command[0] == "lib"
        (cwd / "import.lib").write_bytes((cwd / "exports.def").read_bytes())
        return ""


@pytest.fixture(autouse=True)
def exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny DLLs export their own path."""
    monkeypatch.setattr(cuda_shims, "list_exports", lambda dll: [f"exported_by_{Path(dll.decode()).stem}"])


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    found = []
    for name, files in WHEELS.items():
        wheel = tmp_path / f"{name}-py3-none-win_amd64.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for file in files:
                archive.writestr(f"nvidia/cu13/{file}", PROFILE if file == "bin/nvcc.profile" else file)
        found.append(wheel)
    return found


@pytest.fixture
def packages(wheels: list[Path], tmp_path: Path) -> dict[str, Path]:
    folder = tmp_path / "out"
    folder.mkdir()
    sources = cuda_shims.describe_cuda(wheels, Tools())
    return {source.name: source.make(folder, "0123456789abcdef") for source in sources}


def read_index(package: Path) -> dict:
    return json.loads(read_package(package)["info/index.json"])


def list_files(package: Path) -> set[str]:
    return {path for path in read_package(package) if not path.startswith("info/")}


# ---- CUDA


def test_files_lie_where_conda_forge_has_them(packages: dict[str, Path]) -> None:
    assert {name: files for name, package in packages.items() if (files := list_files(package))} == {
        "cuda-nvcc_win-64": {f"etc/conda/{do}.d/~cuda-nvcc_{do}.bat" for do in ("activate", "deactivate")},
        "cuda-nvcc-dev_win-64": {
            "Library/bin/nvcc.exe", "Library/bin/nvcc.profile", "Library/include/fatbinary_section.h",
        },
        "cuda-crt-tools": {"Library/bin/crt/link.stub"},
        "cuda-crt-dev_win-64": {"Library/include/crt/host_config.h"},
        "cuda-nvvm-tools": {
            "Library/nvvm/bin/cicc.exe", "Library/nvvm/libdevice/a.bc", "Library/nvvm/bin/x64/nvvm64_40_0.dll",
        },
        "cuda-nvvm-impl": {"Library/nvvm/include/nvvm.h"},
        "cuda-cudart": {"Library/bin/cudart64_13.dll"},
        "cuda-cudart-static_win-64": {"Library/lib/x64/cudart_static.lib"},
        "cuda-cudart-dev_win-64": {
            "Library/include/cuda_runtime.h", "Library/include/cooperative_groups/scan.h", "Library/lib/x64/cuda.lib",
            "Library/lib/x64/cudart.lib", "Library/lib/x64/cudadevrt.lib",
        },
        "cuda-cccl_win-64": {"Library/include/targets/x64/cccl/cub/cub.cuh", "Library/include/targets/x64/nv/target"},
        "cuda-profiler-api": {"Library/include/cuda_profiler_api.h"},
        "libcublas-dev": {"Library/include/cublas.h", "Library/lib/x64/cublas.lib"},
        "libcurand-dev": {"Library/include/curand.h", "Library/lib/x64/curand.lib"},
        "libcusparse-dev": {"Library/include/cusparse.h", "Library/lib/x64/cusparse.lib"},
        "libcusolver-dev": {"Library/include/cusolverDn.h", "Library/lib/x64/cusolver.lib"},
    }  # fmt: skip


def test_every_package_says_that_it_is_no_real_one(packages: dict[str, Path]) -> None:
    for package in packages.values():
        content = read_package(package)
        assert "rehearsal" in package.name
        assert "Rehearsal stand-in" in json.loads(content["info/about.json"])["summary"]


def test_requirements_name_packages_that_are_made(packages: dict[str, Path]) -> None:
    needed = {line.split()[0] for package in packages.values() for line in read_index(package)["depends"]}
    assert needed - packages.keys() == {"ucrt", "vc", "vc14_runtime"}


def test_run_exports_are_those_of_conda_forge(packages: dict[str, Path]) -> None:
    found = {
        name: json.loads(text)
        for name, package in packages.items()
        if (text := read_package(package).get("info/run_exports.json"))
    }
    assert found["cuda-nvcc_win-64"] == {"strong": ["cuda-version >=13.0,<14"]}
    assert found["cuda-cudart-dev"] == {"weak": ["cuda-cudart >=13.0.96,<14.0a0"]}
    assert found["libcurand-dev"] == {"weak": ["libcurand >=10.4.0.35,<11.0a0"]}
    assert read_index(packages["libcublas-dev"])["version"] == "13.0.2.14"


def test_import_libraries_hold_what_the_dll_exports(packages: dict[str, Path]) -> None:
    library = read_package(packages["libcublas-dev"])["Library/lib/x64/cublas.lib"].decode()
    assert library == "LIBRARY cublas64_13.dll\nEXPORTS\n    exported_by_cublas64_13\n"


def test_nvcc_looks_where_the_packages_put_things(packages: dict[str, Path]) -> None:
    profile = read_package(packages["cuda-nvcc-dev_win-64"])["Library/bin/nvcc.profile"].decode()
    assert '"-I$(TOP)/include/targets/$(_WIN_PLATFORM_)/cccl"' in profile
    assert profile.endswith('"/LIBPATH:$(TOP)/lib/$(_WIN_PLATFORM_)" $(_SPACE_) "/LIBPATH:$(TOP)/lib"\n')
    with pytest.raises(BadInput, match=r"nvcc\.profile"):
        cuda_shims.patch_profile(profile.encode())


def test_a_wheel_that_is_not_there_is_named(wheels: list[Path]) -> None:
    with pytest.raises(BadInput, match="nvidia-curand"):
        cuda_shims.describe_cuda([wheel for wheel in wheels if "curand" not in wheel.name], Tools())


def test_a_wheel_that_lacks_its_files_is_refused(wheels: list[Path], tmp_path: Path) -> None:
    [profiler] = [wheel for wheel in wheels if "profiler" in wheel.name]
    with zipfile.ZipFile(profiler, "w") as archive:
        archive.writestr("nvidia/cu13/lib/x.lib", "")
    [source] = [s for s in cuda_shims.describe_cuda(wheels, Tools()) if s.name == "cuda-profiler-api"]
    with pytest.raises(BadInput, match="include"):
        source.make(tmp_path, "0" * 16)


# ---- Symbols


@pytest.fixture(scope="module")
def linux() -> set[str]:
    return torch_symbols.read_linux_exports()


@pytest.fixture(scope="module")
def official() -> set[str]:
    return torch_symbols.read_official_imports()


@pytest.mark.parametrize("library", torch_symbols.LIBRARIES)
def test_every_symbol_is_known_from_elsewhere(library: str, linux: set[str], official: set[str]) -> None:
    symbols = torch_symbols.read_symbols(library)
    assert len({symbol.decorated for symbol in symbols}) == len(symbols) > 10
    torch_symbols.check(symbols, linux, official)


@pytest.mark.parametrize(
    ("decorated", "declaration"),
    [
        ("?GetDevise@cuda@c10@@YA?AW4cudaError@@PEAC@Z", "enum cudaError __cdecl c10::cuda::GetDevise(signed char *)"),
        # The right name with other parameters, as torch up to 2.6 had them and the official wheels import them.
        ("?SetDevice@cuda@c10@@YA?AW4cudaError@@C@Z", "enum cudaError __cdecl c10::cuda::SetDevice(signed char)"),
        (
            "?c10_cuda_check_implementation@cuda@c10@@YAXHPEBD0H_N@Z",
            "void __cdecl c10::cuda::c10_cuda_check_implementation(int,char const * __ptr64,char const * __ptr64,int,bool)",
        ),
        ("?poll@CUDAStream@cuda@c10@@QEBA_NXZ", "public: bool __cdecl c10::cuda::CUDAStream::poll(void)const __ptr64"),
        ("?alocator@CUDACachingAllocator@cuda@c10@@3HA", "int c10::cuda::CUDACachingAllocator::alocator"),
    ],
)
def test_a_made_up_symbol_is_refused(decorated: str, declaration: str, linux: set[str], official: set[str]) -> None:
    known = torch_symbols.read_symbols("c10_cuda")
    with pytest.raises(CheckFailed, match="1 of the symbols") as caught:
        torch_symbols.check([*known, Symbol(decorated, declaration)], linux, official)
    assert decorated in caught.value.log


@pytest.mark.parametrize(
    ("windows", "linux_text"),
    [
        ("enum cudaError __cdecl c10::cuda::GetDevice(signed char * __ptr64)", "c10::cuda::GetDevice(signed char*)"),
        ("int __cdecl at::cuda::warp_size(void)", "at::cuda::warp_size()"),
        (
            "public: struct CUstream_st * __ptr64 __cdecl c10::cuda::CUDAStream::stream(void)const __ptr64",
            "c10::cuda::CUDAStream::stream() const",
        ),
        (
            "void __cdecl a::f(class std::mutex * __ptr64,unsigned __int64,__int64)",
            "a::f(std::mutex*, unsigned long, long)",
        ),
        (
            "class std::basic_string<char,struct std::char_traits<char>,class std::allocator<char> > __cdecl a::f(int)",
            "a::f[abi:cxx11](int)",
        ),
        ("struct std::atomic<class a::b * __ptr64> a::allocator", "a::allocator"),
    ],
)
def test_both_compilers_spell_alike(windows: str, linux_text: str) -> None:
    assert sign_windows(windows) == sign_linux(linux_text)


@pytest.mark.parametrize(
    ("first", "second"),
    [("a::f(int)", "a::f(unsigned int)"), ("a::f(char*)", "a::f(char const*)"), ("a::f(long)", "a::f(unsigned long)")],
)
def test_other_parameters_stay_apart(first: str, second: str) -> None:
    assert sign_linux(first) != sign_linux(second)


def test_variables_are_marked_in_definitions() -> None:
    names = ["?f@a@@YAXXZ", "?v@a@@3HA", "??0c@a@@QEAA@XZ", "plain"]
    text = import_libraries.write_definition("x.dll", names)
    assert re.findall(r"^    (\S+)( DATA)?$", text, re.MULTILINE) == [
        (n, " DATA" if n == names[1] else "") for n in names
    ]


def test_a_file_that_exports_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="exports none"):
        import_libraries.list_exports(b"MZ no program at all")


def test_no_symbols_are_known_of_another_torch() -> None:
    with pytest.raises(BadInput, match=r"torch 2\.9"):
        torch_symbols.read_symbols("c10_cuda", "2.9")


# ---- torch


FINDS_CUDA = b"CUDA_HOME = _find_cuda_home() if (torch.cuda._is_compiled() and torch.version.cuda) else None\n"


@pytest.fixture
def torch_wheel(tmp_path: Path) -> Path:
    version = b"__version__ = '2.10.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
    files = {
        "torch/version.py": version,
        "torch/utils/cpp_extension.py": FINDS_CUDA,
        "torch/__init__.py": b"",
        "torch/lib/torch_cpu.dll": b"",
        "torch/lib/libiomp5md.dll": b"the runtime",
        "torch-2.10.0.dist-info/METADATA": b"Name: torch\nVersion: 2.10.0\nRequires-Dist: filelock\n",
        "torch-2.10.0.dist-info/WHEEL": b"",
    }
    wheel = tmp_path / "torch-2.10.0-cp311-cp311-win_amd64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr("torch-2.10.0.dist-info/RECORD", "".join(f"{path},sha256=x,1\n" for path in files))
    return wheel


def make_stand_in(wheel: Path, folder: Path) -> Path:
    package = convert_wheel(wheel, folder / "cpu", platform="win-64", python="3.11", digest="f" * 16)
    return cuda_torch.make_stand_in(package, folder, "0123456789abcdef", cuda="13.0", tools=Tools())


def test_torch_claims_cuda_and_says_what_it_is(torch_wheel: Path, tmp_path: Path) -> None:
    package = make_stand_in(torch_wheel, tmp_path)
    content = read_package(package)
    index = json.loads(content["info/index.json"])
    assert index["build"] == "cuda130_rehearsal_py311_h0123456_0"
    assert {"filelock", "llvm-openmp", "cuda-version >=13.0,<14"} <= set(index["depends"])
    assert "Rehearsal" in json.loads(content["info/about.json"])["summary"]
    assert json.loads(content["info/link.json"])["noarch"]["type"] == "python"
    assert b"cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n" in content["site-packages/torch/version.py"]
    builder = content["site-packages/torch/utils/cpp_extension.py"]
    assert builder == b"CUDA_HOME = _find_cuda_home() if torch.version.cuda else None\n"
    assert json.loads(content["info/run_exports.json"]) == {"weak": ["__rehearsal"]}
    assert b"C10_CUDA_BUILD_SHARED_LIBS" in content["site-packages/torch/include/c10/cuda/impl/cuda_cmake_macros.h"]
    assert "site-packages/torch/lib/libiomp5md.dll" not in content
    library = content["site-packages/torch/lib/c10_cuda.lib"].decode()
    assert library.startswith("LIBRARY c10_cuda.dll\n")
    assert "    ?SetDevice@cuda@c10@@YA?AW4cudaError@@C_N@Z\n" in library
    assert re.search(r"\?allocator@\S+ DATA\n", library)


def test_the_record_of_torch_is_that_of_the_package(torch_wheel: Path, tmp_path: Path) -> None:
    content = read_package(make_stand_in(torch_wheel, tmp_path))
    record = content["site-packages/torch-2.10.0.dist-info/RECORD"].decode().splitlines()
    listed = sorted(line.split(",")[0] for line in record)
    assert listed == sorted(
        path.removeprefix("site-packages/") for path in content if path.startswith("site-packages/")
    )


def test_the_openmp_runtime_is_the_one_of_torch(torch_wheel: Path, tmp_path: Path) -> None:
    content = read_package(cuda_torch.make_openmp(torch_wheel, tmp_path, "0123456789abcdef"))
    assert content["Library/bin/libiomp5md.dll"] == b"the runtime"
    assert "not LLVM's" in json.loads(content["info/about.json"])["summary"]
    assert json.loads(content["info/index.json"])["constrains"] == ["intel-openmp <0.0a0"]


def test_a_torch_that_finds_cuda_in_another_way_is_refused() -> None:
    with pytest.raises(BadInput, match=r"cpp_extension\.py"):
        cuda_torch.look_for_cuda(b"CUDA_HOME = None\n")


def test_a_torch_with_cuda_needs_no_stand_in() -> None:
    with pytest.raises(BadInput, match="without CUDA"):
        cuda_torch.claim_cuda(b"cuda: Optional[str] = '12.8'\n", "13.0")


def test_the_lists_of_symbols_are_part_of_what_torch_is_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = cuda_torch.identify("13.0")
    (tmp_path / "torch-2.10-c10_cuda.txt").write_text("x\ty\n")
    monkeypatch.setattr(torch_symbols, "DATA", tmp_path)
    assert cuda_torch.identify("13.0") != before


# ---- The channel and the compiler


def test_a_rehearsal_is_named_so_and_has_one_openmp() -> None:
    deps = wheelhouse.Deps("win-64", "3.11", "2.10", cuda="13.0")
    assert deps.label == "rehearsal-cuda13.0-torch2.10-py3.11-win-64"
    assert "nvidia-ml-py" in deps.requirements
    assert not [line for line in deps.requirements if line.startswith("intel-openmp")]


@pytest.mark.parametrize(("platform", "cuda"), [("linux-64", "13.0"), ("win-64", "12.1")])
def test_other_rehearsals_are_refused(platform: str, cuda: str) -> None:
    with pytest.raises(BadInput, match="cannot be rehearsed"):
        wheelhouse.Deps(platform, "3.11", "2.10", cuda=cuda)


def test_a_rehearsal_wants_a_host(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"lib\.exe"):
        wheelhouse.make_channel(tmp_path, platform="win-64", python="3.11", torch="2.10", cuda="13.0")


def make_tree(root: Path) -> Msvc:
    """A tree that passes for one of MSVC; its programs are the heads of PE files for x64."""
    program = b"MZ" + b"\0" * 58 + (64).to_bytes(4, "little") + b"PE\0\0\x64\x86" + b"\0" * 64
    tools, kit = root / "VC/Tools/MSVC/14.44.35207", root / "Windows Kits/10"
    for file in (
        *(tools / "bin/Hostx64/x64" / name for name in ("cl.exe", "link.exe", "lib.exe", "dumpbin.exe", "ml64.exe")),
        *(kit / "bin/10.0.26100.0/x64" / name for name in ("rc.exe", "mt.exe")),
        tools / "include/vcruntime.h", tools / "lib/x64/msvcrt.lib", kit / "Lib/10.0.26100.0/ucrt/x64/ucrt.lib",
        kit / "Lib/10.0.26100.0/um/x64/kernel32.lib", kit / "Include/10.0.26100.0/ucrt/stdio.h",
        kit / "Include/10.0.26100.0/um/windows.h", kit / "Include/10.0.26100.0/shared/winerror.h",
    ):  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(program)
    return nvcc_host.find_msvc(root, {})


def test_a_tree_gets_the_batch_files_that_nvcc_looks_for(tmp_path: Path) -> None:
    msvc = make_tree(tmp_path / "tree")
    found = nvcc_host.complete(msvc, tmp_path / "complete")
    assert found.toolset == msvc.toolset
    assert found.programs[0].resolve() == msvc.programs[0].resolve()
    assert {file.name for file in (found.root / "VC/Auxiliary/Build").iterdir()} == {"vcvarsall.bat", "vcvars64.bat"}
    assert not (msvc.root / "VC/Auxiliary").exists()
    assert nvcc_host.complete(found, tmp_path / "again") == found
    assert nvcc_host.complete(msvc, tmp_path / "complete") == found
