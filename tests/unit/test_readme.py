"""What the README says about the ops is what ops.yaml says."""

from __future__ import annotations

from pathlib import Path

from dswin import ops

ROOT = Path(__file__).parents[2]


def test_the_table_of_ops_is_that_of_ops_yaml() -> None:
    table = ops.write_table(ops.read(ROOT / "recipe"))
    assert len(table.splitlines()) == 17
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")
