"""Lines of package records: what is read of them, what is refused, and which of them the repository keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import variants
from dswin import records
from dswin.errors import BadInput

KEPT = variants.LOCKS / "records"


def make_line(**fields: object) -> str:
    line: dict[str, Any] = {
        "channel": "conda-forge", "subdir": "win-64", "fn": "tiny-1.0-h1_3.conda", "name": "tiny", "version": "1.0",
        "build": "h1_3", "md5": "0" * 32, "sha256": None, "depends": ["python >=3.11"], "source": "somewhere",
    }  # fmt: skip
    return json.dumps({**line, **fields})


def read(folder: Path, *lines: str) -> list[records.Record]:
    (folder / "snapshot.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return records.read(folder)


def test_a_record_has_the_channels_own_url(tmp_path: Path) -> None:
    line = make_line(url="https://mirror.example/conda-forge/win-64/tiny-1.0-h1_3.conda")
    [record] = read(tmp_path, line)
    assert record.url == "https://conda.anaconda.org/conda-forge/win-64/tiny-1.0-h1_3.conda"
    assert (record.repodata["build_number"], record.repodata["constrains"], record.inferred) == (3, [], "")
    assert "sha256" not in record.repodata
    assert record.line == line


@pytest.mark.parametrize(
    ("build", "number"),
    [("py3.10_cuda12.1_cudnn9_0", 0), ("35_h5709861_mkl", 35), ("h57928b3_16", 16), ("mkl", 0), ("2_cp312", 2)],
)
def test_a_build_number_that_was_not_seen_is_read_from_the_build_string(build: str, number: int) -> None:
    assert records.guess_number(build) == number
    seen = records.parse(make_line(build=build, build_number=100))
    assert seen is not None
    assert seen.repodata["build_number"] == 100


def test_guessed_build_numbers_are_right_where_both_were_seen() -> None:
    lines = [json.loads(record.line) for record in records.read(KEPT)]
    both = [line for line in lines if line.get("build_number") is not None]
    # Words as build strings, of blas and pytorch-mutex, tell no number; tk counts its variants from 100.
    wrong = {line["name"] for line in both if records.guess_number(line["build"]) != line["build_number"]}
    assert wrong <= {"blas", "pytorch-mutex", "tk"}
    assert len(both) > 100


@pytest.mark.parametrize(
    "features", [["blas_netlib blas_netlib_2"], ["blas_netlib", "blas_netlib_2"], "blas_netlib blas_netlib_2"]
)
def test_track_features_are_one_text_as_in_repodata(features: object) -> None:
    seen = records.parse(make_line(track_features=features))
    assert seen is not None
    assert seen.repodata["track_features"] == "blas_netlib blas_netlib_2"


def test_a_line_without_requirements_is_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, make_line(depends=None)) == []


def test_what_no_source_showed_is_filled_in_and_said(tmp_path: Path) -> None:
    guess = {"basis": "a listing", "channel": "pytorch", "version": "2.5.1", "fn": "torch-2.5.1-h1_3.tar.bz2"}
    [record] = read(tmp_path, make_line(channel="pytorch-test", fn=None, version=None, url=None, inferred=guess))
    assert record.url == "https://conda.anaconda.org/pytorch/win-64/torch-2.5.1-h1_3.tar.bz2"
    assert record.inferred == "a listing"
    assert record.repodata["version"] == "2.5.1"


def test_a_doubtful_ending_becomes_conda_and_is_said(tmp_path: Path) -> None:
    [record] = read(tmp_path, make_line(fn="tiny-1.0-h1_3.tar.bz2", fn_doubtful=True))
    assert record.fn == "tiny-1.0-h1_3.conda"
    assert "ending" in record.inferred


@pytest.mark.parametrize("turned", [False, True])
def test_what_was_seen_goes_before_what_was_inferred(tmp_path: Path, turned: bool) -> None:
    seen, guessed = make_line(md5="1" * 32), make_line(md5="2" * 32, inferred={"basis": "a guess"})
    [record] = read(tmp_path, *((guessed, seen) if turned else (seen, guessed)))
    assert (record.repodata["md5"], record.inferred) == ("1" * 32, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"channel": "../elsewhere"}, {"channel": "/etc"}, {"channel": ""}, {"channel": None}, {"subdir": ".."},
        {"subdir": "a/b"}, {"fn": "../tiny-1.0-h1_3.conda"}, {"fn": "a\\b"}, {"fn": None}, {"name": 3},
        {"version": None}, {"build": ["h1"]}, {"depends": "python"}, {"depends": [1]}, {"inferred": {}, "fn": None},
        {"inferred": "no table"},
    ],
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, fields: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=r"snapshot\.jsonl, line 2, is no package record"):
        read(tmp_path, make_line(), make_line(**fields))


@given(line=st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_a_record_or_refused(line: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "any.jsonl").write_text(line, encoding="utf-8", errors="replace")
    try:
        found = records.read(folder)
    except BadInput as error:
        what = error.what
    else:
        what = "any.jsonl, line" if found == [] else ""
    assert "any.jsonl, line" in what


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no package records"):
        records.read(tmp_path)


def test_repodata_is_read_back_in_the_channels_order(tmp_path: Path) -> None:
    snapshot, folder = tmp_path / "snapshot", tmp_path / "channels"
    snapshot.mkdir()
    known = read(
        snapshot,
        make_line(),
        make_line(fn="tiny-1.0-h1_2.tar.bz2", build="h1_2"),
        make_line(channel="nvidia/label/cuda-12.4.0"),
        make_line(subdir="noarch"),
    )
    records.write_repodata(known, folder)
    found = [
        record.url
        for source in records.open_repodata(folder, ["nvidia/label/cuda-12.4.0", "conda-forge", "absent"], "win-64")
        for record in source.load_all_records()
    ]
    assert sorted(found) == sorted(record.url for record in known)
    assert "cuda-12.4.0" in found[0]


def test_the_kept_records_are_small_and_each_has_a_source() -> None:
    assert sum(file.stat().st_size for file in KEPT.glob("*.jsonl")) < 1_000_000
    known = records.read(KEPT)
    lines = [json.loads(record.line) for record in known]
    assert all(line["source"] for line in lines)
    # One file a subdir, sorted, each package once.
    for file in KEPT.glob("*.jsonl"):
        here = [record.line for record in known if record.subdir == file.stem]
        assert file.read_text(encoding="utf-8").splitlines() == here


def test_selecting_from_the_kept_records_keeps_them_all(tmp_path: Path) -> None:
    script = variants.ROOT / "scripts" / "ci" / "select_records.py"
    done = subprocess.run(
        [sys.executable, script, KEPT, tmp_path], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    for file in KEPT.glob("*.jsonl"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_a_snapshot_that_is_not_there_is_refused(tmp_path: Path) -> None:
    script = variants.ROOT / "scripts" / "ci" / "select_records.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "absent", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "holds no package records" in done.stderr
