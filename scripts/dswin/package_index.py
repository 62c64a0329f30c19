"""The package index, through the pip of this Python, so that the user's own index, mirror and proxy serve what is downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

#: pip asks nobody anything, and writes no line that is worn away by the next.
QUIET: Mapping[str, str] = MappingProxyType(
    {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}
)


def run_pip(arguments: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})) -> tuple[int, str]:
    """Run pip to its end and return its exit code and its last twenty lines.

    :param environment: variables beside this process's own.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        env={**os.environ, **QUIET, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, "\n".join(done.stdout.strip().splitlines()[-20:])
