"""What `dswin doctor` checks of the machine itself: system, processor, memory, disk, NVIDIA's driver and cards."""

from __future__ import annotations

import re

from . import gpus
from .findings import READY, TROUBLES, VARIANTS, Check, Verdict, ok, skipped, unknown
from .gpus import Archs
from .seen import Seen

GIB = 2**30
#: Our own judgement: what a run takes is the model's affair. On Windows torch's CUDA DLLs alone ask for some GiB when they load
#: (WinError 1455 where the paging file is small); compiled PTX and checkpoints go to the disk.
RUN_MEMORY, RUN_DISK = 6 * GIB, 2 * GIB
DRIVER_PAGE = "https://www.nvidia.com/drivers"
LONG_PATHS = r"reg add HKLM\SYSTEM\CurrentControlSet\Control\FileSystem /v LongPathsEnabled /t REG_DWORD /d 1 /f"


def judge_system(seen: Seen) -> Verdict:
    """Windows 10 or newer, or a glibc as new as the packages ask for."""
    if not seen.windows:
        return _judge_glibc(seen)
    windows = seen.get("windows")
    if not windows:
        return unknown(seen.why("windows"))
    name = f"{windows['name']} {windows['release'] or ''} (build {windows['build']})"
    if wine := seen.get("wine"):
        return Verdict(
            "warn", f"{name}, played by Wine {wine}", "Windows itself", "What works here proves nothing about Windows."
        )
    build = gpus.parse_version(str(windows["build"]))
    if build and build[0] < 10240:
        return Verdict("fail", name, "Windows 10 or 11, 64 bits", "Install a Windows that is still maintained.")
    return ok(name)


def _judge_glibc(seen: Seen) -> Verdict:
    system = str(seen.get("system") or "")
    found = re.search(r"glibc(\d+\.\d+)", system)
    least = seen.needs.glibc if seen.needs else ""
    if found is None:
        return Verdict(
            "fail", f"{system}: no glibc", f"glibc {least}".strip(), "musl systems, such as Alpine, run none of this."
        )
    if least and gpus.parse_version(found[1]) < gpus.parse_version(least):
        return Verdict("fail", f"glibc {found[1]}", f"glibc {least} or newer, as torch", "Install a newer Linux.")
    return ok(system)


def judge_wsl(seen: Seen) -> Verdict:
    if not seen.get("wsl"):
        return skipped("this is no Linux under Windows" if not seen.windows else "this is Windows")
    return ok(
        "Linux under Windows (WSL). The driver is Windows' own: install none in here. NVML answers only in part, so that tools "
        "that ask it (nvidia-ml-py) may fail while torch works."
    )


def judge_long_paths(seen: Seen) -> Verdict:
    if not seen.windows:
        return skipped("only Windows limits a path to 260 characters")
    fact = seen.facts.get("long_paths")
    if fact is not None and fact.value == 1:
        return ok("switched on")
    if fact is None or (fact.value is None and "not set" not in (fact.problem or "")):
        return unknown(seen.why("long_paths"))
    return Verdict(
        "warn",
        "switched off: a path may have 260 characters",
        "LongPathsEnabled = 1, or environments in short folders",
        "Type this as administrator and start Windows again, or keep environments in a folder such as C:\\envs.",
        LONG_PATHS,
    )


def judge_cpu(seen: Seen) -> Verdict:
    cpu = seen.get("cpu")
    if not cpu:
        return unknown(seen.why("cpu"))
    name = f"{cpu.get('name') or 'a processor'}, {cpu.get('cores')} logical cores"
    if cpu.get("avx2") is None:
        return unknown(f"{name}; this system does not say whether it has AVX2")
    if cpu["avx2"]:
        return ok(f"{name}, AVX2")
    return Verdict(
        "fail" if seen.variant == "cpu" else "warn",
        f"{name}, without AVX2",
        "AVX2, for the CPU optimizers (DeepSpeedCPUAdam, offload)",
        "Train with FusedAdam on a GPU, without offload to the CPU."
        if seen.variant != "cpu"
        else "Use another machine.",
    )


def judge_memory(seen: Seen) -> Verdict:
    memory = seen.get("memory_bytes")
    if memory is None:
        return unknown(seen.why("memory_bytes"))
    if memory >= RUN_MEMORY:
        return ok(f"{memory / GIB:.1f} GiB")
    return Verdict(
        "warn",
        f"{memory / GIB:.1f} GiB",
        f"{RUN_MEMORY // GIB} GiB, so that torch with its CUDA libraries loads",
        "On Windows let the system manage the paging file (WinError 1455 says that it is too small); train smaller models.",
    )


def judge_disk(seen: Seen) -> Verdict:
    free = seen.get("free_disk_bytes")
    if free is None:
        return unknown(seen.why("free_disk_bytes"))
    if free >= RUN_DISK:
        return ok(f"{free / GIB:.1f} GiB free")
    return Verdict(
        "warn",
        f"{free / GIB:.1f} GiB free",
        f"{RUN_DISK // GIB} GiB, for checkpoints",
        "Free some space: conda clean --all.",
        "conda clean --all",
    )


def judge_driver(seen: Seen) -> Verdict:
    """The NVIDIA driver against the CUDA that must work, by NVIDIA's tables."""
    cuda = seen.cuda
    if not cuda:
        found = seen.get("gpus") or []
        drivers = ", ".join(f"{gpu['name']}, driver {gpu['driver']}" for gpu in found)
        return skipped("what is installed computes on the CPU" + (f"; there is {drivers}" if drivers else ""))
    # WSL has the driver of the Windows around it, with its numbers.
    windows = seen.windows or bool(seen.get("wsl"))
    needed = f"for CUDA {cuda}: driver {gpus.name_driver(cuda, windows=windows)}"
    place = "on Windows, not in WSL" if seen.get("wsl") else "from NVIDIA, or the system's packages"
    fix = f"Install the newest driver for this card, {place}: {DRIVER_PAGE}"
    cards = [gpu for gpu in seen.get("gpus") or [] if gpu.get("driver")]
    if not cards:
        return Verdict(
            "fail",
            f"no NVIDIA driver answers: {seen.why('gpus')}",
            needed,
            f"{fix}. Without an NVIDIA card, use the variant cpu.",
        )
    driver, serves = str(cards[0]["driver"]), seen.get("cuda_of_driver")
    found = f"driver {driver}" + (f", which serves CUDA {serves}" if serves else "")
    level = gpus.judge_driver(driver, serves, cuda, windows=windows)
    if level == "full":
        return ok(f"{found}; needed {needed}")
    if level == "minor":
        return Verdict(
            "warn",
            f"{found}: CUDA {cuda} runs by minor version compatibility",
            needed,
            f"{fix}. As it is, code that is there as PTX only does not start, and conda does not install the CUDA packages "
            f"(__cuda >={cuda}).",
        )
    return Verdict("fail", f"{found}: too old for CUDA {cuda}", needed, fix)


def _list_cards(seen: Seen) -> list[tuple[str, str]]:
    """Return (name, compute capability) of each GPU, by nvidia-smi, else by torch."""
    cards = [(str(gpu["name"]), gpu.get("compute_capability")) for gpu in seen.get("gpus") or []]
    if cards and all(capability for _, capability in cards):
        return [(name, str(capability)) for name, capability in cards]
    return list(seen.installation.probe.devices)


def judge_gpu_code(seen: Seen) -> Verdict:
    """The GPU code in the package against each card."""
    if not seen.cuda and not (seen.needs and seen.needs.cuda):
        return skipped("the package has no GPU code")
    code, source = seen.installation.code, "in the installed ops"
    if code is None and seen.needs is not None:
        code, source = seen.needs.archs, f"of the variant {seen.needs.variant}"
    if code is None:
        return unknown(seen.needs_problem or "no op with GPU code was found")
    fix = "Take a variant that has code for this card, or build one with DSWIN_ARCH_LIST."
    command = ""
    if seen.variant == "cuda121" and any(gpus.parse_version(card)[0] >= 10 for _, card in _list_cards(seen)):
        fix, command = "Take the variant for this card.", 'conda install "deepspeed-win=*=cuda130*"'
    return _judge_cards(seen, code, f"GPU code {source}", fix, command)


def judge_gpu_torch(seen: Seen) -> Verdict:
    """The GPU code in torch against each card."""
    probe = seen.installation.probe
    if not seen.cuda:
        return skipped("torch is none for GPUs")
    if not probe.archs:
        return unknown("torch was not asked, or did not answer")
    fix = "Use a variant whose torch knows this card: the table of variants says which."
    return _judge_cards(seen, gpus.parse_torch_archs(probe.archs), f"torch {probe.torch}", fix, "")


_WORDS = {
    "exact": "machine code for it",
    "major": "machine code of its generation",
    "ptx": "PTX, compiled for it at the first start, which takes minutes",
    "nothing": "nothing that runs on it",
}


def _judge_cards(seen: Seen, code: Archs, what: str, fix: str, command: str) -> Verdict:
    cards = _list_cards(seen)
    if not cards:
        return unknown(f"no GPU's compute capability is known: {seen.why('gpus')}")
    ways = [gpus.find_way(capability, code) for _, capability in cards]
    serves = seen.get("cuda_of_driver")
    # The driver compiles PTX of its own CUDA and older ones only.
    if serves and gpus.parse_version(serves) < gpus.parse_version(gpus.minor_of(seen.cuda)):
        ways = ["nothing" if way == "ptx" else way for way in ways]
    found = "; ".join(
        f"{name} ({capability}): {_WORDS[way]}" for (name, capability), way in zip(cards, ways, strict=True)
    )
    has = " ".join([*code.sass, *(f"{arch}+PTX" for arch in code.ptx)])
    if "nothing" in ways:
        return Verdict("fail", found, f"{what} is for {has or 'no card'}", fix, command)
    if "ptx" in ways:
        return Verdict(
            "warn", found, f"{what} is for {has}", f"Nothing, if the first start may take long. {fix}", command
        )
    return ok(found)


SYSTEM = Check("system", "Operating system", READY, judge_system)
LONG_PATHS_CHECK = Check("long_paths", "Long paths", TROUBLES, judge_long_paths)
DRIVER = Check("driver", "NVIDIA driver", VARIANTS, judge_driver)
CHECKS = (
    SYSTEM,
    Check("wsl", "Linux under Windows", TROUBLES, judge_wsl),
    LONG_PATHS_CHECK,
    Check("cpu", "Processor", VARIANTS, judge_cpu),
    Check("memory", "Memory", TROUBLES, judge_memory),
    Check("disk", "Disk", TROUBLES, judge_disk),
    DRIVER,
    Check("gpu_code", "GPU code of the ops", VARIANTS, judge_gpu_code),
    Check("gpu_torch", "GPU code of torch", VARIANTS, judge_gpu_torch),
)
