"""The Windows machine of these tests: one Wine prefix, opened once for each file of tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from building import USERS, Build, build_for_windows
from dswin.errors import MachineLacks
from dswin.machine import UnderWine, install_builder
from dswin.wine import Host, Msvc, find_msvc, make_python, open_host
from dswin.wine.prefix import find_wine
from dswin.wine.python import MINOR


@pytest.fixture(scope="session")
def wine_cache() -> Path:
    """Kept between runs: a prefix takes 10 s to make, a Python minutes."""
    return Path(os.environ.get("DSWIN_TEST_WINE_CACHE") or Path(__file__).parents[2] / ".dswin" / "wine")


@pytest.fixture(scope="session")
def msvc() -> Msvc:
    try:
        find_wine()
    except MachineLacks as error:
        pytest.skip(f"no Wine: {error.what}")
    try:
        return find_msvc()
    except MachineLacks as error:
        pytest.skip(f"no MSVC tree: {error.what}")


@pytest.fixture(scope="module")
def host(wine_cache: Path, msvc: Msvc) -> Iterator[Host]:
    with open_host(wine_cache, msvc, print) as host:
        yield host


@pytest.fixture(scope="module")
def python(host: Host, wine_cache: Path) -> Path:
    return make_python(host, wine_cache, print) / "python.exe"


@pytest.fixture(scope="session")
def windows_build(msvc: Msvc, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A CPU package for Windows, from the real source, with the recipe's tests passed."""
    return build_for_windows(tmp_path_factory.mktemp("a channel é") / "channel", msvc.root)


@pytest.fixture(scope="module")
def machine(windows_build: Build, host: Host, python: Path, wine_cache: Path) -> UnderWine:
    return UnderWine(host, python.parent, install_builder(host, python.parent, wine_cache, print))


@pytest.fixture(scope="module")
def folder(host: Host) -> Iterator[Path]:
    """A folder of a user, with a space and a letter beyond ASCII in its name."""
    folder = host.prefix / "drive_c" / "Users é" / "my models"
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def prefix(windows_build: Build, machine: UnderWine, folder: Path) -> Path:
    """A fresh environment, made by another program than the one that tested the package."""
    prefix = folder / "an environment"
    urls = [machine.url(Path(unquote(urlparse(url).path))) for url in windows_build.channels]
    code = machine.run_python(
        [USERS / "install.py", prefix, *(word for url in urls for word in ("--channel", url)), "--spec", "deepspeed-win",
         "--spec", "pip", "--spec", f"python {MINOR}.*", "--activate", folder / "activate.bat"],
        log := folder / "install.log",
        {},
    )  # fmt: skip
    assert code == 0, log.read_text(encoding="utf-8")
    return prefix
