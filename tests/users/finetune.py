"""A fine-tune as a user writes it: transformers' Trainer with accelerate, DeepSpeed ZeRO-2 and the optimizer offloaded.

A small GPT with random weights learns a fixed sequence; the run is saved half way, and a second Trainer goes on from there
and must end where the first one ended. Nothing is downloaded and nothing may be compiled.

    python finetune.py FOLDER [fp32 | bf16 | fp16]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

STEPS, SAVED_AT = 8, 4
LENGTH, VOCABULARY, BATCH = 32, 64, 4
os.environ["TORCH_EXTENSIONS_DIR"] = JIT_FOLDER = tempfile.mkdtemp(prefix="no-jit-")
# What a launcher sets; a value that is there wins.
for name, value in {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
    "HF_HUB_OFFLINE": "1",
}.items():  # fmt: skip
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed  # noqa: E402

CUDA = torch.cuda.is_available()

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
}


class Sequence(torch.utils.data.Dataset):
    """One sequence of tokens, cut at every place."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(VOCABULARY, (LENGTH,), generator=generator).repeat(4)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self.tokens[index % LENGTH :][:LENGTH]
        return {"input_ids": piece, "labels": piece}


def make_trainer(folder: Path, dtype: str) -> Trainer:
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=64,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, save_steps=SAVED_AT, logging_steps=1, learning_rate=1e-2,
        lr_scheduler_type="constant", per_device_train_batch_size=BATCH, deepspeed=DEEPSPEED, use_cpu=not CUDA,
        bf16=dtype == "bf16", fp16=dtype == "fp16", report_to=[], disable_tqdm=True, seed=0,
        dataloader_num_workers=0, dataloader_pin_memory=False,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=Sequence())


def read_losses(trainer: Trainer) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def main() -> int:
    folder, dtype = Path(sys.argv[1]), (*sys.argv[2:], "fp32")[0]
    first = make_trainer(folder, dtype)
    first.train()
    inner = first.model_wrapped.optimizer
    inner = getattr(inner, "optimizer", inner)
    if type(inner).__name__ != "DeepSpeedCPUAdam":
        sys.exit(f"ERROR: the optimizer is {type(inner).__name__}, not DeepSpeedCPUAdam")
    losses = read_losses(first)
    print("losses", losses)
    if not losses[STEPS] < 0.8 * losses[1]:
        sys.exit("ERROR: the loss did not fall")
    checkpoint = folder / f"checkpoint-{SAVED_AT}"
    if not list(checkpoint.glob("global_step*/*optim_states.pt")):
        sys.exit(f"ERROR: DeepSpeed saved no optimizer in {checkpoint}")

    second = make_trainer(folder, dtype)
    second.train(resume_from_checkpoint=str(checkpoint))
    again = {step: loss for step, loss in read_losses(second).items() if step > SAVED_AT}
    print("losses after loading", again)
    for step, loss in again.items():
        if abs(loss - losses[step]) > 1e-3 * abs(losses[step]):
            sys.exit(f"ERROR: step {step} after loading has loss {loss}, and had {losses[step]}")
    if sorted(again) != list(range(SAVED_AT + 1, STEPS + 1)):
        sys.exit(f"ERROR: after loading it went over the steps {sorted(again)}")
    if compiled := [file.name for file in Path(JIT_FOLDER).rglob("*") if file.suffix in (".so", ".pyd", ".o", ".obj")]:
        sys.exit(f"ERROR: compiled on the way: {compiled}")
    print(f"fine-tuned on {'cuda' if CUDA else 'cpu'} in {dtype}, saved, loaded, and went on as before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
