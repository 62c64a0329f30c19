"""Import libraries for DLLs whose own ones are not at hand, by Microsoft's lib.exe from a list of what the DLL exports.

Such a library is as true as its list: take the list from the DLL itself, or from what is known of it independently, and never
from what the objects ask for, which always links.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import lief

from .errors import BadInput


class Tools(Protocol):
    """What runs programs of the MSVC tree: a :class:`dswin.wine.Host` does."""

    def check(self, command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
        """Run a program in a folder and return its output. :raises CheckFailed: its exit code is not 0."""


def list_exports(dll: bytes) -> list[str]:
    """The names that a DLL exports, sorted.

    :raises BadInput: it is no DLL, or exports nothing by name.
    """
    config = lief.PE.ParserConfig()
    config.parse_signature = config.parse_imports = config.parse_rsrc = config.parse_reloc = False
    parsed = lief.PE.parse(dll, config)
    export = parsed.get_export() if isinstance(parsed, lief.PE.Binary) else None
    names = sorted(str(entry.name) for entry in export.entries if entry.name) if export else []
    if not names:
        raise BadInput(
            "A DLL that should export functions exports none.", fix="Get its wheel again; it may be damaged."
        )
    return names


def write_definition(dll: str, names: Iterable[str]) -> str:
    """A module-definition file for *names*, C names or decorated ones. Those of variables are marked as data.

    In a decorated name the digit after ``@@`` says what it names; 0 to 5 are variables (Agner Fog, Calling conventions, 8.1).
    """

    def line(name: str) -> str:
        scope_end = name.find("@@")
        variable = (
            name.startswith("?") and not name.startswith("??") and name[scope_end + 2 : scope_end + 3] in "012345"
        )
        return f"    {name} DATA" if variable else f"    {name}"

    return "\n".join([f"LIBRARY {dll}", "EXPORTS", *map(line, names), ""])


def make_import_library(tools: Tools, dll: str, names: Iterable[str]) -> bytes:
    """The import library (x64) of a DLL called *dll* that exports *names*.

    :raises CheckFailed: lib.exe takes the list for wrong.
    """
    with tempfile.TemporaryDirectory(prefix="dswin-") as scratch:
        folder = Path(scratch)
        (folder / "exports.def").write_text(write_definition(dll, names), encoding="ascii")
        tools.check(["lib", "/nologo", "/machine:x64", "/def:exports.def", "/out:import.lib"], cwd=folder)
        return (folder / "import.lib").read_bytes()
