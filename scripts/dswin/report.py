"""The HTML page of `dswin verify`: one file that needs no other and no network, for screens of any width and for paper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import charts, files, pages
from .errors import CheckFailed, MachineLacks

TEMPLATE = "report.html.j2"

VERDICTS = {
    0: ("passed", "Everything that ran passed."),
    CheckFailed.exit_code: ("failed", "Something did not pass."),
    MachineLacks.exit_code: ("lacks", "This machine lacks something that was asked for."),
}
#: In words, with a sign: the colour alone says nothing to some.
RESULTS = {"passed": "✓ passed", "failed": "✕ failed", "lacks": "! lacks", "skipped": "– skipped"}
Check = dict[str, Any]


def write(document: dict[str, Any], file: Path) -> None:
    """Write the page next to itself and move it into place.

    :raises MachineLacks: it cannot be written there.
    """
    try:
        files.write_whole(file, render(document).encode(errors="replace"))
    except OSError as error:
        raise MachineLacks(
            f"The report {file} cannot be written: {error.strerror or error}.",
            fix="Name a file in a folder that is there and may be written to.",
        ) from error


def render(document: dict[str, Any]) -> str:
    """Return the page of a document of data/verify.schema.json."""
    template = pages.find_template(
        TEMPLATE, ms=show_ms, mib=show_mib, millions=show_millions, power=show_power, short=shorten
    )
    checks = document["checks"]
    kinds = {kind: [check for check in checks if check["kind"] == kind] for kind in ("zero", "adam", "ranks")}
    first = {check["kind"]: check for check in reversed(checks)}
    result, verdict = VERDICTS[document["exit_code"]]
    page = template.render(
        document=document,
        result=result,
        verdict=verdict,
        words=RESULTS,
        counts=count(checks),
        facts=list_facts(document),
        problems=[check for check in checks if check["result"] in ("failed", "lacks")],
        skipped=[check for check in checks if check["result"] == "skipped"],
        ops=first.get("ops"),
        recipe=first.get("recipe"),
        precisions=[
            (dtype, draw_training(group, f"in {dtype}"), group) for dtype, group in group_by_dtype(kinds["zero"])
        ],
        ranks=(draw_training(kinds["ranks"], "by ranks"), kinds["ranks"]),
        adam=kinds["adam"],
        adam_bars=draw_adam(kinds["adam"]),
    )
    # The macros before it leave empty lines.
    return page.lstrip()


def count(checks: Iterable[Check]) -> str:
    """Return how many checks ended how, in words: ``12 passed, 1 skipped``."""
    results = [check["result"] for check in checks]
    return ", ".join(f"{results.count(name)} {name}" for name in RESULTS if name in results)


def list_facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what was examined, as labels and texts; what is not known is left out."""
    about = document["environment"]
    torch, deepspeed = about.get("torch") or {}, about.get("deepspeed") or {}
    gpus = [
        f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, compute capability {gpu['capability']}"
        for gpu in about.get("gpus", [])
    ]
    facts = {
        "Device": "; ".join(f"{gpus.count(one)} × {one}" for one in dict.fromkeys(gpus)) or about.get("processor"),
        "Processor": about.get("processor") if gpus else None,
        "NVIDIA driver": about.get("driver"),
        "deepspeed-win": about.get("package"),
        "DeepSpeed": deepspeed.get("version"),
        "Ops built for": describe_build(deepspeed) if deepspeed else None,
        "torch": torch.get("version"),
        "CUDA of torch": torch.get("cuda") or ("none" if torch else None),
        "Python": about.get("python"),
        "System": about.get("platform"),
        "Environment": about.get("executable"),
        "Made": f"{document['made'].replace('T', ' ')} by dswin {document['dswin']}",
    }
    return [(label, str(value)) for label, value in facts.items() if value]


def describe_build(deepspeed: dict[str, Any]) -> str:
    """Return what the ops were compiled for, in words."""
    cuda = f", CUDA {deepspeed['cuda']}" if deepspeed["accelerator"] == "cuda" else ""
    return f"{deepspeed['accelerator'] or 'nothing'}, torch {deepspeed['torch']}{cuda}"


def group_by_dtype(checks: Iterable[Check]) -> list[tuple[str, list[Check]]]:
    """Return the trained ZeRO checks by precision, in their order; a title's last word is it."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        if check["result"] != "skipped":
            groups.setdefault(check["title"].split()[-1], []).append(check)
    return list(groups.items())


def shorten(check: Check) -> str:
    """Return a check's name for a plot: what its precision's other checks have too is left out."""
    return ", ".join(check["title"].replace("optimizer offloaded", "offloaded").split(", ")[:-1])


def choose_colour(run: dict[str, Any]) -> int:
    """Return the number of a run's colour: the same for a stage in every plot."""
    return run["stage"] + 2 * run["offload"]


def draw_training(checks: Iterable[Check], where: str) -> list[charts.Lines | charts.Bars]:
    """Return plots of what trained: losses, step times, and the GPU's memory, which a process shares on the CPU."""
    runs = {shorten(check): check["details"] for check in checks if check["details"].get("losses")}
    if not runs:
        return []
    colours = [choose_colour(run) for run in runs.values()]
    steady = {name: run["steady_step_s"] for name, run in runs.items()}
    texts = {name: f"{show_ms(seconds)} ms" for name, seconds in steady.items()}
    plots: list[charts.Lines | charts.Bars] = [
        charts.draw_lines(
            f"Loss after each step, {where}", {name: run["losses"] for name, run in runs.items()}, colours
        ),
        charts.draw_bars(f"Steady step, {where}", steady, texts, colours),
    ]
    if all(run["device"] == "cuda" for run in runs.values()):
        peaks = {name: run["peak_memory_bytes"] for name, run in runs.items()}
        texts = {name: f"{show_mib(size)} MiB" for name, size in peaks.items()}
        plots.append(charts.draw_bars(f"Peak memory of a GPU, {where}", peaks, texts, colours))
    return plots


def draw_adam(checks: Iterable[Check]) -> list[charts.Bars]:
    """Return a plot of each optimizer's step beside torch's."""
    plots = []
    for found in (check["details"] for check in checks if check["details"]):
        times = {found["optimizer"]: found["step_s"], found["timed_reference"]: found["reference_step_s"]}
        texts = {name: f"{show_ms(seconds)} ms" for name, seconds in times.items()}
        where = "GPU" if found["device"] == "cuda" else "CPU"
        many = f"{show_millions(found['timed_parameters'])} million parameters"
        title = f"{found['optimizer']} on the {where}, one step over {many}"
        plots.append(charts.draw_bars(title, times, texts, (0, 1)))
    return plots


def show_ms(seconds: float) -> str:
    """Return milliseconds with three digits.

    >>> show_ms(1.5), show_ms(0.01234), show_ms(0.0034), show_ms(0.000456)
    ('1,500', '12.3', '3.40', '0.456')
    """
    value = seconds * 1e3
    digits = next((digits for digits, least in enumerate((100, 10, 1)) if value >= least), 3)
    return f"{value:,.{digits}f}"


def show_mib(size: float) -> str:
    """Return MiB, whole."""
    return f"{size / 2**20:,.0f}"


def show_millions(number: float) -> str:
    """Return millions with two digits or all of them.

    >>> show_millions(5_000_000), show_millions(67_149_824), show_millions(264_448)
    ('5', '67', '0.26')
    """
    return f"{number / 1e6:.0f}" if number >= 1e6 else f"{number / 1e6:.2g}"


def show_power(number: float) -> str:
    """Return a small number in powers of ten.

    >>> show_power(4.05e-6), show_power(0.0), show_power(0.01)
    ('4.1e-06', '0', '0.01')
    """
    return f"{number:.1e}" if 0 < abs(number) < 1e-3 else f"{number:.3g}"
