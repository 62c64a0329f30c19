"""Keep of a snapshot of package records what the locks and their tests need, so that solving from it gives the same.

    python scripts/ci/select_records.py SNAPSHOT locks/records

Lines are kept as they are. What is kept: every package of the locks; every package that a case of tests/variants.py chooses; the
torch builds for Windows that a requirement of deepspeed-win could meet, each with what it needs; and MKL, OpenBLAS and the BLAS
builds, which show why NumPy is on the BLAS that it is on. Each solve is then repeated from what was kept, and must give the same.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
import variants  # noqa: E402
from dswin import records, solver  # noqa: E402
from dswin.errors import DswinError  # noqa: E402

#: torch 2.4 to 2.10 for the Pythons of the cases, whichever channel builds it.
_TORCH = re.compile(r"pytorch 2\.([4-9]|10)\.\d+ (?=.*(cpu|cuda)).*py(310|311|3\.10|3\.11)_.*")
_BESIDE_TORCH = {"cpuonly", "pytorch-cuda", "pytorch-mutex"}
_BLAS = {"blas", "intel-openmp", "libblas", "libcblas", "liblapack", "libopenblas", "mkl"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", type=Path, help="a folder of *.jsonl")
    parser.add_argument("out", type=Path, help="the folder for what is kept; its *.jsonl are replaced")
    arguments = parser.parse_args()
    try:
        select(arguments.snapshot, arguments.out)
    except DswinError as error:
        print(f"error: {error.what} {error.fix}\n{error.log}", file=sys.stderr)
        code = error.exit_code
    else:
        code = 0
    sys.stdout.flush()
    # py-rattler can crash while the interpreter ends, after the work is done.
    os._exit(code)


def select(snapshot: Path, out: Path) -> None:
    """Write what is kept of ``snapshot`` to ``out``.

    :raises CheckFailed: solving from what was kept gives something else.
    """
    from dswin.errors import CheckFailed

    known = records.read(snapshot)
    wanted = solver.read_wanted(ROOT / "locks")
    needed = solve_all(known, snapshot, wanted)
    urls = set().union(*needed.values()) | list_alternatives(known)
    kept = [record for record in known if record.url in urls]
    write(kept, out)
    again = solve_all(kept, out, wanted)
    if changed := [what for what in needed if needed[what] != again[what]]:
        raise CheckFailed(
            f"Solved from what was kept, {len(changed)} of {len(needed)} differ: {', '.join(changed[:3])}.",
            fix="Keep more: see the names at the top of this file.",
        )
    size = sum(file.stat().st_size for file in out.glob("*.jsonl"))
    print(f"{out} holds {len(kept)} of {len(known)} records, {size / 1e6:.2f} MB; {len(needed)} solves agree")


def solve_all(known: Sequence[records.Record], folder: Path, wanted: dict[str, solver.Wanted]) -> dict[str, set[str]]:
    """{what was asked: the urls that were chosen}, for the locks, the cases, and each torch that a case might choose."""
    found: dict[str, set[str]] = {}
    locked: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for name, one in wanted.items():
            solved = solver.solve(one, snapshot=folder, cache=Path(cache), progress=print)
            for platform, packages in solved.packages.items():
                found[f"{name} for {platform}"] = {package.url for package in packages}
            locked[name] = found[f"{name} for {variants.PLATFORM}"]
    with variants.open_choice(known, locked) as choice:
        for case in variants.CASES:
            print(f"solving for {'; '.join(case.channels)}, {case.priority}, CUDA {case.cuda}", flush=True)
            found[str(case)] = {package.url for package in choice.solve(case, solver.PACKAGE) or ()}
        case = variants.Case(variants.CHANNELS[0], "disabled", "12.4")
        for record in list_torches(known):
            spec = f"{record.channel}::{' '.join(_words(record))}"
            print(f"solving for {spec}", flush=True)
            found[spec] = {package.url for package in choice.solve(case, spec) or ()}
    return found


def _words(record: records.Record) -> tuple[str, str, str]:
    return record.repodata["name"], record.repodata["version"], record.repodata["build"]


def list_torches(known: Iterable[records.Record]) -> list[records.Record]:
    """The torch builds for Windows and the Pythons of the cases."""
    return [one for one in known if one.subdir == variants.PLATFORM and _TORCH.fullmatch(" ".join(_words(one)))]


def list_alternatives(known: Sequence[records.Record]) -> set[str]:
    """The urls of packages that are kept though nothing chose them."""
    names = _BESIDE_TORCH | _BLAS
    windows = [one for one in known if one.subdir in (variants.PLATFORM, "noarch")]
    return {one.url for one in windows if one.repodata["name"] in names} | {one.url for one in list_torches(known)}


def write(kept: Sequence[records.Record], out: Path) -> None:
    """Write one file a subdir, sorted by url, in place of those that are there."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.jsonl"):
        old.unlink()
    for subdir in sorted({record.subdir for record in kept}):
        lines = [record.line + "\n" for record in kept if record.subdir == subdir]
        (out / f"{subdir}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
