"""One real build, shared by the tests that look at it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from building import Build, run_dswin


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A CPU package for this machine's Python, from the real source, with the recipe's tests passed."""
    out = tmp_path_factory.mktemp("a channel") / "channel"
    done = run_dswin("build", "--variant", "cpu", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    return Build(out, Path(document["package"]), Path(document["wheel"]), document["channels"], document["ops"])
