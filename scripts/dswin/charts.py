"""Where the lines, bars and labels of a plot lie; a template makes SVG of it.

All lengths are in a plot's own units. A phone shows one of them as a pixel, so texts of 12 can be read there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH = 340
#: A line plot's height, and its margins: for the numbers to the left and below.
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 200, 40, 8, 8, 32
#: A bar's row, its label above the bar; the room that the number beside the longest bar takes.
ROW, NUMBER = 34, 76
DASH = 6


@dataclass(frozen=True)
class Tick:
    """A number at an axis: where, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """One curve: its ``colour`` by number, the ``points`` of an SVG polyline, its dashes, and where the first one begins."""

    name: str
    colour: int
    points: str
    dashes: str
    offset: float


@dataclass(frozen=True)
class Lines:
    """Curves over steps 1, 2, ... Each is dashed where the others are not, so that all are seen where they are one."""

    title: str
    description: str
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    height: int = HEIGHT


@dataclass(frozen=True)
class Bar:
    """One bar from the left edge: its ``colour`` by number, its row's top ``y``, its ``width``."""

    name: str
    colour: int
    y: float
    width: float
    text: str


@dataclass(frozen=True)
class Bars:
    """Bars that begin at zero."""

    title: str
    description: str
    bars: tuple[Bar, ...]
    height: int


def choose_ticks(most: float, count: int = 4) -> list[float]:
    """Return about ``count`` round numbers from 0 on; the last one is not below ``most``.

    >>> choose_ticks(2.31)
    [0.0, 1.0, 2.0, 3.0]
    >>> choose_ticks(0.07)
    [0.0, 0.02, 0.04, 0.06, 0.08]
    """
    if not most > 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / count))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * count >= most * 0.999)
    return [float(f"{number * step:.6g}") for number in range(math.ceil(most / step - 1e-9) + 1)]


def draw_lines(title: str, curves: Mapping[str, Sequence[float]], colours: Sequence[int]) -> Lines:
    """Return a plot of curves of numbers that are not negative, each over its steps, in the colours of these numbers."""
    ys = choose_ticks(max(max(values) for values in curves.values()))
    steps = max(len(values) for values in curves.values())

    def place_x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(steps - 1, 1)

    def place_y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / ys[-1]

    lines = []
    for number, (name, values) in enumerate(curves.items()):
        points = " ".join(f"{place_x(step):.1f},{place_y(value):.1f}" for step, value in enumerate(values, 1))
        lines.append(Line(name, colours[number], points, f"{DASH} {DASH * (len(curves) - 1)}", -DASH * number))
    return Lines(
        title,
        "; ".join(f"{name}: {values[0]:.3g} to {values[-1]:.3g}" for name, values in curves.items()),
        tuple(lines),
        tuple(Tick(place_x(step), str(step)) for step in sorted({1, (steps + 1) // 2, steps})),
        tuple(Tick(place_y(value), f"{value:g}") for value in ys),
    )


def draw_bars(title: str, values: Mapping[str, float], texts: Mapping[str, str], colours: Sequence[int]) -> Bars:
    """Return a plot of values that are not negative, with a text for each, in the colours of these numbers."""
    most = max(values.values(), default=0) or 1
    room = WIDTH - NUMBER
    bars = [
        Bar(name, colours[number], number * ROW, max(room * value / most, 1), texts[name])
        for number, (name, value) in enumerate(values.items())
    ]
    return Bars(title, "; ".join(f"{name}: {texts[name]}" for name in values), tuple(bars), max(len(bars) * ROW, ROW))
