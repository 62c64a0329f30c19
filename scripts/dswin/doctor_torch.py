"""What `dswin doctor --for run` checks of torch: that it imports, is the build that the ops ask for, and sees the GPU."""

from __future__ import annotations

import re

from .findings import TROUBLES, VARIANTS, Check, Verdict, name_install, ok, skipped, unknown
from .gpus import minor_of
from .installation import TORCH
from .seen import Seen

REDIST = "winget install Microsoft.VCRedist.2015+.x64"
#: What the first cause of a failed import says -> what to do, and a command.
CURES = (
    (r"No module named 'torch'", "Install the package, which brings torch.", "{install}"),
    (r"No module named '?numpy|numpy", "NumPy does not fit torch: make a fresh environment.", "{install}"),
    (
        r"WinError 1455",
        "The paging file is too small: let Windows manage its size (System, Advanced, Performance).",
        "",
    ),
    (
        r"WinError 127\b",
        "A DLL of another version is found first: make a fresh environment, and keep other CUDA and MKL folders off PATH.",
        "{install}",
    ),
    (
        r"WinError (126|1114)|DLL load failed|0xC0000135",
        "A DLL is missing: install the newest Visual C++ runtime.",
        REDIST,
    ),
    (
        r"illegal instruction|SIGILL",
        "The processor lacks what torch was compiled for: use another machine, or another torch.",
        "",
    ),
    (
        r"undefined symbol|cannot open shared object|version `",
        "Libraries of another CUDA or another torch are found first: unset LD_LIBRARY_PATH, or make a fresh environment.",
        "unset LD_LIBRARY_PATH",
    ),
    (
        r"no answer in",
        "It hangs or the disk is slow: run again; have the virus scanner leave the environment's folder out.",
        "",
    ),
)


def judge_torch(seen: Seen) -> Verdict:
    """torch is there and can be imported; the first cause if not."""
    here, probe = seen.installation, seen.installation.probe
    if probe.stage == "done" or probe.torch:
        return (
            ok(f"torch {probe.torch} from {probe.file}")
            if not probe.error
            else _cure(seen, f"torch {probe.torch} imports, and then: {probe.error}")
        )
    if here.torch is None and not here.find(TORCH) and (not probe.error or "No module named 'torch'" in probe.error):
        return Verdict(
            "fail",
            "torch is not installed",
            f"torch {seen.needs.torch if seen.needs else ''}".strip(),
            "Install the package, which brings it.",
            name_install(seen),
        )
    if not probe.stage:
        return unknown(f"Python was not asked: {probe.error or 'there is none'}")
    version = f"torch {here.torch.version}" if here.torch else "torch"
    return _cure(seen, f"{version} does not import: {probe.error}")


def _cure(seen: Seen, found: str) -> Verdict:
    for pattern, fix, command in CURES:
        if re.search(pattern, found):
            return Verdict("fail", found, "a torch that imports", fix, command.format(install=name_install(seen)))
    return Verdict("fail", found, "a torch that imports", "Make a fresh environment.", name_install(seen))


def judge_torch_build(seen: Seen) -> Verdict:
    """torch's build, version and CUDA against what the ops were compiled for: they refuse to load under another minor."""
    torch, ops = seen.installation.torch, seen.installation.ops
    if torch is None or not torch.version:
        return unknown("torch is not installed, or does not say its version")
    found = f"torch {torch.version}, {f'CUDA {torch.cuda}' if torch.cuda else 'for the CPU'}"
    if ops:
        wanted, cuda, who = ops.torch, ops.cuda or "", "the ops"
    elif seen.needs:
        wanted, cuda, who = seen.needs.torch, seen.needs.cuda, f"the variant {seen.needs.variant}"
    else:
        return unknown(f"{found}; nothing is installed or named to compare it with")
    needed = f"torch {wanted}, {f'CUDA {cuda}' if cuda else 'for the CPU'}: {who} ask for it"
    fix, command = (
        "Install the package again, and let it bring its torch; leave torch out of pip install.",
        name_install(seen),
    )
    if minor_of(torch.version) != minor_of(wanted):
        return Verdict("fail", f"{found}: another minor version than {wanted}", needed, fix, command)
    if cuda and not torch.cuda:
        return Verdict("fail", f"{found}: a build without CUDA", needed, fix, command)
    if cuda and minor_of(str(torch.cuda)) != cuda:
        return Verdict("fail", f"{found}: another CUDA than {cuda}", needed, fix, command)
    if torch.cuda and not cuda:
        return Verdict("warn", f"{found}: where it sees a GPU the CPU's ops are not used", needed, fix, command)
    return ok(f"{found}, as {who} ask for")


def judge_gpu_seen(seen: Seen) -> Verdict:
    """torch sees a GPU, or says why not."""
    probe = seen.installation.probe
    if not seen.cuda:
        return skipped("torch is for the CPU")
    if probe.available is None:
        return unknown("torch did not come to answer")
    if probe.torch and not probe.cuda:
        return Verdict(
            "fail", f"torch {probe.torch} is built for the CPU", f"a torch for CUDA {seen.cuda}", "See torch's build."
        )
    if probe.available:
        return ok("; ".join(f"{name} ({capability})" for name, capability in probe.devices))
    hidden = seen.variables.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        command = "set CUDA_VISIBLE_DEVICES=" if seen.windows else "unset CUDA_VISIBLE_DEVICES"
        return Verdict(
            "fail",
            f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides every GPU",
            "a GPU that torch sees",
            "Take the variable away.",
            command,
        )
    return Verdict(
        "fail",
        f"torch sees no GPU: {probe.why or 'it does not say why'}",
        "a GPU that torch sees",
        "See the driver above.",
    )


CHECKS = (
    Check("torch", "torch", TROUBLES, judge_torch),
    Check("torch_build", "torch's version and build", VARIANTS, judge_torch_build),
    Check("gpu_seen", "GPU as torch sees it", TROUBLES, judge_gpu_seen),
)
