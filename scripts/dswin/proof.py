"""What `dswin prove` found, and the one file that it is sent back in: report.json, report.md and logs/ in a .zip."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import INTERRUPTED, CheckFailed, MachineLacks
from .facts import Fact
from .privacy import Names, redact, redact_all
from .programs import decode

#: Raised when a reader of report.json would have to change.
SCHEMA = 1
Kind = Literal["tools", "facts", "build", "tests"]
#: ``lacks``: this machine lacks something that the step needs.
Result = Literal["passed", "failed", "lacks", "skipped", "interrupted", "not run"]


@dataclass
class Step:
    """One thing that was tried.

    :param seconds: that it took.
    :param error: ``what``, ``fix`` and ``log`` of why it did not pass.
    :param details: what was seen on the way, if it failed too.
    :param logs: files that it wrote.
    """

    kind: Kind
    name: str
    result: Result = "not run"
    seconds: float = 0.0
    error: dict[str, str] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    logs: list[Path] = field(default_factory=list)


@dataclass
class Proof:
    """What was found on one machine.

    :param dswin: version, and of a git checkout the commit and whether files were changed.
    :param asked: what the run was asked to do.
    :param made: when it began, ISO 8601.
    """

    dswin: dict[str, Any]
    asked: dict[str, Any]
    made: str
    facts: list[Fact] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 everything passed, 1 something did not, 3 no variant could be built for lack of something, 130 interrupted."""
        results = [step.result for step in self.steps]
        if "interrupted" in results:
            return INTERRUPTED
        if all(step.result == "lacks" for step in self.steps if step.kind == "build"):
            return MachineLacks.exit_code
        return 0 if all(result in ("passed", "skipped") for result in results) else CheckFailed.exit_code

    def find(self, name: str) -> Any:
        """Return the value of a fact, or None."""
        return next((fact.value for fact in self.facts if fact.name == name), None)


def to_document(proof: Proof, names: Names) -> dict[str, Any]:
    """Return report.json as a dict, without what ``names`` forbids."""
    steps = [{**asdict(step), "logs": [log.name for log in step.logs]} for step in proof.steps]
    document = {
        "schema": SCHEMA,
        "dswin": proof.dswin,
        "made": proof.made,
        "asked": proof.asked,
        "exit_code": proof.exit_code,
        "steps": [{**step, "seconds": round(step["seconds"], 1)} for step in steps],
        "facts": [asdict(fact) for fact in proof.facts],
    }
    return redact_all(document, names)


def write(proof: Proof, report: Path, names: Names) -> None:
    """Write the report next to itself and move it into place, so that there is always a whole one.

    :raises MachineLacks: it cannot be written there.
    """
    document = to_document(proof, names)
    scratch = report.with_name(report.name + ".new")
    try:
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("report.json", _encode(json.dumps(document, indent=1, ensure_ascii=False)))
            file.writestr("report.md", _encode(describe(document)))
            for log in {log.name: log for step in proof.steps for log in step.logs if log.is_file()}.values():
                text = redact(decode(log.read_bytes()), names)
                file.writestr(f"logs/{redact(log.name, names)}", _encode(text))
        os.replace(scratch, report)
    except OSError as error:
        raise MachineLacks(
            f"The report {report} cannot be written: {error.strerror or error}.",
            fix=f"Close programs that have it open, or name another file with --report. What there is may be in {scratch}.",
        ) from error


def _encode(text: str) -> bytes:
    # A path on Linux may hold what no encoding has.
    return text.encode("utf-8", "replace")


def describe(document: dict[str, Any]) -> str:
    """Return report.md: the same for people."""
    facts = {fact["name"]: fact["value"] for fact in document["facts"]}
    windows, gpus = facts.get("windows"), facts.get("gpus") or []
    system = f"{windows['name']} {windows['release']} ({windows['build']})" if windows else facts.get("system", "?")
    dswin = document["dswin"]
    commit = f"commit {dswin['commit'] or 'unknown'}{', with changes' if dswin['changed'] else ''}"
    parts = [
        f"# deepspeed-win on {system}",
        f"Made {document['made']} by dswin {dswin['version']}, {commit}.",
        f"GPU: {', '.join(str(gpu['name']) for gpu in gpus) or 'none found'}. **{_VERDICTS[document['exit_code']]}**",
    ]
    if facts.get("wine"):
        parts.append(f"This Windows is played by Wine {facts['wine']}: it proves nothing about Windows itself.")
    parts.append(_table(["step", "result", "seconds", "what"], [_row(step) for step in document["steps"]]))
    for step in document["steps"]:
        parts += _describe_step(step)
    rows = [[fact["name"], _show(fact["value"], fact["problem"]), fact["source"]] for fact in document["facts"]]
    parts += ["## The machine", _table(["fact", "value", "from"], rows)]
    return "\n\n".join(parts) + "\n"


_VERDICTS = {
    0: "Everything that ran passed.",
    CheckFailed.exit_code: "Something did not pass.",
    MachineLacks.exit_code: "No variant could be built: this machine lacks something.",
    INTERRUPTED: "The run was interrupted.",
}


def _row(step: dict[str, Any]) -> list[str]:
    details = step["details"]
    what = step["error"]["what"] if step["error"] else details.get("package", "")
    if tests := details.get("tests"):
        what = f"{tests['passed']} passed, {len(tests['failed'])} failed, {len(tests['skipped'])} skipped. {what}"
    return [step["name"], step["result"], f"{step['seconds']:.1f}", what]


def _describe_step(step: dict[str, Any]) -> list[str]:
    parts, details = [], step["details"]
    if error := step["error"]:
        parts += [f"## Why {step['name']} did not pass", error["what"], f"What to do: {error['fix']}"]
        # A fence that the log cannot close.
        parts += [f"~~~~~~~~text\n{error['log']}\n~~~~~~~~"] if error["log"] else []
    if ops := details.get("ops"):
        headings = ["op", "file", "SIMD", "OpenMP", "GPU code", "bytes"]
        rows = [[op["op"], op["file"], op["simd"], op["openmp"] or "-", op["gpu"] or "-", op["size"]] for op in ops]
        parts += [f"## What {step['name']} put into the ops", _table(headings, rows)]
    if training := details.get("training"):
        headings = list(dict.fromkeys(key for run in training for key in run))
        rows = [[run.get(key, "-") for key in headings] for run in training]
        parts += [f"## Training with {step['name']}", _table([key.replace("_", " ") for key in headings], rows)]
    if skipped := details.get("training_skipped"):
        parts.append(f"{step['name']} skipped {skipped}")
    if toolset := details.get("toolset"):
        parts.append(toolset)
    if packages := details.get("packages"):
        parts += [f"## Packages of {step['name']}", _table(["package", "version and build"], packages.items())]
    if tests := details.get("tests"):
        rows = [[name, "failed", ""] for name in tests["failed"]]
        rows += [[name, "skipped", reason] for name, reason in tests["skipped"].items()]
        parts += ["## Tests that did not pass", _table(["test", "result", "reason"], rows)] if rows else []
    return parts


def _table(headings: list[str], rows: Any) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", r"\|").replace("<", "&lt;").split())


def _show(value: Any, problem: str | None) -> str:
    return f"- ({problem})" if value is None else _say(value)


def _say(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_say(one)}" for key, one in value.items())
    if isinstance(value, list):
        return "; ".join(map(_say, value))
    if value is None:
        return "unknown"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
