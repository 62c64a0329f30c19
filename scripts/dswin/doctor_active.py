"""Whether the environment that `dswin doctor` looks at is the one that `python` starts: the forgotten `conda activate`."""

from __future__ import annotations

from .findings import TROUBLES, Check, Status, Verdict, ok
from .installation import DEEPSPEED, OURS, TORCH
from .seen import Seen

ACTIVATED = "the environment with deepspeed, activated"


def name_activation(folder: str) -> str:
    """Return the command that activates a conda environment."""
    return f'conda activate "{folder}"' if " " in folder else f"conda activate {folder}"


def judge_active(seen: Seen) -> Verdict:
    here = seen.installation
    if not here.python:
        what = f"{here.origin} names {here.prefix}, which has no Python"
        return _send_elsewhere(seen, "fail", "no Python is on PATH" if here.origin == "PATH" else what)
    if here.origin == "PATH":
        what = f"no environment is active; the Python on PATH is {here.python}"
        if here.find(TORCH) or here.find(DEEPSPEED) or here.torch:
            return ok(what)
        return _send_elsewhere(seen, "fail", f"{what}, which has neither torch nor deepspeed")
    if problem := _find_problem(seen):
        # An environment that was named need not be active to be looked at.
        status: Status = "warn" if here.origin.startswith("--") else "fail"
        needed = "the environment first on PATH: deepspeed and torchrun start whatever `python` is"
        command = name_activation(here.prefix) if here.is_conda else _name_venv_activation(seen)
        return Verdict(status, problem, needed, "Activate it, in this very window.", command)
    if seen.elsewhere and here.origin == "CONDA_PREFIX" and not here.find(DEEPSPEED):
        return _send_elsewhere(seen, "warn", f"{here.prefix} is active and has no deepspeed")
    return ok(f"{here.prefix} ({here.origin})")


def _send_elsewhere(seen: Seen, status: Status, found: str) -> Verdict:
    others = f" {OURS} is in {', '.join(seen.elsewhere)}." if seen.elsewhere else ""
    command = name_activation(seen.elsewhere[0] if seen.elsewhere else "NAME")
    return Verdict(status, found, ACTIVATED, f"Activate it.{others}", command)


def _find_problem(seen: Seen) -> str:
    """Say what of the environment is not first on PATH, where it should be."""
    here = seen.installation
    active = seen.path(seen.python_on_path) if seen.python_on_path else None
    if active is None or active.parent != seen.path(here.python).parent:
        return f"`python` starts {active or 'nothing'}, which is not of {here.prefix}"
    if not seen.windows or not here.is_conda:
        return ""
    libraries = seen.path(here.prefix) / "Library" / "bin"
    path = next((value for name, value in seen.variables.items() if name.upper() == "PATH"), "")
    folders = [seen.path(one.strip('"')) for one in path.split(";")]
    return "" if libraries in folders else f"{libraries}, where conda keeps DLLs, is not on PATH"


def _name_venv_activation(seen: Seen) -> str:
    here = seen.installation.prefix
    return f'"{here}\\Scripts\\activate"' if seen.windows else f'. "{here}/bin/activate"'


ACTIVE = Check("active", "Active environment", TROUBLES, judge_active)
