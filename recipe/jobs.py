"""How many compilers may run at once: prints MAX_JOBS and DS_NVCC_THREADS for the build script.

One job per core, and no more than the memory holds. A C++ file that includes torch takes up to 2 GiB, nvcc up to 3 GiB a
thread; nvcc's --threads multiplies the jobs, so the two are decided together. A value that is already set wins.

Writes NAME=value lines on Linux and `set "NAME=value"` lines on Windows.
"""

from __future__ import annotations

import os
import sys

import psutil

GIB = 2**30
GIB_PER_JOB = 2
GIB_PER_NVCC_THREAD = 3


def decide(cores: int, memory: int, cuda: bool) -> tuple[int, int]:
    """Return (jobs, nvcc threads a job) for a machine with ``cores`` and ``memory`` bytes available."""
    if not cuda:
        return max(1, min(cores, memory // (GIB_PER_JOB * GIB))), 1
    slots = max(1, min(cores, memory // (GIB_PER_NVCC_THREAD * GIB)))
    # Two threads a job use the cores better at the end of a build, when fewer files are left than cores.
    threads = 2 if slots >= 4 else 1
    return max(1, slots // threads), threads


def main() -> None:
    # CPU_COUNT is what conda-build and rattler-build tell a build script to use.
    cores = int(os.environ.get("CPU_COUNT") or os.cpu_count() or 1)
    jobs, threads = decide(cores, psutil.virtual_memory().available, os.environ.get("DS_ACCELERATOR") == "cuda")
    line = 'set "{}={}"' if sys.platform == "win32" else "export {}={}"
    print(line.format("MAX_JOBS", os.environ.get("MAX_JOBS") or jobs))
    print(line.format("DS_NVCC_THREADS", os.environ.get("DS_NVCC_THREADS") or threads))


if __name__ == "__main__":
    main()
