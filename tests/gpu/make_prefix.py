"""Runs recipe/build.sh for the torch, the CUDA toolkit and the GPU that this Linux machine has, where no conda channel answers.

What conda would bring is taken from the machine: the Python that runs this, with its torch, becomes a virtual environment's base;
the toolkit is the one that nvcc on PATH belongs to. The recipe's script does the rest, unchanged, for one architecture.

    python make_prefix.py --sdist deepspeed-0.19.8.tar.gz --prefix FOLDER
    python make_prefix.py --wheel WHEEL --prefix FOLDER     # one that an earlier run made, for more tests of it
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipe"


def make_environment(prefix: Path) -> Path:
    """Make a virtual environment that sees the packages of this Python, and return its site-packages."""
    venv.create(prefix, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(prefix), "platbase": str(prefix)}))
    (site / "base.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return site


def prepare_source(sdist: Path, folder: Path) -> None:
    """Unpack the sdist into ``folder``, add the files that it lacks, and apply the recipe's patches."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    for entry in list(top.iterdir()):
        entry.rename(folder / entry.name)
    top.rmdir()
    shutil.copytree(RECIPE / "windows", folder, dirs_exist_ok=True)
    program = ["patch", "-p1", "-i"] if shutil.which("patch") else ["git", "apply"]
    for patch in sorted((RECIPE / "patches").glob("*.patch")):
        subprocess.run([*program, patch], cwd=folder, check=True)


def find_toolkit() -> Path:
    """Return the folder of the CUDA toolkit that nvcc on PATH belongs to."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        sys.exit("ERROR: there is no nvcc on PATH and none in /usr/local/cuda/bin.")
    return Path(nvcc).resolve().parents[1]


def build(prefix: Path, site: Path, sdist: Path, archs: str) -> dict:
    """Run recipe/build.sh and return what it took."""
    toolkit = find_toolkit()
    source = prefix / "source"
    source.mkdir()
    prepare_source(sdist, source)
    cores = os.cpu_count() or 1
    variables = {
        "ds_variant": "cuda130",
        "TORCH_CUDA_ARCH_LIST": archs,
        "PREFIX": str(prefix),
        "BUILD_PREFIX": str(toolkit),
        "PYTHON": str(prefix / "bin" / "python"),
        "SP_DIR": str(site),
        "SRC_DIR": str(source),
        "RECIPE_DIR": str(RECIPE),
        "CXX": shutil.which("g++") or "g++",
        "CC": shutil.which("gcc") or "gcc",
        "MAX_JOBS": str(cores),
        "DS_NVCC_THREADS": "1",
    }
    started = time.monotonic()
    done = subprocess.run(
        ["bash", RECIPE / "build.sh"],
        cwd=source,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        sys.exit(f"ERROR: build.sh ended with {done.returncode}")
    (wheel,) = (source / "dist").glob("*.whl")
    return {
        "seconds": round(time.monotonic() - started, 1),
        "cores": cores,
        "archs": archs,
        "toolkit": toolkit.name,
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
    }


def install(prefix: Path, wheel: Path) -> dict:
    """Install a wheel that :func:`build` made, and the tests that a package brings."""
    python = prefix / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    share = prefix / "share" / "deepspeed-win"
    share.mkdir(parents=True)
    for file in (RECIPE / "ops.yaml", *(RECIPE / "tests").glob("*.py")):
        shutil.copy(file, share)
    return {"wheel": wheel.name, "wheel_bytes": wheel.stat().st_size}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sdist", type=Path)
    what.add_argument("--wheel", type=Path)
    parser.add_argument("--prefix", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--archs", help="GPU architectures, as 8.0;9.0+PTX  [default: that of the first GPU]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write there what was built and how long it took")
    arguments = parser.parse_args()

    import torch

    prefix = arguments.prefix.absolute()
    site = make_environment(prefix)
    if arguments.wheel:
        document = install(prefix, arguments.wheel.absolute())
    else:
        archs = arguments.archs or ".".join(map(str, torch.cuda.get_device_capability()))
        document = build(prefix, site, arguments.sdist.absolute(), archs)
    document["ops"] = sorted(str(file.relative_to(site)) for file in site.glob("deepspeed/**/*_op*.so"))
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{prefix}: {document}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
