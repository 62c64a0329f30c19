"""Microsoft's compiler, assembler, librarian and linker, one method each, with their long command lines in files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import CheckFailed
from .host import Host

#: Seconds that one call may take; the largest, CPython's core, takes 108 on two slow cores.
_PATIENCE = 3600.0
_COMPILE = ("/nologo", "/c", "/O2", "/Oi", "/GF", "/Gy", "/W1", "/utf-8", "/Zm200")
_LIBRARIES = (
    "kernel32", "user32", "gdi32", "winspool", "comdlg32", "advapi32", "shell32", "ole32", "oleaut32", "uuid", "odbc32",
    "odbccp32",
)  # fmt: skip

#: A file to compile, with the definitions that it alone has.
Source = tuple[Path, tuple[str, ...]]


def quote(option: str) -> str:
    """Return an option as it must stand in a response file of cl, lib or link."""
    escaped = option.replace('"', '\\"')
    return f'"{escaped}"' if re.search(r"[\s;]", option) else escaped


class Toolchain:
    """Builds programs into ``folder``: objects in a folder for each name, results in ``folder/bin``.

    :param folder: a path that has no spaces and is plain ASCII on the Windows side, as all below the drive C: is.
    """

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)

    def compile(
        self,
        name: str,
        sources: Iterable[Source],
        defines: Sequence[str] = (),
        includes: Sequence[Path] = (),
        options: Sequence[str] = ("/MD",),
        jobs: int = 1,
    ) -> list[Path]:
        """Compile C files, ``jobs`` at a time, and return their objects."""
        folder = self._make(name)
        groups: dict[tuple[str, ...], list[Path]] = {}
        for path, extra in sources:
            groups.setdefault(extra, []).append(path)
        for number, (extra, paths) in enumerate(groups.items()):
            # The largest first, so that cl's processes end at about the same time.
            paths.sort(key=lambda path: -path.stat().st_size)
            words = [*_COMPILE, f"/MP{jobs}", *options, *(f"/D{one}" for one in (*extra, *defines))]
            words += [f"/I{self._name(one)}" for one in includes]
            self._call("cl", [*words, f"/Fo{self._name(folder)}\\", *map(self._name, paths)], folder, f"cl{number}")
        objects = [folder / f"{path.stem}.obj" for paths in groups.values() for path in paths]
        if len(set(objects)) < len(objects):
            raise CheckFailed(
                f"Two sources of {name} have one name.", fix="Report it: this version of CPython is new here."
            )
        return objects

    def preprocess(self, name: str, source: Path, defines: Sequence[str], includes: Sequence[Path]) -> str:
        """Return a C file's text after the preprocessor, without line marks."""
        words = [*(f"/D{one}" for one in defines), *(f"/I{self._name(one)}" for one in includes)]
        target = self._make(name) / f"{source.stem}.i"
        # /EP alone writes to stdout, where the file's name is too.
        words += ["/EP", "/P", f"/Fi{self._name(target)}", "/TC", self._name(source)]
        self._call("cl", ["/nologo", *words], target.parent, "preprocess")
        return target.read_text(encoding="utf-8", errors="replace")

    def assemble(self, name: str, source: Path) -> Path:
        """Assemble a file with ml64 and return its object."""
        target = self._make(name) / f"{source.stem}.obj"
        words = ["ml64.exe", "/nologo", "/c", f"/Fo{self._name(target)}", self._name(source)]
        self.host.check(words, cwd=target.parent, timeout=_PATIENCE)
        return target

    def compile_resource(self, name: str, source: Path, defines: Sequence[str], includes: Sequence[Path]) -> Path:
        """Compile a resource script, in US English, and return the .res file."""
        target = self._make(name) / f"{source.stem}.res"
        words = ["rc.exe", "/nologo", "/l", "0x0409"]
        words += [word for one in includes for word in ("/I", self._name(one))]
        words += [*(f"/d{one}" for one in defines), "/fo", self._name(target), self._name(source)]
        self.host.check(words, cwd=target.parent, timeout=_PATIENCE)
        return target

    def archive(self, name: str, objects: Iterable[Path]) -> Path:
        """Make a static library of objects and return it."""
        target = self.bin / f"{name}.lib"
        self._call("lib", ["/NOLOGO", f"/OUT:{self._name(target)}", *map(self._name, objects)], self._make(name), "lib")
        return target

    def link(
        self, name: str, target: str, inputs: Iterable[Path], libraries: Iterable[str] = (), options: Iterable[str] = ()
    ) -> Path:
        """Link a program, or a DLL with its import library when ``target`` does not end in .exe, and return it."""
        result = self.bin / target
        words = ["/NOLOGO", f"/OUT:{self._name(result)}", "/MACHINE:X64", "/OPT:REF,NOICF", "/INCREMENTAL:NO"]
        words += ["/MANIFEST:NO", "/NODEFAULTLIB:LIBC", f"/LIBPATH:{self._name(self.bin)}"]
        if result.suffix != ".exe":
            words += ["/DLL", f"/IMPLIB:{self._name(result.with_suffix('.lib'))}"]
        words += [one for one in options if not one.startswith("/OPT")]
        words += [*map(self._name, inputs), *libraries, *(f"{one}.lib" for one in _LIBRARIES)]
        self._call("link", words, self._make(name), "link")
        return result

    def _make(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def _name(self, path: Path) -> str:
        return self.host.to_windows(path)

    def _call(self, tool: str, words: Iterable[str], folder: Path, name: str) -> None:
        file = folder / f"{name}.rsp"
        file.write_text("\n".join(map(quote, words)) + "\n", encoding="ascii")
        self.host.check([f"{tool}.exe", f"@{self._name(file)}"], cwd=folder, timeout=_PATIENCE)
