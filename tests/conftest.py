from __future__ import annotations

import os

import pytest

#: What may be skipped where everything must run: a GPU, programs that no package index holds, and, until .ci/run brings
#: them, Wine and Microsoft's compiler.
MAY_SKIP = ("no GPU", "conda is not installed", "conda-build is not installed", "no Wine", "no MSVC tree")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in MAY_SKIP):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped in CI, where only a GPU may be missing: {reason}"
    return report
