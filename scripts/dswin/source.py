"""DeepSpeed's source: the sdist of one version, taken with pip and checked against the recipe's sha256."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from .digests import hash_file
from .errors import BadInput, CheckFailed, MachineLacks
from .package_index import run_pip


@dataclass(frozen=True)
class Source:
    """What the recipe says of its source."""

    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the sdist."""
        return f"deepspeed-{self.version}.tar.gz"


def read(recipe: Path) -> Source:
    """Return the version and hash that ``recipe/recipe.yaml`` pins.

    :raises BadInput: the file is missing, or pins none.
    """
    path = recipe / "recipe.yaml"
    try:
        context = yaml.safe_load(path.read_text(encoding="utf-8"))["context"]
        return Source(context["version"], context["sha256"])
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", fix="Name the folder of the recipe.") from error
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} pins no version and sha256: {error}.", fix="Compare it with the repository's."
        ) from error


def check(path: Path, source: Source) -> None:
    """Compare a file with the recipe's hash.

    :raises CheckFailed: another hash; the file is left as it is.
    """
    digest = hash_file(path)
    if digest != source.sha256:
        raise CheckFailed(
            f"{path} is not the source that the recipe names: its sha256 is {digest}, not {source.sha256}.",
            fix="Delete the file and run again. If it comes back, your package index serves another file: ask who runs it.",
        )


def download(wanted: Sequence[str], folder: str) -> tuple[int, str]:
    """Let pip download an sdist of DeepSpeed into ``folder``; it runs setup.py for the metadata. Return its code and all it said.

    :param wanted: what to download, as pip's arguments.
    """
    options = ["--no-deps", "--no-binary", "deepspeed", "--no-build-isolation", "--dest", folder]
    return run_pip(["download", *options, *wanted], {"DS_ACCELERATOR": "cpu"})


def fetch(source: Source, cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the sdist, from ``cache`` or by pip, so that the user's own index or mirror serves it.

    pip compares the hash before it opens the archive, and runs setup.py for the metadata only then.

    :raises CheckFailed: the index, or the cache, holds another file under this name.
    :raises MachineLacks: pip cannot get it.
    """
    target = cache / source.file_name
    if target.is_file():
        check(target, source)
        return target
    cache.mkdir(parents=True, exist_ok=True)
    progress(f"downloading {source.file_name}")
    with tempfile.TemporaryDirectory(dir=cache, prefix="scratch-") as scratch:
        requirement = Path(scratch) / "requirements.txt"
        requirement.write_text(f"deepspeed=={source.version} --hash=sha256:{source.sha256}\n", encoding="utf-8")
        code, log = download(["--require-hashes", "--requirement", str(requirement)], scratch)
        if code:
            if "DO NOT MATCH THE HASHES" in log:
                raise CheckFailed(
                    f"The package index serves another {source.file_name} than the recipe names.",
                    fix="Use another index or mirror (pip config list shows yours), and tell whoever runs this one.",
                    log=log,
                )
            raise MachineLacks(
                f"pip could not get {source.file_name}.",
                fix=f"Check the network and pip config list, or put the file into {cache} yourself.",
                log=log,
            )
        downloaded = Path(scratch) / source.file_name
        check(downloaded, source)
        os.replace(downloaded, target)
    return target
