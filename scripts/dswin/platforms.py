"""What conda calls this machine."""

from __future__ import annotations

import platform as system

from .errors import MachineLacks


def this_platform() -> str:
    """Return the conda subdir of this machine.

    :raises MachineLacks: the recipe has no variant for it.
    """
    subdir = {("Linux", "x86_64"): "linux-64", ("Windows", "AMD64"): "win-64"}.get((system.system(), system.machine()))
    if subdir is None:
        raise MachineLacks(
            f"deepspeed-win has no variant for {system.system()} on {system.machine()}.",
            fix="Build on 64-bit Windows or Linux with an Intel or AMD processor.",
        )
    return subdir
