"""How fast the ops are compiled: the recipe's way against upstream's own, in one run.

    .venv/bin/python tests/benchmarks/build_ops.py [--ops NAME,NAME] [--rounds N]

Both compile the same ops against the same torch in the environment of the deps channel: upstream's source and setup.py as they
stand, one file after the other; ours patched, with ninja on all cores (DS_ENABLE_NINJA, MAX_JOBS). Then a rebuild after one op's
source was touched. Needs the deps channel that `dswin build` leaves in .dswin. Prints seconds and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from dswin import build, ops, source  # noqa: E402


def make_environment(prefix: Path, channels: list[str], python: str, torch: str) -> None:
    """Install what the recipe's build and host sections ask for into one prefix."""
    import rattler

    async def run() -> None:
        records = await rattler.solve(
            sources=[rattler.Channel(url) for url in channels],
            specs=[
                f"python {python}.*",
                f"pytorch {torch}.* *cpu*",
                "gxx_linux-64",
                "ninja",
                "setuptools",
                "psutil",
                "packaging",
            ],
            platforms=["linux-64", "noarch"],
            gateway=rattler.Gateway(
                default_config=rattler.SourceConfig(sharded_enabled=False, zstd_enabled=False, bz2_enabled=False)
            ),
            virtual_packages=rattler.VirtualPackage.detect(),
        )
        await rattler.install(records=records, target_prefix=str(prefix), show_progress=False)

    asyncio.run(run())


def unpack(sdist: Path, into: Path, patched: bool) -> None:
    """Unpack DeepSpeed's source and patch it, or not, as the recipe does."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into.parent, filter="data")
    (into.parent / sdist.name.removesuffix(".tar.gz")).rename(into)
    for patch in () if not patched else sorted((ROOT / "recipe" / "patches").glob("*.patch")):
        subprocess.run(["patch", "-p1", "-s", "-i", str(patch)], cwd=into, check=True)


def compile_ops(tree: Path, prefix: Path, flags: list[str], ninja: bool) -> float:
    """Compile the ops that ``flags`` switch on and return the seconds it took."""
    environment = {
        **os.environ,
        "PATH": f"{prefix}/bin:{os.environ['PATH']}",
        "CONDA_PREFIX": str(prefix),
        "DS_ACCELERATOR": "cpu",
        "DS_BUILD_SIMD": "avx2",
        **dict.fromkeys(flags, "1"),
        **({"DS_ENABLE_NINJA": "1", "MAX_JOBS": str(os.cpu_count())} if ninja else {}),
    }
    start = time.perf_counter()
    program = f"exec '{prefix}/bin/python' setup.py build_ext --inplace"
    # The recipe compiles under the compiler's activation, whose CFLAGS stand for those that Python was built with.
    activation = 'for f in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do . "$f"; done; ' if ninja else ""
    done = subprocess.run(
        ["bash", "-c", activation + program],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="cpu_adam,cpu_adagrad,cpu_lion", help="names of ops.yaml, or all")
    parser.add_argument("--rounds", type=int, default=1, help="each way is timed so often, in turn")
    arguments = parser.parse_args()
    cache, recipe = ROOT / ".dswin", ROOT / "recipe"
    platform, python = build.this_platform(), build.this_python()
    variant = build.choose(recipe, platform, "cpu", python)
    built = [op for op in ops.read(recipe) if op.is_built(platform, "cpu")]
    chosen = [op for op in built if arguments.ops == "all" or op.name in arguments.ops.split(",")]
    flags = [op.flag for op in chosen]
    channels = build.find_deps("pypi", cache, recipe, platform, variant, print)
    sdist = source.fetch(source.read(recipe), cache / "source", print)
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "prefix"
        make_environment(prefix, channels, python, build.torch_of(recipe, platform, "cpu"))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, ops: {', '.join(op.name for op in chosen)}")
        for round_number in range(arguments.rounds):
            seconds = {}
            for name, ninja in (("upstream", False), ("ours", True)):
                tree = Path(folder) / name
                shutil.rmtree(tree, ignore_errors=True)
                unpack(sdist, tree, patched=ninja)
                seconds[name] = compile_ops(tree, prefix, flags, ninja)
                print(f"round {round_number + 1}: {name:9} {seconds[name]:6.1f} s", flush=True)
            touched = next((Path(folder) / "ours" / "csrc").glob(f"*/{chosen[0].name}.cpp"))
            touched.write_text(touched.read_text() + "\n")
            again = compile_ops(Path(folder) / "ours", prefix, flags, ninja=True)
            print(f"round {round_number + 1}: ours again after touching {touched.name} {again:6.1f} s")
            print(
                f"ratio: {seconds['upstream'] / seconds['ours']:.2f} x as fast as upstream's way; "
                f"the rebuild takes {again / seconds['ours']:.2f} of a cold one",
                flush=True,
            )
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
