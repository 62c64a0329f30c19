"""The command ``dswin explain``."""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import errors
from .cli_options import add_options

if TYPE_CHECKING:
    from .explain import Explained, Hit
    from .failures import Failure

#: Causes that are shown whole; of the others one line each.
WHOLE = 2


@click.command("explain")
@click.argument("log", required=False)
@add_options("json")
def explain(log: str | None, as_json: bool) -> int:
    """Say why a build or a run failed, from its LOG, and what to do; - or nothing reads standard input.

    Takes the output of conda, rattler-build, pip, Visual C++, nvcc, ninja and DeepSpeed, of any size, in UTF-8, UTF-16 or an old
    code page, in English or Chinese. A log with errors that no entry explains gives 1 too, and its first such lines.

    Exit codes: 0 nothing wrong was found, 1 something was, 2 the log cannot be read.
    """
    found = _read(log)
    # A console or a file in an old code page cannot show every letter of every log.
    with suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        click.echo("\n".join(describe(found, "standard input" if log in (None, "-") else str(log))))
    return found.exit_code


def _read(log: str | None) -> Explained:
    """:raises BadInput: there is no such log, it cannot be read, or it is none."""
    from . import explain as explainer

    if log is None and sys.stdin.isatty():
        raise errors.BadInput("Which log?", fix="Name its file, or pipe it: COMMAND 2>&1 | dswin explain")
    if log is None or log == "-":
        return explainer.explain(sys.stdin.buffer, "Standard input")
    try:
        with Path(log).open("rb") as stream:
            return explainer.explain(stream, log)
    except (OSError, ValueError) as error:
        reason = "it is a folder" if Path(log).is_dir() else getattr(error, "strerror", None) or error
        raise errors.BadInput(f"{log} cannot be read: {reason}.", fix="Name the file of a log.") from error


def describe(found: Explained, name: str) -> list[str]:
    """Return the lines of the report for people."""
    lines = [f"{name}: {found.lines:,} lines, {found.encoding}", ""]
    for failure, hit in found.causes[:WHOLE]:
        lines += [*_describe_failure(failure, hit), ""]
    if more := found.causes[WHOLE:]:
        lines += ["Further down, most likely because of that:", *(_name(failure, hit) for failure, hit in more), ""]
    if found.verdict == "unknown":
        head = (
            "No known cause. The first lines that look like errors:"
            if found.unknown
            else "The log does not hold the cause."
        )
        lines += [head, *map(_show, found.unknown), "", *_report_it(found)]
    if found.consequences:
        lines += ["Consequences, which explain nothing:", *(_name(failure, hit) for failure, hit in found.consequences)]
        lines += [] if found.causes else [_wrap("fix", found.consequences[0][0].fix)]
        lines += [""]
    if found.verdict == "nothing":
        stages = ", ".join(f"{stage} {count}" for stage, count in found.looked_for.items())
        lines += [f"Nothing wrong found. Looked for {sum(found.looked_for.values())} known failures: {stages}.", ""]
    if found.harmless:
        lines += ["Seen and harmless:"]
        lines += [f"  line {hit.line}, {one.id}: {one.reason}" for one, hit in found.harmless]
    return lines[:-1] if not lines[-1] else lines


def _describe_failure(failure: Failure, hit: Hit) -> list[str]:
    return [
        f"{failure.rank.upper()}  {failure.id} ({failure.stage})",
        _show(hit),
        _wrap("why", failure.cause),
        *_wrap_fix(failure.fix),
        _wrap("for", failure.applies),
        _wrap("see", failure.source),
    ]


def _show(hit: Hit) -> str:
    return f"  line {hit.line}: {hit.text}"


def _name(failure: Failure, hit: Hit) -> str:
    return f"  line {hit.line}, {failure.id}: {hit.text[:100]}"


def _wrap(word: str, text: str) -> str:
    return textwrap.fill(text, 112, initial_indent=f"  {word:4} ", subsequent_indent=" " * 7, break_long_words=False)


def _wrap_fix(fix: str) -> list[str]:
    """Return what to do; its lines are kept, since they are commands."""
    return [f"  {'fix' if not number else '':4} {line}" for number, line in enumerate(fix.splitlines())]


def _report_it(found: Explained) -> list[str]:
    return [
        f"None of the {sum(found.looked_for.values())} known failures. To report it: run dswin prove, which leaves one file",
        "without names or secrets in it, and send that with this log.",
        "",
    ]
