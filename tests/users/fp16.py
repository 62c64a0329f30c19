"""FP16 with ZeRO and without: the same loss, and gradients of the same size in the optimizer.

    python fp16.py

On the CPU, which DeepSpeed does not train in FP16 unless it is told that it can. Writes a line of JSON: by stage the losses, and
the norm of the first step's gradients.
"""

import json
import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "29571")

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

get_accelerator().is_fp16_supported = lambda: True
get_accelerator().supported_dtypes = lambda: [torch.float, torch.half, torch.bfloat16]


def train(stage: int) -> dict:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        # No bias correction: stage 0 makes an empty step at its start, which it would count.
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "weight_decay": 0.0, "bias_correction": False}},
        "zero_optimization": {"stage": stage},
        "fp16": {"enabled": True, "initial_scale_power": 10},
        "gradient_clipping": 0.0,
    }
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    inner, norms = optimizer.optimizer, []
    step = inner.step

    def see(*arguments, **more):
        norms.append(sum(p.grad.float().norm().item() ** 2 for g in inner.param_groups for p in g["params"]) ** 0.5)
        return step(*arguments, **more)

    inner.step = see
    data = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4, 64, generator=data) for _ in range(2))
    losses = []
    for _ in range(10):
        loss = torch.nn.functional.mse_loss(engine(x.half()).float(), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return {"losses": losses, "gradient_norm": norms[0]}


print(json.dumps({stage: train(stage) for stage in (0, 1, 2)}))
