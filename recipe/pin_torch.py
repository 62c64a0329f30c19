"""Pins torch's minor version in DeepSpeed's requirements to the one it is compiled against.

DeepSpeed's ops refuse to load under another minor, so a wheel that asks for "torch>=2.0.0" promises too much.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path


def pin(requirements: str, torch: str) -> str:
    """Return the text of a requirements file with its torch line pinned to the minor of version ``torch``.

    :raises SystemExit: when there is not exactly one such line; upstream has changed its requirements then.
    """
    lines = requirements.splitlines()
    found = [number for number, line in enumerate(lines) if line.replace(" ", "").startswith("torch>=")]
    if len(found) != 1:
        sys.exit(f"ERROR: expected one line torch>=... in the requirements, found {len(found)}; adapt pin_torch.py")
    minor = ".".join(torch.split(".")[:2])
    lines[found[0]] = f"torch=={minor}.*"
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(pin(path.read_text(encoding="utf-8"), version("torch")), encoding="utf-8", newline="\n")
