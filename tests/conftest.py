"""What all tests share: one real build, an environment made from it, and what may be skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from building import PYTHON, USERS, Build, run_dswin

#: What may be skipped where everything must run: a GPU, and programs that no package index holds.
MAY_SKIP = ("no GPU", "conda is not installed", "conda-build is not installed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two groups for ``-n 2 --dist loadgroup``: one that Wine runs, and one beside it. Each builds its own package once."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("windows" if "windows" in item.path.parts else "linux"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in MAY_SKIP):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped in CI, where only a GPU may be missing: {reason}"
    return report


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A CPU package for this machine's Python, from the real source, with the recipe's tests passed."""
    out = tmp_path_factory.mktemp("a channel") / "channel"
    done = run_dswin("build", "--variant", "cpu", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    document = json.loads(done.stdout)
    return Build(out, Path(document["package"]), Path(document["wheel"]), document["channels"], document["ops"])


@pytest.fixture(scope="session")
def prefix(built: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment made from the channel by another program than the one that tested the package."""
    folder = tmp_path_factory.mktemp("prefix") / "an environment"
    channels = [word for url in built.channels for word in ("--channel", url)]
    specs = [word for spec in ("deepspeed-win", "pip", f"python {PYTHON}.*") for word in ("--spec", spec)]
    command = [sys.executable, USERS / "install.py", folder, *channels, *specs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
