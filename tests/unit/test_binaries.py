from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from building import ROOT
from dswin import binaries, ops
from dswin.errors import BadInput

SAMPLES = Path(__file__).parents[1] / "data" / "binaries"
FATBIN = SAMPLES / "double.fatbin"
DLL = SAMPLES / "extension.dll"
GPU = binaries.GpuCode(sass=("7.5", "8.6", "9.0a", "12.0f"), ptx=("8.6",))

# Eighty loops, since a handful of ymm instructions does not make an AVX2 build.
LOOPS = "\n".join(f"void scale{i}(float *x) {{ for (int j = 0; j < 64; j++) x[j] *= {i}; }}" for i in range(80))

Compile = Callable[..., Path]


@pytest.fixture
def compile_c(tmp_path: Path) -> Compile:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not on this machine")

    def run(source: str, *flags: str) -> Path:
        (tmp_path / "cpu_adam_op.c").write_text(source)
        command = [gcc, "-shared", "-fPIC", "-O2", "-o", "cpu_adam_op.so", "cpu_adam_op.c", *flags]
        subprocess.run(command, cwd=tmp_path, check=True)
        return tmp_path / "cpu_adam_op.so"

    return run


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ((), "sse2"),
        (("-mavx2",), "avx2"),
        (("-mavx512f", "-mprefer-vector-width=512"), "avx512"),
    ],
)
def test_simd_level_is_the_one_that_gcc_was_told(compile_c: Compile, flags: tuple[str, ...], level: str) -> None:
    simd = binaries.read(compile_c(LOOPS, "-O3", *flags)).simd
    assert simd.level == level
    assert simd.instructions > 80
    assert (simd.zmm > 0) == (simd.evex > 0) == (level == "avx512")


def test_simd_counts_every_register_and_each_avx512_instruction_without_zmm(
    compile_c: Compile,
) -> None:
    lines = (
        "addps %xmm1, %xmm2",
        "vaddps %ymm1, %ymm2, %ymm3",
        "vextractf128 $1, %ymm1, %xmm1",
        "vaddps %zmm1, %zmm2, %zmm3",
        "vaddps %ymm16, %ymm17, %ymm18",  # EVEX for its registers
        "vaddps %xmm1, %xmm2, %xmm3{%k1}",  # EVEX for its mask
        "kmovw %k1, %eax",  # VEX, on a mask
        ".byte 0x06, 0x07",  # no instructions in 64-bit code
        "vpabsq %xmm0, %xmm0",  # EVEX only, in low registers
        "vcvtps2ph $0, %zmm1, (%rax)",  # 'ymmword ptr' is no register
    )
    code = "".join(rf"{line}\n" for line in lines)
    source = f'__asm__(".text\\n{code}"); void f(void) {{}}'
    base = binaries.read(compile_c("void f(void) {}")).simd
    simd = binaries.read(compile_c(source)).simd
    assert (base.xmm, base.ymm, base.zmm, base.evex) == (0, 0, 0, 0)
    assert (simd.xmm, simd.ymm, simd.zmm, simd.evex) == (4, 3, 2, 6)
    assert simd.level == "avx512"


@pytest.mark.parametrize(("ymm", "level"), [(16, "sse2"), (99, "sse2"), (100, "avx2")])
def test_a_few_ymm_instructions_of_the_cpp_library_are_no_avx2_build(ymm: int, level: str) -> None:
    assert binaries.Simd(instructions=9000, xmm=1000, ymm=ymm, zmm=0, evex=0).level == level


def test_openmp_of_gcc(compile_c: Compile) -> None:
    source = "void f(float *x) {\n#pragma omp parallel for\nfor (int i = 0; i < 9; i++) x[i] = 1; }"
    binary = binaries.read(compile_c(source, "-fopenmp"))
    assert binary.openmp == "gomp"
    assert "GOMP_parallel" in binary.imports
    assert "libgomp.so.1" in binary.libraries
    assert binaries.read(compile_c(source)).openmp is None


def test_openmp_of_llvm(compile_c: Compile) -> None:
    source = "void __kmpc_fork_call(int); void f(void) { __kmpc_fork_call(1); }"
    assert binaries.read(compile_c(source)).openmp == "kmp"


def test_openmp_linked_and_not_used_is_none(compile_c: Compile) -> None:
    binary = binaries.read(compile_c("void f(void) {}", "-Wl,--no-as-needed", "-lgomp"))
    assert "libgomp.so.1" in binary.libraries
    assert binary.openmp is None


def test_libraries_keep_the_order_of_the_link(compile_c: Compile) -> None:
    flags = ("-Wl,--no-as-needed", "-lm", "-lgomp")
    assert binaries.read(compile_c("int f;", *flags)).libraries[:2] == ("libm.so.6", "libgomp.so.1")


def test_debug_info_of_gcc(compile_c: Compile) -> None:
    assert binaries.read(compile_c(LOOPS, "-g")).debug_info
    assert binaries.read(compile_c(LOOPS, "-g", "-gz")).debug_info
    assert not binaries.read(compile_c(LOOPS)).debug_info


def test_pe_facts() -> None:
    binary = binaries.read(DLL)
    assert binary.format == "pe"
    assert binary.size == DLL.stat().st_size
    assert binary.libraries == ("vcomp140.dll",)
    assert binary.imports == {"_vcomp_fork"}
    assert binary.openmp == "vcomp"
    assert binary.gpu == GPU
    assert binary.simd.level == "sse2"


def test_debug_info_of_a_pe_is_a_named_pdb_and_not_a_build_id() -> None:
    assert binaries.read(SAMPLES / "pdb.dll").debug_info
    assert not binaries.read(DLL).debug_info


def embed(*parts: str) -> str:
    lines = "".join(rf"{part}\n" for part in parts)
    return rf'__asm__(".section .nv_fatbin,\"a\"\n{lines}.text\n"); int f;'.replace(r"\\", "\\")


def test_gpu_code_of_many_fat_binaries_in_an_elf(compile_c: Compile, tmp_path: Path) -> None:
    shutil.copy(FATBIN, tmp_path)
    header = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 64)
    entry = struct.pack("<HHIQIIHHIQQQQ", 1, 0x101, 64, 0, 0, 0, 5, 9, 100, 0, 1 << 20, 0, 0)
    (tmp_path / "ptx.bin").write_bytes(header + entry)
    incbin = r".incbin \"{}\""
    parts = (incbin.format(FATBIN.name), ".zero 8", incbin.format("ptx.bin"), ".zero 24")
    binary = binaries.read(compile_c(embed(*parts)))
    assert binary.format == "elf"
    assert binary.gpu == binaries.GpuCode(sass=GPU.sass, ptx=("8.6", "10.0a"))
    assert str(binary.gpu) == "7.5 8.6+PTX 9.0a 12.0f 10.0a (PTX)"


def test_bf16_kernels_are_known_by_their_names(compile_c: Compile) -> None:
    names = ("_Z4geluI13__nv_bfloat16EvPT_i", "_Z4geluI6__halfEvPT_i", "_Z3addI13__nv_bfloat16EvPT_i", "__nv_bfloat16")
    code = "".join(f'const char n{i}[] = "{name}"; ' for i, name in enumerate(names))
    assert binaries.read(compile_c(code + LOOPS)).bf16_kernels == 2
    assert binaries.read(compile_c(LOOPS)).bf16_kernels == 0


def test_the_op_of_a_file_is_named_as_in_the_recipe(compile_c: Compile) -> None:
    binary = binaries.read(compile_c(""))
    for op in ops.read(ROOT / "recipe"):
        file = Path(f"{op.module.rsplit('.', 1)[1]}.cp311-win_amd64.pyd")
        assert replace(binary, path=file).op == op.name


def test_no_gpu_code(compile_c: Compile) -> None:
    assert binaries.read(compile_c(LOOPS)).gpu == binaries.GpuCode()


def test_find_folders_in_every_spelling(compile_c: Compile) -> None:
    path = compile_c('const char *a = "/home/Builder/torch/x.h", *b = "d:\\\\work\\\\é\\\\y.h";')
    folders = ["/home/builder", Path("/home/other"), "D:/work/é", "/opt"]
    assert binaries.find_folders(path, folders) == ("/home/builder", "D:/work/é")
    assert binaries.find_folders(DLL, [r"d:\build", "C:\\"]) == (r"d:\build",)
    with pytest.raises(BadInput, match="empty name"):
        binaries.find_folders(path, [""])


def test_table_and_json(compile_c: Compile) -> None:
    found = [binaries.read(compile_c(LOOPS, "-O3", "-mavx2")), binaries.read(DLL)]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(binaries.table(found))
    first, second = (line for line in console.export_text().splitlines() if "│" in line)
    assert [cell.strip() for cell in first.split("│")[1:-2]] == [
        "cpu_adam",
        "cpu_adam_op.so",
        "avx2",
        "-",
        "-",
    ]
    assert str(GPU) in second
    assert "9 KiB" in second
    facts = json.loads(json.dumps([binary.to_json() for binary in found]))
    assert facts[0]["op"] == "cpu_adam"
    assert facts[0]["simd"]["level"] == "avx2"
    assert facts[1]["gpu"] == {"sass": list(GPU.sass), "ptx": ["8.6"]}
    assert facts[1]["imports"] == ["_vcomp_fork"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"#!/bin/sh\n", "neither an ELF nor a PE"),
        (b"\x7fELF", "cut short or damaged"),
        (b"\x7fELF" + bytes(60), "."),
        (b"MZ", "cut short or damaged"),
        (b"MZ" + b"\xff" * 400, "cut short or damaged"),
    ],
)
def test_a_file_that_is_no_binary(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.pyd"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        binaries.read(path)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "absent.so"):
        with pytest.raises(BadInput, match="cannot be read"):
            binaries.read(path)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BadInput, match="Permission denied"):
        binaries.read(DLL)


def test_another_machine(compile_c: Compile, tmp_path: Path) -> None:
    elf = bytearray(compile_c("int f;").read_bytes())
    elf[18:20] = struct.pack("<H", 190)  # a cubin's
    pe = bytearray(DLL.read_bytes())
    (header,) = struct.unpack_from("<I", pe, 0x3C)
    pe[header + 4 : header + 6] = struct.pack("<H", 0xAA64)
    for name, content, machine in (("a.cubin", elf, "CUDA"), ("a.pyd", pe, "ARM64")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadInput, match=f"made for {machine}, not for x86-64"):
            binaries.read(path)


def test_a_file_cut_short_anywhere(compile_c: Compile, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    for content in (compile_c("int f;").read_bytes(), DLL.read_bytes()):
        for size in range(0, len(content), 61):
            path.write_bytes(content[:size])
            with pytest.raises(BadInput):
                binaries.read(path)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (6, struct.pack("<H", 0)),  # the header's size
        (8, struct.pack("<Q", 1 << 40)),  # the body's size
        (20, struct.pack("<I", 0)),  # the entry's header size
        (24, struct.pack("<Q", (1 << 40) + 7)),  # the entry's payload: the next one is not there
    ],
)
def test_damaged_gpu_code(tmp_path: Path, offset: int, value: bytes) -> None:
    content = bytearray(DLL.read_bytes())
    start = content.index(binaries.FATBIN_MAGIC) + offset
    content[start : start + len(value)] = value
    path = tmp_path / "x.pyd"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="damaged"):
        binaries.read(path)


# One file is written over and over; a fresh folder for each example would gain nothing.
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_bytes_raise_nothing_but_bad_input(compile_c: Compile, tmp_path: Path, data: st.DataObject) -> None:
    elf = tmp_path / "cpu_adam_op.so"
    if not elf.exists():
        compile_c("int f;")
    content = bytearray(data.draw(st.sampled_from([elf, DLL, SAMPLES / "pdb.dll"])).read_bytes())
    # Headers stand at a file's ends: hit them more often than the middle.
    offsets = st.one_of(st.integers(0, 1023), st.integers(0, len(content) - 1), st.integers(-2048, -1))
    for offset, value in data.draw(st.lists(st.tuples(offsets, st.integers(0, 255)), max_size=12)):
        content[offset] = value
    path = tmp_path / "mutated"
    path.write_bytes(content)
    with contextlib.suppress(BadInput):
        binaries.read(path)
