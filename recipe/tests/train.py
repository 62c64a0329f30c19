"""One training job, as a user would write it, and whether it learns.

512-1024-512, ZeRO stage 2, 100 steps on one fixed batch. On CUDA: fp16 with FusedAdam. On the CPU: once with the optimizer
offloaded (DeepSpeedCPUAdam) and once without, which is optimizer "Adam" as in most tutorials and needs the CPU's fused_adam
op. The loss must fall to a tenth. Nothing may be compiled on the way: the package's point is that its ops are.

Exit codes: 0 trained, or skipped with the reason printed; 1 something is wrong; 3 a GPU is required and there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

STEPS = 100
REPORT_EVERY = 20
WIDTH, HIDDEN = 512, 1024
MICRO_BATCH = 8
ACCUMULATION = 1
#: The loss after the last step is at most this part of the loss after the first.
MUST_FALL_TO = 0.1


def set_up_process(accelerator: str) -> Path:
    """Set what a launcher would set for a single process, and return the empty folder that JIT builds would go to.

    DeepSpeed otherwise looks for MPI. A value that is already set, by a launcher say, wins.
    """
    os.environ["DS_ACCELERATOR"] = accelerator
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        os.environ.setdefault(name, value)
    folder = tempfile.mkdtemp(prefix="no-jit-")
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    return Path(folder)


def configure(*, fp16: bool, offload: bool, ranks: int) -> dict:
    """Return DeepSpeed's configuration; the batch sizes agree because one of them is computed."""
    zero: dict = {"stage": 2}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_batch_size": MICRO_BATCH * ACCUMULATION * ranks,
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "zero_optimization": zero,
        "fp16": {"enabled": fp16},
    }


def train(config: dict, expected_optimizer: str) -> dict:
    """Train and return what was measured: losses, seconds of the first step and of a steady one, memory.

    :raises SystemExit: when the loss does not fall, or another optimizer runs than the one that was asked for.
    """
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, WIDTH))
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    inner = getattr(optimizer, "optimizer", optimizer)
    if type(inner).__name__ != expected_optimizer:
        sys.exit(f"ERROR: the optimizer is {type(inner).__name__}, not {expected_optimizer}")

    dtype = torch.half if config["fp16"]["enabled"] else torch.float
    x = torch.randn(MICRO_BATCH, WIDTH).to(engine.device, dtype)
    y = torch.randn(MICRO_BATCH, WIDTH).to(engine.device, dtype)
    losses, seconds = [], []
    for step in range(STEPS):
        accelerator.synchronize()
        start = time.perf_counter()
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
        if step % REPORT_EVERY == 0 or step == STEPS - 1:
            print(f"  step {step:3}  loss {losses[-1]:.5f}", flush=True)
    if not losses[-1] <= MUST_FALL_TO * losses[0]:
        sys.exit(f"ERROR: the loss fell from {losses[0]:.5f} to {losses[-1]:.5f}, not to a tenth")

    steady = sorted(seconds[STEPS // 2 :])
    return {
        "device": accelerator.device_name() if accelerator.device_name() == "cpu" else torch.cuda.get_device_name(),
        "optimizer": expected_optimizer,
        "train_batch_size": config["train_batch_size"],
        "losses": losses,
        "first_step_s": seconds[0],
        "steady_step_s": steady[len(steady) // 2],
        "peak_memory_bytes": peak_memory(),
    }


def peak_memory() -> int:
    """Return the most memory in use so far, in bytes: the GPU's where there is one, else this process's."""
    import psutil
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accelerator", required=True, choices=["cuda", "cpu"], help="what this variant was built for")
    parser.add_argument("--require-gpu", action="store_true", help="fail where no GPU can be used, instead of skipping")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    # DeepSpeed's launcher gives it; the variable LOCAL_RANK, which it sets too, is what counts.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    import torch

    has_gpu = torch.cuda.is_available()
    if arguments.require_gpu and not (has_gpu and arguments.accelerator == "cuda"):
        reason = "this is a CPU build" if arguments.accelerator == "cpu" else "torch sees none"
        print(f"ERROR: a GPU is required and cannot be used: {reason} (torch {torch.__version__}).", file=sys.stderr)
        return 3
    if arguments.accelerator == "cuda" and not has_gpu:
        print("SKIPPED: the CUDA training step. torch sees no GPU on this machine; --require-gpu makes that an error.")
        return 0

    jit_folder = set_up_process(arguments.accelerator)
    ranks = int(os.environ["WORLD_SIZE"])
    if arguments.accelerator == "cuda":
        runs = [("fp16, FusedAdam", configure(fp16=True, offload=False, ranks=ranks), "FusedAdam"),
                ("fp16, optimizer offloaded", configure(fp16=True, offload=True, ranks=ranks), "DeepSpeedCPUAdam")]  # fmt: skip
    else:
        runs = [("optimizer offloaded", configure(fp16=False, offload=True, ranks=ranks), "DeepSpeedCPUAdam"),
                ("as most tutorials have it", configure(fp16=False, offload=False, ranks=ranks), "FusedAdam")]  # fmt: skip
    results = {}
    for name, config, optimizer in runs:
        print(f"ZeRO-2, {name}: batch {config['train_batch_size']} = {MICRO_BATCH} x {ACCUMULATION} x {ranks} rank(s)")
        results[name] = result = train(config, optimizer)
        print(
            f"  {result['device']}, {result['optimizer']}: first step {result['first_step_s'] * 1e3:.1f} ms, "
            f"steady {result['steady_step_s'] * 1e3:.2f} ms, peak memory {result['peak_memory_bytes'] / 2**20:.0f} MiB"
        )
    compiled = sorted(p.name for p in jit_folder.rglob("*") if p.suffix in (".so", ".pyd", ".o", ".obj"))
    if compiled:
        print(f"ERROR: compiled on the way, so not in the package: {', '.join(compiled)}", file=sys.stderr)
        return 1
    if arguments.json and os.environ["RANK"] == "0":
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
