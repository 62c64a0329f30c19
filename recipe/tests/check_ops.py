"""Holds an installed DeepSpeed to ops.yaml: no op missing, none extra, each one importable.

In the build script, where DeepSpeed's dependencies are not installed, only what setup.py recorded and the files are
checked (--installed-in). In the package's tests every op is imported and ds_report is read.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

PLATFORM = {"win32": "win-64", "linux": "linux-64"}[sys.platform]


def expected_ops(ops: dict, platform: str, accelerator: str) -> dict[str, str]:
    """Return {op: module} of the ops that a package for ``platform`` and ``accelerator`` must hold."""
    return {name: op["module"] for name, op in ops.items() if op[platform] == 1 and accelerator in op["accelerators"]}


def compare(expected: set[str], found: set[str], where: str) -> list[str]:
    """Return one sentence for each op that ``where`` lacks or should not have."""
    return [f"{where}: op {name} is missing" for name in sorted(expected - found)] + [
        f"{where}: op {name} is there and ops.yaml does not list it" for name in sorted(found - expected)
    ]


def recorded(site_packages: Path) -> dict:
    """Return what setup.py wrote about the build: installed_ops, accelerator_name, torch_info, version, git_hash."""
    return runpy.run_path(str(site_packages / "deepspeed" / "git_version_info_installed.py"))


def op_file(site_packages: Path, module: str) -> Path | None:
    """Return the compiled file of ``module`` below ``site_packages``, or None."""
    folder = site_packages.joinpath(*module.split(".")[:-1])
    suffix = ".pyd" if sys.platform == "win32" else ".so"
    files = [f for f in folder.glob(module.rsplit(".", 1)[1] + ".*") if f.suffix == suffix]
    return files[0] if len(files) == 1 else None


def read_report(text: str) -> dict[str, tuple[bool, bool]]:
    """Return {op: (installed, compatible)} from what ds_report prints.

    "compatible" is whether the op could also be built here; without a CUDA toolkit that is [NO] for ops that work.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = re.findall(r"^(\w+) \.* *\[(YES|NO)\] \.* *\[(OKAY|NO)\]", plain, re.MULTILINE)
    return {name: (installed == "YES", compatible == "OKAY") for name, installed, compatible in rows}


def run_report() -> str:
    """Return the output of the ds_report that stands in this environment."""
    program = shutil.which("ds_report.bat" if sys.platform == "win32" else "ds_report")
    if program is None:
        sys.exit("ERROR: ds_report is not on PATH")
    done = subprocess.run([program], capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode != 0:
        sys.exit(f"ERROR: ds_report ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accelerator", required=True, choices=["cuda", "cpu"], help="what this variant was built for")
    parser.add_argument("--ops", type=Path, default=Path(__file__).with_name("ops.yaml"))
    parser.add_argument("--installed-in", type=Path, help="site-packages; check files and records only")
    arguments = parser.parse_args()

    # Prebuilt ops count only under the accelerator they were built for; without a GPU DeepSpeed would choose the CPU.
    os.environ["DS_ACCELERATOR"] = arguments.accelerator
    ops = yaml.safe_load(arguments.ops.read_text(encoding="utf-8"))["ops"]
    expected = expected_ops(ops, PLATFORM, arguments.accelerator)

    site_packages = arguments.installed_in
    if site_packages is None:
        import deepspeed

        site_packages = Path(deepspeed.__file__).parent.parent
    info = recorded(site_packages)
    problems = compare(set(expected), {name for name, built in info["installed_ops"].items() if built}, "installed_ops")
    if info["accelerator_name"] != arguments.accelerator:
        problems.append(f"built for accelerator {info['accelerator_name']}, not {arguments.accelerator}")
    if info["git_hash"] != "unknown":
        problems.append(f"git hash {info['git_hash']} of some other repository was recorded")
    if info["version"] != info["version"].strip():
        problems.append(f"version {info['version']!r} has spaces around it")
    problems += [
        f"{name}: no single compiled file for {module}"
        for name, module in expected.items()
        if op_file(site_packages, module) is None
    ]

    if arguments.installed_in is None:
        for name, module in expected.items():
            try:
                path = Path(importlib.import_module(module).__file__)
            except ImportError as error:
                problems.append(f"{name}: {module} does not import: {error}")
            else:
                if path != op_file(site_packages, module):
                    problems.append(f"{name}: {module} was imported from {path}")
        report = read_report(run_report())
        problems += compare(set(expected), {name for name, row in report.items() if row[0]}, "ds_report")
        for name in expected:
            compatible = report.get(name, (False, False))[1]
            print(f"{name:24} installed, imports{'' if compatible else '; could not be rebuilt on this machine'}")

    for problem in problems:
        print(f"ERROR: {problem}", file=sys.stderr)
    print(f"{len(expected)} ops expected on {PLATFORM} for {arguments.accelerator}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
