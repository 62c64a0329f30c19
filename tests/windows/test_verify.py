"""What `dswin verify` examines, by the Windows package's own Python, and the page that becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from building import ROOT
from dswin import ops, report, verify
from dswin.privacy import Names
from dswin.wine import Host


@pytest.fixture(scope="module")
def document(host: Host, prefix: Path, folder: Path) -> dict[str, Any]:
    """The worker runs without activation, and with no compiler on PATH."""
    done = host.run(
        [prefix / "python.exe", verify.WORKER, "--json", "found.json", "--ranks", "2", "--quick"],
        cwd=folder,
        env={"WINEPATH": "", "INCLUDE": "", "LIB": ""},
        timeout=1800,
    )
    assert done.code == 0, done.output
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    asked = {"require_gpu": False, "ranks": 2, "quick": True}
    return verify.make_document(found, asked, ROOT / "recipe", Names())


def test_everything_passes(document: dict[str, Any]) -> None:
    jsonschema.validate(
        document, json.loads((ROOT / "scripts/dswin/data/verify.schema.json").read_text(encoding="utf-8"))
    )
    results = {check["title"]: check["result"] for check in document["checks"]}
    assert results.pop("ZeRO in fp16") == "skipped"
    assert set(results.values()) == {"passed"}
    assert {"ZeRO 2, optimizer offloaded, fp32", "2 ranks, ZeRO 2, fp32"} < set(results)


def test_the_ops_are_those_of_ops_yaml(document: dict[str, Any]) -> None:
    [rows] = [check["details"]["ops"] for check in document["checks"] if check["kind"] == "ops"]
    expected = {op.name for op in ops.read(ROOT / "recipe") if op.is_built("win-64", "cpu")}
    assert {row["op"] for row in rows if row["loads"]} == expected
    assert all(str(row["file"]).endswith(".pyd") for row in rows if row["loads"])


def test_the_package_is_named_and_the_page_made(document: dict[str, Any], tmp_path: Path) -> None:
    assert document["environment"]["package"] == "deepspeed-win 0.19.8 cpu_py311_0"
    assert document["environment"]["platform"].startswith("Windows")
    report.write(document, tmp_path / "report.html")
    assert "deepspeed-win 0.19.8 cpu_py311_0" in (tmp_path / "report.html").read_text(encoding="utf-8")
