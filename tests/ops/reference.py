"""What an optimizer step must give, and how far float32 arithmetic may be from it.

No tolerance is guessed. torch.optim in float64 gives each value (Lion, which torch.optim lacks, is written out), and beside
it goes a bound of what float32 may make of it. That is a running error analysis (Higham, Accuracy and Stability of Numerical
Algorithms, 3.3): every rounding adds U = 2**-24, half of float32's eps, times the magnitude of what is rounded, and errors
that are already there go through the update rule. The roundings counted are those of separate multiplications and additions,
so that the bound holds in whatever order the op works, with FMA or without. Hyperparameters count too: the ops take
them as float32, which makes 1 - 0.999 wrong by 1.3e-5 of itself.

A value is accepted if it lies between reference - bound and reference + bound, both rounded to the type it is stored in. So a
float16 or bfloat16 value must be the nearest one, except where the two neighbours are nearly equally near.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch

#: Lengths of the tensors of one group, and the elements of their storage that they begin at: around the widths of the vector
#: code (8, and blocks of 32 and 64), one that many threads share, and views where nothing is aligned.
LENGTHS = ((1, 0), (7, 0), (8, 0), (9, 0), (63, 0), (64, 0), (65, 0), (1_000_003, 0), (4099, 1), (200, 3))
#: Where every step is checked, less is enough.
LENGTHS_16_BIT = tuple((min(length, 100_003), offset) for length, offset in LENGTHS)
#: Half of float32's eps: the largest relative error of one rounding.
U = 2.0**-24
TINY = 1e-300


@dataclass(frozen=True)
class Case:
    """An optimizer, the types of its parameters and states, and its hyperparameters.

    They are larger than in practice, so that an error in them shows in every type.
    """

    op: str
    params: torch.dtype
    states: torch.dtype
    decoupled: bool = True
    bias_correction: bool = True
    weight_decay: float = 0.1
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    #: The length of a single tensor, in place of LENGTHS.
    large: int = 0

    @property
    def name(self) -> str:
        words = [self.op]
        if self.op in ("cpu_adam", "fused_adam"):
            words.append("AdamW" if self.decoupled else "Adam")
            words.append("" if self.bias_correction else "no bias correction")
        words.append(f"{_name(self.params)} parameters" + (f", {_name(self.states)} states" * (not self.free)))
        words.append("" if self.weight_decay else "no weight decay")
        words.append(f"{self.large} elements" if self.large else "")
        return " ".join(word for word in words if word)

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        if self.large:
            return ((self.large, 0),)
        return LENGTHS if self.free else LENGTHS_16_BIT

    @property
    def free(self) -> bool:
        """Whether the reference goes its own way from the first step to the last."""
        return self.params == torch.float32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Snapshot(NamedTuple):
    """Parameters and states at one time. ``avg`` is the momentum; ``square`` the second moment, or Adagrad's sum."""

    param: torch.Tensor
    avg: torch.Tensor
    square: torch.Tensor


class Reference:
    """One tensor's parameters and states in float64, stepped by torch.optim, each with a bound of float32's error."""

    def __init__(self, case: Case, before: Snapshot, first_step: int) -> None:
        self.case, self.step_number = case, first_step - 1
        self.param = torch.nn.Parameter(before.param.double())
        self.avg, self.square = before.avg.double(), before.square.double()
        self.errors = Snapshot(*(torch.zeros_like(self.avg) for _ in range(3)))
        common = {"lr": case.lr, "weight_decay": case.weight_decay}
        # torch.optim always corrects the bias; after this many steps there is none.
        step = torch.tensor(float(self.step_number if case.bias_correction else 1e9))
        self.optimizer: torch.optim.Optimizer | None = None
        if case.op == "cpu_adagrad":
            self.optimizer = torch.optim.Adagrad([self.param], **common, eps=case.eps)
            self.optimizer.state[self.param] = {"step": step, "sum": self.square}
        elif case.op != "cpu_lion":
            kind = torch.optim.AdamW if case.decoupled else torch.optim.Adam
            self.optimizer = kind([self.param], **common, betas=(case.beta1, case.beta2), eps=case.eps)
            self.optimizer.state[self.param] = {"step": step, "exp_avg": self.avg, "exp_avg_sq": self.square}

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> None:
        """Make one step, values and bounds."""
        case, gradient = self.case, gradient.double()
        self.step_number += 1
        param, avg, square = self.param.data.clone(), self.avg.clone(), self.square.clone()
        if self.optimizer is None:
            # Lion: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2.
            direction = case.beta1 * avg + (1 - case.beta1) * gradient
            self.param.data -= case.lr * (direction.sign() + case.weight_decay * param)
            self.avg.mul_(case.beta2).add_(gradient, alpha=1 - case.beta2)
        else:
            self.param.grad = gradient
            self.optimizer.step()

        of_param, of_avg, of_square = self.errors
        decay = case.lr * case.weight_decay if case.decoupled else 0.0
        # Parameters: the decay (its factors, its product, the sum), and the sum with the update.
        of_param = (1 + decay) * of_param + U * ((2 + 3 * decay) * param.abs() + self.param.data.abs())
        of_gradient = torch.zeros_like(gradient)
        if not case.decoupled:
            of_gradient = case.weight_decay * self.errors.param + 2 * U * case.weight_decay * param.abs()
            gradient = gradient + case.weight_decay * param
            of_gradient += U * gradient.abs()
        if case.op == "cpu_lion":
            of_direction = self._mean_error(case.beta1, avg, of_avg, gradient, of_gradient)
            # Where the bound is larger than the value, the sign may be either.
            of_param += U * case.lr + 2 * case.lr * (direction.abs() <= of_direction)
            of_avg = self._mean_error(case.beta2, avg, of_avg, gradient, of_gradient)
            self.errors = Snapshot(of_param, of_avg, of_square)
            return
        of_power = 2 * gradient.abs() * of_gradient + of_gradient**2 + U * gradient**2
        if case.op == "cpu_adagrad":
            of_square = of_square + of_power + U * self.square
            numerator, of_numerator = gradient, of_gradient
            corrections, wrong = (1.0, 1.0), (0.0, 0.0)
        else:
            of_avg = self._mean_error(case.beta1, avg, of_avg, gradient, of_gradient)
            of_square = self._mean_error(case.beta2, square, of_square, gradient**2, of_power)
            numerator, of_numerator = self.avg, of_avg
            corrections, wrong = zip(*(self._correct(beta) for beta in (case.beta1, case.beta2)), strict=True)
        root = self.square.sqrt() / math.sqrt(corrections[1])
        below = (self.square - of_square).clamp_(min=0)
        of_root = ((self.square + of_square).sqrt() - below.sqrt()) / math.sqrt(corrections[1])
        denominator = root + case.eps
        # Five roundings: the root, its correction (three), their product; then eps, and the sum.
        of_denominator = of_root + root * (wrong[1] / 2 + 5 * U) + U * (case.eps + denominator)
        least = (denominator - of_denominator).clamp_(min=TINY)
        rate = case.lr / corrections[0]
        update = rate * numerator.abs() / denominator
        # Five roundings: the rate, its correction (two), the quotient, the product.
        of_update = rate * of_numerator / least + update * (of_denominator / least + wrong[0] + 5 * U)
        self.errors = Snapshot(of_param + of_update, of_avg, of_square)

    def _mean_error(self, beta: float, old, of_old, new, of_new):
        """Bound the error of ``beta * old + (1 - beta) * new`` from those of ``old`` and ``new``."""
        of_beta = abs(float(numpy.float32(beta)) - beta)
        kept, added = beta * old.abs(), (1 - beta) * new.abs()
        # Two roundings on the way to each product (1 - beta is one), and the sum's.
        rounded = U * (kept + 2 * added + (kept + added))
        return beta * of_old + (1 - beta) * of_new + of_beta * (old.abs() + new.abs()) + rounded

    def _correct(self, beta: float) -> tuple[float, float]:
        """Return the bias correction ``1 - beta**step`` and the bound of its relative error."""
        if not self.case.bias_correction:
            return 1.0, 0.0
        step, of_beta = self.step_number, abs(float(numpy.float32(beta)) - beta)
        value = 1 - beta**step
        # The power is made by step multiplications.
        return value, (step * of_beta * beta ** (step - 1) + step * U * beta**step) / value + U


class Verdict(NamedTuple):
    """How many elements are outside, of how many; the largest part of the bound that was used (float32 only)."""

    outside: int
    elements: int
    share: float


def compare(values: Snapshot, reference: Reference) -> Verdict:
    """Compare what the op left with the reference, within the reference's bounds."""
    outside, elements, share = 0, 0, 0.0
    expected = Snapshot(reference.param.data, reference.avg, reference.square)
    for value, wanted, error in zip(values, expected, reference.errors, strict=True):
        low, high = (wanted - error).to(value.dtype), (wanted + error).to(value.dtype)
        # Written so that a NaN is outside.
        outside += int((~((value >= low) & (value <= high))).sum())
        elements += value.numel()
        if value.dtype == torch.float32:
            share = max(share, float(((value.double() - wanted).abs() / error.clamp(min=TINY)).max()))
    return Verdict(outside, elements, share)
