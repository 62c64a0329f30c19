"""A Python that is asked what it is and whether its torch works, in a process of its own that may fail, crash or hang."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import programs

#: Seconds for a first import of torch from a slow disk, with a virus scanner that reads every DLL.
TIMEOUT = 180
#: What Windows calls the ends of a program that did not end itself: ntstatus.h.
CRASHES = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction: the processor lacks what it was compiled for",
    0xC0000135: "a DLL was not found",
    0xC0000142: "a DLL did not start",
    0xC0000409: "stopped itself: stack buffer overrun",
}

# Runs under any Python from 3.6 on. A line in a file for each thing that is known, at once: a crash leaves those before it, and
# what else is printed does not matter.
_PROGRAM = r"""
import json, os, sys
def say(key, value):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps([key, value]) + "\n")
def first_cause(error):
    seen = set()
    while id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__) or error
    return "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:600])
import platform, site
say("version", platform.python_version())
say("implementation", platform.python_implementation())
say("bits", 64 if sys.maxsize > 2**32 else 32)
say("prefix", sys.prefix)
say("path", [p for p in sys.path if p])
say("user_site", site.getusersitepackages() if site.ENABLE_USER_SITE else "")
say("stage", "import torch")
try:
    import torch
    torch.zeros(1)
    say("torch", str(torch.__version__))
    say("file", str(torch.__file__))
    say("cuda", torch.version.cuda)
    say("stage", "ask torch for its GPUs")
    say("archs", list(torch.cuda.get_arch_list()) if torch.version.cuda else [])
    say("available", bool(torch.cuda.is_available()))
    if torch.version.cuda and not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except Exception as error:
            say("why", first_cause(error))
    else:
        say("devices", [[torch.cuda.get_device_name(i), "%d.%d" % torch.cuda.get_device_capability(i)]
                        for i in range(torch.cuda.device_count())])
    say("stage", "done")
except BaseException as error:
    say("error", first_cause(error))
os._exit(0)
"""


_TEXTS = ("stage", "version", "implementation", "prefix", "user_site", "torch", "file", "why")


@dataclass(frozen=True)
class Probe:
    """What a Python said of itself and of its torch.

    :param stage: how far it came: "" it did not start, ``import torch``, ``ask torch for its GPUs``, ``done``.
    :param error: why not further: the first cause, one line. :param why: why torch sees no GPU.
    :param path: its sys.path. :param devices: (name, compute capability) of each GPU that torch sees.
    """

    stage: str = ""
    error: str = ""
    version: str = ""
    implementation: str = ""
    bits: int = 0
    prefix: str = ""
    path: tuple[str, ...] = ()
    user_site: str = ""
    torch: str = ""
    file: str = ""
    cuda: str | None = None
    archs: tuple[str, ...] = ()
    available: bool | None = None
    why: str = ""
    devices: tuple[tuple[str, str], ...] = field(default_factory=tuple)


def ask(python: Path, timeout: float | None = None) -> Probe:
    """Start a Python in an empty folder, and have it import torch. Whatever happens is a part of the answer.

    :param timeout: seconds; by default :data:`TIMEOUT`.
    """
    with tempfile.TemporaryDirectory(prefix="dswin-", ignore_cleanup_errors=True) as folder:
        answers = Path(folder) / "answers"
        try:
            arguments = ("-X", "faulthandler", "-c", _PROGRAM, str(answers))
            end = name_end(*programs.run(str(python), *arguments, folder=Path(folder), timeout=timeout or TIMEOUT))
        except programs.Absent as absent:
            end = str(absent)
        return read(answers.read_text(encoding="utf-8", errors="replace") if answers.is_file() else "", end)


def read(said: str, end: str) -> Probe:
    """Return what the program wrote before its end.

    :param end: how it ended, for where it does not say so itself.
    """
    answers: dict[str, Any] = {}
    for line in said.splitlines():
        try:
            key, value = json.loads(line)
            answers[key] = value
        except (ValueError, TypeError):  # a line that a crash cut
            continue
    error = answers.pop("error", "")
    return _make(answers, str(error) if error or answers.get("stage") == "done" else end)


def _make(answers: Mapping[str, Any], error: str) -> Probe:
    """Make a probe of answers of which nothing is certain."""
    texts = {key: str(answers.get(key) or "") for key in _TEXTS}
    lists = {key: answers[key] if isinstance(answers.get(key), list) else [] for key in ("path", "archs", "devices")}
    devices = [one for one in lists["devices"] if isinstance(one, list) and len(one) == 2]
    return Probe(
        error=error,
        bits=answers["bits"] if isinstance(answers.get("bits"), int) else 0,
        path=tuple(map(str, lists["path"])),
        cuda=str(answers["cuda"]) if answers.get("cuda") else None,
        archs=tuple(map(str, lists["archs"])),
        available=answers["available"] if isinstance(answers.get("available"), bool) else None,
        devices=tuple((str(name), one) for name, one in devices if re.fullmatch(r"\d+\.\d+", str(one))),
        **texts,
    )


def name_end(code: int, said: str) -> str:
    """Say in one line how a program ended that did not say so itself: a crash by its name, else its last words."""
    if code < 0 and code > -100:
        try:
            return f"it crashed: {signal.Signals(-code).name}"
        except ValueError:
            pass
    if crash := CRASHES.get(code & 0xFFFFFFFF):
        return f"it crashed: {crash} (0x{code & 0xFFFFFFFF:08X})"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "nothing")
    return f"it ended with code {code} and said: {last[:300]}"
