"""What a check of `dswin doctor` found: one sentence each for what is, what must be, and how to get there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .installation import OURS
from .seen import Seen

#: ``unknown``: it could not be looked at. ``skipped``: it does not matter here.
Status = Literal["ok", "warn", "fail", "unknown", "skipped"]

#: Headings of README.md that findings point to.
READY = "What is ready, and what was run where"
VARIANTS = "Variants"
OPS = "Ops"
BUILDING = "Building"
TROUBLES = "Troubleshooting"


@dataclass(frozen=True)
class Verdict:
    """What a check says.

    :param found: what is there. :param needed: what must be.
    :param fix: what to do. :param command: what to type for it, where a command does it.
    """

    status: Status
    found: str
    needed: str = ""
    fix: str = ""
    command: str = ""


@dataclass(frozen=True)
class Finding:
    """A check and its verdict. :param section: the heading of README.md that has more."""

    id: str
    title: str
    section: str
    verdict: Verdict

    @property
    def link(self) -> str:
        return f"README.md#{anchor(self.section)}"

    def to_json(self) -> dict[str, str]:
        return {"id": self.id, "title": self.title, **vars(self.verdict), "link": self.link}


@dataclass(frozen=True)
class Check:
    """One question. ``judge`` is a plain function of what was seen: it looks at nothing itself."""

    id: str
    title: str
    section: str
    judge: Callable[[Seen], Verdict]

    def take(self, seen: Seen) -> Finding:
        """Judge; a check that fails itself is unknown, and never stops the others."""
        try:
            verdict = self.judge(seen)
        except Exception as error:
            verdict = Verdict(
                "unknown",
                f"this check failed: {type(error).__name__}: {error}",
                fix="Report it: dswin did not foresee it.",
            )
        return Finding(self.id, self.title, self.section, verdict)


def ok(found: str) -> Verdict:
    return Verdict("ok", found)


def skipped(why: str) -> Verdict:
    return Verdict("skipped", why)


def unknown(why: str | None) -> Verdict:
    return Verdict("unknown", why or "it was not looked at")


def anchor(heading: str) -> str:
    """Return the name by which GitHub links to a heading: small letters, no punctuation, dashes for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def name_install(seen: Seen) -> str:
    """Return the command that installs the package."""
    channels = seen.needs.channels if seen.needs else ("pytorch", "nvidia", "conda-forge")
    spec = f'"{OURS}=*={seen.variant}*"' if seen.variant else OURS
    return f"conda create -n deepspeed --override-channels -c OURCHANNEL {' '.join(f'-c {one}' for one in channels)} {spec}"
