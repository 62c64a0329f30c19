"""Which driver a CUDA needs and what runs on which GPU, as NVIDIA's tables and recipe/README.md have it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dswin import gpus
from dswin.gpus import Archs

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("driver", "serves", "cuda", "windows", "level"),
    [
        ("531.14", None, "12.1", True, "full"),
        ("530.30.02", None, "12.1", False, "full"),
        ("531.13", None, "12.1", True, "minor"),
        ("527.41", None, "12.1", True, "minor"),
        ("527.40", None, "12.1", True, "old"),
        ("525.60.13", None, "12.1", False, "minor"),
        ("525.60.11", None, "12.1", False, "old"),
        ("580.65.06", None, "13.0", False, "full"),
        ("579.99", "12.9", "13.0", True, "old"),
        ("580.88", "13.0", "13.0", True, "full"),
        # A CUDA that no row is for: by what the driver says.
        ("560.94", "12.6", "12.4", True, "full"),
        ("546.33", "12.3", "12.4", True, "minor"),
        ("471.11", "11.4", "11.8", True, "minor"),
        ("610.47", "14.0", "13.0", True, "full"),
        # NVIDIA's package of newer libraries for older drivers: the banner has their version.
        ("535.104.05", "13.0", "13.0", False, "full"),
    ],
)
def test_drivers(driver: str, serves: str | None, cuda: str, windows: bool, level: str) -> None:
    assert gpus.judge_driver(driver, serves, cuda, windows=windows) == level


@pytest.mark.parametrize(
    ("capability", "cuda121", "cuda130"),
    [
        ("6.1", "nothing", "nothing"),  # GTX 10
        ("7.0", "nothing", "nothing"),  # V100
        ("7.5", "exact", "exact"),  # RTX 20
        ("8.6", "exact", "exact"),  # RTX 30
        ("8.7", "major", "major"),  # Orin
        ("8.9", "exact", "exact"),  # RTX 40
        ("9.0", "exact", "exact"),  # H100
        ("10.0", "ptx", "exact"),  # B200
        ("10.3", "ptx", "major"),  # B300
        ("11.0", "ptx", "nothing"),  # Thor: 10.0 is another major, 12.0 a later one
        ("12.0", "ptx", "exact"),  # RTX 50
        ("12.1", "ptx", "major"),  # GB10
        ("13.0", "ptx", "ptx"),
    ],
)
def test_gpus_of_the_recipes_lists(capability: str, cuda121: str, cuda130: str) -> None:
    lists = yaml_lists()
    assert gpus.find_way(capability, gpus.parse_archs(lists["cuda121"])) == cuda121
    assert gpus.find_way(capability, gpus.parse_archs(lists["cuda130"])) == cuda130


def yaml_lists() -> dict[str, str]:
    config = yaml.safe_load((ROOT / "recipe" / "conda_build_config.yaml").read_text("utf-8"))
    return {name: config["ds_arch_list"][number] for number, name in enumerate(("cuda121", "cuda130"))}


def test_code_for_one_card_only() -> None:
    code = Archs(("9.0a",), ("9.0a",))
    assert [gpus.find_way(one, code) for one in ("9.0", "9.1", "10.0")] == ["exact", "nothing", "nothing"]
    assert gpus.find_way("10.3", Archs(("10.0f",))) == "major"
    assert gpus.parse_torch_archs(("sm_75", "sm_90a", "compute_120", "gfx90a")) == Archs(("7.5", "9.0a"), ("12.0",))
    assert gpus.parse_archs("none") == Archs()
