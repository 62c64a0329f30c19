"""What the package's optimizers compute, in an environment made from the built package."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("numerics.py")


@pytest.fixture(scope="session")
def found(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What numerics.py found, long cases too."""
    folder = tmp_path_factory.mktemp("numerics")
    done = subprocess.run(
        [prefix / "bin" / "python", SCRIPT, "--json", folder / "found.json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": str(folder)},
    )
    print(done.stdout, done.stderr, sep="\n")
    document = json.loads((folder / "found.json").read_text())
    assert done.returncode == (1 if document["wrong"] else 0)
    return document


def test_every_optimizer_computes_what_torch_computes(found: dict) -> None:
    assert found["wrong"] == []
    optimizers = {name.split()[0] for name in found["one"]["cases"]}
    assert optimizers == {"cpu_adam", "fused_adam", "cpu_adagrad", "cpu_lion"}
    for name, case in found["one"]["cases"].items():
        assert case["outside"] == 0, name
        assert case["elements"] > 100_000, name


def test_every_optimizer_was_run_on_a_large_tensor(found: dict) -> None:
    large = [name for name in found["one"]["cases"] if name.endswith("50000003 elements")]
    assert len(large) == 4


def test_the_number_of_threads_does_not_change_a_bit(found: dict) -> None:
    one, two = ({name: case["digest"] for name, case in found[n]["cases"].items()} for n in ("one", "two"))
    assert one == two
    assert len(one) >= 50


def test_every_planted_difference_is_found(found: dict) -> None:
    planted = found["one"]["planted"]
    assert len(planted) == len([n for n in found["one"]["cases"] if "elements" not in n and "no weight decay" not in n])
    for name, counts in planted.items():
        assert {"lr + 1 %", "weight decay + 1 %", "no weight decay"} < set(counts), name
        assert [what for what, count in counts.items() if count == 0] == [], name
