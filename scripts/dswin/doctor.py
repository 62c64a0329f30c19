"""Is this machine ready to run deepspeed-win, or to build it? Looks first, then judges: each finding with how to mend it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from . import __version__, doctor_build, doctor_machine, doctor_run
from .errors import CheckFailed, MachineLacks
from .findings import Check, Finding
from .platforms import this_platform
from .seen import Purpose, Seen, look

#: Raised when a reader of the JSON would have to change.
SCHEMA = 1
CHECKS: dict[Purpose, Sequence[Check]] = {
    "run": (*doctor_machine.CHECKS, *doctor_run.CHECKS),
    "build": doctor_build.CHECKS,
}
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "magenta", "skipped": "dim"}


@dataclass(frozen=True)
class Report:
    """What was found, and of what."""

    purpose: Purpose
    seen: Seen
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0 no check failed, 1 one did, 3 nothing could be looked at."""
        statuses = {finding.verdict.status for finding in self.findings}
        if "fail" in statuses:
            return CheckFailed.exit_code
        return MachineLacks.exit_code if statuses <= {"unknown", "skipped"} else 0

    def count(self) -> dict[str, int]:
        """Return how many findings have each status."""
        found: Counter[str] = Counter(finding.verdict.status for finding in self.findings)
        return {status: found[status] for status in _STYLES}

    def to_json(self) -> dict[str, Any]:
        here = self.seen.installation
        environment = {"prefix": here.prefix, "python": here.python, "found_by": here.origin, "conda": here.is_conda}
        return {
            "schema": SCHEMA,
            "dswin": __version__,
            "purpose": self.purpose,
            "platform": self.seen.platform,
            "variant": self.seen.variant,
            "environment": environment,
            "exit_code": self.exit_code,
            "counts": self.count(),
            "findings": [finding.to_json() for finding in self.findings],
        }


def judge(purpose: Purpose, seen: Seen) -> Report:
    """Take every check of a purpose; looks at nothing itself."""
    return Report(purpose, seen, tuple(check.take(seen) for check in CHECKS[purpose]))


def examine(
    purpose: Purpose,
    recipe: Path,
    work: Path,
    *,
    prefix: Path | None = None,
    python: Path | None = None,
    variant: str = "",
) -> Report:
    """Look at this machine and one environment, and judge them.

    :param work: where builds are made. :param prefix: the environment; by default the active one. :param python: or its Python.
    :param variant: by default that of the installed package; for a build cuda121 on Windows, else cpu.
    :raises BadInput: what is named is not there.
    :raises MachineLacks: there is no package for such a machine.
    """
    return judge(purpose, look(purpose, this_platform(), recipe, work, prefix=prefix, python=python, variant=variant))


def table(report: Report) -> Table:
    """A row a finding, for a terminal; those that do not matter here are left out."""
    result = Table(box=None, pad_edge=False)
    result.add_column("")
    result.add_column("check", style="bold", max_width=26)
    result.add_column("found, needed, and what to do", overflow="fold")
    for finding in report.findings:
        verdict = finding.verdict
        if verdict.status == "skipped":
            continue
        words = Text(verdict.found)
        for label, text in (("needed: ", verdict.needed), ("what to do: ", verdict.fix), ("type: ", verdict.command)):
            if text:
                words.append(f"\n{label}", style="dim").append(text, style="cyan" if label == "type: " else "")
        if verdict.status in ("warn", "fail"):
            words.append(f"\n{finding.link}", style="dim")
        result.add_row(Text(verdict.status, style=_STYLES[verdict.status]), finding.title, words)
    return result
