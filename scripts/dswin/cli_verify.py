"""The command ``dswin verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--prefix", type=click.Path(path_type=Path), help="The environment.  [default: the active one]")
@click.option("--python", type=click.Path(path_type=Path), help="Instead: its Python.")
@click.option("--require-gpu", is_flag=True, help="Exit with 3 where no GPU can be used.")
@click.option(
    "--ranks", type=click.IntRange(min=1), help="Processes started by DeepSpeed's launcher.  [default: one a GPU]"
)
@click.option("--quick", is_flag=True, help="One precision and fewer stages.")
@click.option("--report", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write an .html page there.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found.")
def verify(
    prefix: Path | None,
    python: Path | None,
    require_gpu: bool,
    ranks: int | None,
    quick: bool,
    page: Path | None,
    as_json: bool,
) -> int:
    """Examine an environment that has deepspeed-win: does it do here what it should?

    Loads every op, trains in each ZeRO stage and precision and compares the losses, holds the optimizers to torch's, and starts
    several ranks. Nothing may be compiled on the way. A check that crashes or hangs is a finding; the next one runs.

    Exit codes: 0 all that ran passed, 1 a check failed, 2 no such environment, 3 this machine lacks what was asked for.
    """
    from . import cli, errors, privacy, report
    from . import verify as verifier

    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise errors.BadInput(f"{page} is not an .html file.", fix="Give it that ending.")
    if page is not None and not page.absolute().parent.is_dir():
        raise errors.BadInput(f"There is no folder for {page}.", fix="Name a file in a folder that is there.")
    examined = verifier.find_python(prefix, python)
    progress = cli.show_progress()
    progress(f"examining the environment of {examined}")
    train = cli.RECIPE / "tests" / "train.py"
    found = verifier.examine(
        examined, train=train, require_gpu=require_gpu, ranks=ranks, quick=quick, progress=progress
    )
    asked = {"require_gpu": require_gpu, "ranks": ranks, "quick": quick}
    document = verifier.make_document(found, asked, cli.RECIPE, privacy.read_names())
    if page is not None:
        report.write(document, page)
    if as_json:
        click.echo(json.dumps(document, indent=1))
    else:
        _print(document, page)
    return document["exit_code"]


def _print(document: dict[str, Any], page: Path | None) -> None:
    """Print for people: each problem with its fix, then the verdict."""
    from . import report

    for check in document["checks"]:
        if check["result"] in ("failed", "lacks"):
            click.echo(f"{check['title']}: {check['result']}\n  {check['what']}\n  What to do: {check['fix']}")
    _, verdict = report.VERDICTS[document["exit_code"]]
    click.echo(f"{verdict} {report.count(document['checks'])}")
    if page is not None:
        click.echo(f"Report  {page.absolute()}")
