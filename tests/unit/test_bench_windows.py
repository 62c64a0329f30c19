"""Which op of a channel the Windows benchmark takes; tests/windows runs the ops themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from dswin import bench_windows, channel
from dswin.errors import BadInput
from dswin.wheels import Member, write_package


def make_package(folder: Path, number: int, subdir: str = "win-64", variant: str = "cpu", op: bool = True) -> Path:
    index = {
        "name": "deepspeed-win",
        "version": "0.19.8",
        "build": f"{variant}_py311_{number}",
        "build_number": number,
        "depends": [],
        "subdir": subdir,
    }
    name = "Lib/site-packages/deepspeed/ops/adam/cpu_adam_op.cp311-win_amd64.pyd" if op else "Lib/other.pyd"
    target = folder / f"{subdir}-{number}"
    target.mkdir(parents=True)
    return write_package(target, index, [Member.from_bytes(name, f"{variant} {number}".encode())], about={})


def test_the_newest_windows_package_for_cpus_is_taken(tmp_path: Path) -> None:
    out = tmp_path / "channel"
    packages = [make_package(tmp_path / "made", number) for number in (2, 10)]
    packages.append(make_package(tmp_path / "made", 11, "linux-64"))
    packages.append(make_package(tmp_path / "made", 100, variant="cuda130"))
    channel.add(out, packages)
    found = bench_windows.find_ours(out, tmp_path)
    assert found.name == "cpu_adam_op.cp311-win_amd64.pyd"
    assert found.read_text() == "cpu 10"


def test_a_channel_without_one_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no CPU package"):
        bench_windows.find_ours(tmp_path / "nothing", tmp_path)
    channel.add(tmp_path / "channel", [make_package(tmp_path / "made", 0, op=False)])
    with pytest.raises(BadInput, match="holds no cpu_adam"):
        bench_windows.find_ours(tmp_path / "channel", tmp_path)
