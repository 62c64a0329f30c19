"""Try another release of DeepSpeed, or another torch, with a copy of the recipe, and say what breaks and what to do about it.

The recipe itself is never changed. What would change it is a patch in the result.
"""

from __future__ import annotations

import io
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import build, mutex, pins, sdist
from . import upgrade_checks as checks
from .digests import hash_file
from .errors import BadInput, CheckFailed, DswinError, MachineLacks
from .explain import Explained, explain
from .sdist import Sdist
from .upgrade_checks import Finding

if TYPE_CHECKING:
    from rich.table import Table

Progress = Callable[[str], None]
#: Builds and tests: (folder of the recipe, folder for a channel) -> what came of it, in a sentence.
Builder = Callable[[Path, Path], str]

_STYLES = {"ok": "green", "note": "yellow", "broke": "bold red", "lacks": "magenta", "skipped": "dim"}
#: Causes in a log, or lines that look like errors, that are told.
TOLD = 3


@dataclass(frozen=True)
class Target:
    """What is built. :param torch: another minor version than the recipe's, for the variant cpu."""

    platform: str
    variant: str
    python: str
    torch: str | None = None


@dataclass
class Trial:
    """What came of trying a release.

    :param folder: ``recipe``, the copy; ``source``, patched; ``channel`` with the package, where one was built.
    :param diff: the patch that makes the recipe that of this release: what it pins, and patches that upstream has by now.
    """

    version: str
    sha256: str
    folder: Path
    findings: list[Finding] = field(default_factory=list)
    diff: str = ""

    @property
    def exit_code(self) -> int:
        """0 nothing broke, 1 something did, 3 nothing did, but this machine could not try all that was asked."""
        statuses = {one.status for one in self.findings}
        if "broke" in statuses:
            return CheckFailed.exit_code
        return MachineLacks.exit_code if "lacks" in statuses else 0

    def count(self) -> dict[str, int]:
        """{status: how many findings}"""
        counts: Counter[str] = Counter(one.status for one in self.findings)
        return {status: counts[status] for status in _STYLES if status in counts}

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "version": self.version,
            "sha256": self.sha256,
            "exit_code": self.exit_code,
            "counts": self.count(),
            "folder": str(self.folder),
            "findings": [vars(one) for one in self.findings],
            "diff": self.diff,
        }


def attempt(
    recipe: Path,
    cache: Path,
    release: str,
    target: Target,
    builder: Builder | None = None,
    progress: Progress = lambda _: None,
) -> Trial:
    """Try a release of DeepSpeed with a copy of the recipe, in ``cache/upgrade``, in place of the last trial.

    :param release: a version, or the path of an sdist.
    :param builder: None looks at the source only.
    :raises DswinError: the target is none of the recipe's, or there is no such release. All else is a finding.
    """
    recipe, cache = recipe.absolute(), cache.absolute()
    build.choose(recipe, target.platform, target.variant, target.python)
    if target.torch and target.variant != "cpu":
        raise BadInput(
            f"--torch goes with the variant cpu: {target.variant} names torch together with its CUDA.",
            fix="Change them together by hand; docs/upgrading.md says where.",
        )
    folder = cache / "upgrade"
    folder.mkdir(parents=True, exist_ok=True)
    with mutex.hold(folder, "waiting for another trial", progress):
        if release.endswith(".tar.gz"):
            file = Path(release).absolute()
        else:
            file = sdist.take(sdist.parse_version(release), cache / "source", progress)
        for name in ("recipe", "channel"):
            shutil.rmtree(folder / name, ignore_errors=True)
        upstream = sdist.unpack(file, folder / "source")
        trial = Trial(upstream.source.version, upstream.source.sha256, folder)
        size = file.stat().st_size / 2**20
        trial.findings.append(
            Finding("source", "ok", f"{upstream.source.file_name}, {size:.1f} MiB, sha256 {upstream.source.sha256}.")
        )
        copy = folder / "recipe"
        pins.copy(recipe, copy)
        pins.set_deepspeed(copy, upstream, file)
        if target.torch:
            pins.set_torch(copy, target.platform, target.torch)
        progress("comparing the source with the recipe")
        whole = _compare(trial, copy, upstream, target)
        trial.diff = pins.compare(recipe, copy)
        if builder is None:
            trial.findings.append(Finding("build", "skipped", "Not asked for."))
        elif not whole:
            trial.findings.append(Finding("build", "skipped", "Not tried: a patch does not apply."))
        else:
            lent = _lend(file, cache / "source" / upstream.source.file_name)
            trial.findings += _build(lambda: builder(copy, folder / "channel"), lent, cache / "logs", target)
    return trial


def _compare(trial: Trial, recipe: Path, upstream: Sdist, target: Target) -> bool:
    """Take every step that reads the source only, and take patches that upstream has out of the copy.

    :return: whether all others apply.
    """
    tree = upstream.tree
    trial.findings += [
        *checks.guard(
            "windows files",
            lambda: checks.check_windows_files(recipe, tree),
            "The sdist has none of the recipe's files for Windows.",
        ),
        *checks.guard(
            "python", lambda: checks.check_pythons(recipe, upstream, target.platform), "It takes the recipe's Pythons."
        ),
        *checks.guard(
            "requirements",
            lambda: checks.check_requirements(recipe, upstream, target.platform, target.variant, target.python),
            "The package requires what DeepSpeed does.",
        ),
        *checks.guard("ops", lambda: checks.check_ops(recipe, tree), "Its ops and their flags are those of ops.yaml."),
    ]
    applied = checks.apply_patches(recipe, tree)
    trial.findings += [
        *checks.guard("patches", lambda: checks.check_patches(applied), "The recipe has none."),
        *checks.guard(
            "variables",
            lambda: checks.check_variables(recipe, tree, applied),
            "DeepSpeed reads the other DS_ variables that the build scripts set.",
        ),
    ]
    checks.drop_upstream(recipe, applied)
    return all(one.state != "fails" for one in applied)


@contextmanager
def _lend(file: Path, place: Path) -> Iterator[None]:
    """Let a build find the sdist where it looks for one; a file of the user's own is taken away again.

    :raises BadInput: there is another of that name.
    """
    if place.exists():
        if hash_file(place) != hash_file(file):
            raise BadInput(
                f"{place} is another file than {file}.", fix="Delete it, or set DSWIN_CACHE to a folder for this trial."
            )
        yield
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)
    try:
        yield
    finally:
        place.unlink()


def _build(builder: Callable[[], str], lent: AbstractContextManager[None], logs: Path, target: Target) -> list[Finding]:
    """Build, and say what broke by the log's own words."""
    start = time.time()
    try:
        with lent:
            return [Finding("build", "ok", builder())]
    except (MachineLacks, BadInput) as error:
        return [Finding("build", "lacks", error.what, error.fix)]
    except CheckFailed as error:
        return [Finding("build", "broke", error.what, error.fix), *_explain(error, find_log(logs, target, start))]


def find_log(folder: Path, target: Target, since: float) -> Path | None:
    """Return the last log of this target that was written after ``since``, in seconds since 1970."""
    names = f"*-{target.platform}-*{target.variant}_py{target.python.replace('.', '')}_*.log"
    logs = [(path.stat().st_mtime, path) for path in folder.glob(names)]
    return max((one for one in logs if one[0] >= since - 1), default=(0, None))[1]


def _explain(error: DswinError, log: Path | None) -> list[Finding]:
    """Say what a log means, as ``dswin explain`` does; without a log, what the error itself quotes of one."""
    if log is not None:
        with log.open("rb") as stream:
            found, name = _read(stream), log.name
    else:
        found, name = _read(io.BytesIO("\n".join((error.what, error.log)).encode())), "the error"
    if found is None:
        return []
    pairs = (found.causes or found.consequences)[:TOLD]
    told = [
        Finding("build", "broke", f"{name}, line {hit.line}, {failure.id}: {hit.text}\n{failure.cause}", failure.fix)
        for failure, hit in pairs
    ]
    return told or [
        Finding("build", "broke", f"{name}, line {hit.line}: {hit.text}", "No known failure: read the log around it.")
        for hit in found.unknown[:TOLD]
    ]


def _read(stream: io.BufferedIOBase) -> Explained | None:
    try:
        return explain(stream, "the log")  # type: ignore[arg-type]
    except BadInput:  # an empty log
        return None


def table(trial: Trial) -> Table:
    """A row a finding, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, pad_edge=False)
    result.add_column("")
    result.add_column("step", style="bold", no_wrap=True)
    result.add_column("finding", overflow="fold", ratio=3)
    result.add_column("what to do", overflow="fold", ratio=2)
    last = ""
    for one in trial.findings:
        step = one.step if one.step != last else ""
        result.add_row(Text(one.status, style=_STYLES[one.status]), step, Text(one.found), Text(one.fix))
        last = one.step
    return result
