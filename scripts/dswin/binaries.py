"""What is inside a compiled extension: a ``.so`` (ELF) or a ``.pyd`` (PE), x86-64."""

from __future__ import annotations

import re
import struct
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from pathlib import Path, PurePath
from typing import Literal

import capstone
import lief
from rich.table import Table

from dswin.errors import BadInput

# lief writes its doubts about a damaged file to stderr; ours are exceptions.
lief.logging.disable()

Level = Literal["sse2", "avx2", "avx512"]

#: The fewest ymm instructions that make a file an AVX2 build. Microsoft's C++ library brings a few
#: of its own, behind a check of the CPU: 16 in every .pyd of the deepspeed 0.16.5 wheel, fused_adam
#: too (``std::find``). A real AVX2 build has 418 (cpu_adagrad) to 1336 (cpu_adam).
AVX2_THRESHOLD = 100

OpenMP = Literal["gomp", "kmp", "vcomp"]

FATBIN_SECTIONS = (".nv_fatbin", ".nv_fatb")  # a PE section's name holds eight characters
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
FATBIN_KINDS = {1: "ptx", 2: "sass"}  # 8 is LTO IR, which no driver runs


@dataclass(frozen=True)
class Simd:
    """Instructions in the executable sections, by what they use; one can count more than once.

    ``evex`` are those that need AVX-512 whatever the register's width: EVEX encoded, or on masks.
    """

    instructions: int
    xmm: int
    ymm: int
    zmm: int
    evex: int

    @property
    def level(self) -> Level:
        """The CPU that the code is for; see :data:`AVX2_THRESHOLD` for what counts as AVX2.

        One AVX-512 instruction is enough for ``avx512``: it stops every CPU without it, unless the
        code asks the CPU first (OpenSSL's library does), which is not seen here.
        """
        if self.zmm or self.evex:
            return "avx512"
        return "avx2" if self.ymm >= AVX2_THRESHOLD else "sse2"


@dataclass(frozen=True)
class GpuCode:
    """GPU architectures as torch writes them (``8.6``, ``9.0a``), in ascending order.

    ``sass`` is machine code for that very architecture; ``ptx`` is compiled by the driver for that
    architecture and later ones.
    """

    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In the form of TORCH_CUDA_ARCH_LIST: ``7.5 8.6+PTX``; ``9.0 (PTX)`` where SASS lacks."""
        names = [arch + ("+PTX" if arch in self.ptx else "") for arch in self.sass]
        return " ".join(names + [f"{arch} (PTX)" for arch in self.ptx if arch not in self.sass])


@dataclass(frozen=True)
class Binary:
    """What :func:`read` found.

    :param size: of the file, in bytes.
    :param libraries: DT_NEEDED or PE imports (delayed ones last), in the file's order.
    :param imports: names of the symbols that other libraries must provide.
    :param openmp: whose parallel regions the code calls: GCC's, LLVM's and Intel's, or Microsoft's.
    :param debug_info: ``.debug_*`` sections, or a PE that names its PDB.
    :param bf16_kernels: GPU functions that have ``__nv_bfloat16`` in their signature, by their mangled names.
    """

    path: Path
    format: Literal["elf", "pe"]
    size: int
    libraries: tuple[str, ...]
    imports: frozenset[str]
    simd: Simd
    openmp: OpenMP | None
    debug_info: bool
    gpu: GpuCode
    bf16_kernels: int

    @property
    def op(self) -> str:
        """The DeepSpeed op: ``cpu_adam`` for ``cpu_adam_op.cp311-win_amd64.pyd``."""
        # Upstream leaves out a dot: its module is deepspeed.inference.v2.kernelsinference_core_ops.
        return self.path.name.split(".")[0].removesuffix("_op").removeprefix("kernels")

    def to_json(self) -> dict[str, object]:
        """The same facts as values that :mod:`json` can write."""
        return {
            **asdict(self),
            "path": str(self.path),
            "op": self.op,
            "imports": sorted(self.imports),
            "simd": {**asdict(self.simd), "level": self.simd.level},
        }


@dataclass(frozen=True)
class _Section:
    name: str
    executable: bool
    content: bytes


def read(path: Path) -> Binary:
    """Read an x86-64 extension. It is not loaded, so it may be for any platform.

    :raises BadInput: the file cannot be read, is no ELF or PE for x86-64, or is damaged.
    """
    path = Path(path)
    data = _read_bytes(path)
    with warnings.catch_warnings():
        # lief's enumerations warn of numbers that they do not know; to us those are just others.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            if data.startswith(b"\x7fELF"):
                return _read_elf(path, data)
            if data.startswith(b"MZ"):
                return _read_pe(path, data)
        except UnicodeDecodeError as error:  # lief's, for some names that are not UTF-8
            raise _damaged(path) from error
    raise BadInput(
        f"{path} is {'empty' if not data else 'neither an ELF nor a PE file'}.",
        fix="Name a compiled extension: a .so of Linux or a .pyd of Windows.",
    )


def find_folders(path: Path, folders: Iterable[str | PurePath]) -> tuple[str, ...]:
    """Those of ``folders`` (or any other texts) whose name stands in the file.

    As UTF-8 or UTF-16, with either slash, in any case: Windows paths are written in all those ways.
    Text in compressed sections is not seen.

    :raises BadInput: the file cannot be read, or a folder's name is empty.
    """
    data = _read_bytes(Path(path)).lower()
    names = [str(folder) for folder in folders]
    if "" in names:
        raise BadInput("An empty name would be found in every file.", fix="Name a folder.")
    return tuple(name for name in names if any(form in data for form in _spell(name)))


def table(binaries: Iterable[Binary]) -> Table:
    """One row a file, for a terminal."""
    result = Table("op", "file", "SIMD", "OpenMP", "GPU architectures")
    result.add_column("size", justify="right")
    for binary in binaries:
        result.add_row(
            binary.op,
            binary.path.name,
            binary.simd.level,
            binary.openmp or "-",
            str(binary.gpu) or "-",
            _format_size(binary.size),
        )
    return result


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror or error}.",
            fix="Name a file that exists and that you may read.",
        ) from error


def _read_elf(path: Path, data: bytes) -> Binary:
    config = lief.ELF.ParserConfig()
    config.parse_relocations = config.parse_symtab_symbols = config.parse_notes = False
    elf = lief.ELF.parse(data, config)
    if elf is None:
        raise _damaged(path)
    header = elf.header
    if header.machine_type != lief.ELF.ARCH.X86_64:
        raise _wrong_machine(path, header.machine_type)
    # The section table is an ELF file's last part: with it, the file is whole.
    end = header.section_header_offset + header.numberof_sections * header.section_header_size
    if not header.section_header_offset or end > len(data):
        raise _damaged(path)
    sections = [
        _Section(
            _to_text(section.name),
            lief.ELF.Section.FLAGS.EXECINSTR in section,
            _cut(path, data, section.offset, section.size),
        )
        for section in elf.sections
        if section.type != lief.ELF.Section.TYPE.NOBITS
    ]
    libraries = tuple(_to_text(name) for name in elf.libraries)
    # lief's imported_symbols leaves out symbols without a type, which is what GNU's linker writes.
    imports = frozenset(_to_text(s.name) for s in elf.dynamic_symbols if s.shndx == 0)
    return _describe(path, "elf", data, sections, libraries, imports - {""}, names_pdb=False)


def _read_pe(path: Path, data: bytes) -> Binary:
    config = lief.PE.ParserConfig()
    config.parse_exports = config.parse_reloc = config.parse_rsrc = config.parse_signature = False
    pe = lief.PE.parse(data, config)
    if pe is None:
        raise _damaged(path)
    if pe.header.machine != lief.PE.Header.MACHINE_TYPES.AMD64:
        raise _wrong_machine(path, pe.header.machine)
    if len(pe.sections) != pe.header.numberof_sections:
        raise _damaged(path)
    sections = [
        _Section(
            # GNU's linker writes a long name elsewhere and "/4" here.
            _to_text(section.coff_string.string if section.coff_string else section.name),
            section.has_characteristic(lief.PE.Section.CHARACTERISTICS.MEM_EXECUTE),
            _cut(path, data, section.offset, section.size),
        )
        for section in pe.sections
    ]
    tables = [*pe.imports, *pe.delay_imports]
    libraries = tuple(_to_text(table.name) for table in tables)
    entries = (entry for table in tables for entry in table.entries)
    imports = frozenset(_to_text(entry.name) for entry in entries if not entry.is_ordinal)
    # link.exe /Brepro and ld --build-id leave an entry too, without a PDB's name.
    names_pdb = any(isinstance(entry, lief.PE.CodeViewPDB) and entry.filename for entry in pe.debug)
    return _describe(path, "pe", data, sections, libraries, imports - {""}, names_pdb=names_pdb)


def _describe(
    path: Path,
    kind: Literal["elf", "pe"],
    data: bytes,
    sections: list[_Section],
    libraries: tuple[str, ...],
    imports: frozenset[str],
    *,
    names_pdb: bool,
) -> Binary:
    return Binary(
        path=path,
        format=kind,
        size=len(data),
        libraries=libraries,
        imports=imports,
        simd=_count_simd(section.content for section in sections if section.executable),
        openmp=_find_openmp(libraries, imports),
        debug_info=names_pdb or any(s.name.startswith((".debug_", ".zdebug_")) for s in sections),
        gpu=_read_fatbins(path, (s.content for s in sections if s.name in FATBIN_SECTIONS)),
        bf16_kernels=len({name for name in _MANGLED.findall(data) if b"__nv_bfloat16" in name}),
    )


# The names by which the CUDA runtime finds kernels stand in the file whatever compiled the host's part.
_MANGLED = re.compile(rb"_Z\w+")


# With its number: "ymmword ptr" is a size in memory.
_REGISTER = re.compile(r"([xyz])mm\d")


def _count_simd(codes: Iterable[bytes]) -> Simd:
    """Disassemble from end to end (about 2 MB/s), stepping over what is no instruction."""
    instructions = xmm = ymm = zmm = evex = 0
    for code in codes:
        for address, _, mnemonic, operands in _disassembler().disasm_lite(code, 0):
            if mnemonic == ".byte":
                continue
            instructions += 1
            # 0x62 starts an EVEX instruction in 64-bit code and nothing else; the k… ones work on
            # AVX-512's mask registers. Intel's manual, volume 2, section 2.7.
            evex += code[address] == 0x62 or mnemonic[0] == "k"
            if "mm" in operands:
                widths = set(_REGISTER.findall(operands))
                xmm += "x" in widths
                ymm += "y" in widths
                zmm += "z" in widths
    return Simd(instructions, xmm, ymm, zmm, evex)


@cache
def _disassembler() -> capstone.Cs:
    result = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    result.skipdata = True
    return result


def _find_openmp(libraries: Iterable[str], imports: Iterable[str]) -> OpenMP | None:
    names = list(imports)
    if any(name.startswith("__kmpc_") for name in names):
        return "kmp"
    if any(name.startswith("GOMP_") for name in names):
        return "gomp"
    return "vcomp" if any(name.lower().startswith("vcomp") for name in libraries) else None


def _read_fatbins(path: Path, contents: Iterable[bytes]) -> GpuCode:
    found: dict[str, set[tuple[int, str]]] = {"sass": set(), "ptx": set()}
    for content in contents:
        for kind, number, suffix in _iterate_fatbins(path, content):
            if kind in FATBIN_KINDS:
                found[FATBIN_KINDS[kind]].add((number, suffix))
    sass, ptx = (
        tuple(f"{number // 10}.{number % 10}{suffix}" for number, suffix in sorted(found[name]))
        for name in ("sass", "ptx")
    )
    return GpuCode(sass=sass, ptx=ptx)


def _iterate_fatbins(path: Path, content: bytes) -> Iterator[tuple[int, int, str]]:
    """Kind, architecture and its suffix of each entry. A section holds many fat binaries.

    NVIDIA does not publish the layout. It was read off files that nvcc 13.5's fatbinary wrote, and
    agrees with cuobjdump on the deepspeed 0.14.5 and 0.16.5 wheels; cuobjdump's list leaves out the
    ``f`` of a family's SASS (flag bit 21; bit 20 is the ``a``).
    Headers stay readable where the code itself is compressed.
    """
    start = content.find(FATBIN_MAGIC)
    while start >= 0:
        if start + 16 > len(content):
            raise _damaged(path)
        header_size, size = struct.unpack_from("<HQ", content, start + 6)
        entry, end = start + header_size, start + header_size + size
        if header_size < 16 or end > len(content):
            raise _damaged(path)
        while entry < end:
            if entry + 48 > end:
                raise _damaged(path)
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", content, entry)
            (number,) = struct.unpack_from("<I", content, entry + 28)
            (flags,) = struct.unpack_from("<Q", content, entry + 40)
            entry += entry_header + payload
            if entry_header < 48 or entry > end:
                raise _damaged(path)
            yield kind, number, "a" if flags & 1 << 20 else "f" if flags & 1 << 21 else ""
        # Each starts at a multiple of eight or sixteen, behind some zeros.
        start = content.find(FATBIN_MAGIC, end)


def _spell(name: str) -> Iterator[bytes]:
    for text in {name, name.replace("\\", "/"), name.replace("/", "\\")}:
        for encoding in ("utf-8", "utf-16-le"):
            yield text.encode(encoding).lower()


def _cut(path: Path, data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise _damaged(path)
    return data[offset : offset + size]


def _to_text(name: str | bytes) -> str:
    # lief gives bytes where a name is not UTF-8.
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _format_size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"


def _damaged(path: Path) -> BadInput:
    return BadInput(f"{path} is cut short or damaged.", fix="Build it or fetch it again, then compare its hash.")


def _wrong_machine(path: Path, machine: Enum | int) -> BadInput:
    name = machine.name if isinstance(machine, Enum) else f"machine {machine}"
    return BadInput(
        f"{path} is made for {name}, not for x86-64.",
        fix="Name an extension of a win-64 or linux-64 package.",
    )
