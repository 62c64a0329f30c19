"""A conda channel in a folder: read it, and add to it whole or not at all."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conda_package_streaming.package_streaming import stream_conda_info

from . import files, mutex
from .errors import BadInput, CheckFailed

#: The subdirs that this project builds for; noarch must be there in every channel (CEP 26).
SUBDIRS = ("noarch", "linux-64", "win-64")
#: The folder beside the subdirs that holds the wheels of the same builds, for people who use pip.
WHEELS = "wheels"
#: A folder with this file at its root holds packages that fit the machine that made them. It is never to be published.
FIXTURE_MARK = "BUILD-FIXTURE.txt"
ENDINGS = (".conda", ".tar.bz2")
#: What every package says of itself.
INDEX = "info/index.json"
#: The requirement of everything that was built in a rehearsal. No machine has this virtual package, so no client installs it.
REHEARSAL_MARK = "__rehearsal"

#: conda cuts the first part of a channel's url that begins like this out of it, even when the name goes on.
_LOOKS_LIKE_SUBDIR = re.compile(
    r"noarch|(linux|win|osx|freebsd|zos|emscripten|wasi)-(32|64|arm64|aarch64|ppc64le|s390x|wasm32)"
)


def check_folder(channel: Path) -> None:
    """Make sure that ``channel`` is a channel or may become one.

    :raises BadInput: it is a file, or a folder with other things in it, or a build fixture.
    """
    if odd := next((part for part in channel.absolute().parts if _LOOKS_LIKE_SUBDIR.match(part)), None):
        raise BadInput(
            f"{channel} cannot be a channel: conda takes the folder {odd} for a subdir and looks for packages elsewhere.",
            fix="Name a folder that has no part which begins with the name of a platform.",
        )
    if channel.is_symlink() or channel.is_file():
        raise BadInput(
            f"{channel} is not a folder.", fix="Name a folder that is a channel, or one that does not exist."
        )
    # Hidden: the lock of a publish, the .git of a site that is a repository.
    if not channel.is_dir() or all(one.name.startswith(".") for one in channel.iterdir()):
        return
    if (channel / FIXTURE_MARK).exists():
        raise BadInput(
            f"{channel} is a build fixture, whose packages fit this machine only.", fix="Name another folder."
        )
    if not (channel / "noarch" / "repodata.json").is_file():
        raise BadInput(
            f"{channel} is not a conda channel: it has files in it and no noarch/repodata.json.",
            fix="Name another folder, or an empty one. Nothing was written.",
        )


def list_archives(folder: Path) -> list[Path]:
    """The packages in a subdir's folder, by name."""
    return sorted(file for file in folder.glob("*") if file.name.endswith(ENDINGS))


def list_packages(channel: Path, name: str) -> list[dict]:
    """Return the records (index.json with fn, subdir, sha256, ...) of one package in a channel folder; [] if there is none.

    :raises BadInput: a repodata.json cannot be read.
    """
    records = list_records(channel)
    return [{"fn": place.rpartition("/")[2], **one} for place, one in records.items() if one["name"] == name]


def list_records(channel: Path) -> dict[str, dict]:
    """{subdir/file name: record} of all that a channel's repodata have.

    :raises BadInput: a repodata.json cannot be read.
    """
    records: dict[str, dict] = {}
    for subdir in SUBDIRS:
        path = channel / subdir / "repodata.json"
        if not path.is_file():
            continue
        try:
            repodata = json.loads(path.read_text(encoding="utf-8"))
            packages = {**repodata.get("packages", {}), **repodata.get("packages.conda", {})}
            records |= {f"{subdir}/{fn}": record for fn, record in packages.items() if record["name"]}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadInput(
                f"{path} is no repodata: {error}.", fix="Index the channel anew from its packages."
            ) from error
    return records


def add(channel: Path, packages: Iterable[Path], wheels: Iterable[tuple[str, Path]] = ()) -> list[Path]:
    """Add packages to a channel and index it. The channel is written beside itself and moved into place whole.

    :param packages: .conda files; the subdir is read from each.
    :param wheels: (folder below wheels/, .whl file).
    :return: the packages' places in the channel.
    :raises CheckFailed: a package of this file name is there already: a published name is never replaced.
    :raises BadInput: ``channel`` is something else, or a package comes out of a rehearsal.
    """
    check_folder(channel)
    channel.parent.mkdir(parents=True, exist_ok=True)
    placed = []
    with hold(channel), _renew(channel) as new:
        for package in packages:
            target = new / read_subdir(package) / package.name
            if target.exists():
                raise CheckFailed(
                    f"{channel} has a {package.name} already, and a published file name is never replaced.",
                    fix="Give the build a new number (--build-number), or name another folder for --out.",
                )
            _place(package, target)
            placed.append(channel / target.relative_to(new))
        for folder, wheel in wheels:
            _place(wheel, new / WHEELS / folder / wheel.name)
        index(new)
    return placed


def reindex(channel: Path, url: str = "") -> int:
    """Index an existing channel folder anew, beside itself and moved into place; return how many packages it has.

    :param url: where it is served, for its pages.
    :raises BadInput: there is no folder of a known subdir in it, or a package in it cannot be read.
    """
    if not any((channel / subdir).is_dir() for subdir in SUBDIRS):
        raise BadInput(
            f"{channel} is not a conda channel: it has no {', '.join(SUBDIRS)}.", fix="Name a channel's folder."
        )
    with hold(channel), _renew(channel) as new:
        index(new, url)
        return sum(len(list_archives(new / subdir)) for subdir in SUBDIRS)


def index(channel: Path, url: str = "") -> None:
    """Write every document of a channel folder anew: repodata, run exports, channeldata, pages; and its SHA256SUMS if it has one.

    :param url: where the channel is served, for the pages.
    :raises BadInput: there is a package of a rehearsal in it, or one that cannot be read.
    :raises CheckFailed: a package is not the one that its SHA256SUMS has under that name.
    """
    from . import channel_data, sums

    for subdir in SUBDIRS:
        check_real(list_archives(channel / subdir))
    for subdir in SUBDIRS:
        if subdir == "noarch" or (channel / subdir).is_dir():
            index_subdir(channel, subdir, compressed=False)
    for path, data in channel_data.render(channel_data.describe(channel), url).items():
        files.write_whole(channel / path, data)
    if (channel / sums.NAME).is_file():
        sums.renew(channel)


def index_subdir(channel: Path, subdir: str, *, compressed: bool) -> None:
    """Write repodata.json, and repodata.json.zst if ``compressed``, for one subdir, which is made if it is not there.

    :raises BadInput: a package in it says something that no client can read.
    """
    import rattler

    (channel / subdir).mkdir(parents=True, exist_ok=True)
    # They may be hard links into the channel that is being replaced, and must not be written through.
    for name in ("repodata.json", "repodata.json.zst"):
        (channel / subdir / name).unlink(missing_ok=True)
    try:
        asyncio.run(
            rattler.index.index_fs(
                channel, target_platform=rattler.Subdir(subdir), write_zst=compressed, write_shards=False, force=True
            )
        )
    except Exception as error:  # rattler has a class for each of its parts, and none for the disk
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(channel / subdir), number) from error
        raise BadInput(
            f"The packages in {subdir} cannot be indexed: {' '.join(str(error).split())}.",
            fix="`dswin channel check` on the channel names the one; build it again or take it away.",
        ) from error
    finally:
        # rattler's scratch folder.
        shutil.rmtree(channel / ".tmp", ignore_errors=True)


def read_info(package: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files ``names`` (like info/index.json) of an archive that it has.

    :raises BadInput: the archive cannot be read.
    """
    try:
        return stream_info(package, names)
    except Exception as error:  # zipfile, tarfile and zstandard each have their own
        raise BadInput(
            f"{package} is not a whole conda package: {error}.", fix="Build or download it again."
        ) from error


def stream_info(package: Path, names: Iterable[str]) -> dict[str, bytes]:
    """As :func:`read_info`, with the errors of zipfile, tarfile and zstandard as they come."""
    wanted, indexed = set(names), False
    found: dict[str, bytes] = {}
    for tar, member in stream_conda_info(str(package)):
        # A .tar.bz2 is one stream, of gigabytes for torch: what follows the folder info is not unpacked.
        if found.keys() == wanted or (indexed and not member.name.startswith("info/")):
            break
        indexed |= member.name == "info/index.json"
        if member.name in wanted:
            found[member.name] = tar.extractfile(member).read()
    return found


def read_documents(package: Path, names: Iterable[str] = ()) -> dict[str, dict]:
    """Return info/index.json and those of the JSON files ``names`` that an archive has.

    :raises BadInput: the archive cannot be read, or one of them is not what its name says.
    """
    try:
        found = {name: json.loads(data) for name, data in stream_info(package, {INDEX, *names}).items()}
        index = found[INDEX]
        texts = [index["name"], index["version"], index["build"], index["subdir"], *index.get("depends", [])]
        if not all(isinstance(one, dict) for one in found.values()):
            raise ValueError("a document in it is no JSON object")
        if not isinstance(index.get("depends", []), list) or not all(
            isinstance(one, str) and one.strip() for one in texts
        ):
            raise ValueError(f"{INDEX} has no text where one must be")
        return found
    except Exception as error:  # zipfile, tarfile, zstandard and json each have their own
        raise BadInput(
            f"{package} is not a whole conda package: {error}.", fix="Build or download it again."
        ) from error


def read_subdir(package: Path) -> str:
    """Return the subdir that a package says it belongs to."""
    return read_documents(package)[INDEX]["subdir"]


def read_depends(package: Path) -> list[str]:
    """Return what a package says that it depends on."""
    return read_documents(package)[INDEX].get("depends", [])


def check_real(packages: Iterable[Path]) -> None:
    """Make sure that no package is the outcome of a rehearsal.

    :raises BadInput: one is.
    """
    for package in packages:
        if any(spec.split()[0] == REHEARSAL_MARK for spec in read_depends(package)):
            raise BadInput(
                f"{package.name} comes out of a rehearsal: it was linked against stand-ins and cannot run.",
                fix="Build the variant where its channels answer (--deps conda), and take that package.",
            )


def read_name(spec: str) -> str:
    """The package that a requirement names.

    >>> read_name("conda-forge::pytorch ==2.5.1[build='*cuda12.1*']")
    'pytorch'
    """
    return re.split(r"[\s<>=!~\[]", spec.strip(), maxsplit=1)[0].rpartition("::")[2].lower()


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
    return target


@contextmanager
def _renew(channel: Path) -> Iterator[Path]:
    """Give a copy of the channel to change, of hard links, and move it into the channel's place if nothing is raised."""
    new = Path(tempfile.mkdtemp(dir=channel.parent, prefix=f".{channel.name}-new-"))
    try:
        new.chmod(0o755)
        if channel.is_dir():
            shutil.copytree(channel, new, dirs_exist_ok=True, copy_function=_link)
        yield new
        _swap(new, channel)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: Path, channel: Path) -> None:
    old = new.with_name(new.name + "-old")
    try:
        if channel.exists():
            os.replace(channel, old)
        os.replace(new, channel)
    finally:
        # An error or Ctrl-C between the two: the old channel goes back.
        if old.exists() and not channel.exists():
            os.replace(old, channel)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def hold(channel: Path, progress: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Keep every other process from putting another folder in the place of ``channel``."""
    file = channel.parent / f".{channel.name}.lock"
    with mutex.hold_file(file, f"another run writes to {channel}: waiting for it", progress):
        _clear(channel)
        yield


def _clear(channel: Path) -> None:
    """Put right what a killed process left: between :func:`_swap`'s two moves the channel has the old one's scratch name."""
    for left in channel.parent.glob(f".{glob.escape(channel.name)}-new-*"):
        if left.name.endswith("-old") and not channel.exists():
            os.replace(left, channel)
        else:
            shutil.rmtree(left, ignore_errors=True)
