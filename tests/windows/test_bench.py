"""What the benchmark's Windows contenders are."""

from __future__ import annotations

from pathlib import Path

import pytest

from building import ROOT
from dswin import bench_windows, binaries
from dswin.machine import UnderWine
from dswin.wine import Host


@pytest.mark.long  # downloads a torch of its own
def test_upstreams_flags_give_no_vector_code_and_one_thread(host: Host, python: Path, tmp_path: Path) -> None:
    """Which is why the recipe patches them. Should MSVC heed them one day, this says so."""
    machine = UnderWine(host, python.parent, tmp_path)
    torch = bench_windows.install_torch(machine, bench_windows.OURS, tmp_path, print)
    op = binaries.read(bench_windows.build_upstream(machine, ROOT / "recipe", torch, tmp_path, print))
    assert (op.simd.level, op.openmp) == ("sse2", None)
