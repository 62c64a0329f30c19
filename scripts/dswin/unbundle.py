"""Makes the environment of this unpacked bundle with the conda, mamba or micromamba of this machine. Needs no network.

Checks every file against manifest.json first, since none of these programs checks the hash of a package that lies in a folder.
"""

# In a bundle this is install.py: it uses nothing but Python's own library, and runs with the Pythons of older condas too.
from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MANIFEST = "manifest.json"
PROGRAMS = ("conda", "mamba", "micromamba")


class Failed(Exception):
    """A text for a person, and the exit code: 1 a check found something, 2 bad input, 3 this machine lacks something."""

    def __init__(self, what: str, fix: str, code: int) -> None:
        super().__init__(what)
        self.what, self.fix, self.code = what, fix, code


def check(folder: Path) -> int:
    """Make sure that the files of an unpacked bundle are those of its manifest; return how many bytes they have."""
    again = "Unpack the bundle again. If it is the same again, ask whoever made it."
    try:
        members = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["members"]
        wanted = {name: (entry["size"], entry["sha256"]) for name, entry in members.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failed(f"{folder / MANIFEST} cannot be read: {error!r}", again, 1) from error
    there = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()
    }
    if missing := sorted(set(wanted) - there):
        raise Failed(f"Missing: {', '.join(missing[:10])}", again, 1)
    if extra := sorted(there - set(wanted) - {MANIFEST}):
        raise Failed(f"Not of the bundle: {', '.join(extra[:10])}", "Unpack it into an empty folder.", 1)
    for name, (size, sha256) in sorted(wanted.items()):
        path = folder / name
        if path.is_symlink() or path.stat().st_size != size or hash_file(path) != sha256:
            raise Failed(f"Altered: {name}", again, 1)
    return sum(size for size, _ in wanted.values())


def hash_file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            found.update(chunk)
    return found.hexdigest()


def find_program(named: str | None) -> str:
    """The program that makes environments: as named, as CONDA_EXE says, or the first on PATH."""
    candidates = (named,) if named else (os.environ.get("CONDA_EXE"), *PROGRAMS)
    for candidate in candidates:
        if candidate and (found := shutil.which(candidate)):
            return found
    if named:
        raise Failed(f"There is no program {named}.", "Correct --conda.", 2)
    raise Failed(
        f"There is none of {', '.join(PROGRAMS)} here.",
        "Start this in a conda prompt, name the program (--conda), or use dswin: see README.txt.",
        3,
    )


def install(folder: Path, prefix: Path, program: str) -> None:
    """Make the environment; what the program says is seen."""
    if prefix.exists() and any(prefix.iterdir()):
        raise Failed(f"{prefix} is there already.", "Name another folder (--prefix), or delete that one.", 2)
    command = [program, "create", "--yes", "--prefix", str(prefix), "--offline", "--override-channels"]
    command += ["--channel", (folder / "channel").as_uri(), "--file", str(folder / "packages.txt")]
    if subprocess.run(command, check=False).returncode != 0:
        raise Failed(f"{program} could not make the environment; its own words are above.", "Correct what it names.", 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--prefix", type=Path, metavar="FOLDER", help="where the environment is to be")
    todo.add_argument("--check", action="store_true", help="only check the files")
    parser.add_argument("--conda", metavar="PROGRAM", help="conda, mamba or micromamba  [default: the first found]")
    options = parser.parse_args(arguments)
    try:
        program = None if options.check else find_program(options.conda)
        print("checking the files of the bundle ...", flush=True)
        size = check(HERE)
        print(f"all as they were made: {size / 1e6:.0f} MB", flush=True)
        if program:
            install(HERE, options.prefix.absolute(), program)
            print(f"done. Use it: conda activate {options.prefix.absolute()}")
    except Failed as failed:
        print(f"error: {failed.what}\nwhat to do: {failed.fix}", file=sys.stderr)
        return failed.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
