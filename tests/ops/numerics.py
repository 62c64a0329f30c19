"""Do the CPU optimizers of an installed deepspeed-win compute what torch.optim computes?

    python numerics.py [--json FILE] [--large N]

Each case runs an op for some steps and checks its parameters and states, element by element, within the derived bounds of
reference.py, which lies beside this file. float32 cases run freely from the first step to the last. Where something is stored
in 16 bits, each step is checked on its own from what the op left before it, or the stored roundings would hide errors.

The bits after steps on one thread and on two must be the same. Nothing may be compiled on the way. Planted differences (a
hyperparameter 1 % off, the other kind of weight decay, ...) must be found, in every optimizer and type.

Needs torch, numpy and deepspeed; runs on Windows and Linux. Exit codes: 0 all as it must be, 1 not.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from reference import Case, Reference, Snapshot, Verdict, compare

STEPS = 12
#: References are made for pieces of this length, which stay in a core's cache; large tensors repeat with this period.
CHUNK = 2**16


def list_cases(large: int) -> Iterator[Case]:
    """Yield every case; ``large`` is the length of the large tensors, 0 for none."""
    f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16
    same = [(f32, f32), (f16, f16), (bf16, bf16)]
    every = [*same, (f16, f32), (bf16, f32)]
    for op, types in (("cpu_adam", every), ("fused_adam", same)):
        for params, states in types:
            for decoupled in (True, False):
                for bias_correction in (True, False):
                    yield Case(op, params, states, decoupled, bias_correction)
    for params, states in every:
        yield Case("cpu_adagrad", params, states, decoupled=False)
        yield Case("cpu_lion", params, states, beta2=0.99)
    for op in ("cpu_adam", "fused_adam", "cpu_adagrad", "cpu_lion"):
        case = Case(op, f32, f32, decoupled=op != "cpu_adagrad")
        yield replace(case, weight_decay=0.0)
        if large > CHUNK:
            yield replace(case, large=large)


# ---- The op


def make_op(case: Case, params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return DeepSpeed's optimizer for a case, one group of ``params``."""
    import deepspeed.ops.adagrad as adagrad
    import deepspeed.ops.adam as adam
    import deepspeed.ops.lion as lion

    common = {"lr": case.lr, "weight_decay": case.weight_decay}
    if case.op == "cpu_adagrad":
        common["eps"] = case.eps
        return adagrad.DeepSpeedCPUAdagrad(params, **common, fp32_optimizer_states=case.states == torch.float32)
    common["betas"] = (case.beta1, case.beta2)
    if case.op == "cpu_lion":
        return lion.DeepSpeedCPULion(params, **common, fp32_optimizer_states=case.states == torch.float32)
    common.update(eps=case.eps, bias_correction=case.bias_correction)
    if case.op == "fused_adam":
        return adam.FusedAdam(params, **common, adam_w_mode=case.decoupled)
    fp32_states = case.states == torch.float32
    return adam.DeepSpeedCPUAdam(params, **common, adamw_mode=case.decoupled, fp32_optimizer_states=fp32_states)


def make_inputs(case: Case) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """Return the parameters, and for a few steps their gradients: of all magnitudes, so that eps counts in some."""
    generator = torch.Generator().manual_seed(20241)
    params, gradients = [], []

    def draw(length: int, offset: int, powers: tuple[float, float]) -> torch.Tensor:
        storage = torch.empty(offset + length, dtype=case.params)
        count = CHUNK if case.large else length
        values = torch.empty(count).uniform_(*powers, generator=generator).mul_(math.log(10)).exp_()
        values.mul_(torch.empty(count).uniform_(-1, 1, generator=generator).sign_())
        storage[offset:].copy_(values.repeat(length // count + 1)[:length])
        return storage[offset:]

    for length, offset in case.lengths:
        params.append(draw(length, offset, (-2, 0.3)))
    # float16 ends at 6e-8.
    smallest = -6 if case.params == torch.float16 else -10
    for _ in range(5):
        gradients.append([draw(length, offset, (smallest, 1)) for length, offset in case.lengths])
    return params, gradients


def take(case: Case, optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter]) -> list[Snapshot]:
    """Return copies of all parameters and states; states that are not there yet are zero."""
    found = []
    for param in params:
        state, zero = optimizer.state[param], torch.zeros_like(param.data, dtype=case.states)
        avg = zero if case.op == "cpu_adagrad" else state.get("exp_avg", zero)
        square = zero if case.op == "cpu_lion" else state.get("exp_avg_sq", zero)
        for tensor in (avg, square):
            if tensor.dtype != case.states:
                raise SystemExit(f"ERROR: {case.name}: a state is {tensor.dtype}")
        found.append(Snapshot(param.data.clone(), avg.clone(), square.clone()))
    return found


class Segment(NamedTuple):
    """Some steps of one tensor: what was there before, the gradients of each step, and what the op left."""

    first_step: int
    before: Snapshot
    gradients: list[torch.Tensor]
    after: Snapshot


def copy_in_place(value: torch.Tensor) -> torch.Tensor:
    """Return a copy that begins as far inside its storage as ``value``, so that it is aligned alike."""
    offset = value.storage_offset()
    return torch.empty(offset + value.numel(), dtype=value.dtype)[offset:].copy_(value)


def run_op(case: Case) -> list[Segment]:
    """Run a case's steps; return one segment a tensor for free cases, else one a tensor and step."""
    values, pool = make_inputs(case)
    params = []
    for value in values:
        param = torch.nn.Parameter(torch.empty(0, dtype=case.params))
        param.data = copy_in_place(value)
        params.append(param)
    optimizer = make_op(case, params)
    segments = []
    first, before, since = 1, take(case, optimizer, params), []
    for step in range(1, STEPS + 1):
        gradients = pool[step % len(pool)]
        for param, gradient in zip(params, gradients, strict=True):
            # A copy, since Adagrad writes into gradients.
            param.grad = copy_in_place(gradient)
        optimizer.step()
        since.append(gradients)
        if step == STEPS or not case.free:
            after = take(case, optimizer, params)
            for n in range(len(params)):
                segments.append(Segment(first, before[n], [g[n] for g in since], after[n]))
            first, before, since = step + 1, after, []
    return segments


def digest(segments: list[Segment]) -> str:
    """Return a hash of every bit that the op left."""
    found = hashlib.sha256()
    for segment in segments:
        for tensor in segment.after:
            found.update(tensor.view(torch.uint8).numpy().data)
    return found.hexdigest()


def check(case: Case, segments: list[Segment]) -> Verdict:
    """Compare all segments of a run with ``case``'s reference."""
    outside, elements, share = 0, 0, 0.0
    for segment in segments:
        starts = range(0, segment.before.param.numel(), CHUNK)
        for start in starts if not case.large else (0, starts[-1]):
            part = slice(start, start + CHUNK)
            reference = Reference(case, Snapshot(*(t[part] for t in segment.before)), segment.first_step)
            for gradient in segment.gradients:
                reference.step(gradient[part])
            found = compare(Snapshot(*(t[part] for t in segment.after)), reference)
            outside, elements, share = outside + found.outside, elements + found.elements, max(share, found.share)
        if case.large:
            # Its inputs repeat, so what lies between the first piece and the last must be the first, bit for bit.
            for tensor in segment.after:
                pieces = tensor[: starts[-1]].view(-1, CHUNK)
                outside += int((pieces != pieces[0]).sum())
                elements += pieces.numel() - CHUNK
    return Verdict(outside, elements, share)


def plant(case: Case) -> dict[str, Case]:
    """Return what ``case`` must not be taken for: what is different, and the case with it."""
    wrong = {
        "lr + 1 %": replace(case, lr=case.lr * 1.01),
        "weight decay + 1 %": replace(case, weight_decay=case.weight_decay * 1.01),
        "no weight decay": replace(case, weight_decay=0.0),
    }
    if case.op != "cpu_adagrad":
        wrong["beta1 - 1 %"] = replace(case, beta1=case.beta1 * 0.99)
        wrong["beta2 - 1 %"] = replace(case, beta2=case.beta2 * 0.99)
    if case.op != "cpu_lion":
        wrong["eps x 2"] = replace(case, eps=case.eps * 2)
    if case.op in ("cpu_adam", "fused_adam"):
        wrong["the other weight decay"] = replace(case, decoupled=not case.decoupled)
        wrong["the other bias correction"] = replace(case, bias_correction=not case.bias_correction)
    return wrong


# ---- Running it all


def run_case(case: Case, with_reference: bool) -> dict:
    """Run a case; return its digest and, with the reference, what the comparison says."""
    start = time.perf_counter()
    segments = run_op(case)
    found: dict = {"digest": digest(segments)}
    if with_reference:
        found |= check(case, segments)._asdict()
    return {**found, "seconds": round(time.perf_counter() - start, 2)}


def run_planted(case: Case) -> dict[str, int]:
    """Return for each planted difference in how many elements it was found."""
    segments = run_op(replace(case, large=4099))
    return {what: check(wrong, segments).outside for what, wrong in plant(case).items()}


def run_child(threads: int, large: int, result: Path) -> None:
    """Run all cases in this process, on ``threads`` threads; with one thread also all comparisons."""
    import cpuinfo

    # DeepSpeed's optimizers each ask for it, and starting the programs that know takes seconds.
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    torch.set_num_threads(threads)
    first = threads == 1
    document: dict = {"cases": {}, "planted": {}}
    for case in list_cases(large):
        print(f"{threads} thread(s): {case.name}", flush=True)
        document["cases"][case.name] = run_case(case, with_reference=first)
        if first and case.weight_decay and not case.large:
            document["planted"][case.name] = run_planted(case)
        # Written each time: an op that crashes leaves what was found before it.
        result.write_text(json.dumps(document), encoding="utf-8")
    document["finished"] = True
    result.write_text(json.dumps(document), encoding="utf-8")


def start_child(threads: int, large: int, folder: Path) -> tuple[dict, str]:
    """Run a child on ``threads`` threads; return what it wrote and, if it failed, how."""
    result = folder / f"{threads}.json"
    command = [sys.executable, __file__, "--large", str(large), "--threads", str(threads), "--json", str(result)]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": str(threads),
        "TORCH_EXTENSIONS_DIR": str(folder / "no-jit"),
        "PYTHONUTF8": "1",
    }
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    )
    document = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {"cases": {}, "planted": {}}
    if done.returncode == 0 and document.get("finished"):
        return document, ""
    last = "\n".join(done.stdout.splitlines()[-15:])
    return document, f"with {threads} thread(s) it ended with code {done.returncode}; its last words:\n{last}"


def report(one: dict, two: dict) -> list[str]:
    """Print one line a case and return what is wrong."""
    wrong = []
    for name, found in one["cases"].items():
        other = two["cases"].get(name, {}).get("digest")
        faults = []
        if found["outside"]:
            faults.append(f"{found['outside']} of {found['elements']} values outside the bound")
        if found["digest"] != other:
            faults.append("1 and 2 threads differ" if other else "not run on 2 threads")
        planted = one["planted"].get(name, {})
        faults += [f"planted and not found: {what}" for what, count in planted.items() if not count]
        share = f"{found['share']:.2f} of the bound" if found["share"] else "nearest in every element"
        print(f"{'FAILED' if faults else 'ok':6} {name}: {share}, {found['seconds']} s {'; '.join(faults)}")
        wrong += [f"{name}: {fault}" for fault in faults]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    parser.add_argument(
        "--large", type=int, default=50_000_003, metavar="N", help="elements of the large tensors; 0: none"
    )
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        run_child(arguments.threads, arguments.large, arguments.json)
        return 0
    with tempfile.TemporaryDirectory(prefix="numerics-") as name:
        folder = Path(name)
        (one, fault_one), (two, fault_two) = (start_child(threads, arguments.large, folder) for threads in (1, 2))
        compiled = sorted(p.name for p in folder.rglob("no-jit/**/*") if p.suffix in (".so", ".pyd", ".o", ".obj"))
    wrong = [fault for fault in (fault_one, fault_two) if fault] + report(one, two)
    if compiled:
        wrong.append(f"compiled on the way, so not in the package: {', '.join(compiled)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"one": one, "two": two, "wrong": wrong}, indent=1), encoding="utf-8")
    for fault in wrong:
        print(f"ERROR: {fault}", file=sys.stderr)
    print(
        f"{len(one['cases'])} cases, {sum(map(len, one['planted'].values()))} planted differences, {len(wrong)} faults"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
