"""What torch's CUDA libraries for Windows export, as far as DeepSpeed's ops can ask for it, and the evidence for each name.

PyPI has no CUDA build of torch for Windows, so its c10_cuda.lib and torch_cuda.lib cannot be had here. The lists in data/ hold
the names as Microsoft's compiler decorates what torch's own headers declare. A name counts only if something that was not
made by us has it too: the exports of the same torch's Linux library, compared by name and types of parameters; or, for the
members of a class that Linux compiles in place and Windows exports, the import tables of DeepSpeed's official wheels.

    python -m dswin.torch_symbols linux WHEEL        what torch's Linux wheel exports: data/torch-<x.y>-linux-exports.txt
    python -m dswin.torch_symbols windows WHEEL...   what DeepSpeed's wheels import: data/deepspeed-windows-imports.txt
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .digests import hash_file
from .errors import BadInput, CheckFailed, MachineLacks

DATA = Path(__file__).parent / "data"
#: The minor version of torch that the lists are for.
TORCH = "2.10"
LIBRARIES = ("c10_cuda", "torch_cuda")
_OFFICIAL = "deepspeed-windows-imports.txt"
#: What of the Linux libraries is kept: functions that headers declare, not templates.
_NAMESPACES = ("c10::cuda::", "at::cuda::")


@dataclass(frozen=True)
class Symbol:
    """A function or variable of a DLL.

    :param decorated: its name for the linker.
    :param declaration: what undname.exe of the MSVC tree makes of it.
    """

    decorated: str
    declaration: str


def read_symbols(library: str, torch: str = TORCH) -> list[Symbol]:
    """The symbols of ``c10_cuda`` or ``torch_cuda``.

    :raises BadInput: there is no list for that torch.
    """
    file = DATA / f"torch-{torch}-{library}.txt"
    if not file.is_file():
        raise BadInput(f"What {library}.dll of torch {torch} exports is not known.", fix=f"Use torch {TORCH}.")
    return [Symbol(*line.split("\t", 1)) for line in _read_lines(file)]


def read_linux_exports(torch: str = TORCH) -> set[str]:
    """The signatures that torch's Linux libraries export, as :func:`sign_linux` writes them."""
    return {sign_linux(line) for line in _read_lines(DATA / f"torch-{torch}-linux-exports.txt")}


def read_official_imports() -> set[str]:
    """The decorated names that official DeepSpeed wheels for Windows import from c10_cuda.dll and torch_cuda.dll."""
    return set(_read_lines(DATA / _OFFICIAL))


def _read_lines(file: Path) -> list[str]:
    return [line for line in file.read_text("utf-8").splitlines() if line and not line.startswith("#")]


def check(symbols: Iterable[Symbol], linux: set[str], official: set[str]) -> None:
    """Hold symbols to the independent lists.

    :raises CheckFailed: one is in neither; a free function or a variable must be in the Linux one.
    """
    unknown = [symbol for symbol in symbols if not is_known(symbol, linux, official)]
    if unknown:
        raise CheckFailed(
            f"{len(unknown)} of the symbols for torch's import libraries are not known to exist.",
            fix="Compare them with torch's headers of that version; an import library with a wrong name hides a failing link.",
            log="\n".join(f"{symbol.decorated}  {symbol.declaration}" for symbol in unknown),
        )


def is_known(symbol: Symbol, linux: set[str], official: set[str]) -> bool:
    """Whether a symbol is in the independent lists. Official wheels are of older torch, whose functions had other parameters,
    so they count only for the members of CUDAStream, whose every member the class exports."""
    signature = sign_windows(symbol.declaration)
    member = signature.startswith("c10::cuda::CUDAStream::")
    return signature in linux or (member and symbol.decorated in official)


# ---- One spelling of a declaration for both compilers

#: How undname.exe spells types, and how the demangler of Linux does. size_t and int64_t are other types on each.
_TYPES = (
    (r"\b(class|struct|enum|union) ", ""),
    (r" ?__ptr64", ""),
    (r"\bunsigned __int64\b", "u64"),
    (r"\b__int64\b", "i64"),
    (r"\bunsigned long( long)?\b", "u64"),
    (r"\b(?<!unsigned )long( long)?\b", "i64"),
    (r"std::__cxx11::basic_string<.*?> >", "std::string"),
    (r"std::basic_string<.*?> ?>", "std::string"),
    (r"\[abi:cxx11\]", ""),
    # undname writes "char const *", the demangler "char const*".
    (r" ([*&])", r"\1"),
    (r"\s*,\s*", ", "),
)


def _spell(text: str) -> str:
    for pattern, replacement in _TYPES:
        text = re.sub(pattern, replacement, text)
    return re.sub(r"\bvoid(?=\))", "", text) if "(void)" in text else text


def sign_linux(demangled: str) -> str:
    """``name(types)`` of what c++filt writes, such as ``c10::cuda::GetDevice(signed char*)``; a variable is its name."""
    return _spell(demangled.removesuffix(" const"))


def sign_windows(declaration: str) -> str:
    """The same of what undname.exe writes: without access, result, calling convention and trailing const."""
    text = re.sub(r"^(public|protected|private): ", "", declaration)
    text = re.sub(r"\)const ?(__ptr64)? ?$", ")", text.strip())
    # Of a variable the type comes first, and may hold spaces.
    text = text.partition("__cdecl ")[2] if "__cdecl " in text else text.rpartition(" ")[2]
    return _spell(text).strip()


# ---- Making the lists again


def list_linux_exports(wheel: Path) -> list[str]:
    """The demangled functions and variables of torch's CUDA libraries in a Linux wheel, sorted.

    :raises MachineLacks: no nm or c++filt (binutils).
    """
    found: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="dswin-") as scratch, zipfile.ZipFile(wheel) as archive:
        for library in LIBRARIES:
            file = archive.extract(f"torch/lib/lib{library}.so", scratch)
            try:
                table = subprocess.run(["nm", "-D", "--defined-only", file], capture_output=True, check=True).stdout
                text = subprocess.run(["c++filt"], input=table, capture_output=True, check=True).stdout.decode()
            except FileNotFoundError as error:
                raise MachineLacks(f"{error.filename} is not there.", fix="Install binutils and run again.") from error
            symbols = (line.split(" ", 2)[1:] for line in text.splitlines())
            found |= {
                name for kind, name in symbols if kind in "TBD" and name.startswith(_NAMESPACES) and "<" not in name
            }
    return sorted(found)


def list_windows_imports(wheels: Iterable[Path]) -> list[str]:
    """The decorated names that the .pyd files of *wheels* import from torch's CUDA libraries, sorted."""
    import lief

    found: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                parsed = lief.PE.parse(archive.read(name)) if name.endswith(".pyd") else None
                for table in parsed.imports if isinstance(parsed, lief.PE.Binary) else ():
                    if str(table.name).lower().removesuffix(".dll") in LIBRARIES:
                        found |= {str(entry.name) for entry in table.entries}
    return sorted(found)


def main(arguments: list[str]) -> int:
    what, *wheels = arguments or [""]
    paths = [Path(wheel) for wheel in wheels]
    if what not in ("linux", "windows") or not paths:
        print(__doc__)
        return BadInput.exit_code
    for path in paths:
        print(f"# {path.name} sha256 {hash_file(path)}")
    lines = list_linux_exports(paths[0]) if what == "linux" else list_windows_imports(paths)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
