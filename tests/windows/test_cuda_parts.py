"""The parts of a CUDA rehearsal with the real programs: undname.exe and lib.exe of the MSVC tree, and NVIDIA's nvcc.exe."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dswin import cuda_shims, import_libraries, nvcc_host, torch_symbols
from dswin.errors import CheckFailed
from dswin.wine import Host, Msvc, download_wheels, open_host

USES = """
extern "C" int plain(int);
namespace c10 { namespace cuda { enum class Unit { a }; %s } }
int main() { return plain(1) + static_cast<int>(c10::cuda::%s); }
"""


@pytest.fixture(scope="module")
def host(wine_cache: Path, msvc: Msvc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host whose tree nvcc accepts."""
    complete = nvcc_host.complete(msvc, tmp_path_factory.mktemp("msvc") / "tree")
    with open_host(wine_cache, complete, print) as host:
        yield host


def undecorate(host: Host, names: list[str]) -> dict[str, str]:
    text = host.check(["undname", *names], timeout=120)
    return dict(re.findall(r'Undecoration of :- "([^"]*)"\s+is :- "([^"]*)"', text))


@pytest.mark.parametrize("library", torch_symbols.LIBRARIES)
def test_microsoft_reads_the_names_as_the_lists_say(host: Host, library: str) -> None:
    symbols = torch_symbols.read_symbols(library)
    found = undecorate(host, [symbol.decorated for symbol in symbols])
    assert found == {symbol.decorated: symbol.declaration for symbol in symbols}


def test_a_made_up_name_is_refused(host: Host) -> None:
    name = "?GetDevice@cuda@c10@@YA?AW4cudaError@@PEAF@Z"  # of a device index of 16 bits
    made_up = torch_symbols.Symbol(name, undecorate(host, [name])[name])
    linux, official = torch_symbols.read_linux_exports(), torch_symbols.read_official_imports()
    assert "c10::cuda::GetDevice(short" in made_up.declaration
    with pytest.raises(CheckFailed, match="not known to exist"):
        torch_symbols.check([made_up], linux, official)


def compile_and_link(host: Host, folder: Path, declaration: str, call: str) -> str:
    """Link a program with the import library of c10_cuda; return the DLLs that it asks for."""
    names = [symbol.decorated for symbol in torch_symbols.read_symbols("c10_cuda")]
    (folder / "c10_cuda.lib").write_bytes(import_libraries.make_import_library(host, "c10_cuda.dll", names))
    (folder / "plain.lib").write_bytes(import_libraries.make_import_library(host, "plain.dll", ["plain"]))
    (folder / "uses.cpp").write_text(USES % (declaration, call))
    host.check(["cl", "/nologo", "/MD", "uses.cpp", "plain.lib", "c10_cuda.lib"], cwd=folder, timeout=120)
    return host.check(["dumpbin", "/nologo", "/dependents", "uses.exe"], cwd=folder)


def test_a_known_function_links(host: Host, tmp_path: Path) -> None:
    needed = compile_and_link(host, tmp_path, "__declspec(dllimport) signed char current_device();", "current_device()")
    assert "c10_cuda.dll" in needed
    assert "plain.dll" in needed


def test_an_unknown_function_does_not_link(host: Host, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed) as caught:
        compile_and_link(host, tmp_path, "__declspec(dllimport) int current_devices();", "current_devices()")
    assert "LNK2019" in caught.value.log
    assert "current_devices" in caught.value.log


def test_a_dll_exports_what_its_import_library_has(host: Host, tmp_path: Path) -> None:
    (tmp_path / "two.c").write_text(
        "__declspec(dllexport) int b(void) { return 1; }\n__declspec(dllexport) int a(void) { return 2; }\n"
    )
    host.check(["cl", "/nologo", "/LD", "two.c"], cwd=tmp_path, timeout=120)
    assert import_libraries.list_exports((tmp_path / "two.dll").read_bytes()) == ["a", "b"]


def test_nvcc_compiles_in_the_completed_tree(host: Host, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wanted = [one for one in cuda_shims.WHEELS if re.search("nvcc|nvvm|crt|runtime", one)]
    download_wheels(wanted, "3.11", wheels)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path)
    home = tmp_path / "nvidia" / "cu13"
    (tmp_path / "k.cu").write_text("__global__ void k(int *a) { *a = 1; }\nvoid f(int *a) { k<<<1, 1>>>(a); }\n")
    command = [home / "bin" / "nvcc.exe", "-gencode=arch=compute_86,code=sm_86", "-c", "k.cu", "-o", "k.obj"]
    host.check(command, cwd=tmp_path, timeout=300)
    assert (tmp_path / "k.obj").read_bytes()[:2] == b"\x64\x86"
    shutil.rmtree(home)
