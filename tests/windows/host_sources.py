"""Compiles the C++ sources of DeepSpeed's CUDA ops, those that nvcc never sees; run by a Windows Python that has torch.

    python host_sources.py SOURCE INCLUDE OUT CUDA

SOURCE is DeepSpeed's patched source, INCLUDE the headers of a CUDA toolkit, OUT a folder for the objects, CUDA its major.minor.
Prints a line for each file, and ends with 1 when one does not compile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch


def list_sources(source: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Return {file: (include folders, flags)} as DeepSpeed's builders have them for the CUDA accelerator."""
    os.environ["DS_ACCELERATOR"] = "cuda"
    os.chdir(source)
    sys.path.insert(0, str(source))
    from op_builder.all_ops import ALL_OPS
    from op_builder.builder import CUDAOpBuilder

    found: dict[str, tuple[set[str], set[str]]] = {}
    for name, builder in ALL_OPS.items():
        if not isinstance(builder, CUDAOpBuilder) or name not in WANTED:
            continue
        builder.enable_bf16 = True
        flags = {flag for flag in builder.cxx_args() if flag}
        for file in builder.sources():
            if file.endswith(".cpp"):
                known = found.setdefault(file, (set(), set()))
                known[0].update(str(source / folder) for folder in builder.include_paths() if folder)
                known[1].update(flags)
    return found


def compile_one(file: str, includes: set[str], flags: set[str], folder: Path) -> tuple[str, int, str]:
    words = ["cl", "/nologo", "/c", "/MD", "/EHsc", "/std:c++17", "/W0", f"/Fo{folder / '-'.join(Path(file).parts)}.obj",
             "-DTORCH_API_INCLUDE_EXTENSION_H", "-DTORCH_EXTENSION_NAME=op", "-DBF16_AVAILABLE", *sorted(flags)]  # fmt: skip
    words += [f"-I{folder}" for folder in sorted(includes)]
    done = subprocess.run([*words, file], capture_output=True, text=True, errors="replace", check=False)
    return file, done.returncode, done.stdout + done.stderr


WANTED: set[str] = set()


def main() -> int:
    source, include, out = map(Path, sys.argv[1:4])
    WANTED.update(sys.argv[5:])
    torch.version.cuda = sys.argv[4]
    torch_includes = [str(Path(torch.__file__).parent / "include" / part) for part in ("", "torch/csrc/api/include")]
    python = sysconfig.get_paths()["include"]
    files = list_sources(source)
    failed = 0
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        jobs = [
            pool.submit(compile_one, file, includes | {str(include), python, *torch_includes}, flags, out)
            for file, (includes, flags) in sorted(files.items())
        ]
        for job in jobs:
            file, code, output = job.result()
            print(f"{'compiled' if code == 0 else 'FAILED'} {file}", flush=True)
            if code:
                print(output, flush=True)
                failed += 1
    print(f"{len(files)} files, {failed} failed, torch {torch.__version__}, CUDA headers {sys.argv[4]}")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
