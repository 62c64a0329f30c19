"""Load every op that was compiled ahead of time, as DeepSpeed itself does, and hold ds_report to it.

    python check_ops.py --out FILE

FILE is written anew after each op, so that it names the op that ended the process. Exit codes: 0 all is right, 1 not.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_report() -> str:
    """Return what ds_report prints in this environment."""
    done = subprocess.run(
        [sys.executable, "-m", "deepspeed.env_report"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode("utf-8", "replace")).replace("\r\n", "\n")
    if done.returncode != 0:
        print(text)
        sys.exit(f"ERROR: ds_report ended with code {done.returncode}.")
    return text


def read_report(text: str) -> dict[str, tuple[bool, bool]]:
    """Return {op: (installed, could be compiled here)} from what ds_report prints."""
    rows = re.findall(r"^(\w+) \.* *\[(YES|NO)\] \.* *\[(OKAY|NO)\]", text, re.MULTILINE)
    return {name: (installed == "YES", compatible == "OKAY") for name, installed, compatible in rows}


def list_ops(recorded: dict[str, bool], reported: dict[str, tuple[bool, bool]]) -> dict[str, dict[str, Any]]:
    """Return a row an op, those in the package first: what its build recorded, and what ds_report says.

    :return: by name: ``recorded``, ``reported``, ``compatible``; ``loads`` None, ``file`` and ``problem`` for :func:`load`.
    """
    rows = {}
    for name in sorted({*recorded, *reported}, key=lambda name: (not recorded.get(name), name)):
        installed, compatible = reported.get(name, (False, False))
        rows[name] = {"op": name, "recorded": bool(recorded.get(name)), "reported": installed,
                      "compatible": compatible, "loads": None, "file": None, "problem": None}  # fmt: skip
    return rows


def load(name: str) -> dict[str, Any]:
    """Load an op that was compiled ahead of time and say how that went."""
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    try:
        module = ALL_OPS[name].load(verbose=False)
    except KeyError:
        return {"loads": False, "problem": "This accelerator has no such op."}
    except Exception as error:
        return {"loads": False, "problem": f"{type(error).__name__}: {error}"}
    return {"loads": True, "file": Path(module.__file__).name, "problem": None}


def judge(rows: dict[str, dict[str, Any]]) -> str | None:
    """Return what is wrong first, or None."""
    for row in rows.values():
        if row["recorded"] and not row["loads"]:
            return f"{row['op']} does not load: {row['problem']}"
        if row["recorded"] is not row["reported"]:
            return f"ds_report and the package's own record differ about {row['op']}."
    if not any(row["recorded"] for row in rows.values()):
        return "This DeepSpeed has no op compiled ahead of time: each would be compiled on first use."
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    report = run_report()
    print(report, flush=True)

    from deepspeed.git_version_info import installed_ops

    rows = list_ops(installed_ops, read_report(report))

    def write() -> None:
        arguments.out.write_text(json.dumps({"ops": list(rows.values()), "report": report.strip()}), encoding="utf-8")

    for name in (name for name, row in rows.items() if row["recorded"]):
        rows[name] |= {"loads": False, "problem": "It ended the process."}
        write()
        rows[name] |= load(name)
        print(f"{name}: {rows[name]['problem'] or 'loads'}", flush=True)
    write()
    if problem := judge(rows):
        sys.exit(f"ERROR: {problem}")


if __name__ == "__main__":
    main()
