from __future__ import annotations

import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from dswin import bench
from dswin.bench import Contender
from dswin.errors import BadInput, CheckFailed, MachineLacks

#: Speaks measure_adam.py's protocol, without torch: it answers with a time made of what it was asked, and notes its turns.
SCRIPT = """
import json, os, sys
kind, op = sys.argv[1], sys.argv[2:]
print("a warning of no interest")
print("=", json.dumps({"kind": kind, "bytes_per_parameter": 24 if kind == "memory" else 28}), flush=True)
for line in sys.stdin:
    if not line.strip():
        break
    size, threads = map(int, line.split())
    with open(os.environ["TURNS"], "a") as file:
        file.write(f"{kind}{''.join(op)} {size} {threads}\\n")
    print("=", size * float(os.environ.get("FACTOR", 1)) / threads / 1e9, flush=True)
"""


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNS", str(tmp_path / "turns"))
    return tmp_path / "turns"


def make(tmp_path: Path, name: str, kind: str, op: str = "", text: str = SCRIPT, **environment: str) -> Contender:
    script = tmp_path / "script.py"
    script.write_text(text)
    return Contender(name, [sys.executable], kind, op, str(script), environment)


@pytest.fixture
def document(tmp_path: Path, turns: Path) -> dict:
    contenders = [
        make(tmp_path, "ours", "op", "a.so", FACTOR="3"),
        make(tmp_path, "torch fused", "torch-fused", FACTOR="2"),
        make(tmp_path, "memory", "memory"),
    ]
    return bench.measure(contenders, sizes=[1000, 2000], threads=[1, 2], repeats=3)


def test_the_contenders_take_turns_in_every_round(document: dict, turns: Path) -> None:
    expected = [
        f"{who} {size} {threads}"
        for size in (1000, 2000)
        for threads in (1, 2)
        for _ in range(3)
        for who in ("opa.so", "torch-fused", "memory")
    ]
    assert turns.read_text().splitlines() == expected


def test_every_single_time_is_kept(document: dict) -> None:
    assert len(document["runs"]) == 3 * 2 * 2
    assert all(len(run["seconds"]) == 3 for run in document["runs"])
    [run] = [r for r in document["runs"] if (r["contender"], r["size"], r["threads"]) == ("ours", 2000, 2)]
    assert run["seconds"] == pytest.approx([3e-6] * 3)
    assert document["machine"]["cores"] >= 1
    json.dumps(document)


def test_the_summary_has_bandwidth_and_the_ratio_to_torch(document: dict) -> None:
    rows = {(row["contender"], row["size"], row["threads"]): row for row in bench.summarise(document)}
    assert rows["ours", 1000, 1]["ratio"] == pytest.approx(1.5)
    assert rows["torch fused", 1000, 1]["ratio"] == 1
    # 28 bytes in 3 ns, 24 bytes in 1 ns.
    assert rows["ours", 1000, 1]["gb_per_s"] == pytest.approx(28 / 3)
    assert rows["memory", 1000, 1]["gb_per_s"] == pytest.approx(24)


def test_the_median_and_the_quartiles_are_of_the_rounds(document: dict) -> None:
    run = document["runs"][0]
    run["seconds"] = [5.0, 1.0, 3.0, 2.0, 4.0]
    document["runs"] = [run]
    [row] = bench.summarise(document)
    assert (row["low"], row["median"], row["high"]) == (2, 3, 4)
    assert row["ratio"] is None


def test_the_table_shows_each_contender(document: dict) -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(bench.table(document))
    said = console.export_text()
    assert said.count("ours") == said.count("torch fused") - 1 == said.count("memory") == 4
    assert "1.50" in said


def test_the_picture_needs_no_other_file(document: dict, tmp_path: Path) -> None:
    bench.plot(document, tmp_path / "bench.svg")
    text = (tmp_path / "bench.svg").read_text()
    assert ET.fromstring(text).tag.endswith("svg")
    assert "ours" in text
    assert "url(http" not in text
    with pytest.raises(BadInput):
        bench.plot(document, tmp_path / "bench.pdf")


def test_a_contender_that_ends_is_named_with_its_last_words(tmp_path: Path, turns: Path) -> None:
    text = SCRIPT + "\nraise SystemExit('no such torch')"
    broken = make(tmp_path, "old wheel", "op", "b.so", text.replace("if not line.strip():", "if True:"))
    with pytest.raises(CheckFailed) as raised:
        bench.measure([broken], sizes=[1000], threads=[1], repeats=2)
    assert "old wheel" in raised.value.what
    assert "no such torch" in raised.value.log


def test_a_python_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match="nowhere"):
        bench.measure([Contender("x", [str(tmp_path / "nowhere")], "memory")], sizes=[1], threads=[1], repeats=2)


def test_contenders_are_checked_before_anything_runs(tmp_path: Path) -> None:
    python, op = tmp_path / "python", tmp_path / "op.so"
    python.touch()
    with pytest.raises(BadInput, match=r"op\.so is not there"):
        bench.choose(python, [("old", python, op)])
    op.touch()
    chosen = bench.choose(python, [("old", python, op)])
    assert [c.name for c in chosen] == ["deepspeed-win", "old", "torch fused", "memory"]
    assert [c.kind for c in chosen] == ["op", "op", "torch-fused", "memory"]
    with pytest.raises(BadInput, match="one name"):
        bench.choose(python, [("memory", python, op)])
