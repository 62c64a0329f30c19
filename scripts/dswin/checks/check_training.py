"""A few training steps of one small model on one fixed batch, in one precision and several ZeRO stages, one after the other.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 ... python check_training.py --out FILE --dtype fp32 --run 0 --run 2,offload

Residual blocks with random targets. The batch is the same whatever the number of ranks: micro-batches go round the ranks, so
that runs with one train_batch, micro-batch x accumulation x ranks, compute the same steps up to rounding. The optimizer makes
no bias correction: in 16 bits DeepSpeed's stage 0 makes an empty step at its start, which the correction would count.

Who starts this sets RANK, WORLD_SIZE and so on, as DeepSpeed's launcher does. Rank 0 writes FILE anew after each run, so that
it holds those before one that ended the process. Exit codes: 0 trained, 1 something is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

#: (width, hidden, blocks), steps: what a CPU does in seconds; 67 million parameters, where a GPU has something to do.
SMALL, BIG = ((128, 512, 2), 12), ((1024, 4096, 8), 20)
LEARNING_RATE = {"cpu": 2e-4, "cuda": 1e-5}
MICRO_BATCH = 4
#: The loss after the last step is at most this part of the loss after the first.
MUST_FALL_TO = 0.5


def configure(stage: int, offload: bool, dtype: str, accumulation: int, ranks: int, rate: float) -> dict[str, Any]:
    """Return DeepSpeed's configuration."""
    zero: dict[str, Any] = {"stage": stage}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if stage == 3:
        # Small parameters would stay whole, and a small model would not be partitioned at all.
        zero["stage3_param_persistence_threshold"] = 0
    config = {
        "train_batch_size": MICRO_BATCH * accumulation * ranks,
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "weight_decay": 0.0, "bias_correction": False}},
        "zero_optimization": zero,
        "steps_per_print": 10**9,
    }
    if dtype == "fp16":
        # A scale that never overflows here: a skipped step would make two runs differ.
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def make_model(width: int, hidden: int, blocks: int) -> Any:
    """Return the model, its parameters the same each time."""
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, width)
            )

        def forward(self, x: Any) -> Any:
            return x + self.layers(x)

    torch.manual_seed(0)
    return torch.nn.Sequential(*(Block() for _ in range(blocks)))


def measure_peak(cuda: bool) -> int:
    """Return the most bytes in use so far: of the GPU for tensors, or of this process."""
    if cuda:
        import torch

        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        import psutil  # DeepSpeed needs it

        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def name_optimizer(optimizer: Any) -> str:
    """Return the class of the optimizer inside of ZeRO's own."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return type(optimizer).__name__


def train(stage: int, offload: bool, dtype: str, accumulation: int) -> dict[str, Any]:
    """Train, and return what was measured.

    :return: its ``peak_memory_bytes`` is the GPU's of this run, or the process's since its start.
    """
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    kind = accelerator.device_name()
    (width, hidden, blocks), steps = BIG if kind == "cuda" else SMALL
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.cuda.reset_peak_memory_stats()
    config = configure(stage, offload, dtype, accumulation, ranks, LEARNING_RATE[kind])
    model = make_model(width, hidden, blocks)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    torch_dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    data = torch.Generator().manual_seed(1)
    shape = (accumulation, ranks, MICRO_BATCH, width)
    xs, ys = (torch.randn(shape, generator=data)[:, rank].to(engine.device) for _ in range(2))
    losses, seconds = [], []
    for _ in range(steps):
        accelerator.synchronize()
        start = time.perf_counter()
        total = torch.zeros((), device=engine.device)
        for x, y in zip(xs, ys):  # noqa: B905  Python 3.10 and older torch's tensors
            loss = torch.nn.functional.mse_loss(engine(x.to(torch_dtype)).float(), y)
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        accelerator.synchronize()
        seconds.append(time.perf_counter() - start)
        torch.distributed.all_reduce(total)
        losses.append(total.item() / accumulation / ranks)
        if not math.isfinite(losses[-1]):
            raise ArithmeticError(f"The loss is {losses[-1]} after {len(losses)} steps.")
    steady = sorted(seconds[steps // 2 :])
    return {
        "stage": stage,
        "offload": offload,
        "dtype": dtype,
        "device": kind,
        "backend": torch.distributed.get_backend(),
        "ranks": ranks,
        "micro_batch": MICRO_BATCH,
        "accumulation": accumulation,
        "train_batch": config["train_batch_size"],
        "parameters": parameters,
        "optimizer": name_optimizer(optimizer),
        "losses": losses,
        "first_step_s": seconds[0],
        "steady_step_s": steady[len(steady) // 2],
        "peak_memory_bytes": measure_peak(kind == "cuda"),
    }


def judge(measured: dict[str, Any]) -> str | None:
    """Return what is wrong with a run, or None."""
    losses, meant = measured["losses"], "DeepSpeedCPUAdam" if measured["offload"] else "FusedAdam"
    if not losses[-1] <= MUST_FALL_TO * losses[0]:
        return f"The loss went from {losses[0]:.4g} to {losses[-1]:.4g}, and must fall to a half."
    if measured["optimizer"] != meant:
        return f"The optimizer is {measured['optimizer']}, not {meant}."
    return None


def list_compiled() -> list[str]:
    """Return the names of the libraries that torch has compiled."""
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    return sorted(path.name for path in folder.rglob("*") if path.suffix in (".so", ".pyd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", action="append", required=True, metavar="STAGE[,offload]")
    parser.add_argument("--dtype", choices=["fp32", "fp16", "bf16"], required=True)
    parser.add_argument("--accumulation", type=int, default=2)
    # The launcher gives it; the variable of that name counts.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    import torch

    runs = []
    for run in arguments.run:
        stage, _, offload = run.partition(",")
        measured = train(int(stage), bool(offload), arguments.dtype, arguments.accumulation)
        problem = judge(measured)
        if compiled := list_compiled():
            problem = f"Compiled on the way, so not in the package: {', '.join(compiled)}"
        runs.append({**measured, "problem": problem})
        print(f"ZeRO {run}: loss {measured['losses'][0]:.4g} to {measured['losses'][-1]:.4g}", flush=True)
        if os.environ["RANK"] == "0":
            new = arguments.out.with_name(arguments.out.name + ".new")
            new.write_text(json.dumps({"runs": runs}), encoding="utf-8")
            os.replace(new, arguments.out)
    torch.distributed.destroy_process_group()
    sys.exit(1 if any(run["problem"] for run in runs) else 0)


if __name__ == "__main__":
    main()
