"""What an archive's files become in an environment, in every form that linkers give them, and what is no longer theirs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import making
from dswin import contents, env_verify, environment, lock, prefixes
from dswin.contents import Entry
from dswin.errors import CheckFailed
from dswin.lock import Locked

OLD = "/old/placeholder"
OLD_INDEX = {"name": "old", "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}
START = "from a.b import run\n"
SCRIPT = (
    f"# -*- coding: utf-8 -*-\nimport re\nimport sys\n\n{START}\nif __name__ == '__main__':\n    sys.exit(run.go())\n"
)


def locked(name: str = "old", version: str = "1.0", ending: str = ".tar.bz2") -> Locked:
    url = f"https://c/noarch/{name}-{version}-0{ending}"
    return Locked(name, version, "0", "linux-64", url, None, "0" * 64)


def list_forms(data: bytes, prefix: str, mode: str = "text", platform: str = "linux-64") -> list[bytes]:
    return list(contents.list_forms(Entry("x", "hardlink", "", OLD, mode), data, prefix, platform))


def test_text() -> None:
    assert list_forms(f"a {OLD}/x {OLD}\n".encode(), "/new") == [b"a /new/x /new\n"]


def test_text_on_windows_has_either_slash() -> None:
    assert list_forms(f"a {OLD}/x\n".encode(), "C:\\new", platform="win-64") == [b"a C:/new/x\n", b"a C:\\new/x\n"]


def test_binary_keeps_its_length() -> None:
    data = b"\0" + OLD.encode() + b"/x:" + OLD.encode() + b"/y\0rest\0" + OLD.encode()
    [found] = list_forms(data, "/new", "binary")
    assert found == b"\0/new/x:/new/y" + b"\0" * 24 + b"\0rest\0/new" + b"\0" * 12
    assert len(found) == len(data)
    assert list_forms(data, "/new", "binary", "win-64")[0] == data, "linkers leave binaries alone there"


@pytest.mark.parametrize("prefix", ["/a b", "/" + "l" * 130])
def test_shebang_that_would_not_work(prefix: str) -> None:
    forms = list_forms(f"#!{OLD}/bin/python -u\nrest {OLD}\n".encode(), prefix)
    assert f"#!/usr/bin/env python -u\nrest {prefix}\n".encode() in forms
    assert any(form.startswith(b"#!/bin/sh\n") and f"{prefix}/bin/python".encode() in form for form in forms)
    assert len(list_forms(f"#!{OLD}/bin/python\n".encode(), "/short")) == 1
    for form in list_forms(f"#!{OLD}/bin/env -S {OLD}/bin/python\n".encode(), prefix):
        assert f" -S {prefix}/bin/python".encode() in form


@given(
    st.lists(st.sampled_from([OLD.encode(), b"/x", b"\0", b"\n", b"#!", b" "]), max_size=12).map(b"".join),
    st.text("ab/ ", min_size=1, max_size=len(OLD) - 1),
)
def test_no_placeholder_is_left(data: bytes, prefix: str) -> None:
    for mode in ("text", "binary"):
        for form in list_forms(data, prefix, mode):
            assert OLD.encode() not in form
            assert mode == "text" or len(form) == len(data)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (SCRIPT, True),
        ("#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\" #'''\n" + SCRIPT, True),
        (SCRIPT.replace("    sys.exit", "    sys.argv[0] = re.sub(r'x', '', sys.argv[0])\n    sys.exit"), True),
        (SCRIPT.replace("a.b", "evil"), False),
        (SCRIPT.replace("run.go()", "run.other()"), False),
        (SCRIPT + "import evil\n", False),
        (SCRIPT.replace("import sys", "import sys, evil"), False),
        (SCRIPT.replace("    sys.exit", "    evil()\n    sys.exit"), False),
        (SCRIPT.replace("    sys.exit", "    sys.argv[0] = re.sub('', evil(), '')\n    sys.exit"), False),
        (SCRIPT.replace("'__main__'", "evil()"), False),
        (SCRIPT + "else:\n    evil()\n", False),
        (SCRIPT.replace("# -*-", "f'{evil()}' # -*-"), False),
        ("", False),
        ("if", False),
        ("\0", False),
    ],
)
def test_script_of_a_command(text: str, right: bool) -> None:
    assert contents.is_command(text.encode(), "a.b:run.go") == right


@pytest.mark.parametrize(
    ("path", "platform", "place"),
    [
        ("site-packages/p/x.py", "linux-64", "lib/python3.11/site-packages/p/x.py"),
        ("site-packages/p/x.py", "win-64", "Lib/site-packages/p/x.py"),
        ("python-scripts/p", "linux-64", "bin/p"),
        ("python-scripts/p", "win-64", "Scripts/p"),
        ("etc/p", "win-64", "etc/p"),
    ],
)
def test_places_of_pure_packages(path: str, platform: str, place: str) -> None:
    assert contents.locate(path, platform, "3.11") == place


def make_old(path: Path) -> Path:
    """A package from before there was a paths.json, with its info at the end."""
    members = {
        "etc/old.cfg": f"home = {OLD}\n".encode(),
        "share/old.txt": b"old\n",
        "info/index.json": json.dumps(OLD_INDEX).encode(),
        "info/has_prefix": f'{OLD} text "etc/old.cfg"\n'.encode(),
        "info/files": b"etc/old.cfg\nshare/old.txt\n",
    }
    with tarfile.open(path, "w:bz2") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def test_records_as_conda_writes_them(tmp_path: Path) -> None:
    """They name the files of noarch packages by their paths in the archive."""
    made = making.make_sample(tmp_path / "c")
    found = lock.read(making.lock_of(tmp_path / "x.conda-lock.yml", made, making.to_url(tmp_path / "c")))
    environment.create(found, "linux-64", tmp_path / "env", tmp_path / "store")
    [file] = (tmp_path / "env/conda-meta").glob("pure-*.json")
    record = json.loads(file.read_text())
    for one in record["paths_data"]["paths"]:
        one["_path"] = one["_path"].replace("lib/python3.11/", "").replace("bin/tool", "python-scripts/tool")
    file.write_text(json.dumps(record))
    for store in (tmp_path / "store", None):
        assert env_verify.verify(found, tmp_path / "env", "linux-64", store).findings == ()


def test_package_without_paths_json(tmp_path: Path) -> None:
    found = contents.read(locked(), make_old(tmp_path / "old-1.0-0.tar.bz2"))
    assert {(entry.path, entry.placeholder, entry.mode) for entry in found.entries} == {
        ("etc/old.cfg", OLD, "text"),
        ("share/old.txt", "", ""),
    }
    assert (
        next(one.sha256 for one in found.entries if one.path == "share/old.txt") == hashlib.sha256(b"old\n").hexdigest()
    )


def test_package_without_paths_json_is_made_and_verified(tmp_path: Path) -> None:
    archive = make_old(tmp_path / "old-1.0-0.tar.bz2")
    (tmp_path / "c/noarch").mkdir(parents=True)
    made = making.Made(archive.rename(tmp_path / "c/noarch" / archive.name),
                       {"name": "old", "version": "1.0", "build": "0", "subdir": "noarch", "depends": []})  # fmt: skip
    found = lock.read(making.lock_of(tmp_path / "x.conda-lock.yml", [made], making.to_url(tmp_path / "c")))
    assert environment.create(found, "linux-64", tmp_path / "env", tmp_path / "store").files == 2
    assert (tmp_path / "env/etc/old.cfg").read_text() == f"home = {tmp_path / 'env'}\n"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"BZh9", b"\0" * 100])
@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_no_archive(tmp_path: Path, data: bytes, ending: str) -> None:
    path = tmp_path / f"old-1.0-0{ending}"
    path.write_bytes(data)
    with pytest.raises(CheckFailed, match="not a whole conda package"):
        contents.read(locked(ending=ending), path)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a\\..\\..\\x", "C:/x", "C:\\x", ""])
def test_paths_that_leave(path: str) -> None:
    assert contents.leaves(path)


@pytest.mark.parametrize("path", ["x", "a/b..c/x", "a/...", "Lib/site-packages/x.py"])
def test_paths_that_stay(path: str) -> None:
    assert not contents.leaves(path)


def test_foreign_files_are_looked_for_where_packages_are(tmp_path: Path) -> None:
    for path in (
        "bin/a",
        "bin/evil",
        "bin/__pycache__/x.pyc",
        "work/mine",
        "conda-meta/history",
        "mine.exe",
        "etc/deep/evil",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    assert set(prefixes.list_foreign(tmp_path, ["bin/a", "etc/b"])) == {"bin/evil", "etc/deep/evil"}
    assert "mine.exe" in set(prefixes.list_foreign(tmp_path, ["bin/a", "python.exe"]))


def test_linked_folder_is_not_walked_into(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x").write_text("")
    (tmp_path / "env/lib").mkdir(parents=True)
    (tmp_path / "env/lib/evil").symlink_to(tmp_path / "outside")
    assert list(prefixes.list_foreign(tmp_path / "env", ["lib/a"])) == ["lib/evil"]


def test_summary_is_short() -> None:
    findings = [env_verify.Finding("a 1 0", f"share/{number}", env_verify.MISSING) for number in range(30)]
    lines = env_verify.write_summary(findings).splitlines()
    assert len(lines) == 21
    assert lines[0] == "missing: share/0 (a 1 0)"
    assert lines[-1] == "and 10 more"
