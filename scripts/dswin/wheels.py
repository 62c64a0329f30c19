"""One wheel in, one conda package out, for linux-64 and for win-64, on either system."""

from __future__ import annotations

import configparser
import csv
import fnmatch
import hashlib
import io
import json
import os
import re
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import IO

from conda_package_streaming.create import conda_builder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from .errors import BadInput

#: Raise it when a package made from the same input would come out different: it is part of every cache key.
CONVERTER_VERSION = 3

#: The projects whose conda-forge name is not their normalized name on the package index.
CONDA_NAMES: Mapping[str, str] = {
    "hjson": "hjson-py",
    "msgpack": "msgpack-python",
    "torch": "pytorch",
    "typing-extensions": "typing_extensions",
}

#: What a wheel carries that neither running nor compiling against it needs, by project.
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "torch": (
        "torch/test/*",
        "torch/bin/test_*",
        "torch/bin/*Test",
        "torch/bin/*Test.exe",
        "torch/bin/protoc*",
        "torch/bin/*.pt",
        "torch/bin/*.ptl*",
        "torch/lib/*_test.so",
        # Static libraries that are inside torch_cpu.dll already. The import libraries stay, and sleef.lib, which torch's
        # BuildExtension names on every extension's command line.
        "torch/lib/dnnl.lib",
        "torch/lib/libproto*.lib",
        "torch/lib/kineto.lib",
        "torch/lib/XNNPACK.lib",
        # Second copies of what is in torch/lib, for the programs above.
        "torch/bin/*.dll",
    ),
}

_TAG_OF: Mapping[str, re.Pattern[str]] = {
    "linux-64": re.compile(r"(manylinux\w+|linux)_x86_64"),
    "win-64": re.compile(r"win_amd64"),
}
_MARKERS_OF: Mapping[str, Mapping[str, str]] = {
    "linux-64": {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    },
    "win-64": {
        "os_name": "nt",
        "sys_platform": "win32",
        "platform_system": "Windows",
        "platform_machine": "AMD64",
    },
}

# The packages stay on this machine, so time counts and size does not.
_ZSTD_LEVEL = 1


def name_for_conda(project: str) -> str:
    """The conda-forge name of a project of the package index."""
    normal = canonicalize_name(project)
    return CONDA_NAMES.get(normal, normal)


def write_as_match(requirement: Requirement) -> str:
    """A requirement in conda's words, without its marker: ``torch==2.13.*`` is ``pytorch 2.13.*``."""
    clauses = []
    for clause in sorted(requirement.specifier, key=str):
        version = clause.version.partition("+")[0]
        operator = {"===": "=="}.get(clause.operator, clause.operator)
        clauses.append(version if operator == "==" and version.endswith(".*") else operator + version)
    return " ".join(filter(None, (name_for_conda(requirement.name), ",".join(clauses))))


def marker_environment(platform: str, python: str) -> dict[str, str]:
    """The values that environment markers have on *platform* with Python *python* (``3.11``)."""
    return {
        **_MARKERS_OF[platform],
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
        "extra": "",
    }


def choose_requirements(lines: Iterable[str], platform: str, python: str) -> list[Requirement]:
    """Those of a wheel's requirements that hold on *platform* with Python *python*, no extra asked for."""
    environment = marker_environment(platform, python)
    requirements = [Requirement(line) for line in lines]
    return [r for r in requirements if r.marker is None or r.marker.evaluate(environment)]


def read_metadata(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(_find_dist_info(archive) + "/METADATA"))


def _find_dist_info(archive: zipfile.ZipFile) -> str:
    return next(n.partition("/")[0] for n in archive.namelist() if n.endswith(".dist-info/METADATA"))


def pin_python(python: str) -> list[str]:
    """What a compiled package asks of Python, as conda-forge writes it."""
    major, minor = python.split(".")
    return [f"python >={python},<{major}.{int(minor) + 1}.0a0", f"python_abi {python}.* *_cp{major}{minor}"]


@dataclass(frozen=True)
class Member:
    """A file of a package: where it goes, and how to read it."""

    path: str
    size: int
    open: Callable[[], IO[bytes]]
    executable: bool = False

    @classmethod
    def from_bytes(cls, path: str, data: bytes, *, executable: bool = False) -> Member:
        return cls(path, len(data), lambda: io.BytesIO(data), executable)

    @classmethod
    def from_file(cls, path: str, source: Path, *, executable: bool = False) -> Member:
        return cls(path, source.stat().st_size, lambda: source.open("rb"), executable)


class _Hashing:
    """A file that hashes what is read from it, so that big members are read once."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.sha256.update(data)
        return data


def write_package(
    folder: Path,
    index: Mapping[str, object],
    members: Iterable[Member],
    *,
    about: Mapping[str, object],
    info: Mapping[str, object] | None = None,
) -> Path:
    """Write ``name-version-build.conda`` into *folder* and return its path.

    :param index: the content of info/index.json.
    :param info: further JSON files of info/, by name.
    """
    stem = "{name}-{version}-{build}".format_map(index)
    now = int(time.time())
    paths = []
    with conda_builder(stem, folder, compression_level=_ZSTD_LEVEL, compression_threads=os.cpu_count() or 1) as archive:

        def add(member: Member) -> str:
            entry = tarfile.TarInfo(member.path)
            entry.size, entry.mtime = member.size, now
            entry.mode = 0o755 if member.executable else 0o644
            with member.open() as file:
                hashing = _Hashing(file)
                archive.addfile(entry, hashing)
            return hashing.sha256.hexdigest()

        for member in members:
            paths.append(
                {"_path": member.path, "path_type": "hardlink", "sha256": add(member), "size_in_bytes": member.size}
            )
        records = {
            "index.json": {**index, "timestamp": now * 1000},
            "paths.json": {"paths": paths, "paths_version": 1},
            "about.json": about,
            **(info or {}),
        }
        for name, content in records.items():
            add(Member.from_bytes(f"info/{name}", json.dumps(content, indent=1).encode()))
        add(Member.from_bytes("info/files", "".join(f"{path['_path']}\n" for path in paths).encode()))
    return folder / f"{stem}.conda"


@dataclass(frozen=True)
class Source:
    """What one package is made from.

    :param identity: names everything that the result depends on; a different identity is a different package.
    :param title: says what is made, for a line of progress.
    :param make: writes the package into a folder, with a digest in its build string, and returns its path.
    """

    name: str
    identity: str
    title: str
    make: Callable[[Path, str], Path]


def convert_wheel(wheel: Path, folder: Path, *, platform: str, python: str, digest: str) -> Path:
    """Make a conda package of a wheel and return its path, ``folder/<subdir>/<file>``.

    A package with compiled code is laid out like ``noarch: python`` in the platform's subdir (CEP 20): the installer
    then puts its modules in place and makes its commands, on Windows as .exe files. Its METADATA stays as it is, so
    ``pip check`` means something. A local version (``+cpu``) is cut off: no conda version can be asked for with one.

    :param platform: linux-64 or win-64. It need not be this machine's.
    :param python: ``3.11``; it decides the markers and, for compiled code, the pin.
    :param digest: identifies the input; goes into the build string, so no installer's cache can mix up two results.
    :raises BadInput: the wheel is not for this platform and Python, or does not hold what a wheel must.
    """
    try:
        project, version, _, tags = parse_wheel_filename(wheel.name)
        compiled = _choose_tags(tags, platform, python)
        with zipfile.ZipFile(wheel) as archive:
            return _convert(archive, folder, project, version.public, compiled, platform, python, digest)
    except (ValueError, KeyError, StopIteration, zipfile.BadZipFile) as error:
        raise BadInput(
            f"{wheel.name} cannot be made a conda package for {platform}, Python {python}: {error}",
            fix="Delete the file and run again; if it comes back, the index serves a broken or unsuitable wheel.",
        ) from error


def _choose_tags(tags: Iterable[Tag], platform: str, python: str) -> list[str]:
    """The platform tags to honour; none for pure Python."""
    if any(tag.platform == "any" for tag in tags):
        return []
    found = [tag.platform for tag in tags if _TAG_OF[platform].fullmatch(tag.platform) and _is_for(tag, python)]
    if not found:
        raise ValueError("its tags are " + ", ".join(sorted(map(str, tags))))
    return found


def _is_for(tag: Tag, python: str) -> bool:
    own = "cp" + python.replace(".", "")
    return tag.interpreter == own or tag.abi == "abi3" or tag.interpreter.startswith("py3")


def _convert(
    archive: zipfile.ZipFile,
    folder: Path,
    project: str,
    version: str,
    compiled: list[str],
    platform: str,
    python: str,
    digest: str,
) -> Path:
    dist_info = _find_dist_info(archive)
    metadata = message_from_bytes(archive.read(f"{dist_info}/METADATA"))
    name = name_for_conda(project)
    subdir = platform if compiled else "noarch"
    if compiled:
        build = f"py{python.replace('.', '')}_h{digest[:7]}_0"
        # Whoever asks for the CPU build of torch asks for a build string with "cpu" in it.
        build = f"cpu_{build}" if project == "torch" else build
    else:
        build = f"pyh{digest[:7]}_0"
    index = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "depends": _write_depends(metadata, compiled, platform, python),
        "license": metadata.get("License-Expression", ""),
        "subdir": subdir,
        "noarch": "python",
    }
    link = {"noarch": {"type": "python", "entry_points": _read_commands(archive, dist_info)}}
    target = folder / subdir
    target.mkdir(parents=True, exist_ok=True)
    return write_package(
        target,
        index,
        _list_members(archive, project, dist_info, platform, python),
        about={"summary": metadata.get("Summary", ""), "description": "Made from a wheel. Not for publication."},
        info={"link.json": {**link, "package_metadata_version": 1}},
    )


def _write_depends(metadata: Message, compiled: list[str], platform: str, python: str) -> list[str]:
    depends = [write_as_match(r) for r in choose_requirements(metadata.get_all("Requires-Dist", []), platform, python)]
    if compiled:
        depends += pin_python(python)
        # The lowest of the wheel's tags: a file may carry several.
        floors = [tuple(map(int, m.groups())) for t in compiled if (m := re.match(r"manylinux_(\d+)_(\d+)_", t))]
        if floors:
            depends.append("__glibc >={}.{},<3.0.a0".format(*min(floors)))
    else:
        wanted = SpecifierSet(metadata.get("Requires-Python", ""))
        depends.append(write_as_match(Requirement(f"python{wanted}")))
    return sorted(set(depends))


def _read_commands(archive: zipfile.ZipFile, dist_info: str) -> list[str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(archive.read(f"{dist_info}/entry_points.txt").decode())
    except KeyError:
        return []
    sections = [s for s in ("console_scripts", "gui_scripts") if parser.has_section(s)]
    return [f"{command} = {target}" for section in sections for command, target in parser.items(section)]


def _list_members(
    archive: zipfile.ZipFile, project: str, dist_info: str, platform: str, python: str
) -> Iterator[Member]:
    left_out = LEFT_OUT.get(project, ())
    kept = {f"{dist_info}/INSTALLER"}
    for entry in archive.infolist():
        path = entry.filename
        record = path == f"{dist_info}/RECORD"
        if entry.is_dir() or record or any(fnmatch.fnmatchcase(path, pattern) for pattern in left_out):
            continue
        target = _place(path, project, platform, python)
        executable = bool(entry.external_attr >> 16 & 0o111)
        if target.startswith("python-scripts/"):
            with archive.open(entry) as file:
                text = file.read(8) == b"#!python"
            if text:
                script = re.sub(rb"^#!pythonw?", b"#!/usr/bin/env python", archive.read(entry))
                yield Member.from_bytes(target, script, executable=True)
                continue
            # The installer writes a shebang into what lies in python-scripts/; a program goes where it is to run.
            target = ("Scripts/" if platform == "win-64" else "bin/") + Path(target).name
        kept.add(path)
        yield Member(target, entry.file_size, lambda entry=entry: archive.open(entry), executable)  # type: ignore[misc]
    yield Member.from_bytes(f"site-packages/{dist_info}/INSTALLER", b"conda\n")
    yield Member.from_bytes(f"site-packages/{dist_info}/RECORD", _rewrite_record(archive, dist_info, kept))


def _place(path: str, project: str, platform: str, python: str) -> str:
    """Where a wheel's file goes in the package."""
    data = re.fullmatch(r"[^/]+\.data/([^/]+)/(.+)", path)
    if not data:
        return f"site-packages/{path}"
    kind, rest = data.groups()
    include = "Include" if platform == "win-64" else f"include/python{python}"
    return {
        "purelib": f"site-packages/{rest}",
        "platlib": f"site-packages/{rest}",
        "scripts": f"python-scripts/{rest}",
        "headers": f"{include}/{project}/{rest}",
        "data": rest,
    }[kind]


def _rewrite_record(archive: zipfile.ZipFile, dist_info: str, kept: set[str]) -> bytes:
    rows = csv.reader(io.StringIO(archive.read(f"{dist_info}/RECORD").decode()))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows(row for row in rows if row and row[0] in kept and ".data/" not in row[0])
    writer.writerows(([f"{dist_info}/INSTALLER", "", ""], [f"{dist_info}/RECORD", "", ""]))
    return out.getvalue().encode()
