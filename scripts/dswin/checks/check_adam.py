"""DeepSpeed's Adam against torch's AdamW: the same steps on the same numbers, then the time of a step over many parameters.

    python check_adam.py --out FILE --optimizer FusedAdam|DeepSpeedCPUAdam

FusedAdam runs on the accelerator that DS_ACCELERATOR names, DeepSpeedCPUAdam on the CPU; float32, decoupled weight decay.
Exit codes: 0 they agree, 1 they do not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 50
#: How far a parameter may be from torch's after these steps of 1e-3: one rounding of a number near 1 is 6e-8.
ALLOWED = 1e-5
ROUNDS = 10
#: Around the widths of vector code and of a GPU's chunks.
LENGTHS = (1, 7, 8, 9, 63, 64, 65, 4099, 65537, 200_003)
SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
#: Parameters of the timed step; each takes 16 bytes.
MANY = {"cuda": 100_000_000, "cpu": 5_000_000}
TENSORS = 50
#: torch's optimizer as a loop over operations that its documentation names, and as one kernel.
PLAIN, FUSED = "torch.optim.AdamW", "torch.optim.AdamW(fused=True)"


def make_optimizer(name: str, params: list[Any]) -> Any:
    """Return an optimizer by its class's name, with the same settings as the others."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    if name in (PLAIN, FUSED):
        return torch.optim.AdamW(params, **SETTINGS, fused=name == FUSED)
    if name == "FusedAdam":
        return FusedAdam(params, **SETTINGS, adam_w_mode=True)
    return DeepSpeedCPUAdam(params, **SETTINGS, adamw_mode=True)


def step_on_random(name: str, device: str) -> Any:
    """Return all parameters, in one tensor, after STEPS steps with random gradients."""
    import torch

    random = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter(torch.empty(length).uniform_(-1, 1, generator=random).to(device)) for length in LENGTHS
    ]
    optimizer = make_optimizer(name, params)
    for _ in range(STEPS):
        for param in params:
            param.grad = torch.randn(param.shape, generator=random).to(device)
        optimizer.step()
    return torch.cat([param.detach() for param in params]).double().cpu()


def time_step(name: str, device: str, count: int) -> float:
    """Return the seconds of a step over ``count`` parameters: the median of ROUNDS."""
    import torch

    params = [torch.nn.Parameter(torch.ones(count // TENSORS, device=device)) for _ in range(TENSORS)]
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    optimizer = make_optimizer(name, params)
    seconds = []
    for _ in range(ROUNDS + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    # The first ones make the states.
    return sorted(seconds[2:])[ROUNDS // 2]


def choose_count(device: str) -> int:
    """Return how many parameters are timed: fewer where a GPU has less memory free."""
    if device == "cpu":
        return MANY["cpu"]
    import torch

    free, _ = torch.cuda.mem_get_info()
    return min(MANY["cuda"], free // 32) // TENSORS * TENSORS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--optimizer", choices=["FusedAdam", "DeepSpeedCPUAdam"], required=True)
    arguments = parser.parse_args()

    import torch
    from deepspeed.accelerator import get_accelerator

    device = "cpu" if arguments.optimizer == "DeepSpeedCPUAdam" else get_accelerator().device_name()
    reference = FUSED if device == "cuda" else PLAIN
    ours, torchs = (step_on_random(name, device) for name in (arguments.optimizer, reference))
    apart = (ours - torchs).abs()
    if not apart.isfinite().all():
        sys.exit(f"ERROR: After {STEPS} steps a parameter is no number.")
    count = choose_count(device)
    times = {}
    for name in (arguments.optimizer, FUSED):
        times[name] = time_step(name, device, count)
        if device == "cuda":
            torch.cuda.empty_cache()
    document = {
        "optimizer": arguments.optimizer,
        "reference": reference,
        "device": device,
        "steps": STEPS,
        "parameters": sum(LENGTHS),
        "max_abs": apart.max().item(),
        "allowed": ALLOWED,
        # Where a parameter has come near zero, a rounding is large beside it.
        "max_rel": (apart / torchs.abs())[torchs.abs() > 1e-2].max().item(),
        "timed_parameters": count,
        "step_s": times[arguments.optimizer],
        "timed_reference": FUSED,
        "reference_step_s": times[FUSED],
    }
    arguments.out.write_text(json.dumps(document), encoding="utf-8")
    if not document["max_abs"] <= ALLOWED:
        sys.exit(f"ERROR: After {STEPS} steps a parameter is {document['max_abs']:.1e} away from {reference}'s.")


if __name__ == "__main__":
    main()
