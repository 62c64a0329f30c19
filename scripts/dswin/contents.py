"""What an archive puts into an environment: its files, where they go, and what their bytes become there."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conda_package_streaming.package_streaming import stream_conda_component

from .channel import stream_info
from .digests import hash_bytes
from .errors import CheckFailed
from .lock import Locked

if TYPE_CHECKING:
    from rattler import PackageRecord

_INFO = ("info/index.json", "info/paths.json", "info/link.json")
#: A shebang longer than this is cut by older Linux kernels: linux/binfmts.h, BINPRM_BUF_SIZE.
_SHEBANG = 127


@dataclass(frozen=True)
class Entry:
    """A file of an archive.

    :param path: in the archive, with slashes.
    :param sha256: of the file in the archive; for a link to a file, that file's.
    :param mode: ``text`` or ``binary`` where ``placeholder`` is replaced by the prefix.
    """

    path: str
    kind: str
    sha256: str
    placeholder: str = ""
    mode: str = ""


@dataclass(frozen=True)
class Contents:
    """:param index: the archive's info/index.json. :param commands: of a noarch python package: ``name = module:function``."""

    archive: Path
    index: Mapping[str, object] = field(hash=False)
    entries: tuple[Entry, ...]
    commands: tuple[str, ...] = ()

    @property
    def is_python(self) -> bool:
        return self.index.get("noarch") == "python"


def read(package: Locked, archive: Path) -> Contents:
    """Read what a checked archive says of itself.

    :raises CheckFailed: it is not the package that the lock calls it, or cannot be read.
    """
    try:
        info = stream_info(archive, _INFO)
        index = json.loads(info["info/index.json"])
        found = (str(index["name"]), str(index["version"]), str(index["build"]))
        entries = _read_paths(archive, info.get("info/paths.json"))
        noarch = json.loads(info.get("info/link.json", b"{}")).get("noarch") or {}
        commands = tuple(noarch.get("entry_points") or ())
        _check_texts(index, entries, commands)
    except Exception as error:  # zipfile, tarfile, zstandard and json each have their own
        raise CheckFailed(
            f"{package.fn} is not a whole conda package: {error!r}.",
            fix="Ask whoever keeps the channel for a whole one.",
        ) from error
    if found != (package.name, package.version, package.build):
        raise CheckFailed(
            f"{package.fn} calls itself {' '.join(found)}: the lock names it {package}.",
            fix="Do not install it: archives were swapped. Ask whoever made the lock or keeps the channel.",
        )
    if index.get("subdir", package.platform) not in (package.platform, "noarch"):
        raise CheckFailed(
            f"{package.fn} is for {index['subdir']}, not for {package.platform}.", fix="Ask whoever keeps the channel."
        )
    if odd := next((entry.path for entry in entries if leaves(entry.path)), None):
        raise CheckFailed(
            f"{package.fn} would write {odd}, outside the environment.",
            fix="Do not install it; report it to its makers.",
        )
    return Contents(archive, index, entries, commands)


def _check_texts(index: Mapping[str, Any], entries: Iterable[Entry], commands: Iterable[object]) -> None:
    """:raises ValueError: something is no text of which paths and names are made."""
    texts = {"subdir": [index.get("subdir", "")], "entry_points": [*commands]}
    texts["paths"] = [text for one in entries for text in vars(one).values()]
    for key, values in texts.items():
        if not all(isinstance(one, str) for one in values):
            raise ValueError(f"its {key} hold something that is no text")
        "".join(values).encode()  # raises where JSON had half a letter, which no path has


def make_record(index: Mapping[str, object], **known: Any) -> PackageRecord:
    """Rattler's record of an archive's own metadata, which it takes from a file only.

    :param known: what the metadata do not have: ``size``, ``sha256``, ``md5``.
    :raises ValueError: rattler cannot read it.
    """
    import rattler

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.json"
        file.write_text(json.dumps(index), encoding="utf-8")
        try:
            return rattler.PackageRecord.from_index_json(file, **known)
        except Exception as error:  # OSError for a missing field, others for a malformed version
            raise ValueError(str(error)) from error


def read_members(archive: Path, paths: Iterable[str]) -> dict[str, bytes]:
    """The bytes of files of an archive, for a symbolic link where it points, in one pass over it."""
    wanted, found = set(paths), {}
    if wanted:
        for tar, member in stream_conda_component(str(archive), component="pkg"):
            if member.name in wanted:
                link = member.linkname.encode() if member.issym() else None
                found[member.name] = tar.extractfile(member).read() if link is None else link
                if len(found) == len(wanted):
                    break
    return found


def _read_paths(archive: Path, paths: bytes | None) -> tuple[Entry, ...]:
    if paths is None:  # older than paths.json: conda-build before 2.1
        return tuple(_read_old(archive))
    return tuple(
        Entry(
            one["_path"],
            one.get("path_type", "hardlink"),
            one.get("sha256") or "",
            one.get("prefix_placeholder") or "",
            (one.get("file_mode") or "text") if one.get("prefix_placeholder") else "",
        )
        for one in json.loads(paths)["paths"]
    )


def _read_old(archive: Path) -> Iterator[Entry]:
    replaced: dict[str, tuple[str, str]] = {}
    seen: list[tuple[str, str, str]] = []
    for tar, member in stream_conda_component(str(archive), component="pkg"):
        if member.name == "info/has_prefix":
            for line in tar.extractfile(member).read().decode().splitlines():
                words = shlex.split(line, posix=False)
                placeholder, mode, path = (
                    words if len(words) == 3 else ("/opt/anaconda1anaconda2anaconda3", "text", words[0])
                )
                replaced[path.strip('"')] = (placeholder.strip('"'), mode)
        elif not member.name.startswith("info/") and not member.isdir():
            data = b"" if member.issym() else tar.extractfile(member).read()
            kind = "softlink" if member.issym() else "hardlink"
            seen.append((member.name, kind, hash_bytes(data)))
    for path, kind, sha256 in seen:
        yield Entry(path, kind, sha256, *replaced.get(path, ("", "")))


def leaves(path: str) -> bool:
    """Whether a path in an archive or a record would lead out of the environment, on any system."""
    first, *others = path.replace("\\", "/").split("/")
    return first in ("", "..") or ":" in first or ".." in others


def locate(path: str, platform: str, python: str) -> str:
    """Where a file of a noarch python package goes in an environment, with slashes (CEP 20); other files stay where they are.

    :param python: the environment's Python, as ``3.11``.
    """
    first, _, rest = path.partition("/")
    windows = platform.startswith("win-")
    if first == "site-packages":
        return f"Lib/site-packages/{rest}" if windows else f"lib/python{python}/site-packages/{rest}"
    if first == "python-scripts":
        return f"Scripts/{rest}" if windows else f"bin/{rest}"
    return path


def list_commands(contents: Contents, platform: str) -> dict[str, str]:
    """{path of a script that the linker makes: ``module:function``}. On Windows there is a launcher beside each."""
    found = {}
    for text in contents.commands:
        name, _, target = (part.strip() for part in text.partition("="))
        if platform.startswith("win-"):
            found[f"Scripts/{name}-script.py"] = found[f"Scripts/{name}.exe"] = target
        else:
            found[f"bin/{name}"] = target
    return found


def list_forms(entry: Entry, data: bytes, prefix: str, platform: str) -> Iterator[bytes]:
    """What linkers make of a file with a placeholder when it goes to a prefix: mostly one form, more where linkers differ.

    :param data: the file in the archive.
    """
    windows = platform.startswith("win-")
    old = entry.placeholder.encode()
    if entry.mode == "binary":
        if windows:  # rattler and conda leave binaries alone there
            yield data
        yield _replace_in_strings(data, old, prefix.encode())
        return
    for new in dict.fromkeys((prefix.replace("\\", "/"), prefix) if windows else (prefix,)):
        plain = data.replace(old, new.encode())
        yield plain
        line, newline, _ = data.partition(b"\n")
        shebang = line.replace(old, new.encode())
        if line.startswith(b"#!") and (len(shebang) > _SHEBANG or " " in new):
            rest = plain[len(shebang) + len(newline) :]
            yield from (one + newline + rest for one in _rewrite_shebang(line, old, new.encode()))


def _replace_in_strings(data: bytes, old: bytes, new: bytes) -> bytes:
    """Replace in strings that end in a zero byte, each of which keeps its length."""

    def replace(match: re.Match[bytes]) -> bytes:
        return match[0].replace(old, new).ljust(len(match[0]), b"\0")

    return re.sub(re.escape(old) + rb"[^\0]*", replace, data)


def _rewrite_shebang(line: bytes, old: bytes, new: bytes) -> Iterator[bytes]:
    """The ways around a prefix that is too long for a shebang, or has a space in it: by the shell, or by env."""
    program, _, options = line[2:].strip().partition(b" ")
    options = b" " + options.replace(old, new) if options else b""
    path = program.replace(old, new)
    yield b"#!/bin/sh\n'''exec' \"" + path + b'"' + options + b' "$0" "$@" #\'\'\''
    yield b"#!/bin/sh\n'''exec' \"" + path.replace(b" ", b"\\ ") + b'"' + options + b' "$0" "$@" #\'\'\''
    yield b"#!/usr/bin/env " + path.rpartition(b"/")[2] + options


def is_command(text: bytes, target: str) -> bool:
    """Whether a script that a linker made starts ``module:function`` and does nothing else."""
    module, _, function = (part.strip() for part in target.partition(":"))
    try:
        # What the shell needs to find Python in a long prefix is a text for Python.
        body = [one for one in ast.parse(text).body if not _is_text(one)]
    except (SyntaxError, ValueError, RecursionError):
        return False
    if not body:
        return False
    *imports, start = body
    wanted = {"import re", "import sys", f"from {module} import {function.partition('.')[0]}"}
    if not isinstance(start, ast.If) or start.orelse or ast.unparse(start.test) != "__name__ == '__main__'":
        return False
    *others, last = start.body
    return (
        {ast.unparse(one) for one in imports} == wanted
        and ast.unparse(last) == f"sys.exit({function}())"
        and all(_cuts_ending(one) for one in others)
    )


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _cuts_ending(statement: ast.stmt) -> bool:
    """``sys.argv[0] = re.sub(PATTERN, TEXT, sys.argv[0])``: the name as it was typed, without -script.py or .exe."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call) or statement.value.keywords:
        return False
    *texts, subject = statement.value.args
    names = [ast.unparse(one) for one in (*statement.targets, statement.value.func, subject)]
    return names == ["sys.argv[0]", "re.sub", "sys.argv[0]"] and all(isinstance(one, ast.Constant) for one in texts)
