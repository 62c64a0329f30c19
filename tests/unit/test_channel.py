from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from dswin import channel
from dswin.errors import BadInput, CheckFailed
from dswin.wheels import Member, write_package


def make_package(folder: Path, number: int = 0, subdir: str = "linux-64", run_exports: dict | None = None,
                 depends: tuple[str, ...] = ()) -> Path:  # fmt: skip
    """A tiny real package."""
    index = {
        "name": "tiny",
        "version": "1.0",
        "build": f"cpu_py311_{number}",
        "build_number": number,
        "depends": list(depends),
        "subdir": subdir,
    }
    folder = folder / subdir
    folder.mkdir(parents=True, exist_ok=True)
    info = {"run_exports.json": run_exports} if run_exports else {}
    members = [Member.from_bytes("share/tiny.txt", b"tiny\n")]
    return write_package(folder, index, members, about={}, info=info)


def list_tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_first_package_makes_a_channel(tmp_path: Path) -> None:
    package = make_package(tmp_path / "made", run_exports={"weak": ["tiny >=1"]})
    out = tmp_path / "a folder" / "channel"
    [placed] = channel.add(out, [package], [("cpu", package)])
    assert placed == out / "linux-64" / package.name
    assert (out / "wheels" / "cpu" / package.name).is_file()
    assert json.loads((out / "noarch" / "repodata.json").read_text())["packages.conda"] == {}
    assert (out / "linux-64" / "repodata.json.zst").is_file()
    exports = json.loads((out / "linux-64" / "run_exports.json").read_text())
    assert exports["packages.conda"] == {package.name: {"run_exports": {"weak": ["tiny >=1"]}}}
    assert [record["build"] for record in channel.list_packages(out, "tiny")] == ["cpu_py311_0"]
    assert stat.S_IMODE(placed.stat().st_mode) == 0o644
    assert stat.S_IMODE(out.stat().st_mode) == 0o755


def test_a_second_package_joins_the_first(tmp_path: Path) -> None:
    out = tmp_path / "channel"
    channel.add(out, [make_package(tmp_path / "made", 0)])
    channel.add(out, [make_package(tmp_path / "made", 1), make_package(tmp_path / "made", 0, "win-64")])
    assert len(channel.list_packages(out, "tiny")) == 3
    assert (out / "win-64" / "repodata.json").is_file()
    assert [p.name for p in tmp_path.iterdir() if "-new-" in p.name] == []


def test_a_file_name_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "channel"
    package = make_package(tmp_path / "made")
    channel.add(out, [package])
    before = list_tree(out)
    with pytest.raises(CheckFailed, match="never replaced"):
        channel.add(out, [package])
    assert list_tree(out) == before


def test_a_failure_leaves_the_channel_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "channel"
    channel.add(out, [make_package(tmp_path / "made")])
    before = list_tree(out)

    def fail(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(channel, "index", fail)
    with pytest.raises(KeyboardInterrupt):
        channel.add(out, [make_package(tmp_path / "made", 1)])
    assert list_tree(out) == before
    assert [p.name for p in tmp_path.iterdir() if "-new-" in p.name] == []


def test_a_failed_swap_puts_the_old_channel_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "channel"
    channel.add(out, [make_package(tmp_path / "made")])
    before = list_tree(out)
    package = make_package(tmp_path / "made", 1)
    replace = os.replace

    def fail_for_new(source: Path, target: Path) -> None:
        if "-new-" in str(source) and not str(source).endswith("-old"):
            raise OSError("the disk went away")
        replace(source, target)

    monkeypatch.setattr(channel.os, "replace", fail_for_new)
    with pytest.raises(OSError, match="went away"):
        channel.add(out, [package])
    assert list_tree(out) == before


@pytest.mark.parametrize("content", ["file", "folder", "fixture"])
def test_what_is_no_channel_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    out = tmp_path / "channel"
    if content == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / {"folder": "thesis.docx", "fixture": channel.FIXTURE_MARK}[content]).write_text("mine")
    with pytest.raises(BadInput):
        channel.add(out, [make_package(tmp_path / "made")])
    assert b"mine" in (out.read_bytes() if content == "file" else list_tree(out).popitem()[1])


@pytest.mark.parametrize("name", ["linux-64", "linux-64-mine", "win-64-py3.11", "noarch"])
def test_a_folder_that_conda_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=name):
        channel.add(tmp_path / name / "channel", [make_package(tmp_path / "made")])
    assert not (tmp_path / name).exists()


def test_a_half_package_is_refused(tmp_path: Path) -> None:
    package = make_package(tmp_path / "made")
    package.write_bytes(package.read_bytes()[:-200])
    with pytest.raises(BadInput, match="not a whole"):
        channel.add(tmp_path / "channel", [package])
    assert not (tmp_path / "channel").exists()


def test_broken_repodata_is_named(tmp_path: Path) -> None:
    out = tmp_path / "channel"
    channel.add(out, [make_package(tmp_path / "made")])
    (out / "linux-64" / "repodata.json").write_text("{")
    with pytest.raises(BadInput, match="is no repodata"):
        channel.list_packages(out, "tiny")
    assert channel.reindex(out) == 1
    assert len(channel.list_packages(out, "tiny")) == 1


def test_reindexing_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a conda channel"):
        channel.reindex(tmp_path)


def test_the_outcome_of_a_rehearsal_is_never_in_a_channel(tmp_path: Path) -> None:
    real = make_package(tmp_path / "made")
    rehearsed = make_package(tmp_path / "rehearsed", 1, "win-64", depends=("python", "__rehearsal"))
    out = tmp_path / "channel"
    channel.add(out, [real])
    before = list_tree(out)
    with pytest.raises(BadInput, match="comes out of a rehearsal"):
        channel.add(out, [rehearsed])
    assert list_tree(out) == before
    # Put there by hand, it stops the next index.
    (out / "win-64").mkdir()
    (out / "win-64" / rehearsed.name).write_bytes(rehearsed.read_bytes())
    with pytest.raises(BadInput, match="comes out of a rehearsal"):
        channel.reindex(out)


def make_old_package(folder: Path, name: str, depends: tuple[str, ...] = (), exports: dict | None = None) -> Path:
    """A tiny .tar.bz2, with info/ first as conda-build orders it, and a last file that cannot be unpacked."""
    index = {
        "name": name,
        "version": "1.0",
        "build": "0",
        "build_number": 0,
        "depends": list(depends),
        "subdir": "win-64",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-0.tar.bz2"
    members = {"info/index.json": json.dumps(index).encode(), "share/a.txt": b"a\n"}
    if exports:
        members = {"info/run_exports.json": json.dumps(exports).encode(), **members}
    with tarfile.open(path, "w:bz2") as archive:
        for member, content in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_older_archives_are_indexed_and_checked_too(tmp_path: Path) -> None:
    out = tmp_path / "channel"
    channel.add(out, [make_old_package(tmp_path / "made", "old", exports={"weak": ["old >=1"]})])
    exports = json.loads((out / "win-64" / "run_exports.json").read_text())
    assert exports["packages"] == {"old-1.0-0.tar.bz2": {"run_exports": {"weak": ["old >=1"]}}}
    assert exports["packages.conda"] == {}
    assert channel.reindex(out) == 1
    with pytest.raises(BadInput, match="comes out of a rehearsal"):
        channel.add(out, [make_old_package(tmp_path / "made", "bad", ("__rehearsal",))])


def test_what_follows_info_is_not_unpacked(tmp_path: Path) -> None:
    package = make_old_package(tmp_path, "big")
    with tarfile.open(package, "w:bz2") as archive:
        for member in ("info/index.json", "lib/huge.bin"):
            entry = tarfile.TarInfo(member)
            about = b'{"name": "big", "version": "1.0", "build": "0", "subdir": "win-64"}'
            content = about if member.startswith("info") else os.urandom(4_000_000)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    # Half of the archive is enough to read its metadata from.
    package.write_bytes(package.read_bytes()[: package.stat().st_size // 2])
    assert channel.read_subdir(package) == "win-64"
    assert channel.read_documents(package, ["info/run_exports.json"]).keys() == {"info/index.json"}


@pytest.mark.parametrize("moved", [True, False])
def test_what_a_killed_process_left_is_put_right(tmp_path: Path, moved: bool) -> None:
    out = tmp_path / "channel"
    channel.add(out, [make_package(tmp_path / "made", 0)])
    (tmp_path / ".channel-new-abc").mkdir()
    (tmp_path / ".channel-new-abc" / "half").write_text("x")
    if moved:
        out.rename(tmp_path / ".channel-new-abc-old")
    channel.add(out, [make_package(tmp_path / "made", 1)])
    assert len(channel.list_packages(out, "tiny")) == 2
    assert [p.name for p in tmp_path.iterdir() if "-new-" in p.name] == []


def test_a_package_that_rattler_cannot_index_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    from making import make_package as make

    out = tmp_path / "channel"
    channel.add(out, [make(tmp_path / "made", "good").path])
    before = sorted(out.rglob("*"))
    odd = make(tmp_path / "made", "odd", info={"run_exports.json": {"weak": "no list"}})
    with pytest.raises(BadInput, match="noarch cannot be indexed") as error:
        channel.add(out, [odd.path])
    assert "check" in error.value.fix
    assert sorted(out.rglob("*")) == before


def test_a_full_disk_under_rattler_is_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rattler

    async def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("Unexpected (temporary) at write => no storage space, source: No space left (os error 28)")

    out = tmp_path / "channel"
    monkeypatch.setattr(rattler.index, "index_fs", fail)
    with pytest.raises(OSError, match="No space left") as error:
        channel.index_subdir(out, "noarch", compressed=False)
    assert error.value.errno == 28
