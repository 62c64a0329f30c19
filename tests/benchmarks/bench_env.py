"""From a lock to an environment: `dswin env create` against conda itself, cold and warm.

    .venv/bin/python tests/benchmarks/bench_env.py [--conda PYTHON] [--packages N] [--files N] [--lock FILE] [--rounds N]

conda is taken as `PYTHON -m conda create --file EXPLICIT`, from --conda, the variable DSWIN_CONDA_PYTHON, or this Python if it
has conda. Both get the same archives by file url. Cold: nothing fetched or unpacked; warm: everything. By default packages are
made up; --lock takes a real lock whose urls are files here. Prints seconds and ratios. conda compiles bytecode and
dswin does not; the made-up Python compiles nothing, so only a real lock shows what a user sees.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

import making  # noqa: E402
from dswin import lock, machine  # noqa: E402
from dswin.lock import Lock  # noqa: E402

RUN = "from dswin import cli, cli_env; cli.dswin.add_command(cli_env.env); import os; os._exit(cli.main())"


def make_lock(folder: Path, packages: int, files: int, platform: str) -> Path:
    """A lock of made-up packages: modules of 4 kB that compress as code does, and one library of 1 MB in each."""
    channel, noise = folder / "channel", random.Random(1)
    words = [f"word{number} = {number}\n" for number in range(5000)]
    made = [making.make_python(channel, platform)]
    for number in range(packages):
        name = f"package{number}"
        content = {
            f"site-packages/{name}/m{one}.py": "".join(noise.choices(words, k=220)).encode() for one in range(files)
        }
        content[f"lib/{name}.bin"] = noise.randbytes(2**20)
        commands = [f"{name} = {name}:m"]
        made.append(
            making.make_package(
                channel, name, noarch="python", files=content, depends=["python"], entry_points=commands
            )
        )
    return making.lock_of(folder / "bench.conda-lock.yml", made, making.to_url(channel), platform)


def find_conda(given: str | None) -> str | None:
    """The Python that has conda."""
    if chosen := given or os.environ.get("DSWIN_CONDA_PYTHON"):
        return chosen
    return sys.executable if importlib.util.find_spec("conda") else None


def time_command(command: list[str], **variables: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])
    return time.perf_counter() - start


def write_explicit(found: Lock, platform: str, path: Path) -> Path:
    lines = [f"{package.url}#{package.md5}" for package in found.on(platform)]
    path.write_text("\n".join(["@EXPLICIT", *lines]) + "\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conda", help="a Python that has conda")
    parser.add_argument("--packages", type=int, default=27)
    parser.add_argument("--files", type=int, default=120, help="modules in each package")
    parser.add_argument("--lock", type=Path, help="a lock of packages that are here")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    platform, conda = machine.this_platform(), find_conda(arguments.conda)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = arguments.lock or make_lock(folder, arguments.packages, arguments.files, platform)
        found = lock.read(file)
        explicit = write_explicit(found, platform, folder / "explicit.txt")
        ours = [sys.executable, "-c", RUN, "env", "create", "--lock", str(file), "--platform", platform]
        ours += ["--store", str(folder / "store"), "--prefix", str(folder / "ours")]
        theirs = [
            conda or "",
            "-m",
            "conda",
            "create",
            "--yes",
            "--quiet",
            "--offline",
            "--prefix",
            str(folder / "theirs"),
        ]
        theirs += ["--file", str(explicit)]
        print(f"{len(found.on(platform))} packages, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        for number in range(arguments.rounds):
            for kind in ("cold", "warm"):
                for part in ("ours", "theirs", *(("store", "pkgs") if kind == "cold" else ())):
                    shutil.rmtree(folder / part, ignore_errors=True)
                mine = time_command(ours, PYTHONPATH=str(ROOT / "scripts"))
                line = f"round {number + 1}, {kind}: dswin {mine:6.2f} s"
                if conda:
                    other = time_command(theirs, CONDA_PKGS_DIRS=str(folder / "pkgs"), CONDA_SOLVER="classic")
                    line += f", conda {other:6.2f} s: {other / mine:.1f} x as fast (1/{other / mine:.1f} of the time)"
                print(line, flush=True)
            again = time_command(ours, PYTHONPATH=str(ROOT / "scripts"))
            print(f"round {number + 1}, nothing to do: dswin {again:6.2f} s", flush=True)
    if conda is None:
        print("conda was not found: give --conda PYTHON, or set DSWIN_CONDA_PYTHON")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
