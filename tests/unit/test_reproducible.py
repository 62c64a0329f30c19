"""Two builds of one thing are one file: what rattler-build writes of time, place and chance is taken out."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from backports import zstd

from building import ROOT
from dswin import reproducible
from dswin.errors import BadInput

EPOCH = 1_792_454_400
RECORD = "lib/a-1.dist-info/RECORD"


def make_package(folder: Path, *, moment: int, home: str, depends: list[str], order: int) -> Path:
    """A package as two builds of it differ: times, folders, the order of sets and of members."""
    folder.mkdir()
    rendered = {
        "recipe": {"source": [{"path": f"../..{home}/x.tar.gz", "sha256": "s"}, {"path": "windows"}]},
        "build_configuration": {
            "host_platform": {"platform": "linux-64", "virtual_packages": [f"__linux={moment}=0"]},
            "directories": {"work_dir": f"{home}/work"},
            "channels": [f"file://{home}/deps", "https://conda.anaconda.org/conda-forge"],
            "timestamp": f"{moment}",
        },
        "finalized_dependencies": {
            "build": {
                "specs": [{"spec": one} for one in depends],
                "resolved": [
                    {"name": "ninja", "version": "1.13", "url": f"file://{home}/ninja.conda", "md5": str(moment)},
                    {"name": "pip", "version": "26", "url": "https://conda.anaconda.org/pip.conda", "md5": "abc"},
                ],
            }
        },
    }
    index = {"name": "a", "depends": depends, "timestamp": moment * 1000}
    info = {
        "info/index.json": json.dumps(index),
        "info/about.json": json.dumps({"channels": [f"file://{home}/deps"], "home": "x"}),
        reproducible.RENDERED: yaml.safe_dump(rendered),
    }
    files = {"lib/b.py": "b = 1\n", "lib/a.py": "a = 1\n", "bin/run": f"#!{home}/env/bin/python\n# {home}/env\n"}
    script = {
        "_path": "bin/run",
        "prefix_placeholder": f"{home}/env",
        "file_mode": "text",
        "sha256": "0",
        "size_in_bytes": 1,
    }
    digest = base64.urlsafe_b64encode(hashlib.sha256(files["bin/run"].encode()).digest()).rstrip(b"=").decode()
    files[RECORD] = f'../bin/run,sha256={digest},{len(files["bin/run"])}\n"b,c.py",sha256=x,1\na-1.dist-info/RECORD,,\n'
    paths = [
        script,
        {"_path": "lib/a.py", "sha256": "1", "size_in_bytes": 6},
        {"_path": RECORD, "sha256": digest, "size_in_bytes": 3},
    ]
    info[reproducible.PATHS] = json.dumps({"paths": paths, "paths_version": 1})
    package = folder / "a-1-0.conda"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        for component, members in (("info", info), ("pkg", files)):
            tar = io.BytesIO()
            with tarfile.open(fileobj=tar, mode="w") as writer:
                for name, text in list(members.items())[::order]:
                    member = tarfile.TarInfo(name)
                    member.size, member.mtime, member.uname = len(text.encode()), moment, home
                    member.mode = 0o755 if name == "bin/run" else 0o644
                    writer.addfile(member, io.BytesIO(text.encode()))
                if component == "pkg":
                    link = tarfile.TarInfo("lib/c.py")
                    link.type, link.linkname, link.mtime = tarfile.SYMTYPE, "a.py", moment
                    writer.addfile(link)
            archive.writestr(f"{component}-a-1-0.tar.zst", zstd.compress(tar.getvalue()))
    return package


def read_members(package: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    found = {}
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".tar.zst"):
                with tarfile.open(fileobj=io.BytesIO(zstd.decompress(archive.read(name)))) as tar:
                    for member in tar:
                        file = tar.extractfile(member) if member.isreg() else None
                        found[member.name] = (member, file.read() if file else b"")
    return found


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    first = make_package(tmp_path / "1", moment=1_800_000_000, home="/home/ann", depends=["x", "__glibc >=2"], order=1)
    second = make_package(
        tmp_path / "2", moment=1_900_000_002, home="/home/bob", depends=["__glibc >=2", "x"], order=-1
    )
    for package in (first, second):
        reproducible.settle(package, EPOCH)
    return [first, second]


def test_two_builds_are_one_file(two: list[Path]) -> None:
    assert two[0].read_bytes() == two[1].read_bytes()


def test_what_is_installed_stays(two: list[Path]) -> None:
    members = read_members(two[0])
    assert members["lib/a.py"][1] == b"a = 1\n"
    assert members["bin/run"][0].mode == 0o755
    assert members["lib/c.py"][0].linkname == "a.py"
    assert {member.mtime for member, _ in members.values()} == {EPOCH}
    assert [name for name in members if not name.startswith("info/")] == [
        "bin/run",
        RECORD,
        "lib/a.py",
        "lib/b.py",
        "lib/c.py",
    ]


def test_a_script_has_one_placeholder_and_is_described_as_it_is(two: list[Path]) -> None:
    members = read_members(two[0])
    content = members["bin/run"][1]
    placeholder = reproducible.PLACEHOLDER
    assert content.decode() == f"#!{placeholder}/bin/python\n# {placeholder}\n"
    assert len(placeholder) == 255
    script, other, record = json.loads(members[reproducible.PATHS][1])["paths"]
    assert script["prefix_placeholder"] == placeholder
    assert script["sha256"] == hashlib.sha256(content).hexdigest()
    assert script["size_in_bytes"] == len(content)
    assert other == {"_path": "lib/a.py", "sha256": "1", "size_in_bytes": 6}
    listed = members[RECORD][1]
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    expected = f'../bin/run,sha256={digest},{len(content)}\n"b,c.py",sha256=x,1\na-1.dist-info/RECORD,,\n'
    assert listed.decode() == expected
    assert record == {"_path": RECORD, "sha256": hashlib.sha256(listed).hexdigest(), "size_in_bytes": len(listed)}


def test_no_folder_of_the_machine_is_left(two: list[Path]) -> None:
    for member, content in read_members(two[0]).values():
        assert b"/home/" not in content, member.name
        assert member.uname == ""


def test_what_came_from_a_channel_keeps_its_hash(two: list[Path]) -> None:
    rendered = yaml.safe_load(read_members(two[0])[reproducible.RENDERED][1])
    resolved = {one["name"]: one for one in rendered["finalized_dependencies"]["build"]["resolved"]}
    assert resolved["pip"]["md5"] == "abc"
    assert resolved["ninja"] == {"name": "ninja", "version": "1.13"}
    assert rendered["build_configuration"]["channels"] == ["https://conda.anaconda.org/conda-forge"]


def test_the_time_is_that_of_the_sdist(tmp_path: Path) -> None:
    assert reproducible.read_epoch(ROOT / "recipe") == EPOCH
    (tmp_path / "build.sh").write_text("make\n", encoding="utf-8")
    with pytest.raises(BadInput, match="SOURCE_DATE_EPOCH"):
        reproducible.read_epoch(tmp_path)


def test_a_package_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "a-1-0.conda"
    package.write_bytes(b"no zip")
    with pytest.raises(Exception, match="zip"):
        reproducible.settle(package, EPOCH)
    assert [file.name for file in tmp_path.iterdir()] == ["a-1-0.conda"]
    assert package.read_bytes() == b"no zip"
