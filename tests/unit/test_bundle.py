from __future__ import annotations

import hashlib
import io
import json
import os
import random
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import making
from dswin import bundle, bundle_format, stored_zip
from dswin import lock as locks
from dswin.bundle_format import LOCK, MANIFEST, PACKAGES
from dswin.errors import BadInput, CheckFailed, MachineLacks
from dswin.files import to_json
from dswin.stored_zip import Member
from making import File, make_package, serve

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = "channel/noarch/tqdm-4.67-0.conda"
REPODATA = "channel/win-64/repodata.json"
Members = dict[str, bytes]


@dataclass(frozen=True)
class Made:
    path: Path
    lock: Path
    store: Path
    made: bundle.Bundle


def make_world(root: Path, platform: str = "win-64") -> list[making.Made]:
    home = root / "upstream"
    exe = {
        f"Library/bin/tool{n}.dll" if platform == "win-64" else f"lib/tool{n}.so": making.binary_with_prefix()
        for n in "12"
    }
    return [
        making.make_python(home, platform),
        make_package(
            home, "tqdm", "4.67", noarch="python", depends=["python >=3.8"], entry_points=["tqdm = tqdm:main"],
            files={"site-packages/tqdm.py": b"def main(): pass\n"},
        ),
        make_package(home, "pytorch", "2.5.1", "cuda12.1_0", subdir=platform, ending=".tar.bz2", files=exe, depends=["tqdm"]),
        make_package(
            home, "deepspeed-win", "0.19.8", "cuda121_py311_0", subdir=platform, depends=["pytorch 2.5.1 *cuda12.1*"],
            files={"share/where.txt": making.text_with_prefix(), "share/empty": File()},
        ),
    ]  # fmt: skip


def make_bundle(root: Path, platform: str = "win-64") -> Made:
    """A bundle whose packages came from a server that is gone by now."""
    made = make_world(root, platform)
    with serve(root / "upstream") as server:
        lock = making.lock_of(root / f"gpu{locks.SUFFIX}", made, server.url, platform)
        out = root / bundle.name_for(lock, platform)
        return Made(out, lock, root / "store", bundle.create(lock, platform, out, root / "store"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_bundle(tmp_path_factory.mktemp("bundle"))


def read_members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, members: Members) -> Path:
    """A zip of our form, whatever is in it."""
    entries = [Member(name, len(data), zlib.crc32(data)) for name, data in members.items()]
    pieces = [
        piece for one, data in zip(entries, members.values(), strict=True) for piece in (stored_zip.head(one), data)
    ]
    path.write_bytes(b"".join(pieces) + stored_zip.tail(entries))
    return path


def seal(members: Members, fields: dict | None = None) -> Members:
    """The members with a manifest that fits them: what somebody who knows the format would do."""
    document = json.loads(members[MANIFEST])
    rest = {name: data for name, data in sorted(members.items()) if name != MANIFEST}
    document["members"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in rest.items()
    }
    document["lock"]["sha256"] = hashlib.sha256(rest.get(LOCK, b"")).hexdigest()
    document.update(fields or {})
    return {MANIFEST: to_json(document), **rest}


def list_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- creating


def test_a_bundle_is_checked_and_unpacked(made: Made, tmp_path: Path) -> None:
    read = bundle.check(made.path)
    assert read.sha256 == made.made.sha256 == hashlib.sha256(made.path.read_bytes()).hexdigest()
    assert [package.name for package in read.packages] == ["deepspeed-win", "python", "pytorch", "tqdm"]
    bundle.unpack(made.path, tmp_path / "unpacked")
    assert list_tree(tmp_path / "unpacked") == read_members(made.path)
    assert [path.name for path in tmp_path.iterdir()] == ["unpacked"]
    assert (tmp_path / "unpacked" / LOCK).read_bytes() == made.lock.read_bytes()


def test_other_programs_read_it(made: Made) -> None:
    with zipfile.ZipFile(made.path) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == MANIFEST
        assert archive.namelist()[1:] == sorted(archive.namelist()[1:])
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o100644}


def test_every_byte_is_the_same_on_another_machine(made: Made, tmp_path: Path) -> None:
    """Other folders, times, umask, time zone, hash seed, user, and another run."""
    store = tmp_path / "an other store"
    script = (
        "import os, sys; from pathlib import Path; os.umask(0o077); from dswin import bundle;"
        "bundle.create(*map(lambda one: one if one == 'win-64' else Path(one), sys.argv[1:5]), channel=Path(sys.argv[5]));"
        "sys.stdout.flush(); os._exit(0)"
    )
    for number, (zone, seed) in enumerate((("Asia/Shanghai", "1"), ("America/New_York", "77"))):
        folder = tmp_path / f"place {number}"
        folder.mkdir()
        lock = folder / "environment.yml"
        lock.write_bytes(made.lock.read_bytes())
        os.utime(lock, (number, number))
        environment = {
            **os.environ,
            "TZ": zone,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": str(ROOT / "scripts"),
            "USER": "me",
        }
        command = [
            sys.executable,
            "-c",
            script,
            lock,
            "win-64",
            folder / "it.zip",
            store,
            made.path.parent / "upstream",
        ]
        subprocess.run(command, check=True, cwd=folder, env=environment, timeout=300)
        assert (folder / "it.zip").read_bytes() == made.path.read_bytes()
    for path in (str(made.path.parent), str(tmp_path)):
        assert path.encode() not in made.path.read_bytes()


def test_repodata_are_what_solvers_read(made: Made) -> None:
    members = read_members(made.path)
    repodata = json.loads(members[REPODATA])
    assert repodata["packages"].keys() == {"pytorch-2.5.1-cuda12.1_0.tar.bz2"}
    record = repodata["packages.conda"]["deepspeed-win-0.19.8-cuda121_py311_0.conda"]
    assert record["depends"] == ["pytorch 2.5.1 *cuda12.1*"]
    data = members["channel/win-64/deepspeed-win-0.19.8-cuda121_py311_0.conda"]
    assert (record["size"], record["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert record["md5"] == hashlib.md5(data).hexdigest()
    assert members[PACKAGES].decode().splitlines()[0] == "deepspeed-win=0.19.8=cuda121_py311_0"
    assert b"noarch/tqdm-4.67-0.conda\tApache-2.0\n" in members["channel/licences.txt"]


def test_the_readme_is_for_notepad_and_for_both_languages(made: Made) -> None:
    readme = read_members(made.path)["README.txt"]
    assert readme.startswith(b"\xef\xbb\xbf")
    assert readme.count(b"\n") == readme.count(b"\r\n") > 40
    text = readme.decode("utf-8-sig")
    for words in ("python install.py --prefix", "dswin bundle install", "离线安装", "packages.txt", "4 packages"):
        assert words in text


def test_wheels_go_in(made: Made, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with pytest.raises(BadInput, match="holds no wheels"):
        bundle.create(made.lock, "win-64", tmp_path / "it.zip", made.store, wheels=wheels)
    (wheels / "dswin-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    bundle.create(made.lock, "win-64", tmp_path / "it.zip", made.store, wheels=wheels)
    bundle.check(tmp_path / "it.zip")
    assert read_members(tmp_path / "it.zip")["wheels/dswin-0.1.0-py3-none-any.whl"] == b"wheel"


def test_packages_come_from_a_channel_folder_first(made: Made, tmp_path: Path) -> None:
    again = bundle.create(
        made.lock, "win-64", tmp_path / "it.zip", tmp_path / "store", channel=made.path.parent / "upstream"
    )
    assert again.sha256 == made.made.sha256


def test_a_stopped_run_leaves_no_file(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(stored_zip, "tail", stop)
    with pytest.raises(KeyboardInterrupt):
        bundle.create(made.lock, "win-64", tmp_path / "it.zip", made.store)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_bundled(made: Made, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not for linux-64"):
        bundle.create(made.lock, "linux-64", tmp_path / "it.zip", made.store)
    with pytest.raises(BadInput, match="is a folder"):
        bundle.create(made.lock, "win-64", tmp_path, made.store)
    with pytest.raises(BadInput, match="is not a folder"):
        bundle.create(made.lock, "win-64", tmp_path / "it.zip", made.store, channel=tmp_path / "absent")
    secret = tmp_path / "l.yml"
    secret.write_text(made.lock.read_text().replace("http://127", "http://me:secret@127"))
    with pytest.raises(BadInput, match="a password or a token") as caught:
        bundle.create(secret, "win-64", tmp_path / "it.zip", made.store)
    assert "secret" not in caught.value.what
    assert not (tmp_path / "it.zip").exists()


def test_a_lock_without_deepspeed_win_or_of_a_folder_is_said(tmp_path: Path) -> None:
    package = [make_package(tmp_path / "upstream", "alone")]
    lock = making.lock_of(tmp_path / "l.yml", package, making.to_url(tmp_path / "upstream"))
    warnings = bundle.create(lock, "linux-64", tmp_path / "it.zip", tmp_path / "store").warnings
    assert ["names a folder of this machine" in warnings[0], "no deepspeed-win" in warnings[1]] == [True, True]


# -- refusing


def drop(name: str) -> Callable[[Members], Members]:
    return lambda members: {one: data for one, data in members.items() if one != name}


def put(name: str, data: bytes | Callable[[bytes], bytes]) -> Callable[[Members], Members]:
    return lambda members: {**members, name: data(members[name]) if callable(data) else data}


def claim(name: str, **fields: object) -> Callable[[Members], Members]:
    """A manifest that says something else of a member."""

    def change(members: Members) -> Members:
        document = json.loads(members[MANIFEST])
        document["members"].setdefault(name, {}).update(fields)
        return {**members, MANIFEST: to_json(document)}

    return change


def sealed(change: Callable[[Members], Members], **fields: object) -> Callable[[Members], Members]:
    return lambda members: seal(change(members), fields)


def other_hash(data: bytes) -> bytes:
    document = json.loads(data)
    for record in document["packages.conda"].values():
        record["sha256"] = "0" * 64
    return to_json(document)


#: Each with a zip of our own form around it: (what was done, what the error must name).
REBUILT = {
    "an altered package": (put(ARCHIVE, b"other"), f"{ARCHIVE} has 5 bytes"),
    "an altered package of the same size": (put(ARCHIVE, lambda data: b"!" + data[1:]), f"{ARCHIVE} is altered"),
    "an altered lock": (put(LOCK, lambda data: data.replace(b"noarch", b"nOarch")), f"{LOCK} is altered"),
    "an altered readme": (put("README.txt", lambda data: data[::-1]), "README.txt is altered"),
    "another script to install": (put("install.py", lambda data: data[:-1] + b" "), "install.py is altered"),
    "a missing package": (drop(ARCHIVE), f"{ARCHIVE} is missing"),
    "a missing lock": (drop(LOCK), f"{LOCK} is missing"),
    "no manifest": (drop(MANIFEST), "does not begin with a manifest"),
    "an extra file": (put("channel/noarch/evil-1-0.conda", b"x"), "channel/noarch/evil-1-0.conda is in it"),
    "another order": (lambda members: dict([*list(members.items())[:1], *reversed(list(members.items())[1:])]), "is altered"),
    "sealed: an altered package": (sealed(put(ARCHIVE, b"other")), f"{ARCHIVE} is not what {LOCK} names: its sha256"),
    "sealed: a missing package": (sealed(drop(ARCHIVE)), f"{ARCHIVE} is missing, and {LOCK} names it"),
    "sealed: an extra package": (sealed(put("channel/noarch/evil-1-0.conda", b"x")), "channel/noarch/evil-1-0.conda is in it"),
    "sealed: an extra program": (sealed(put("setup.exe", b"x")), "setup.exe is in it"),
    "sealed: a program among wheels": (sealed(put("wheels/setup.exe", b"x")), "wheels/setup.exe is in it"),
    "sealed: no lock": (sealed(drop(LOCK)), f"does not name {LOCK}"),
    "sealed: no repodata": (sealed(drop(REPODATA)), f"does not name {REPODATA}"),
    "sealed: a lock of nothing": (sealed(put(LOCK, b"version: 1\n")), f"{LOCK} is no lock"),
    "sealed: a lock that is no YAML": (sealed(put(LOCK, b"{")), f"{LOCK}, line 2, is not YAML"),
    "sealed: another hash in the lock": (
        sealed(put(LOCK, lambda data: data.replace(b"sha256: ", b"sha256: aa", 1).replace(b"md5", b"md4", 1))),
        f"{LOCK} is no lock",
    ),
    "sealed: repodata with another hash": (sealed(put(REPODATA, other_hash)), f"{REPODATA} has other packages or hashes"),
    "sealed: repodata with nothing": (sealed(put(REPODATA, b"{}")), f"{REPODATA} is malformed"),
    "sealed: repodata without a package": (
        sealed(put(REPODATA, b'{"packages": {}, "packages.conda": {}}')), f"{REPODATA} has other packages or hashes",
    ),
    "sealed: other packages for conda": (sealed(put(PACKAGES, b"evil\n")), f"{PACKAGES} does not have the packages"),
    "sealed: another platform": (sealed(lambda members: members, platform="linux-64"), "does not name channel/linux-64"),
    "sealed: a platform that is a path": (sealed(lambda members: members, platform="../.."), "it is for '../..'"),
    "sealed: a later format": (sealed(lambda members: members, schema=2), "its format is 2"),
    "sealed: two hashes of the lock": (
        sealed(lambda members: members, lock={"sha256": "0" * 64}), f"two sha256 for {LOCK}",
    ),
    "sealed: no table of members": (sealed(lambda members: members, members=[]), "malformed"),
    "a manifest that is no JSON": (put(MANIFEST, b"{"), "malformed"),
    "a manifest nested without end": (put(MANIFEST, b"[" * 100_000), "malformed"),
    "a manifest that says more bytes": (claim(ARCHIVE, size=2**40), f"{ARCHIVE} has "),
    "a manifest that says fewer bytes": (claim(ARCHIVE, size=1), f"{ARCHIVE} has "),
    "a manifest that says negative bytes": (claim(ARCHIVE, size=-1), f"no size and sha256 for '{ARCHIVE}'"),
    "a manifest that says true bytes": (claim(ARCHIVE, size=True), f"no size and sha256 for '{ARCHIVE}'"),
    "a manifest with another hash": (claim(ARCHIVE, sha256="0" * 64), f"{ARCHIVE} is altered"),
    "a manifest with half a hash": (claim(ARCHIVE, sha256="0" * 32), f"no size and sha256 for '{ARCHIVE}'"),
    "a manifest that says a huge lock": (claim(LOCK, size=2**30), f"{LOCK} is too large"),
    "a manifest that names more": (claim("channel/x", size=1, sha256="0" * 64), "channel/x is missing"),
    "sealed: out of the folder": (sealed(put("../evil", b"x")), "'../evil' leaves its folder"),
    "sealed: out of the folder, later": (sealed(put("channel/../../evil", b"x")), "leaves its folder"),
    "sealed: an absolute path": (sealed(put("/etc/evil", b"x")), "'/etc/evil' is an absolute path"),
    "sealed: a drive": (sealed(put("C:/evil", b"x")), "'C:/evil' names a drive"),
    "sealed: a stream of Windows": (sealed(put("README.txt:evil", b"x")), "has a character in it"),
    "sealed: backslashes": (sealed(put("channel\\..\\evil", b"x")), "has a backslash in it"),
    "sealed: NUL": (sealed(put("README.txt\0.exe", b"x")), "has a control character in it"),
    "sealed: a device": (sealed(put("channel/CON", b"x")), "is a device of Windows"),
    "sealed: a device with an ending": (sealed(put("channel/noarch/aux.conda", b"x")), "is a device of Windows"),
    "sealed: a dot at the end": (sealed(put("README.txt.", b"x")), "ends in a dot or a space"),
    "sealed: a space at the end": (sealed(put("channel /x", b"x")), "ends in a dot or a space"),
    "sealed: capitals": (sealed(put("readme.TXT", b"x")), "README.txt and readme.TXT get in each other's way"),
    "sealed: a file that is a folder": (sealed(put("install.py/x", b"x")), "install.py and install.py/x get in"),
    "sealed: a folder": (sealed(put("channel/", b"")), "'channel/' names a folder"),
}  # fmt: skip


def write_with_zipfile(path: Path, members: Members, kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, kind)


def add_with_zipfile(name: str, mode: int = 0o100644, data: bytes = b"x") -> Callable[[Path], None]:
    def change(path: Path) -> None:
        entry = zipfile.ZipInfo(name)
        entry.filename, entry.external_attr = name, mode << 16
        with zipfile.ZipFile(path, "a") as archive:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a name that is there already
                archive.writestr(entry, data)

    return change


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes()))  # type: ignore[return-value, func-returns-value]


def flip(find: bytes, shift: int, last: bool = False) -> Callable[[Path], None]:
    """Alter the byte ``shift`` after the first, or last, place of something."""

    def change(data: bytes) -> bytes:
        at = (data.rindex(find) if last else data.index(find)) + shift
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return rewrite(change)


#: What is done to the file itself.
DAMAGED = {
    "one more file": (add_with_zipfile("setup.exe"), "setup.exe is in it"),
    "the same file twice": (add_with_zipfile(ARCHIVE), f"{ARCHIVE} is in it twice"),
    "the manifest twice": (add_with_zipfile(MANIFEST), f"{MANIFEST} is in it twice"),
    "one more in capitals": (add_with_zipfile("Install.py"), "get in each other's way"),
    "a link": (add_with_zipfile("channel/link", 0o120777, b"/etc/passwd"), "channel/link is a link"),
    "a path trick": (add_with_zipfile("../../evil"), "'../../evil' leaves its folder"),
    "an absolute path": (add_with_zipfile("/evil"), "'/evil' is an absolute path"),
    "backslashes": (add_with_zipfile("..\\evil"), "has a backslash"),
    "another language": (add_with_zipfile("模型"), "has a character in it"),
    "compressed": (
        lambda path: write_with_zipfile(path, read_members(path), zipfile.ZIP_DEFLATED), f"{MANIFEST} is altered",
    ),
    "written by zipfile": (lambda path: write_with_zipfile(path, read_members(path)), f"{MANIFEST} is altered"),
    "cut at its half": (rewrite(lambda data: data[: len(data) // 2]), "it was not copied whole"),
    "cut by a byte": (rewrite(lambda data: data[:-1]), "it was not copied whole"),
    "cut in the manifest": (rewrite(lambda data: data[:90]), "manifest.json is altered, or the file ends in it"),
    "empty": (rewrite(lambda data: b""), "does not begin with a manifest"),
    "no zip": (rewrite(lambda data: b"hello" * 100), "does not begin with a manifest"),
    "something before it": (rewrite(lambda data: b"#!/bin/sh\n" + data), "does not begin with a manifest"),
    "something after it": (rewrite(lambda data: data + b"\n"), "at its end, is altered|not copied whole"),
    "twice": (rewrite(lambda data: data + data), "at its end, is altered|not copied whole"),
    "a comment": (rewrite(lambda data: data[:-2] + struct.pack("<H", 2) + b"hi"), "at its end, is altered"),
    "another time of a member": (flip(b"\0\0\0\0\x21\0", 2, last=True), "at its end, is altered"),
    "another mode of a member": (flip(struct.pack("<I", 0o100644 << 16), 3, last=True), "at its end, is altered|is a link"),
    "another name before a member": (flip(ARCHIVE.encode() + b"PK", 9), f"{ARCHIVE} is altered"),
    "another name in the list": (flip(ARCHIVE.encode(), 9, last=True), "is in it, and manifest.json does not name it"),
    "another checksum in the list": (flip(ARCHIVE.encode(), -30, last=True), "is altered|bytes"),
}  # fmt: skip


def refused(path: Path, words: str, tmp_path: Path) -> None:
    for act in (lambda: bundle.check(path), lambda: bundle.unpack(path, tmp_path / "unpacked")):
        with pytest.raises(CheckFailed) as caught:
            act()
        assert caught.value.exit_code == 1
        assert any(one in caught.value.what for one in words.split("|")), caught.value.what
        assert caught.value.what.startswith(f"{path.name} is no bundle to install from: ")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("what", REBUILT)
def test_what_was_rebuilt_is_refused_by_name(made: Made, tmp_path: Path, what: str) -> None:
    change, words = REBUILT[what]
    refused(write_zip(tmp_path / "it.zip", change(read_members(made.path))), words, tmp_path)


@pytest.mark.parametrize("what", DAMAGED)
def test_what_was_damaged_is_refused_by_name(made: Made, tmp_path: Path, what: str) -> None:
    change, words = DAMAGED[what]
    path = tmp_path / "it.zip"
    path.write_bytes(made.path.read_bytes())
    change(path)
    assert path.read_bytes() != made.path.read_bytes()
    refused(path, words, tmp_path)


def test_sealing_by_itself_changes_nothing(made: Made, tmp_path: Path) -> None:
    """The tests above refuse what they name, and not what this does."""
    path = write_zip(tmp_path / "it.zip", seal(read_members(made.path)))
    assert path.read_bytes() == made.path.read_bytes()


def test_a_bomb_is_refused_before_it_unfolds(made: Made, tmp_path: Path) -> None:
    path, members = tmp_path / "it.zip", read_members(made.path)
    with path.open("wb") as file:
        file.write(stored_zip.head(Member(MANIFEST, len(members[MANIFEST]), zlib.crc32(members[MANIFEST]))))
        file.write(members[MANIFEST])
    buffer = io.BytesIO(path.read_bytes())
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            zeros = bytes(2**24) if name == ARCHIVE else data
            archive.writestr(
                zipfile.ZipInfo(name), zeros, zipfile.ZIP_DEFLATED if name == ARCHIVE else zipfile.ZIP_STORED
            )
    whole = bytearray(buffer.getvalue())
    head = stored_zip.head(Member(MANIFEST, len(members[MANIFEST]), zlib.crc32(members[MANIFEST])))
    whole[: len(head)] = head
    path.write_bytes(whole)
    refused(path, f"{ARCHIVE} is compressed", tmp_path)


def test_every_altered_byte_is_found(made: Made, tmp_path: Path) -> None:
    data, choose = made.path.read_bytes(), random.Random(0)
    end = data.index(b"PK\x01\x02")
    # Anywhere, and as many among what is no member's content: there only a comparison finds it.
    places = [*choose.sample(range(len(data)), 300), *choose.sample(range(end, len(data)), 100), *range(43)]
    path = tmp_path / "it.zip"
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << choose.randrange(8))]) + data[at + 1 :])
        with pytest.raises(CheckFailed):
            bundle.check(path)
    path.write_bytes(data)
    bundle.check(path)


@pytest.mark.parametrize("cut", range(20))
def test_every_cut_is_found(made: Made, tmp_path: Path, cut: int) -> None:
    data, path = made.path.read_bytes(), tmp_path / "it.zip"
    path.write_bytes(data[: len(data) * cut // 20])
    with pytest.raises(CheckFailed):
        bundle.check(path)


@settings(max_examples=200, deadline=None)
@given(junk=st.binary(max_size=300))
def test_junk_is_refused(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.zip"
    path.write_bytes(junk)
    with pytest.raises(CheckFailed):
        bundle.check(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.zip", tmp_path):
        with pytest.raises(BadInput, match="is not a file"):
            bundle.check(path)


def test_a_small_disk_is_said_before_anything_is_written(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_format.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(MachineLacks, match=r"needs .* MB"):
        bundle.unpack(made.path, tmp_path / "unpacked")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="is there already"):
        bundle.unpack(made.path, tmp_path)
    assert list_tree(tmp_path) == {"mine.txt": b"mine"}


# -- names

_PIECES = st.sampled_from(
    ["..", ".", "/", "\\", "C:", "con", "NUL", "aux.", "lpt1.x", " ", "a", "B.conda", "x-1!2+3~_", "\0", "é", "\n", "~"]
)


@settings(max_examples=500, deadline=None)
@given(name=st.one_of(st.lists(_PIECES, max_size=6).map("".join), st.text(max_size=12)))
def test_a_name_without_fault_stays_in_its_folder_everywhere(name: str) -> None:
    if stored_zip.find_name_fault(name) is not None:
        return
    windows = PureWindowsPath(name)
    assert not windows.drive
    assert not windows.root
    assert windows.as_posix() == name
    assert ".." not in windows.parts
    assert not windows.is_reserved()
    assert all(part == part.rstrip(". ") for part in windows.parts)
    assert os.path.normpath(name) == name
    assert Path("/folder", name).is_relative_to("/folder")
    with zipfile.ZipFile(
        io.BytesIO(stored_zip.head(Member(name, 0, 0)) + stored_zip.tail([Member(name, 0, 0)]))
    ) as archive:
        assert [entry.orig_filename for entry in archive.infolist()] == [name]


@pytest.mark.parametrize(
    "name", ["channel/noarch/a-1!2.0+x-py_0.conda", "README.txt", "channel/win-64/aux-1-0.tar.bz2", "a..b", ".x"]
)
def test_names_that_packages_have_are_allowed(name: str) -> None:
    assert stored_zip.find_name_fault(name) is None


def test_more_than_four_gigabytes(tmp_path: Path) -> None:
    """With holes for contents, so that nothing is written."""
    members = [Member("large", 5 * 2**30, 1), Member("small", 5, zlib.crc32(b"hello")), Member("last", 2**32 - 1, 2)]
    path = tmp_path / "it.zip"
    with path.open("wb") as file:
        for member in members:
            file.write(stored_zip.head(member))
            if member.name == "small":
                file.write(b"hello")
            else:
                file.seek(member.size, os.SEEK_CUR)
        file.write(stored_zip.tail(members))
    with zipfile.ZipFile(path) as archive:
        assert [(entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist()] == [
            (member.name, member.size, member.crc) for member in members
        ]
        assert archive.read("small") == b"hello"


def test_more_members_than_sixteen_bits_count() -> None:
    members = [Member(f"m{number}", 0, 0) for number in range(70_000)]
    data = b"".join(map(stored_zip.head, members)) + stored_zip.tail(members)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(archive.infolist()) == len(members)


# -- installing


@pytest.mark.parametrize("platform", ["linux-64", "win-64"])
def test_an_environment_from_a_bundle_without_a_network(tmp_path: Path, platform: str) -> None:
    made = make_bundle(tmp_path / "maker", platform)
    prefix, store = tmp_path / "prefix", tmp_path / "user" / "store"
    created = bundle.install(made.path, prefix, store)
    assert created.done
    windows = platform == "win-64"
    assert (prefix / ("Lib/site-packages" if windows else "lib/python3.11/site-packages") / "tqdm.py").is_file()
    assert (prefix / ("Scripts/tqdm.exe" if windows else "bin/tqdm")).is_file()
    assert b"_placehold" not in (prefix / "share" / "where.txt").read_bytes()
    assert [path.name for path in store.parent.iterdir()] == ["store"]
    # conda-meta names where the packages are from, and not our scratch folder.
    records = "".join(path.read_text() for path in (prefix / "conda-meta").glob("*.json"))
    assert ".bundle-" not in records
    before = list_tree(prefix)
    assert not bundle.install(made.path, prefix, store).done
    assert list_tree(prefix) == before


def test_nothing_is_installed_from_an_altered_bundle(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "it.zip"
    path.write_bytes(made.path.read_bytes())
    flip(b"PK\x05\x06", 8, last=True)(path)
    with pytest.raises(CheckFailed):
        bundle.install(path, tmp_path / "prefix", tmp_path / "store")
    assert [one.name for one in tmp_path.iterdir()] == ["it.zip"]


def run_script(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, folder / "install.py", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "CONDA_EXE": "", **environment},
    )


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for conda is a shell script")
def test_the_script_in_the_bundle_checks_and_calls_conda(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "un packed"
    bundle.unpack(made.path, folder)
    conda = tmp_path / "conda"
    conda.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/said"\n')
    conda.chmod(0o755)
    done = run_script(folder, "--prefix", tmp_path / "prefix", CONDA_EXE=str(conda))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text().splitlines() == [
        "create", "--yes", "--prefix", str(tmp_path / "prefix"), "--offline", "--override-channels",
        "--channel", (folder / "channel").as_uri(), "--file", str(folder / "packages.txt"),
    ]  # fmt: skip
    assert run_script(folder, "--check").returncode == 0
    conda.write_text("#!/bin/sh\nexit 7\n")
    assert run_script(folder, "--prefix", tmp_path / "prefix", "--conda", conda).returncode == 1
    assert run_script(folder, "--prefix", tmp_path / "prefix", "--conda", "no-such-program").returncode == 2
    assert run_script(folder, "--prefix", tmp_path, "--conda", conda).returncode == 2
    assert run_script(folder, "--prefix", tmp_path / "prefix", PATH="/nowhere").returncode == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / ARCHIVE).write_bytes(b"other"), f"Altered: {ARCHIVE}"),
        (lambda folder: (folder / ARCHIVE).unlink(), f"Missing: {ARCHIVE}"),
        (lambda folder: (folder / "channel" / "evil.conda").write_bytes(b"x"), "Not of the bundle: channel/evil.conda"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "manifest.json cannot be read"),
        (lambda folder: (folder / MANIFEST).unlink(), "manifest.json cannot be read"),
    ],
    ids=["altered", "missing", "extra", "malformed", "no manifest"],
)  # fmt: skip
def test_the_script_in_the_bundle_refuses_what_is_not_as_it_was(
    made: Made, tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    bundle.unpack(made.path, tmp_path / "unpacked")
    change(tmp_path / "unpacked")
    done = run_script(tmp_path / "unpacked", "--check")
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
