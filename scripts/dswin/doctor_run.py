"""What `dswin doctor --for run` checks of an environment: its Python, torch, deepspeed, and what stands in their way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from . import doctor_active, doctor_torch
from .findings import OPS, TROUBLES, VARIANTS, Check, Verdict, name_install, ok, skipped, unknown
from .gpus import minor_of, parse_version
from .installation import DEEPSPEED, OURS, TORCH
from .seen import Seen


def judge_python(seen: Seen) -> Verdict:
    here, probe = seen.installation, seen.installation.probe
    if not here.python:
        return unknown("the environment has no Python")
    pythons = seen.needs.pythons if seen.needs else ("3.10", "3.11", "3.12")
    needed = f"CPython {pythons[0]} to {pythons[-1]}, 64 bits"
    if not probe.version:
        found = f"{here.python} does not start: {probe.error}"
        return Verdict("fail", found, needed, "Make a fresh environment.", name_install(seen))
    version, kind = minor_of(probe.version), probe.implementation
    if version not in pythons or kind != "CPython" or probe.bits == 32:
        return Verdict(
            "fail",
            f"{kind} {probe.version}, {probe.bits} bits: {here.python}",
            needed,
            "Make an environment with one of these.",
            f"{name_install(seen)} python={pythons[-2]}",
        )
    return ok(f"{probe.version}: {here.python}")


def judge_copies(seen: Seen) -> Verdict:
    """One torch and one deepspeed on the path, and the one that conda installed."""
    here, problems, copies = seen.installation, [], []
    for name, record in ((TORCH, "pytorch"), (DEEPSPEED, OURS)):
        found = here.find(name)
        if len(found) > 1:
            problems.append(" and ".join(map(str, found)))
            copies.append(found[0])
        elif found and record in here.records and name == TORCH:
            version = here.records[record].version
            if _plain(found[0].version) != _plain(version):
                problems.append(f"{found[0]} over conda's {record} {version}")
                copies.append(found[0])
    if problems:
        return Verdict(
            "fail",
            "; ".join(problems),
            "one torch and one deepspeed, both from the same installer",
            f"Take pip's away, then install conda's again. {_name_source(seen, [copy.site for copy in copies])}".strip(),
            f'"{here.python}" -m pip uninstall {" ".join(dict.fromkeys(copy.name for copy in copies))}',
        )
    outside = [one for one in here.packages if one.name in (TORCH, DEEPSPEED) and not _is_below(seen, one.site)]
    if outside and here.is_conda:
        sites = [one.site for one in outside]
        return Verdict(
            "fail",
            "; ".join(map(str, outside)) + ": not of this environment",
            "torch and deepspeed of the environment",
            _name_source(seen, sites),
        )
    return ok("; ".join(str(one) for name in (TORCH, DEEPSPEED) for one in here.find(name)) or "neither is installed")


def _plain(version: str) -> str:
    return version.split("+")[0]


def _is_below(seen: Seen, site: str) -> bool:
    return seen.path(seen.installation.prefix) in seen.path(site).parents


def _name_source(seen: Seen, sites: Sequence[str]) -> str:
    """Say what puts a folder outside the environment onto Python's path."""
    user = seen.installation.probe.user_site
    if user and user in sites:
        return "The user's own packages come before the environment's: set PYTHONNOUSERSITE=1, or uninstall them there."
    listed = seen.variables.get("PYTHONPATH", "").split(";" if seen.windows else ":")
    if any(seen.path(site) in [seen.path(one) for one in listed if one] for site in sites):
        return "PYTHONPATH puts them there: take it away."
    return ""


def judge_deepspeed(seen: Seen) -> Verdict:
    """deepspeed is there, and its ops are compiled."""
    here, install = seen.installation, name_install(seen)
    found = here.find(DEEPSPEED)
    if not found and here.ops is None:
        return Verdict("fail", "deepspeed is not installed", f"the package {OURS}", "Install it.", install)
    version = f"deepspeed {here.ops.version if here.ops else found[0].version}"
    if here.ops is None or not here.ops.ops:
        return Verdict(
            "fail" if seen.windows else "warn",
            f"{version} without compiled ops",
            f"the package {OURS}, whose ops are compiled",
            "Install it in a fresh environment: what is there compiles each op at its first use, with compiler and toolkit.",
            install,
        )
    origin = f" from {here.records[OURS]}" if OURS in here.records else f", not from a {OURS} package"
    return ok(f"{version}{origin}: {len(here.ops.ops)} ops for {here.ops.accelerator}")


def judge_files(seen: Seen) -> Verdict:
    """The files are those that the package brought: pip's deepspeed installs over them."""
    here = seen.installation
    if OURS not in here.records:
        return skipped(f"no {OURS} package is recorded here")
    record, found = here.records[OURS], here.find(DEEPSPEED)
    problems = [
        f"deepspeed is {one.version}, by {one.installer or 'some installer'}"
        for one in found
        if one.version != record.version
    ]
    if here.changed:
        more = f" and {len(here.changed) - 2} more" if len(here.changed) > 2 else ""
        problems.append(f"not as the package brought them: {', '.join(here.changed[:2])}{more}")
    if not problems:
        return ok(f"as {record} brought them")
    return Verdict(
        "fail",
        f"{record} is recorded, and {'; '.join(problems)}",
        "the package's own files",
        "pip installed another deepspeed over it. Install the package again, and leave deepspeed out of pip install.",
        f'conda install --force-reinstall -p "{here.prefix}" -c OURCHANNEL {OURS}={record.version}={record.build}',
    )


def judge_requirements(seen: Seen) -> Verdict:
    """What deepspeed's own METADATA asks for, numpy and pydantic among it; setuptools by the recipe."""
    here = seen.installation
    if not here.requires:
        return unknown("deepspeed's requirements are not known")
    version = minor_of(here.python_version or "3.11")
    wanted = []
    for text in here.requires:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": "", "python_version": version}):
                wanted.append(requirement)
        except InvalidRequirement:
            return unknown(f"{text!r} is no requirement")
    # Where distutils comes from since Python 3.12, which DeepSpeed imports; its METADATA does not say so.
    if parse_version(version) >= (3, 12):
        wanted.append(Requirement("setuptools"))
    problems = [problem for one in wanted if (problem := _compare(seen, one))]
    if problems:
        return Verdict(
            "fail",
            "; ".join(problems),
            ", ".join(str(one) for one in wanted if one.specifier) or "what deepspeed requires",
            "Install what is missing with conda, in the same environment.",
            f'conda install -p "{here.prefix}" {" ".join(canonicalize_name(one.name) for one in wanted if _compare(seen, one))}',
        )
    named = [str(one) for name in ("numpy", "pydantic", "setuptools") for one in here.find(name)[:1]]
    return ok(f"{len(wanted)} requirements are met; {'; '.join(re.sub(' in .*', '', one) for one in named)}")


def _compare(seen: Seen, requirement: Requirement) -> str:
    """Say what is wrong with the copy of a distribution that Python takes."""
    name = canonicalize_name(requirement.name)
    if name == TORCH:  # its own check says more
        return ""
    found = seen.installation.find(name)
    if not found:
        return f"{name} is not installed"
    try:
        right = requirement.specifier.contains(Version(found[0].version), prereleases=True)
    except InvalidVersion:
        right = False
    return "" if right else f"{name} is {found[0].version}, not {requirement.specifier}"


def judge_ninja(seen: Seen) -> Verdict:
    ninja = seen.installation.find("ninja")
    program = seen.get("ninja")
    if ninja or program:
        return ok(str(ninja[0]) if ninja else f"ninja {program['version']} at {program['path']}")
    return ok(
        "not there, which harms nothing: the ops are compiled already; only other ops, compiled on demand, would need it"
    )


def judge_readable(seen: Seen) -> Verdict:
    problems = seen.installation.problems
    if not problems:
        return ok("every file that was looked into could be read")
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return Verdict(
        "warn",
        "; ".join(problems[:3]) + more,
        "files that can be read",
        "Make the environment anew.",
        name_install(seen),
    )


CHECKS = (
    doctor_active.ACTIVE,
    Check("python", "Python", VARIANTS, judge_python),
    *doctor_torch.CHECKS,
    Check("copies", "One torch, one deepspeed", TROUBLES, judge_copies),
    Check("deepspeed", "deepspeed", OPS, judge_deepspeed),
    Check("files", "Files of the package", TROUBLES, judge_files),
    Check("requirements", "What deepspeed requires", TROUBLES, judge_requirements),
    Check("ninja", "ninja", OPS, judge_ninja),
    Check("readable", "Files of the environment", TROUBLES, judge_readable),
)
