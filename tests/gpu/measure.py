"""What the prebuilt ops are worth on this GPU: times of steps, of the optimizer, and of a first step without a compiler's wait.

steps      ZeRO-2 in fp16 with FusedAdam against a plain torch loop (fp16 autocast, GradScaler, fused AdamW), GPT-2 at two sizes
optimizer  FusedAdam against torch's fused AdamW on the same tensors in fp32: time, and how far they drift apart
first      from the start of Python to the end of the first step, the optimizer offloaded and not, with the prebuilt ops and
           with DeepSpeed compiling them (each in a process of its own, an empty cache)

python measure.py steps|optimizer|first --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: GPT-2 of 124 and of 774 million parameters, as published: width, layers, heads; then sequences of 1024 tokens in a batch.
SIZES = {"GPT-2, 124 M": (768, 12, 12, 16), "GPT-2 large, 774 M": (1280, 36, 20, 8)}
LENGTH = 1024
WARMUP, STEPS, ROUNDS = 5, 10, 5
LEARNING_RATE = 1e-4


def set_up_process() -> None:
    """Set what a launcher would set for a single process."""
    for name, value in {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533",
        "HF_HUB_OFFLINE": "1",
    }.items():  # fmt: skip
        os.environ.setdefault(name, value)


def time_steps(step: Callable[[], float]) -> dict:
    """Return the median milliseconds of a step over rounds of :data:`STEPS`, the losses' ends, and peak memory in bytes."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    losses = [step() for _ in range(WARMUP)]
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses += [step() for _ in range(STEPS)]
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / STEPS * 1e3)
    return {
        "step_ms": statistics.median(times),
        "rounds_ms": times,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
    }


def make_gpt(width: int, layers: int, heads: int):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, n_positions=LENGTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return GPT2LMHeadModel(config)


def train_plainly(model, tokens) -> dict:
    """torch alone: fp32 weights, fp16 autocast, GradScaler, torch's fused AdamW."""
    import torch

    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return time_steps(step)


def train_with_deepspeed(model, tokens) -> dict:
    """ZeRO-2 in fp16 with FusedAdam, one GPU."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": tokens.shape[0],
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE}},
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": True},
    }
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if type(optimizer.optimizer).__name__ != "FusedAdam":
        sys.exit(f"ERROR: the optimizer is {type(optimizer.optimizer).__name__}, not FusedAdam")

    def step():
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.detach()

    return time_steps(step)


def measure_steps() -> dict:
    """Each pair of (size, way) in this one process, the model made anew."""
    import gc

    import torch

    set_up_process()
    found: dict = {}
    for name, (width, layers, heads, batch) in SIZES.items():
        torch.manual_seed(1)
        tokens = torch.randint(50257, (batch, LENGTH), device="cuda")
        for way, train in {"torch": train_plainly, "ZeRO-2": train_with_deepspeed}.items():
            result = train(make_gpt(width, layers, heads), tokens)
            gc.collect()
            torch.cuda.empty_cache()
            found.setdefault(name, {"batch": batch, "tokens": batch * LENGTH})[way] = result
            print(
                f"{name}, {way}: {result['step_ms']:.1f} ms, {result['peak_memory_bytes'] / 2**30:.1f} GiB", flush=True
            )
    return found


def measure_optimizer() -> dict:
    """FusedAdam and torch's fused AdamW on GPT-2's 124 M parameters in fp32, the same gradients, rounds alternated."""
    import torch
    from deepspeed.ops.adam import FusedAdam

    set_up_process()
    shapes = [parameter.shape for parameter in make_gpt(768, 12, 12).parameters()]
    generator = torch.Generator("cuda").manual_seed(0)
    start = [torch.randn(shape, device="cuda", generator=generator) * 0.02 for shape in shapes]
    gradients = [torch.randn(shape, device="cuda", generator=generator) * 1e-3 for shape in shapes]

    def make(kind, **options):
        parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return parameters, kind(parameters, lr=1e-3, weight_decay=0.01, **options)

    contenders = {
        "FusedAdam": make(FusedAdam, adam_w_mode=True),
        "torch fused AdamW": make(torch.optim.AdamW, fused=True),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    steps = 0
    for _ in range(ROUNDS + 1):
        for name, (parameters, optimizer) in contenders.items():
            # FusedAdam's zero_grad is not called, so both keep the same gradients.
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(STEPS):
                optimizer.step()
            after.record()
            torch.cuda.synchronize()
            times[name].append(before.elapsed_time(after) / STEPS)
            assert parameters[0].grad is gradients[0]
        steps += STEPS
    ours, theirs = (parameters for parameters, _ in contenders.values())
    difference = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    moved = max(float((a - b).abs().max()) for a, b in zip(ours, start, strict=True))
    count = sum(tensor.numel() for tensor in start)
    # Parameter, gradient and two moments are read, all but the gradient are written: 28 bytes.
    rate = {name: count * 28 / statistics.median(taken[1:]) / 1e6 for name, taken in times.items()}
    return {
        "parameters": count,
        "steps": steps,
        "step_ms": {name: statistics.median(taken[1:]) for name, taken in times.items()},
        "gigabytes_per_second": rate,
        "largest_difference": difference,
        "largest_move": moved,
    }


def take_first_step(offload: bool, jit: bool) -> None:
    """Initialize and take one step; with ``jit`` as if no op were prebuilt."""
    import deepspeed
    import torch
    from deepspeed import git_version_info

    set_up_process()
    if jit:
        for name in git_version_info.installed_ops:
            git_version_info.installed_ops[name] = False
    model = torch.nn.Linear(1024, 1024)
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu" if offload else "none"}},
        "fp16": {"enabled": True},
    }
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.randn(8, 1024, device="cuda", dtype=torch.half)).square().mean())
    engine.step()
    torch.cuda.synchronize()


def time_first_step(offload: bool, jit: bool) -> tuple[float, list[str]]:
    """Return the seconds of a whole process, and what it compiled.

    :raises RuntimeError: with the end of what it printed, when it did not end with 0.
    """
    words = [*(["--offload"] if offload else []), *(["--jit"] if jit else [])]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, "one-step", *words],
            env={**os.environ, "TORCH_EXTENSIONS_DIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"one-step {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return seconds, sorted(file.name for file in Path(folder).rglob("*.so"))


def measure_first_step() -> dict:
    """Seconds of whole processes; prebuilt as the median of three, after one that fills the file cache.

    A way that fails has ``error`` in place of its figures, and the other is still measured.
    """
    found: dict = {"cores": os.cpu_count()}
    time_first_step(False, False)
    for way, offload in {"FusedAdam": False, "optimizer offloaded": True}.items():
        try:
            prebuilt = [time_first_step(offload, False) for _ in range(3)]
            seconds, compiled = time_first_step(offload, True)
        except RuntimeError as error:
            found[way] = {"error": str(error)}
            continue
        if any(made for _, made in prebuilt) or not compiled:
            found[way] = {"error": f"compiled on the way: {prebuilt}, {compiled}"}
            continue
        taken = statistics.median(seconds for seconds, _ in prebuilt)
        found[way] = {"prebuilt_s": taken, "jit_s": seconds, "compiled": compiled}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["steps", "optimizer", "first", "one-step"])
    parser.add_argument("--offload", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jit", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.what == "one-step":
        take_first_step(arguments.offload, arguments.jit)
        return 0
    measure = {"steps": measure_steps, "optimizer": measure_optimizer, "first": measure_first_step}[arguments.what]
    found = measure()
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(isinstance(result, dict) and "error" in result for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
