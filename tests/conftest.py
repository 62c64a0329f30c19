"""What all tests share: one real build, an environment made from it, and what may be skipped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from building import PYTHON, USERS, Build, build

# Whoever starts the tests in the background hands down that Ctrl-C is ignored; the programs that are tested must not be born so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: What may be skipped where everything must run: a GPU, and programs that no package index holds.
MAY_SKIP = ("no GPU", "conda is not installed", "conda-build is not installed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """With ``-n 2`` one process takes what runs on Windows and the other the rest, so that each builds its package once. The
    first that is done takes the rehearsal."""
    return ByMachine(config, log)


class ByMachine(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/windows/test_rehearsal.py"):
            return "rehearsal"
        return "windows" if nodeid.startswith("tests/windows/") else "linux"


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
    return build(tmp_path_factory.mktemp("a channel") / "channel")


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
