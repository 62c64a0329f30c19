"""The same inputs give the same bytes: what rattler-build writes of the time, the place and chance is taken out of a package.

What is compiled is the same already (recipe/build.sh and bld.bat see to it). Left are the times of the archive's members, the
order of members and of dependencies, the build's folder that stands for a user's prefix in scripts, and in info/ the time, the
folders and the kernel of the machine that built.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import posixpath
import re
import tarfile
import zipfile
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from backports import zstd
from conda_package_streaming.package_streaming import stream_conda_component

from .digests import hash_bytes
from .errors import BadInput

#: As rattler-build's own default for a .conda.
LEVEL = 15
RENDERED = "info/recipe/rendered_recipe.yaml"
PATHS = "info/paths.json"
#: What stands for a user's prefix in scripts, whatever the folder of the build: as long as conda allows, and no folder of anyone.
PLACEHOLDER = "/deepspeed-win".ljust(255, "_")
#: Of a package that was made on this machine, no more is kept in the rendered recipe: its hash depends on when it was made.
KEPT = ("name", "version", "build", "build_number", "subdir", "depends", "license")


def read_epoch(recipe: Path) -> int:
    """Return the moment that a build counts as its time, in seconds since 1970: the build script's SOURCE_DATE_EPOCH.

    :raises BadInput: it sets none.
    """
    script = recipe / "build.sh"
    found = re.search(r"^export SOURCE_DATE_EPOCH=(\d+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise BadInput(f"{script} sets no SOURCE_DATE_EPOCH.", fix="Compare it with the repository's.")
    return int(found[1])


def settle(package: Path, epoch: int) -> None:
    """Rewrite a .conda so that its bytes follow from what was built; the files that are installed from it stay as they are.

    :param epoch: the time of everything in it, in seconds since 1970.
    """
    paths = _read_paths(package)
    # Not on Windows, where the folder of a build is short and always the same one, and scripts are programs.
    scripts = {
        entry["_path"]: entry["prefix_placeholder"].encode()
        for entry in paths["paths"]
        if entry.get("file_mode") == "text" and entry.get("prefix_placeholder", "").startswith("/")
    }
    settled = {
        name: data.replace(scripts[name], PLACEHOLDER.encode()) for name, data in _read(package, "pkg", scripts).items()
    }
    lists = [entry["_path"] for entry in paths["paths"] if scripts and entry["_path"].endswith(".dist-info/RECORD")]

    def settle_list(name: str, data: bytes) -> bytes:
        settled[name] = settle_record(data, name, settled)
        return settled[name]

    cleaned: dict[str, Callable[[bytes], bytes]] = {
        **{name: partial(_give, data) for name, data in settled.items()},
        **{name: partial(settle_list, name) for name in lists},
        PATHS: lambda data: settle_paths(data, settled),
        "info/index.json": lambda data: settle_index(data, epoch),
        "info/about.json": settle_about,
        RENDERED: lambda data: settle_rendered(data, epoch),
    }
    moment = datetime.fromtimestamp(epoch, timezone.utc)
    scratch = package.with_name(f"{package.name}.part")
    try:
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED) as archive:

            def store(name: str, data: bytes) -> None:
                member = zipfile.ZipInfo(name, moment.timetuple()[:6])
                member.create_system, member.external_attr = 3, 0o100644 << 16
                archive.writestr(member, data)

            store("metadata.json", b'{"conda_pkg_format_version":2}')
            for component in ("pkg", "info"):
                data = _pack(package, component, epoch, cleaned)
                store(f"{component}-{package.stem}.tar.zst", data)
        os.replace(scratch, package)
    finally:
        scratch.unlink(missing_ok=True)


def _pack(package: Path, component: str, epoch: int, cleaned: dict[str, Callable[[bytes], bytes]]) -> bytes:
    """Return a component's tar, its members in the order of their names, compressed."""
    members: list[tuple[tarfile.TarInfo, bytes]] = []
    for tar, member in stream_conda_component(str(package), component=component):
        content = b""
        if member.isreg() and (file := tar.extractfile(member)):
            content = cleaned.get(member.name, bytes)(file.read())
        plain = tarfile.TarInfo(member.name)
        plain.type, plain.mode, plain.linkname = member.type, member.mode, member.linkname
        plain.size, plain.mtime = len(content), epoch
        members.append((plain, content))
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for plain, content in sorted(members, key=lambda pair: pair[0].name):
            tar.addfile(plain, io.BytesIO(content))
    return zstd.compress(whole.getvalue(), LEVEL)


def _read_paths(package: Path) -> dict[str, Any]:
    found = _read(package, "info", [PATHS])
    return json.loads(found[PATHS]) if found else {"paths": []}


def _read(package: Path, component: str, names: Collection[str]) -> dict[str, bytes]:
    """Return the members of a component that have these names and are files."""
    return {
        member.name: file.read()
        for tar, member in stream_conda_component(str(package), component=component)
        if member.name in names and member.isreg() and (file := tar.extractfile(member))
    }


def _give(data: bytes, _: bytes) -> bytes:
    return data


def settle_record(data: bytes, place: str, settled: Mapping[str, bytes]) -> bytes:
    """Give what :func:`settle` has changed its hash and size in a RECORD, whose paths begin two folders above it."""
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    for row in rows:
        content = settled.get(posixpath.normpath(posixpath.join(place, "../..", row[0]))) if len(row) == 3 else None
        if content is not None and row[1]:
            encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            row[1:] = [f"sha256={encoded}", str(len(content))]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def settle_paths(data: bytes, settled: Mapping[str, bytes]) -> bytes:
    """Describe the files that :func:`settle` has changed as they are now in a paths.json."""
    document = json.loads(data)
    for entry in document["paths"]:
        if (content := settled.get(entry["_path"])) is not None:
            if "prefix_placeholder" in entry:
                entry["prefix_placeholder"] = PLACEHOLDER
            entry["sha256"] = hash_bytes(content)
            entry["size_in_bytes"] = len(content)
    return _write_json(document)


def settle_index(data: bytes, epoch: int) -> bytes:
    """Put an index.json's dependencies into order, and its time to ``epoch`` (milliseconds there)."""
    index = json.loads(data)
    for name in ("depends", "constrains"):
        if name in index:
            index[name] = sorted(index[name])
    index["timestamp"] = epoch * 1000
    return _write_json(index)


def settle_about(data: bytes) -> bytes:
    """Leave the channels that are folders of the building machine out of an about.json."""
    about = json.loads(data)
    about["channels"] = [url for url in about.get("channels", []) if not _is_local(url)]
    return _write_json(about)


def settle_rendered(data: bytes, epoch: int) -> bytes:
    """Leave folders, kernel and time of the building machine out of a rendered recipe, and order what has none."""
    rendered = yaml.safe_load(data)
    configuration = rendered.get("build_configuration", {})
    configuration.pop("directories", None)
    for platform in ("host_platform", "build_platform"):
        configuration.get(platform, {}).pop("virtual_packages", None)
    if "channels" in configuration:
        configuration["channels"] = [url for url in configuration["channels"] if not _is_local(url)]
    configuration["timestamp"] = datetime.fromtimestamp(epoch, timezone.utc).isoformat()
    sources = (rendered.get("recipe") or {}).get("source") or []
    for source in [*(rendered.get("finalized_sources") or []), *(sources if isinstance(sources, list) else [sources])]:
        # The sdist lies where the builder put it; its hash stays.
        if isinstance(source, dict) and "sha256" in source and "path" in source:
            source["path"] = Path(str(source["path"])).name
    for part in (rendered.get("finalized_dependencies") or {}).values():
        if isinstance(part, dict):
            _settle_dependencies(part)
    text = yaml.safe_dump(rendered, sort_keys=False, allow_unicode=True, width=120)
    return text.encode()


def _settle_dependencies(part: dict[str, Any]) -> None:
    for name in ("specs", "depends", "constraints", "constrains"):
        if isinstance(part.get(name), list):
            part[name] = sorted(part[name], key=_sort_key)
    if isinstance(part.get("resolved"), list):
        part["resolved"] = sorted((_forget_place(record) for record in part["resolved"]), key=_sort_key)


def _forget_place(record: dict[str, Any]) -> dict[str, Any]:
    if not _is_local(str(record.get("url", ""))):
        return record
    return {name: record[name] for name in KEPT if name in record}


def _sort_key(entry: Any) -> str:
    return json.dumps(entry, sort_keys=True, default=str)


def _is_local(url: str) -> bool:
    return "://" not in url or url.startswith("file:")


def _write_json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
