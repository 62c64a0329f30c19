"""An environment that has deepspeed-win, examined: its ops, training in each ZeRO stage, the optimizers, several ranks.

What is examined runs in the environment's own Python, by checks/verify_worker.py; here it is started, understood and judged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from . import __version__, ops
from .errors import BadInput, CheckFailed, DswinError, MachineLacks
from .privacy import Names, redact_all
from .programs import decode

Progress = Callable[[str], None]

#: Raised when a reader of the document would have to change.
SCHEMA = 1
WORKER = Path(__file__).parent / "checks" / "verify_worker.py"
INSTALL = "conda install deepspeed-win"


def find_python(prefix: Path | None, python: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the Python to examine: the one that is named, else the active environment's, else the one on PATH.

    :raises BadInput: both are named, or there is no Python where one is named.
    :raises MachineLacks: none is named, and there is none.
    """
    if prefix and python:
        raise BadInput("--prefix and --python both name an environment.", fix="Give one of them.")
    if python:
        if not python.is_file():
            raise BadInput(f"{python} is not there.", fix="Name an environment's python or python.exe.")
        return python.absolute()
    active = environment.get("CONDA_PREFIX")
    if folder := prefix or (Path(active) if active else None):
        found = next((file for file in (folder / "python.exe", folder / "bin" / "python") if file.is_file()), None)
        if found:
            return found.absolute()
        raise BadInput(f"{folder} is no environment: it has no Python.", fix="Name the folder of an environment.")
    on_path = next((path for name in ("python", "python3") if (path := shutil.which(name))), None)
    if on_path is None:
        raise MachineLacks("No environment is active, and PATH has no Python.", fix="Name one with --prefix.")
    return Path(on_path)


def examine(
    python: Path,
    *,
    train: Path,
    require_gpu: bool = False,
    ranks: int | None = None,
    quick: bool = False,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Run the worker with a Python and return what it found, as it wrote it.

    :param train: the recipe's training script.
    :raises BadInput: the Python has no torch or no DeepSpeed.
    :raises MachineLacks: it does not start.
    :raises DswinError: the worker itself failed.
    """
    with tempfile.TemporaryDirectory(prefix="dswin-") as folder:
        out = Path(folder) / "found.json"
        command = [str(python), str(WORKER), "--json", str(out), "--train", str(train)]
        command += ["--require-gpu"] * require_gpu + ["--quick"] * quick
        command += ["--ranks", str(ranks)] if ranks else []
        said = _follow(command, Path(folder), progress)
        if not out.is_file():
            raise DswinError(
                "The examination did not come to its end.", fix=f"Check that {python} runs.", log="\n".join(said[-40:])
            )
        found = json.loads(out.read_text(encoding="utf-8"))
    first = found["checks"][0]
    if missing := re.search(r"No module named '(torch|deepspeed)'", first["what"]):
        raise BadInput(
            f"{python} has no {missing[1]}.",
            fix=f"Activate the environment that has it or name it with --prefix; {INSTALL} installs it into one.",
        )
    return found


def _follow(command: list[str], folder: Path, progress: Progress) -> list[str]:
    """Run the worker, pass on its lines as they come, and return them."""
    said = []
    # From a folder of its own: what lies in the current one must not be imported.
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
        )
    except OSError as error:
        raise MachineLacks(
            f"{command[0]} does not start: {error.strerror}.", fix="Name the Python of an environment."
        ) from error
    assert process.stdout is not None
    try:
        for line in process.stdout:
            said.append(decode(line).rstrip())
            progress(said[-1])
    except BaseException:
        process.terminate()
        raise
    finally:
        process.wait()
    return said


def make_document(found: dict[str, Any], asked: Mapping[str, Any], recipe: Path, names: Names) -> dict[str, Any]:
    """Return the document of data/verify.schema.json: what the worker found, judged, without what ``names`` forbids.

    :param asked: what the run was asked to do.
    :param recipe: the recipe's folder, where reasons for ops that are not built stand.
    """
    checks = [{**check, "fix": find_fix(check)} for check in found["checks"]]
    reasons = {op.name: op.reason for op in ops.read(recipe)}
    for check in checks:
        for row in check["details"].get("ops", []):
            row["reason"] = None if row["recorded"] else reasons.get(row["op"])
    document = {
        "schema": SCHEMA,
        "dswin": __version__,
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
        "asked": dict(asked),
        "exit_code": conclude([check["result"] for check in checks]),
        "environment": found["environment"],
        "checks": checks,
        "messages": explain_messages(found["output"]),
    }
    return redact_all(document, names)


def conclude(results: list[str]) -> int:
    """Return the exit code: 0 all that ran passed, 1 a check failed, 3 this machine lacks what was asked for."""
    if "failed" in results:
        return CheckFailed.exit_code
    return MachineLacks.exit_code if "lacks" in results else 0


#: What to do about a check that did not pass, by what it or its log says; the first that matches counts.
_FIXES = [
    (r"Compiled on the way|no op compiled ahead of time", f"Install the package that holds the ops: {INSTALL}."),
    (r"version mismatch", "Install the torch that the package was built for; conda does that: conda install deepspeed-win."),
    (r"no kernel image is available", "The package has no code for this GPU. Take another variant: see the README's table."),
    (r"out of memory", "Close other programs that use the GPU, and run again."),
    (r"0xC000001D|SIGILL|exit code -4\b", "The processor lacks AVX2, which the CPU optimizers need."),
    (r"0xC0000135|DLL load failed|cannot open shared object", "A library is missing. Make the environment anew."),
    (r"sees no GPU", "Run nvidia-smi: it must name the GPU. If it does, torch is a build for the CPU: see `conda list torch`."),
    (r"built for the CPU", "Install a CUDA variant of deepspeed-win."),
    (r"ranks were asked for", "Give --ranks a number that is not above the number of GPUs."),
    (r"did not end within", "Run again while nothing else does. If it hangs again, see its log for the last thing it did."),
    (r"[Aa]ddress already in use|EADDRINUSE", "Another program took the port. Run again."),
    (r"No space left|not enough space", "Free some space on the disk of the temporary folder."),
    (r"The loss|parameter is .* away", "The figures are wrong, so do not train with this. Report it with this document."),
]  # fmt: skip


def find_fix(check: Mapping[str, Any]) -> str:
    """Return what to do about a check that did not pass; nothing for one that did or was skipped for a reason."""
    if check["result"] not in ("failed", "lacks"):
        return ""
    text = f"{check['what']}\n{check['log']}"
    known = next((fix for pattern, fix in _FIXES if re.search(pattern, text)), None)
    return known or "See the log. If it explains nothing, make the environment anew, and report it with this document."


_NO_TOOLKIT = "The ops are compiled already; a CUDA toolkit is needed only to compile them."
_NOT_THIS_OP = "It speaks of an op that is not in the package and that training here does not use."
#: What DeepSpeed and torch complain of although nothing is wrong, and why that is so.
_HARMLESS = [
    (r"CUDA_HOME|nvcc|No CUDA runtime is found", _NO_TOOLKIT),
    (r"compatibility check failed|could not be (re)?built", _NO_TOOLKIT),
    (r"async_io|libaio|gds|cufile", _NOT_THIS_OP),
    (r"CUTLASS|cutlass|sparse_attn|triton|evoformer|fp_quantizer|deepspeed-kernels", _NOT_THIS_OP),
    (r"Setting accelerator to CPU", "DeepSpeed looks for a GPU when it is imported; a build for the CPU needs none."),
    (r"Unable to find hostfile", "One machine needs no list of hosts."),
    (r"FutureWarning|DeprecationWarning|is deprecated", "DeepSpeed uses a function of torch under its old name; it still works."),
    (r"Redirects are currently not supported", "On Windows the launcher does not write a log file a rank."),
    (r"client socket has failed to connect", "The next try, by another name of this machine, succeeds."),
    (r"destroy_process_group", "The processes ended together; nothing was left to clean up."),
    (r"[Gg]uessing device ID|device under current context|to perform barrier", "Each rank has one GPU: the guess is right."),
    (r"/dev/shm", "It matters to NCCL with several GPUs in a container that has little shared memory."),
    (r"can not find .*(mpi|MPI)|mpi4py", "One machine needs no MPI."),
]  # fmt: skip


def explain_messages(output: str) -> list[dict[str, Any]]:
    """Return the complaints in an output, most frequent first: ``text``, ``count``, and ``why`` where it is known harmless."""
    counted = Counter(read_complaints(output)).most_common(60)
    return [
        {"text": text, "count": count, "why": next((why for mark, why in _HARMLESS if re.search(mark, text)), None)}
        for text, count in counted
    ]


#: What begins a line of a logger: a rank's name; time, level and place.
_PREFIX = re.compile(
    r"^(\[rank\d+\]:?|\[?[WEI]?\d{4}[-\d]*[ T][\d:.,]+[^\]]*\]|\[(WARNING|INFO)\]|\[[\w.]+:\d+:\w+\])\s*"
)
_COMPLAINT = re.compile(
    r"warn|\bFAIL|unable to|not found|does not exist|deprecated|not supported|no CUDA runtime|failed to", re.I
)


def read_complaints(output: str) -> list[str]:
    """Return the lines of an output that look like a complaint, without what differs each time.

    >>> read_complaints("[2026-11-30 10:11:12,345] [WARNING] [runner.py:234:fetch_hostfile] Unable to find hostfile")
    ['Unable to find hostfile']
    """
    found = []
    for line in output.splitlines():
        # The source line below a Python warning, which the warning names, is none.
        if not _COMPLAINT.search(line) or "warnings.warn(" in line:
            continue
        text = line.strip()
        while (short := _PREFIX.sub("", text)) != text:
            text = short
        # A Python warning's file says less than its words.
        text = re.sub(r"^\S+\.py:\d+: (?=\w+Warning: )", "", text)
        if text := re.sub(r"^(\[WARNING\]|WARNING:?)\s*", "", text).strip():
            found.append(text[:300])
    return found
