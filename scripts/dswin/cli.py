"""The command line: it parses and prints; the modules beside it do the work."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast

import click
from rich.console import Console
from rich.markup import escape

from . import __version__, errors
from .errors import show_text

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipe"
#: What may be deleted at any time: downloads, tools, object files. DSWIN_CACHE puts it elsewhere.
CACHE = Path(os.environ.get("DSWIN_CACHE") or ROOT / ".dswin").absolute()

#: For people, on standard error; standard output is for what a program may read.
console = Console(stderr=True, highlight=False, soft_wrap=True, width=None if sys.stderr.isatty() else 120)


#: How an error begins that nobody foresaw.
FAULT = "This is a fault of dswin"
#: What the system says of a path that is not what the command needs; no right and no space would help.
BAD_NAMES = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
)


def show_progress() -> Callable[[str], None]:
    """Return a function that prints one line a step, with the seconds since the start."""
    start = time.monotonic()

    def report(message: str) -> None:
        console.print(
            f"[dim]{time.monotonic() - start:6.1f} s[/dim]  {escape(show_text(message.expandtabs()))}", markup=True
        )

    return report


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dswin")
def dswin() -> None:
    """DeepSpeed for Windows and Linux, compiled ahead of time: build it, test it, put it into a channel.

    Exit codes: 0 done, 1 a check found something, 2 bad input, 3 this machine lacks something, 130 interrupted.
    """


@dswin.command()
@click.option("--target", metavar="PLATFORM", help="win-64 or linux-64.  [default: this machine's]")
@click.option("--variant", help="cuda121, cuda130 or cpu.  [default: cuda121 for win-64, cpu for linux-64]")
@click.option("--python", "python", metavar="X.Y", help="The package's Python.  [default: the one that runs dswin]")
@click.option(
    "--deps",
    type=click.Choice(["auto", "conda", "pypi"]),
    default="auto",
    show_default=True,
    help="Where the dependencies come from: conda channels, a channel made of wheels, or whichever answers first.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=ROOT / "channel", help="The channel folder.  [default: channel]"
)
@click.option(
    "--msvc",
    type=click.Path(path_type=Path),
    help="The folder of Microsoft's compiler, for win-64 on Linux.  [default: what DSWIN_MSVC names]",
)
@click.option("--build-number", type=click.IntRange(min=0), help="[default: the first that the channel does not have]")
@click.option("--require-gpu", is_flag=True, help="The package's tests fail where they find no GPU.")
@click.option(
    "--rehearse",
    is_flag=True,
    help="Compile and link a CUDA variant for Windows on Linux, against stand-ins for what only a CUDA torch has. "
    "Shows whether the ops build; makes no package.",
)
@click.option(
    "--archs", metavar="LIST", help="With --rehearse: GPU architectures instead of the recipe's, as 8.6;8.9+PTX."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was built as JSON.")
def build(
    target: str | None,
    variant: str | None,
    python: str | None,
    deps: str,
    out: Path,
    msvc: Path | None,
    build_number: int | None,
    require_gpu: bool,
    rehearse: bool,
    archs: str | None,
    as_json: bool,
) -> None:
    """Compile, package and test one variant of the recipe, and add it to a local channel."""
    from . import binaries, machine
    from . import build as builder

    platform = target or machine.this_platform()
    variant = variant or ("cuda121" if platform == "win-64" else "cpu")
    python = python or machine.this_python(platform)
    if rehearse:
        show_rehearsal(platform, variant, python, archs, msvc, as_json)
        return
    if archs:
        raise errors.BadInput(
            "--archs goes with --rehearse.",
            fix="For a package of your own, set DSWIN_ARCH_LIST and run the builder on recipe/.",
        )
    built = builder.build(
        RECIPE,
        out,
        CACHE,
        platform=platform,
        variant=variant,
        python=python,
        deps=cast(builder.Deps, deps),
        msvc=msvc,
        number=build_number,
        require_gpu=require_gpu,
        progress=show_progress(),
    )
    if as_json:
        document = {
            "package": str(built.package),
            "wheel": str(built.wheel),
            "channels": built.channels,
            "ops": [binary.to_json() for binary in built.binaries],
        }
        click.echo(json.dumps(document, indent=1))
        return
    console.print(binaries.table(built.binaries))
    size = built.package.stat().st_size / 2**20
    click.echo(f"\nPackage  {built.package}  ({size:.1f} MiB)")
    click.echo(f"Wheel    {built.wheel}")
    channels = " ".join(f"-c {url}" for url in built.channels)
    click.echo(f"Install  conda create -n ds --override-channels {channels} deepspeed-win")


def show_rehearsal(
    platform: str, variant: str, python: str, archs: str | None, msvc: Path | None, as_json: bool
) -> None:
    """Rehearse a variant and print what came out."""
    from . import binaries, rehearsal

    if platform != rehearsal.PLATFORM:
        raise errors.BadInput(f"A build for {platform} is not rehearsed.", fix=f"Add --target {rehearsal.PLATFORM}.")
    done = rehearsal.rehearse(
        RECIPE, CACHE, variant=variant, python=python, archs=archs, msvc=msvc, progress=show_progress()
    )
    if as_json:
        click.echo((done.folder / "report.json").read_text(encoding="utf-8"))
        return
    console.print(binaries.table(done.binaries))
    click.echo(
        f"\n{len(done.binaries)} ops compiled for {done.archs} and linked in {done.seconds / 60:.0f} min: {done.folder}"
    )
    click.echo("Rehearsed, not built: nothing of this can be installed, and none of it was loaded.")


@dswin.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def test(arguments: tuple[str, ...]) -> int:
    """Run this project's own tests; ARGUMENTS go to pytest."""
    done = subprocess.run([sys.executable, "-m", "pytest", *(arguments or ("tests",))], cwd=ROOT, check=False)
    # pytest says 2 for interrupted, 5 for no tests; everything but 0 is a finding here.
    return 0 if done.returncode == 0 else 1


@dswin.command()
@click.argument("arguments", nargs=-1)
@click.option(
    "--variant", "variants", multiple=True, help="Once a variant.  [default: Windows cuda121 and cpu, else cpu]"
)
@click.option("--python", metavar="X.Y", help="The packages' Python.  [default: the one that runs dswin]")
@click.option(
    "--report",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The .zip to write.  [default: dswin-proof-YYYYMMDD-HHMM.zip here]",
)
@click.option("--skip-tests", is_flag=True, help="Leave this project's own tests out.")
@click.option(
    "--require-gpu/--no-require-gpu",
    default=None,
    help="CUDA variants must train on a GPU.  [default: where nvidia-smi names one]",
)
@click.option(
    "--msvc", type=click.Path(path_type=Path), help="On Linux: build for win-64, with this compiler and Wine."
)
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
def prove(
    arguments: tuple[str, ...],
    variants: tuple[str, ...],
    python: str | None,
    file: Path | None,
    skip_tests: bool,
    require_gpu: bool | None,
    msvc: Path | None,
    as_json: bool,
) -> int:
    """Find out what works on this machine, and leave one file to send back.

    Looks at the machine, builds each variant, runs this project's tests (ARGUMENTS go to pytest: -- tests -k word; on Windows
    those that need no package of Linux's). The report holds no user name, no host name and no secret.

    Exit codes: 0 all that ran passed, 1 something did not, 3 no variant could be built.
    """
    from datetime import datetime

    from . import privacy, proof
    from . import prove as prover

    file = file or Path.cwd() / prover.name_report(datetime.now())
    default = ("tests/unit",) if os.name == "nt" else ("tests",)
    found = prover.prove(
        RECIPE,
        ROOT / "channel",
        CACHE,
        file,
        variants=variants,
        python=python,
        require_gpu=require_gpu,
        msvc=msvc,
        tests=() if skip_tests else arguments or default,
        progress=show_progress(),
    )
    if as_json:
        click.echo(json.dumps(proof.to_document(found, privacy.read_names()), indent=1))
    else:
        click.echo(f"\nReport  {file.absolute()}")
    return found.exit_code


@dswin.group()
def bench() -> None:
    """Measure."""


@bench.command("cpu-adam")
@click.option("--python", type=click.Path(path_type=Path), help="Python of an environment that has deepspeed-win.")
@click.option("--target", type=click.Choice(["win-64"]), help="Instead: the channel's Windows package, under Wine.")
@click.option(
    "--against",
    nargs=3,
    multiple=True,
    metavar="NAME PYTHON OP",
    help="Another cpu_adam_op, and the Python that has the torch it was built for ('-' with --target: torch 2.5).",
)
@click.option("--size", "sizes", multiple=True, type=click.IntRange(min=1), help="[default: 1, 10 and 50 million]")
@click.option("--threads", multiple=True, type=click.IntRange(min=1), help="[default: 1, and all cores]")
@click.option("--repeats", type=click.IntRange(min=3), default=9, show_default=True, help="Rounds, alternated.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "channel", help="With --target: the channel.")
@click.option("--msvc", type=click.Path(path_type=Path), help="With --target: as for build.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all times there.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw the table there, as .svg.")
def bench_cpu_adam(
    python: Path | None,
    target: str | None,
    against: tuple[tuple[str, str, str], ...],
    sizes: tuple[int, ...],
    threads: tuple[int, ...],
    repeats: int,
    out: Path,
    msvc: Path | None,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Time DeepSpeedCPUAdam's step: ours, other builds, torch's fused AdamW, and what the memory allows."""
    from . import bench as benches

    progress = show_progress()

    def measure(contenders: list[benches.Contender]) -> dict:
        return benches.measure(
            contenders, sizes=sizes or benches.SIZES, threads=threads or None, repeats=repeats, progress=progress
        )

    if bool(python) == bool(target):
        raise errors.BadInput("What is to be measured?", fix="Give --python FILE, or --target win-64.")
    if python:
        document = measure(benches.choose(python, [(name, Path(one), Path(op)) for name, one, op in against]))
    else:
        from . import bench_windows, machine

        with machine.open_machine("win-64", CACHE, msvc, progress) as windows:
            if not isinstance(windows, machine.UnderWine):
                raise errors.BadInput("--target is for Linux with Wine.", fix="Give --python FILE.")
            windows.host.start()
            more = [(name, Path(op)) for name, _, op in against]
            document = measure(bench_windows.choose(windows, RECIPE, out.absolute(), CACHE / "bench", more, progress))
    if json_file:
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if plot_file:
        benches.plot(document, plot_file)
    console.print(benches.table(document))


@dswin.group()
def channel() -> None:
    """A conda channel in a folder."""


@dswin.command("binaries")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
def show_binaries(files: tuple[Path, ...], as_json: bool) -> None:
    """Show what is in compiled extensions (.so, .pyd): vector code, OpenMP, GPU architectures."""
    from . import binaries

    found = [binaries.read(file) for file in files]
    if as_json:
        click.echo(json.dumps([binary.to_json() for binary in found], indent=1))
    else:
        Console(highlight=False).print(binaries.table(found))


# At the end: these modules use what stands above.
from . import cli_bundle, cli_channel, cli_doctor, cli_env, cli_explain, cli_lock, cli_upgrade, cli_verify  # noqa: E402

for command in (
    cli_bundle.bundle,
    cli_doctor.doctor,
    cli_env.env,
    cli_explain.explain,
    cli_lock.lock,
    cli_upgrade.upgrade,
    cli_verify.verify,
):
    dswin.add_command(command)
for command in (
    cli_channel.index_channel,
    cli_channel.check_channel,
    cli_channel.mirror_lock,
    cli_channel.publish_channel,
):
    channel.add_command(command)


def report(error: errors.DswinError) -> None:
    """Print an error for a person: what, what the log says, what to do; nothing in it that a terminal obeys."""
    console.print("[bold red]error:[/bold red]", end=" ")
    console.print(show_text(error.what), markup=False)
    if error.log:
        console.print(show_lines(error.log), markup=False, style="dim")
    console.print("[bold]what to do:[/bold]", end=" ")
    console.print(show_lines(error.fix), markup=False)


def show_lines(text: str) -> str:
    """As :func:`errors.show_text`, with its lines kept."""
    return "\n".join(map(show_text, text.splitlines()))


def translate(error: OSError) -> errors.DswinError:
    """Return what the system refused as an error that a user can act on: the disk, the rights, or a name that cannot be."""
    where = f": {os.fsdecode(error.filename)}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        written = f" {os.fsdecode(error.filename)} was being written." if error.filename else ""
        return errors.MachineLacks(
            f"The disk is full.{written}",
            fix="Free some space, also where temporary files lie (TMPDIR), and run again.",
        )
    what = f"{error.strerror or error}{where}."
    if error.errno in BAD_NAMES and not error.filename:  # tempfile's: it could write into none of those that it names
        return errors.MachineLacks(what, fix="Free some space, or set TMPDIR to a folder on another disk.")
    if error.errno in BAD_NAMES:
        return errors.BadInput(what, fix="Name another one.")
    return errors.MachineLacks(what, fix="Check that folder's permissions.")


def find_place(error: BaseException) -> str:
    """Return where in dswin something was raised, for those who mend it."""
    frames = [
        one for one in traceback.extract_tb(error.__traceback__) if Path(one.filename).parent == Path(__file__).parent
    ]
    return f"in {frames[-1].name}, {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; no traceback reaches a user unless DSWIN_DEBUG is set."""
    try:
        code = dswin.main(args=arguments, prog_name="dswin", standalone_mode=False) or 0
        with errors.naming("standard output"):
            sys.stdout.flush()
        return code
    except errors.DswinError as error:
        report(error)
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(show_lines(said.getvalue()), err=True)
        return errors.BadInput.exit_code
    except (KeyboardInterrupt, click.Abort):
        console.print("interrupted; the same command again goes on or starts anew")
        return errors.INTERRUPTED
    except Exception as error:
        if os.environ.get("DSWIN_DEBUG"):
            raise
        if isinstance(error, OSError):
            refused = translate(error)
        else:
            refused = errors.DswinError(
                f"{FAULT}: {type(error).__name__}: {error}.",
                fix="Report it, with the command; with DSWIN_DEBUG=1 it says more.",
                log=find_place(error),
            )
        report(refused)
        return refused.exit_code
