"""One contender of `dswin bench cpu-adam`: ``python measure_adam.py KIND [OP]``, in a Python that has torch.

It makes optimizer steps when it is told to, so that another process can let several contenders, each in its own environment,
run in turn. It imports nothing of dswin and runs on Linux and Windows. KIND is one of

    op            adam_update of the cpu_adam_op extension OP (a file, or "installed": that of this environment's deepspeed)
    torch-fused   torch.optim.AdamW(fused=True)
    memory        in-place sums of the same arrays: what the memory allows

First it writes one line of JSON about itself. Then it reads lines "SIZE THREADS" and answers each with the seconds that one
step over SIZE float32 parameters took. What it writes on purpose begins with "= ". An empty line or the end of the input
ends it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# An idle contender must not keep the cores busy while another one runs.
os.environ.update(KMP_BLOCKTIME="0", OMP_WAIT_POLICY="PASSIVE")

import torch

LR, BETAS, EPS, WEIGHT_DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.01
#: A short step is repeated until so many parameters were stepped.
ELEMENTS = 8_000_000
#: Bytes that one step moves for one parameter: parameter and both moments are read and written, the gradient is read;
#: "memory" reads and writes two arrays and reads two.
STEP_BYTES, MEMORY_BYTES = 7 * 4, 6 * 4

Step = Callable[[], object]


def find_op() -> Path:
    """Return the extension in this environment's deepspeed, without importing that."""
    found = importlib.util.find_spec("deepspeed")
    folders = (found.submodule_search_locations if found else None) or []
    files = [file for folder in folders for file in Path(folder).glob("ops/adam/cpu_adam_op.*") if file.suffix != ".py"]
    if len(files) != 1:
        raise SystemExit(f"ERROR: this environment has {len(files)} cpu_adam_op, not one: {folders}")
    return files[0]


def load_op(file: Path) -> Any:
    """Import an extension from its file, whatever the file is called."""
    loader = importlib.machinery.ExtensionFileLoader("cpu_adam_op", str(file))
    spec = importlib.util.spec_from_file_location("cpu_adam_op", file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def make_arrays(size: int) -> list[torch.Tensor]:
    """Return parameter, gradient and two moments, all written to, so that all their pages exist."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.empty(size).uniform_(-1, 1, generator=generator) for _ in range(2)]
    return [*made, torch.zeros(size).fill_(1e-3), torch.zeros(size).fill_(1e-3)]


def prepare(kind: str, op: Any, size: int) -> Step:
    """Return a function that makes one step over ``size`` parameters."""
    param, gradient, avg, square = make_arrays(size)
    if kind == "memory":
        return lambda: (avg.add_(gradient), square.add_(param))
    if kind == "torch-fused":
        variable = torch.nn.Parameter(param)
        variable.grad = gradient
        return torch.optim.AdamW([variable], lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=True).step
    op.create_adam(0, LR, *BETAS, EPS, WEIGHT_DECAY, True, False)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        op.adam_update(0, steps, LR, *BETAS, EPS, WEIGHT_DECAY, True, param, gradient, avg, square)

    return step


def answer(kind: str, op: Any) -> None:
    """Answer every line of the input."""
    size, step, before = 0, None, 0
    for line in sys.stdin:
        if not line.strip():
            return
        wanted, threads = map(int, line.split())
        torch.set_num_threads(threads)
        if wanted != size:
            # The old arrays go before the new ones come.
            step = None
            size, step, before = wanted, prepare(kind, op, wanted), 0
        assert step is not None
        if before != threads:
            # Threads start and pages arrive outside of the measurement.
            step()
            before = threads
        repeats = max(1, ELEMENTS // size)
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        print("=", (time.perf_counter() - start) / repeats, flush=True)


def main() -> None:
    kind = sys.argv[1]
    if kind not in ("op", "torch-fused", "memory"):
        raise SystemExit(f"ERROR: unknown kind {kind}")
    file, op = None, None
    if kind == "op":
        file = find_op() if sys.argv[2] == "installed" else Path(sys.argv[2])
        op = load_op(file)
    about = {
        "kind": kind,
        "file": file and file.name,
        "bytes_per_parameter": MEMORY_BYTES if kind == "memory" else STEP_BYTES,
        "python": "{}.{}.{}".format(*sys.version_info),
        "torch": str(torch.__version__),
        "platform": sys.platform,
    }
    print("=", json.dumps(about), flush=True)
    with torch.no_grad():
        answer(kind, op)


if __name__ == "__main__":
    main()
