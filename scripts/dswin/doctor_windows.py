"""What `dswin doctor --for build` checks of Windows: Visual Studio, the toolset that this CUDA accepts, the Windows SDK."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from .findings import BUILDING, VARIANTS, Check, Verdict, ok, skipped, unknown
from .gpus import minor_of, parse_version
from .seen import Seen

RECIPE = Path(__file__).resolve().parents[2] / "recipe"
INSTALLER = r'"%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\setup.exe"'
BUILD_TOOLS = (
    "winget install Microsoft.VisualStudio.2022.BuildTools --override "
    '"--passive --wait --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended"'
)
SDK = "Microsoft.VisualStudio.Component.Windows11SDK.22621"


@cache
def load(name: str) -> ModuleType:
    """Return a script of the recipe: toolset.py has which cl.exe a CUDA accepts, jobs.py what a compiler takes.

    It is no import: Python would leave its cache in the recipe's folder, and what lies there is packed.
    """
    file = RECIPE / f"{name}.py"
    module = ModuleType(f"recipe_{name}")
    module.__file__ = str(file)
    exec(compile(file.read_bytes(), file, "exec"), module.__dict__)
    return module


def needed_cuda(seen: Seen) -> str:
    """Return the CUDA that the variant is built with; "" for the CPU."""
    return seen.needs.cuda if seen.needs else ""


def name_pair(cuda: str) -> tuple[str, str, str]:
    """Return a toolset that a CUDA accepts: its name in the Visual Studio Installer, its id there, and the conda package."""
    minor = load("toolset").PAIRED.get(cuda)
    if minor is None:
        name = "Desktop development with C++ (MSVC v143, the newest)"
        return name, "Microsoft.VisualStudio.Component.VC.Tools.x86.x64", "vs2022_win-64"
    return (
        load("toolset").name_component(minor),
        f"Microsoft.VisualStudio.Component.VC.14.{minor}.17.{minor - 30}.x86.x64",
        f"vs2022_win-64 19.{minor}.*",
    )


def name_component(studio: dict, component: str) -> str:
    """Return the command that adds a component to a Visual Studio."""
    return f'{INSTALLER} modify --installPath "{studio["folder"]}" --add {component} --passive'


def judge_toolset(toolset: str, cuda: str) -> str | None:
    """Return what is wrong with a toolset (14.39.33519, whose cl.exe is 19.39) for a CUDA, as recipe/toolset.py says it."""
    major, minor = parse_version(toolset)[:2]
    return load("toolset").judge((major + 5, minor), cuda)


def _list_studios(seen: Seen) -> list[dict]:
    """Return the Visual Studios of 2022."""
    return [one for one in seen.get("visual_studio") or [] if str(one.get("version") or "").startswith("17.")]


def judge_studio(seen: Seen) -> Verdict:
    if not seen.windows:
        return skipped("only for Windows")
    needed = "Visual Studio 2022, or its build tools, with the C++ workload"
    studios = _list_studios(seen)
    with_cpp = [one for one in studios if one.get("toolsets")]
    if with_cpp:
        unfinished = [str(one["name"]) for one in with_cpp if one.get("complete") is False]
        if len(unfinished) == len(with_cpp):
            return Verdict(
                "warn",
                f"{', '.join(unfinished)}: not completely installed",
                needed,
                "Repair it in the Visual Studio Installer.",
            )
        return ok("; ".join(f"{one['name']} {one['version']}" for one in with_cpp))
    if studios:
        command = name_component(studios[0], "Microsoft.VisualStudio.Workload.VCTools --includeRecommended")
        return Verdict("fail", f"{studios[0]['name']} without C++ compilers", needed, "Add the workload.", command)
    others = ", ".join(f"{one['name']} {one['version']}" for one in seen.get("visual_studio") or [])
    return Verdict(
        "fail", others or f"none: {seen.why('visual_studio')}", needed, "Install the build tools.", BUILD_TOOLS
    )


def judge_toolsets(seen: Seen) -> Verdict:
    """A toolset that this CUDA accepts is installed."""
    if not seen.windows:
        return skipped("only for Windows")
    studios, cuda = _list_studios(seen), needed_cuda(seen)
    toolsets = [str(toolset) for one in studios for toolset in one.get("toolsets") or []]
    if not toolsets:
        return unknown("no Visual Studio 2022 with C++ compilers was found")
    accepted = [toolset for toolset in toolsets if judge_toolset(toolset, cuda) is None]
    component, identity, package = name_pair(cuda)
    installed = f"installed: {', '.join(toolsets)}"
    pair = f"the component '{component}' and the conda package {package}, which are a pair"
    if not accepted:
        command = name_component(studios[0], identity)
        return Verdict(
            "fail",
            f"{installed}: none that CUDA {cuda} accepts" if cuda else f"{installed}: too old",
            pair,
            "Add the component; the others may stay.",
            command,
        )
    minors, paired = {parse_version(toolset)[1] for toolset in accepted}, load("toolset").PAIRED.get(cuda)
    if paired is not None and paired not in minors:
        return Verdict(
            "warn",
            f"{installed}; CUDA {cuda} accepts {', '.join(accepted)}",
            f"the toolset of the vs2022_win-64 that conda chooses below 19.40; seen was 19.{paired}",
            f"If vcvars does not find what conda asks for, add '{component}', or pin vs2022_win-64 to 19.{max(minors)}.*.",
        )
    return ok(f"{', '.join(accepted)}" + (f", which CUDA {cuda} accepts" if cuda else ""))


def judge_cl(seen: Seen) -> Verdict:
    """The cl.exe on PATH, which a build by hand takes."""
    if not seen.windows:
        return skipped("only for Windows")
    cl, cuda = seen.get("cl"), needed_cuda(seen)
    if not cl:
        return ok("cl is not on PATH, and need not be: conda's compiler package finds it")
    problem = load("toolset").judge(parse_version(cl["version"])[:2], cuda)
    if problem is None:
        return ok(f"cl {cl['version']} at {cl['path']}")
    accepted = [
        toolset
        for one in _list_studios(seen)
        for toolset in one.get("toolsets") or []
        if judge_toolset(str(toolset), cuda) is None
    ]
    if accepted:
        fix = "Start the build from a plain prompt; by hand, from one of the older toolset."
        vcvars = rf'"{_list_studios(seen)[0]["folder"]}\VC\Auxiliary\Build\vcvars64.bat"'
        command = f"{vcvars} -vcvars_ver={minor_of(str(accepted[-1]))}"
        return Verdict(
            "warn",
            f"cl {cl['version']} is on PATH, which CUDA {cuda} does not accept; {accepted[-1]} is installed too",
            problem,
            fix,
            command,
        )
    return Verdict(
        "fail",
        f"cl {cl['version']} at {cl['path']}, which CUDA {cuda} does not accept",
        problem,
        "Add the component that the toolset's check names.",
    )


def judge_sdk(seen: Seen) -> Verdict:
    if not seen.windows:
        return skipped("only for Windows")
    found = seen.get("windows_sdks")
    if found:
        return ok(", ".join(found))
    studios = _list_studios(seen)
    command = (
        f'{INSTALLER} modify --installPath "{studios[0]["folder"]}" --add {SDK} --passive' if studios else BUILD_TOOLS
    )
    return Verdict(
        "fail",
        f"none: {seen.why('windows_sdks')}",
        "a Windows SDK with headers for programs",
        "Add it to Visual Studio.",
        command,
    )


def judge_sdk_switch(seen: Seen) -> Verdict:
    """torch's BuildExtension stops in a Visual Studio prompt where DISTUTILS_USE_SDK is not set."""
    if not seen.windows:
        return skipped("only for Windows")
    if seen.variables.get("VSINSTALLDIR") and not seen.variables.get("DISTUTILS_USE_SDK"):
        return Verdict(
            "warn",
            "this is a Visual Studio prompt, and DISTUTILS_USE_SDK is not set",
            "both or neither: the recipe sets it itself, and a build by hand stops without it",
            "Set it for a build by hand.",
            "set DISTUTILS_USE_SDK=1",
        )
    return ok("as it should be: the recipe sets it itself")


def judge_code_page(seen: Seen) -> Verdict:
    if not seen.windows:
        return skipped("only for Windows")
    pages = seen.get("code_pages")
    if not pages:
        return unknown(seen.why("code_pages"))
    found = f"ANSI {pages['ansi']}, console {pages['console'] or 'none'}"
    if pages["ansi"] == 65001 or seen.variables.get("PYTHONUTF8") == "1":
        return ok(f"{found}; Python reads and writes UTF-8")
    return Verdict(
        "warn",
        found,
        "UTF-8 for Python in a build by hand; the recipe sees to it itself",
        "Set both before a build by hand.",
        "chcp 65001 & set PYTHONUTF8=1",
    )


CHECKS = (
    Check("visual_studio", "Visual Studio", BUILDING, judge_studio),
    Check("toolset", "MSVC toolset", VARIANTS, judge_toolsets),
    Check("cl", "cl.exe on PATH", VARIANTS, judge_cl),
    Check("windows_sdk", "Windows SDK", BUILDING, judge_sdk),
    Check("distutils_use_sdk", "DISTUTILS_USE_SDK", BUILDING, judge_sdk_switch),
    Check("code_page", "Code page", BUILDING, judge_code_page),
)
