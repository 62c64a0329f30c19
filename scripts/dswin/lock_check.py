"""What is wrong with a lock, found without a solve and without a network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from rattler import BuildString, PackageName, PackageRecord, Version, VersionSpec

from . import lock, lock_writer, records, solver
from .addresses import hide_secrets
from .errors import BadInput, show_text
from .lock import Lock, Locked

if TYPE_CHECKING:
    from conda_lock.models.lock_spec import LockSpecification

Severity = Literal["error", "warning"]

#: https://docs.conda.io/projects/conda/en/stable/user-guide/configuration/settings.html: what ``defaults`` stands for.
_DEFAULTS = tuple(f"https://repo.anaconda.com/pkgs/{name}" for name in ("main", "r", "msys2"))
_REMAKE = "Make the lock anew: dswin lock."

#: Named like CUDA's own packages, and numbered in another way: packages for Python.
_NOT_CUDA = re.compile(r"cuda-(python|bindings|core|pathfinder|cooperative|parallel)")
#: CUDA's packages that bear CUDA's version.
_CUDA = re.compile(r"cuda-.+|cudatoolkit|pytorch-cuda|libnvjitlink(-dev)?")
#: The versions of CUDA's libraries that are numbered in their own way, for each CUDA that our locks are for. For 12.1 they are
#: what the package pytorch-cuda 12.1 requires; libcurand, which it leaves open, is that of CUDA 12.1.0 and 12.1.1.
_LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "12.1": {
        "libcublas": ">=12.1.0.26,<12.1.3.1",
        "libcufft": ">=11.0.2.4,<11.0.2.54",
        "libcurand": "10.3.2.*",
        "libcusolver": ">=11.4.4.55,<11.4.5.107",
        "libcusparse": ">=12.0.2.55,<12.1.0.106",
        "libnpp": ">=12.0.2.50,<12.1.0.40",
        "libnvjpeg": ">=12.1.0.39,<12.2.0.2",
    }
}
#: Packages that may be of another CUDA when the lock's note says that they are.
_MAY_DIFFER = ("cuda-opencl", "cuda-opencl-dev")


@dataclass(frozen=True)
class Finding:
    """Something wrong with a lock.

    :param rule: a name in :data:`RULES`, or ``readable``.
    :param package: its name, where it is about one.
    """

    rule: str
    severity: Severity
    package: str | None
    text: str
    fix: str


@dataclass(frozen=True)
class Case:
    """What the rules look at.

    :param spec: what the sources ask for, or nothing where they cannot be read, and then ``trouble`` says why.
    :param known: package records to compare with; may be none.
    """

    lock: Lock
    spec: LockSpecification | None
    trouble: BadInput | None
    known: Mapping[str, records.Record]


#: Severity, package, text, fix.
Found = tuple[Severity, str | None, str, str]
Rule = Callable[[Case], Iterator[Found]]


def check(path: Path, *, snapshot: Path | None = None) -> list[Finding]:
    """Look for everything that is wrong with a lock; an empty list when nothing is.

    :param snapshot: a folder of package records: what they say of the lock's urls is compared too.
    :raises BadInput: there is no such file, or no such snapshot.
    """
    if not path.is_file():
        raise BadInput(f"{path} is not there.", fix="Name a conda-lock.yml.")
    known = {record.url: record for record in records.read(snapshot)} if snapshot else {}
    try:
        found = lock.read(path)
    except BadInput as error:
        return [Finding("readable", "error", None, error.what, error.fix)]
    spec, trouble = None, None
    try:
        spec = read_sources(found)
    except BadInput as error:
        trouble = error
    case = Case(found, spec, trouble, known)
    return [
        Finding(name, severity, package, show_text(text), show_text(fix))
        for name, rule in RULES.items()
        for severity, package, text, fix in rule(case)
    ]


def read_sources(found: Lock) -> LockSpecification:
    """What the sources of a lock ask for.

    :raises BadInput: it names none, one is missing, or conda-lock cannot read them.
    """
    places = tuple(found.path.parent / source for source in found.sources)
    if not places:
        raise BadInput(f"{found.path} names no sources.", fix=_REMAKE)
    for place in places:
        # isfile, unlike is_file, takes a name that no file can have.
        if not os.path.isfile(place):
            raise BadInput(
                f"{place}, a source of the lock, is not there.", fix="Bring it back, or make the lock of other sources."
            )
    return solver.read_sources(solver.Wanted(found.path.name, places, found.platforms))


def find_stale(case: Case) -> Iterator[Found]:
    """The sources say something else than they said when the lock was made."""
    if case.spec is None:
        if case.trouble:
            yield "error", None, case.trouble.what, case.trouble.fix
        return
    for platform in case.lock.platforms:
        if case.lock.content_hash.get(platform) not in lock_writer.list_content_hashes(case.spec, platform):
            text = f"the sources have changed since it was made for {platform}, or it was made for another machine"
            yield "error", None, f"{text}: the content hash differs", _REMAKE


def find_gaps(case: Case) -> Iterator[Found]:
    """A package or the sources require what the lock does not have, or has in another version."""
    for platform in case.lock.platforms:
        packages = {package.name: package for package in case.lock.on(platform)}
        versions = {name: package.version for name, package in packages.items()}
        virtual = read_virtual(case.lock, platform)
        for package in packages.values():
            for name, wanted in package.depends.items():
                if not name.startswith("__"):
                    has = versions
                elif virtual is None:
                    continue
                else:
                    has = virtual
                if text := _compare(name, wanted, has.get(name)):
                    yield "error", package.name, f"{package.name} ({platform}) requires {text}", _REMAKE
        if case.spec is not None:
            for text in _list_unmet(case.spec, platform, packages):
                yield "error", None, f"the sources ask for {text} ({platform})", _REMAKE


def read_virtual(found: Lock, platform: str) -> dict[str, str] | None:
    """{name: version} of what a lock takes for granted about a machine; nothing where it does not say."""
    text = found.custom.get(f"virtual_packages.{platform}")
    if text is None:
        return None
    return {name: rest.partition("=")[0] for name, _, rest in (one.partition("=") for one in text.split())}


def _compare(name: str, wanted: str, version: str | None) -> str:
    """What is wrong with a version; nothing if it is right."""
    if version is None:
        where = "the machine is not taken to have" if name.startswith("__") else "is not in the lock"
        return f"{name}, which {where}"
    try:
        if not wanted or VersionSpec(wanted).matches(Version(version)):
            return ""
    except Exception as error:  # each of rattler's parsers raises its own
        return f"{name} {wanted!r} and has {version!r}, which cannot be compared: {solver.first_line(error)}"
    return f"{name} {wanted} and has {version}"


def _list_unmet(spec: LockSpecification, platform: str, packages: Mapping[str, Locked]) -> Iterator[str]:
    try:
        specs = solver.list_specs(spec.dependencies[platform])
    except BadInput as error:
        yield f"what is not locked: {error.what}"
        return
    for one in specs:
        name = one.name.normalized
        if name.startswith("__"):
            continue
        if (package := packages.get(name)) is None:
            yield f"{name}, which is not in the lock"
            continue
        try:
            record = PackageRecord(
                name=PackageName(name),
                version=package.version,
                build=BuildString(package.build),
                build_number=0,
                subdir=package.subdir,
            )
            fits = one.matches(record)
        except Exception:  # as in _compare
            fits = False
        if not fits:
            yield f"{one}, and the lock has {package}"


def find_md5_only(case: Case) -> Iterator[Found]:
    """Only an md5 vouches for a package, and the lock does not say so."""
    said = case.lock.custom.get("md5_only", "")
    for package in case.lock.packages:
        if package.sha256 is None and not _names(said, package.name):
            text = f"{package.name} ({package.platform}) has no sha256, only an md5"
            yield "warning", package.name, text, "Make the lock where the channel gives a sha256."


def find_odd_urls(case: Case) -> Iterator[Found]:
    """A url is not the canonical one of a channel that the lock names."""
    bases = {_normalize(base): channel for channel in case.lock.channels for base in list_bases(channel)}
    for base, packages in _group(case.lock.packages):
        if _normalize(base) in bases:
            continue
        shown, who = hide_secrets(base), _count(packages)
        name = next((one for one in bases.values() if "://" not in one and base.endswith(f"/{one}")), None)
        if name:
            fix = f"Write {records.ANACONDA}/{name}: the hashes stay, and --mirror asks a mirror without a change to the lock."
            yield "error", packages[0].name, f"{who} from {shown}, a mirror of {name}", fix
        else:
            fix = "Add the channel to the sources, or make the lock anew."
            yield "error", packages[0].name, f"{who} from {shown}, which is no channel of the lock", fix


def list_bases(channel: str) -> tuple[str, ...]:
    """The urls below which a channel's subdirs are.

    >>> list_bases("conda-forge")
    ('https://conda.anaconda.org/conda-forge',)
    """
    if "://" in channel:
        return (channel.rstrip("/"),)
    if channel == "defaults":
        return _DEFAULTS
    if channel.startswith("pkgs/"):
        return (f"https://repo.anaconda.com/{channel}",)
    return (f"{records.ANACONDA}/{channel}",)


def find_secrets(case: Case) -> Iterator[Found]:
    """A user, a password or a token stands in a url."""
    bases = [base for base, _ in _group(case.lock.packages)]
    for url in dict.fromkeys([*case.lock.channels, *bases]):
        if lock.holds_secret(url):
            text = f"{hide_secrets(url)} is written with a user, a password or a token in it"
            yield "error", None, text, "Withdraw that secret, and write ${NAME} in its place: the name of a variable."


def find_local(case: Case) -> Iterator[Found]:
    """A channel is a folder of one machine."""
    for url in case.lock.channels:
        if url.startswith("file:///") and "$" not in url:
            fix = "Name a share (file://SERVER/...), an http url, or a variable: file:///${NAME}."
            yield "warning", None, f"{url} is a folder of this machine: others cannot install from it", fix


def find_inferred(case: Case) -> Iterator[Found]:
    """Something of a package's record was concluded rather than seen, and the lock does not say so."""
    for package in case.lock.packages:
        record = case.known.get(package.url)
        if record and record.inferred and f"inferred.{package.name}" not in case.lock.custom:
            text = f"{package.name}'s record is inferred, which the lock does not say: {record.inferred}"
            yield "warning", package.name, text, f"Say it: custom_metadata, inferred.{package.name}."


def find_other_hashes(case: Case) -> Iterator[Found]:
    """A hash is not the one that the records have for this url."""
    for package in case.lock.packages:
        if (record := case.known.get(package.url)) is None:
            continue
        for kind in ("md5", "sha256"):
            mine, theirs = getattr(package, kind), record.repodata.get(kind)
            if mine and theirs and mine != theirs:
                text = f"{package.name} ({package.platform}) has {kind} {mine}, and the records have {theirs}"
                yield "error", package.name, text, "Find out which one the channel has before anyone installs from it."


def find_netlib(case: Case) -> Iterator[Found]:
    """NumPy is on the reference BLAS, which is many times slower than others, and the lock does not say so."""
    if "note.blas" in case.lock.custom:
        return
    for package in case.lock.packages:
        if re.fullmatch(r"(lib)?(blas|cblas|lapack|lapacke)", package.name) and "netlib" in package.build:
            text = f"{package} ({package.platform}) is the reference BLAS, which is slow"
            yield "warning", package.name, text, "Ask for libblas * *mkl or *openblas, or say why not: notes.blas."


def find_mixed_cuda(case: Case) -> Iterator[Found]:
    """Packages of more than one CUDA are in it."""
    note = case.lock.custom.get("note.cuda", "")
    for platform in case.lock.platforms:
        packages = {package.name: package for package in case.lock.on(platform)}
        if (cuda := tell_cuda(packages)) is None:
            continue
        for package in packages.values():
            if package.name in _MAY_DIFFER and _names(note, package.name):
                continue
            if not _is_of(cuda, package):
                text = f"{package} ({platform}) is not of CUDA {cuda}, as the rest"
                yield "error", package.name, text, "Pin it in the environment file to what that CUDA has."


def tell_cuda(packages: Mapping[str, Locked]) -> str | None:
    """The CUDA, as 12.1, that a lock for one platform is for; nothing where it is for none.

    >>> tell_cuda({})
    """
    for name in ("pytorch-cuda", "cuda-version", "cudatoolkit", "cuda-runtime", "cuda-cudart"):
        if name in packages and (match := re.match(r"\d+\.\d+", packages[name].version)):
            return match[0]
    torch = packages.get("pytorch")
    match = re.search(r"cuda_?(\d+)\.?(\d)(?!\d)", torch.build) if torch else None
    return f"{match[1]}.{match[2]}" if match else None


def _is_of(cuda: str, package: Locked) -> bool:
    wanted = _LIBRARIES.get(cuda, {}).get(package.name.removesuffix("-dev"))
    if wanted is None and _CUDA.fullmatch(package.name) and not _NOT_CUDA.match(package.name):
        wanted = f"{cuda}.*"
    if package.name == "pytorch" and "cuda" in package.build:
        return tell_cuda({"pytorch": package}) in (cuda, None)
    return wanted is None or not _compare(package.name, wanted, package.version)


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


def _group(packages: Iterable[Locked]) -> list[tuple[str, Sequence[Locked]]]:
    found: dict[str, list[Locked]] = {}
    for package in packages:
        found.setdefault(package.channel, []).append(package)
    return list(found.items())


def _count(packages: Sequence[Locked]) -> str:
    more = f" and {len(packages) - 1} more are" if len(packages) > 1 else " is"
    return f"{packages[0].name}{more}"


def _normalize(url: str) -> str:
    return re.sub(r"\$(\w+)", r"${\1}", unquote(url))


#: What is looked for, by name, in this order.
RULES: Mapping[str, Rule] = {
    "fresh": find_stale,
    "complete": find_gaps,
    "urls": find_odd_urls,
    "secrets": find_secrets,
    "local": find_local,
    "sha256": find_md5_only,
    "inferred": find_inferred,
    "records": find_other_hashes,
    "blas": find_netlib,
    "cuda": find_mixed_cuda,
}
