"""What `dswin doctor --for build` checks beside the compiler: CUDA toolkit, folders, memory and disk."""

from __future__ import annotations

from . import doctor_windows
from .doctor_machine import GIB, LONG_PATHS_CHECK, SYSTEM
from .doctor_windows import load, needed_cuda
from .findings import BUILDING, VARIANTS, Check, Verdict, ok, skipped, unknown
from .gpus import minor_of, parse_version
from .seen import Seen

#: for the toolset of its own version, so that both must be there: a pair.
#: Characters of a Windows path without long paths, and what a build puts below its folder: "\cuda121_py311\bld\",
#: "rattler-build_deepspeed-win\work\", "build\temp.win-amd64-cpython-311\Release\", and the source's longest path, of 126.
PATH_LIMIT, BELOW_WORK = 259, 19 + 33 + 41 + 126
#: gcc's major -> the newest that a CUDA accepts: host_config.h of CUDA 12.1.
NEWEST_GCC = {"12.1": 12}
BY_HAND = "`dswin build` brings its own from a conda package; a build by hand (setup.py) needs it"


def judge_nvcc(seen: Seen) -> Verdict:
    """The nvcc on PATH, by its folder, against the variant's CUDA."""
    cuda = needed_cuda(seen)
    if not cuda:
        return skipped("the variant has no GPU code")
    nvcc = seen.get("nvcc")
    if nvcc:
        where = f"nvcc {nvcc['version']} at {nvcc['path']}"
        if minor_of(nvcc["version"]) == cuda:
            return ok(where)
        return Verdict(
            "warn",
            f"{where}, not of CUDA {cuda}",
            f"nvcc {cuda}: {BY_HAND}",
            f"For a build by hand put CUDA {cuda}'s bin folder first on PATH.",
        )
    elsewhere = [one for one in seen.toolkits if one.nvcc]
    if not elsewhere:
        return Verdict(
            "warn",
            seen.why("nvcc"),
            f"nvcc {cuda}: {BY_HAND}",
            f"For a build by hand install CUDA {cuda}'s toolkit.",
            f"conda install -c nvidia cuda-nvcc={cuda}",
        )
    best = next((one for one in elsewhere if minor_of(one.nvcc) == cuda), elsewhere[0])
    folder = seen.path(best.folder) / "bin"
    command = f'set "PATH={folder};%PATH%"' if seen.windows else f'export PATH="{folder}:$PATH"'
    return Verdict(
        "warn",
        f"nvcc is not on PATH; nvcc {best.nvcc} is in {folder} ({best.origin})",
        f"nvcc {cuda} on PATH: {BY_HAND}",
        "Put its folder on PATH.",
        command,
    )


def judge_cuda_home(seen: Seen) -> Verdict:
    """CUDA_HOME and CUDA_PATH against each other, nvcc and torch."""
    cuda = needed_cuda(seen)
    if not cuda:
        return skipped("the variant has no GPU code")
    named = {one.origin: one for one in seen.toolkits if one.origin in ("CUDA_HOME", "CUDA_PATH")}
    if not named:
        return ok("neither is set: the recipe puts a CUDA_HOME together by itself")
    problems = [f"{name} is {one.folder}, which has no nvcc in bin" for name, one in named.items() if not one.nvcc]
    if len({seen.path(one.folder) for one in named.values()}) > 1:
        problems.append(f"CUDA_HOME is {named['CUDA_HOME'].folder} and CUDA_PATH is {named['CUDA_PATH'].folder}")
    first = named.get("CUDA_HOME") or named["CUDA_PATH"]
    nvcc, torch = seen.get("nvcc"), seen.installation.torch
    if nvcc and seen.path(nvcc["path"]).parent.parent != seen.path(first.folder):
        problems.append(f"{first.origin} is {first.folder} and nvcc on PATH is {nvcc['path']}")
    if torch and torch.cuda and first.nvcc and minor_of(torch.cuda) != minor_of(first.nvcc):
        problems.append(f"{first.origin} has CUDA {minor_of(first.nvcc)} and torch {torch.version} is for {torch.cuda}")
    if not problems:
        return ok(f"{first.origin} is {first.folder}, CUDA {first.nvcc}")
    command = f'set "CUDA_HOME={first.folder}" & set "CUDA_PATH={first.folder}"' if seen.windows and first.nvcc else ""
    return Verdict(
        "warn",
        "; ".join(problems),
        f"one toolkit, of CUDA {cuda}, named by all: {BY_HAND}",
        "Let both variables name the folder whose bin has nvcc.",
        command,
    )


def judge_work(seen: Seen) -> Verdict:
    """The folder of builds: its length, spaces, letters beyond ASCII."""
    if not seen.windows:
        return ok(seen.work)
    left = PATH_LIMIT - BELOW_WORK
    command = r"set DSWIN_CACHE=C:\dswin"
    problems = []
    if len(seen.work) > left:
        problems.append(f"it has {len(seen.work)} characters")
    if not seen.work.isascii():
        problems.append("it has letters beyond ASCII, where the compiler cache is switched off")
    if " " in seen.work:
        problems.append("it has a space, which nvcc takes for the end of a word")
    if not problems:
        return ok(f"{seen.work}, {len(seen.work)} characters")
    # Microsoft's compiler keeps to the limit even where long paths are switched on.
    return Verdict(
        "warn",
        f"{seen.work}: {', '.join(problems)}",
        f"a folder of at most {left} characters, plain ASCII, without spaces",
        "Name another folder for what is built.",
        command,
    )


def judge_jobs(seen: Seen) -> Verdict:
    """How many compilers the memory holds, as recipe/jobs.py decides it of what is free."""
    memory, cpu = seen.get("memory_bytes"), seen.get("cpu")
    if not memory or not cpu:
        return unknown(seen.why("memory_bytes" if not memory else "cpu"))
    jobs, cuda = load("jobs"), bool(needed_cuda(seen))
    each = jobs.GIB_PER_NVCC_THREAD if cuda else jobs.GIB_PER_JOB
    count, threads = jobs.decide(int(cpu["cores"]), memory, cuda)
    found = f"{memory / GIB:.1f} GiB, {cpu['cores']} logical cores: {count} compilers at once" + (
        f", {threads} threads each" if threads > 1 else ""
    )
    if memory < each * GIB:
        return Verdict("fail", found, f"{each} GiB for one compiler", "Build on another machine.")
    if memory < 2 * each * GIB and int(cpu["cores"]) > 1:
        return Verdict(
            "warn",
            found,
            f"{each} GiB for each compiler",
            "Close other programs; set MAX_JOBS=1 if the compiler is killed.",
            "set MAX_JOBS=1" if seen.windows else "export MAX_JOBS=1",
        )
    return ok(found)


def judge_space(seen: Seen) -> Verdict:
    from .build import SPACE_NEEDED

    free = seen.get("free_disk_bytes")
    if free is None:
        return unknown(seen.why("free_disk_bytes"))
    found = f"{free / GIB:.1f} GiB free for {seen.work}"
    if free >= SPACE_NEEDED:
        return ok(found)
    return Verdict(
        "fail",
        found,
        f"{SPACE_NEEDED // GIB} GiB: the build's environments, objects, and those of its tests",
        "Free some space, or name another disk with DSWIN_CACHE.",
    )


def judge_gxx(seen: Seen) -> Verdict:
    if seen.windows:
        return skipped("only for Linux")
    gxx, cuda = seen.get("g++"), needed_cuda(seen)
    if not gxx:
        return Verdict(
            "warn",
            seen.why("g++"),
            "a C++ compiler, where no conda channel answers (--deps pypi) or for a build by hand",
            "Install it.",
            "sudo apt-get install g++",
        )
    newest = NEWEST_GCC.get(cuda)
    if newest and parse_version(gxx["version"])[0] > newest:
        return Verdict(
            "warn",
            f"g++ {gxx['version']} at {gxx['path']}: too new for CUDA {cuda}",
            f"g++ {newest}: {BY_HAND}",
            "Install it beside the other, for a build by hand.",
            f"sudo apt-get install g++-{newest}",
        )
    return ok(f"g++ {gxx['version']} at {gxx['path']}")


def judge_builder(seen: Seen) -> Verdict:
    """The Python that runs dswin, and so the builder."""
    python, pythons = seen.get("python"), seen.needs.pythons if seen.needs else ()
    if seen.needs is None:
        return Verdict(
            "fail",
            seen.needs_problem,
            "a builder that loads, and the recipe",
            "On Windows install the newest Visual C++ runtime, then delete .venv and run again.",
        )
    if minor_of(python["version"]) not in pythons or python["bits"] != 64:
        return Verdict(
            "fail",
            f"Python {python['version']}, {python['bits']} bits",
            f"Python {pythons[0]} to {pythons[-1]}, 64 bits",
            "Set DSWIN_PYTHON to one, and delete .venv.",
        )
    return ok(f"Python {python['version']} for the variant {seen.variant}")


def judge_solver(seen: Seen) -> Verdict:
    """A driver, or the variable that stands for one: without it a solver leaves the CUDA packages out."""
    cuda = needed_cuda(seen)
    if not cuda:
        return skipped("the variant has no GPU code")
    override = seen.variables.get("CONDA_OVERRIDE_CUDA")
    serves = override or seen.get("cuda_of_driver")
    if serves and parse_version(serves) >= parse_version(cuda):
        return ok(f"CONDA_OVERRIDE_CUDA is {override}" if override else f"the driver serves CUDA {serves}")
    return Verdict(
        "warn",
        f"the driver serves CUDA {serves}" if serves else f"no driver: {seen.why('cuda_of_driver')}",
        f"CUDA {cuda}: the package's own environment asks for __cuda, and is not solved without",
        "Install a newer driver, or have the solver believe that there is one; then nothing is trained on a GPU.",
        f"{'set' if seen.windows else 'export'} CONDA_OVERRIDE_CUDA={cuda}",
    )


CHECKS = (
    SYSTEM,
    Check("builder", "Builder", BUILDING, judge_builder),
    *doctor_windows.CHECKS,
    Check("gxx", "g++", BUILDING, judge_gxx),
    Check("nvcc", "nvcc", VARIANTS, judge_nvcc),
    Check("cuda_home", "CUDA_HOME and CUDA_PATH", BUILDING, judge_cuda_home),
    Check("solver", "Driver for the solver", VARIANTS, judge_solver),
    Check("work", "Folder of builds", BUILDING, judge_work),
    LONG_PATHS_CHECK,
    Check("jobs", "Memory for compilers", BUILDING, judge_jobs),
    Check("space", "Disk for builds", BUILDING, judge_space),
)
