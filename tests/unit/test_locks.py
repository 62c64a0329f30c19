"""The locks in locks/: what they must hold, where each url and hash is from, and that they can be made again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from rattler import Version, VersionSpec

import variants
from dswin import lock, lock_writer, records, solver
from dswin.lock import Lock
from variants import LOCKS, Choice

RECORDS = LOCKS / "records"
NAMES = tuple(solver.read_wanted(LOCKS))
GPU = ("gpu-py310", "gpu-py311")
FOR_GPU = pytest.mark.parametrize("name", GPU)
README = (LOCKS / "README.md").read_text(encoding="utf-8")

#: CUDA's packages that do not bear CUDA's number, as pytorch-cuda 12.1 bounds them; libcurand as CUDA 12.1.0 and 12.1.1 have it.
LIBRARIES = {
    "libcublas": ">=12.1.0.26,<12.1.3.1",
    "libcufft": ">=11.0.2.4,<11.0.2.54",
    "libcurand": "10.3.2.*",
    "libcusolver": ">=11.4.4.55,<11.4.5.107",
    "libcusparse": ">=12.0.2.55,<12.1.0.106",
    "libnpp": ">=12.0.2.50,<12.1.0.40",
    "libnvjitlink": ">=12.1,<12.2",
    "libnvjpeg": ">=12.1.0.39,<12.2.0.2",
}
#: What building or importing a CUDA extension includes.
HEADERS = {"cuda-cudart-dev", "cuda-cccl", "cuda-nvrtc-dev", "cuda-profiler-api", "libcublas-dev", "libcufft-dev",
           "libcurand-dev", "libcusolver-dev", "libcusparse-dev", "libnvjitlink-dev"}  # fmt: skip


@cache
def read(name: str) -> Lock:
    return lock.read(LOCKS / f"{name}{lock.SUFFIX}")


@cache
def read_known() -> dict[str, records.Record]:
    return {record.url: record for record in records.read(RECORDS)}


def version_of(name: str, package: str, platform: str = "win-64") -> str:
    [found] = [one for one in read(name).on(platform) if one.name == package]
    return f"{found.version} {found.build}"


def test_each_lock_is_described_and_each_description_has_its_lock() -> None:
    assert {path.name.removesuffix(lock.SUFFIX) for path in LOCKS.glob(f"*{lock.SUFFIX}")} == set(NAMES)
    for name in NAMES:
        assert f"`{name}{lock.SUFFIX}`" in README


@pytest.mark.parametrize("name", NAMES)
def test_every_url_and_hash_is_that_of_the_record(name: str) -> None:
    for package in read(name).packages:
        record = read_known()[package.url]
        assert record.repodata["md5"] == package.md5
        assert record.repodata.get("sha256") == package.sha256
        assert (record.repodata["name"], record.repodata["version"], record.repodata["build"]) == (
            package.name,
            package.version,
            package.build,
        )
        assert package.url.startswith("https://conda.anaconda.org/")


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_made_again_from_the_records_is_the_same_file(name: str, tmp_path: Path) -> None:
    # Beside the real one as far as the paths in it go.
    place = tmp_path / "locks" / f"{name}{lock.SUFFIX}"
    (tmp_path / "environments").symlink_to(variants.ROOT / "environments", target_is_directory=True)
    wanted = solver.read_wanted(LOCKS)[name]
    sources = tuple(tmp_path / "environments" / source.name for source in wanted.sources)
    again = solver.Wanted(name, sources, wanted.platforms, wanted.cuda, wanted.why, wanted.notes)
    lock_writer.make(again, place, snapshot=RECORDS, cache=tmp_path / "cache")
    assert place.read_bytes() == (LOCKS / place.name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_says_where_it_was_solved_and_what_is_inferred(name: str) -> None:
    found = read(name)
    assert (
        found.custom["solved_from"] == "records of packages that were seen in public files, not the channels themselves"
    )
    inferred = {one.name for one in found.packages if read_known()[one.url].inferred}
    assert {key.removeprefix("inferred.") for key in found.custom if key.startswith("inferred.")} == inferred
    bare = sorted({one.name for one in found.packages if one.sha256 is None})
    assert found.custom.get("md5_only", "").rpartition(" of ")[2] == ", ".join(bare)
    assert all(package in README for package in inferred | set(bare))


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_is_for_the_platforms_and_python_of_its_name(name: str) -> None:
    found = read(name)
    assert found.platforms == (("win-64",) if name in GPU else ("linux-64", "win-64"))
    python = re.sub(r".*-py(\d)(\d+)", r"\1.\2", name)
    for platform in found.platforms:
        assert version_of(name, "python", platform).startswith(f"{python}.")


@FOR_GPU
def test_gpu_locks_hold_torch_for_cuda_121(name: str) -> None:
    python = re.sub(r".*-py(\d)(\d+)", r"\1.\2", name)
    assert version_of(name, "pytorch") == f"2.5.1 py{python}_cuda12.1_cudnn9_0"
    assert version_of(name, "pytorch-cuda").startswith("12.1 ")
    assert version_of(name, "pytorch-mutex") == "1.0 cuda"


@FOR_GPU
def test_all_of_cuda_is_of_121_but_what_the_note_names(name: str) -> None:
    found = read(name)
    packages = {one.name: one.version for one in found.on("win-64")}
    cuda = {one: version for one, version in packages.items() if one.startswith("cuda-") or one == "pytorch-cuda"}
    assert len(cuda) > 10
    other = {one: version for one, version in cuda.items() if not f"{version}.".startswith("12.1.")}
    assert other == {"cuda-opencl": "12.3.101", "cuda-opencl-dev": "12.3.101"}
    assert "cuda-opencl and cuda-opencl-dev 12.3.101" in found.custom["note.cuda"]
    for library, bound in LIBRARIES.items():
        for package in (library, f"{library}-dev"):
            assert package not in packages or VersionSpec(bound).matches(Version(packages[package])), package
        assert library in packages
    assert set(packages) >= HEADERS
    # Nothing of NVIDIA's is outside the two rules.
    numbered = {one.removesuffix("-dev") for one in packages if "/nvidia/" in url_of(found, one)} - set(LIBRARIES)
    assert {one for one in numbered if not one.startswith("cuda-")} == set()


def url_of(found: Lock, package: str) -> str:
    [url] = [one.url for one in found.on("win-64") if one.name == package]
    return url


@FOR_GPU
def test_opencl_below_12_3_was_not_seen(name: str) -> None:
    seen = [one.repodata["version"] for one in read_known().values() if one.repodata["name"] == "cuda-opencl"]
    assert seen
    assert version_of(name, "cuda-opencl").split()[0] == min(seen, key=Version)


@FOR_GPU
def test_one_openmp_runtime_beside_the_mkl_of_its_time(name: str) -> None:
    packages = {one.name for one in read(name).packages}
    assert version_of(name, "mkl").startswith("2023.1.")
    assert version_of(name, "intel-openmp").startswith("2023.")
    assert "llvm-openmp" not in packages


def test_the_cpu_lock_has_one_openmp_runtime_on_each_platform() -> None:
    for platform, runtime in (("win-64", "intel-openmp"), ("linux-64", "llvm-openmp")):
        packages = {one.name for one in read("cpu-py311").on(platform)}
        assert packages & {"intel-openmp", "llvm-openmp", "libgomp"} == {runtime}


def test_netlib_is_where_a_note_says_so_and_nowhere_else() -> None:
    for name in NAMES:
        netlib = {one.name for one in read(name).packages if "netlib" in one.build}
        assert netlib == ({"libblas", "libcblas", "liblapack"} if name in GPU else set())
        assert ("note.blas" in read(name).custom) == bool(netlib)


@pytest.fixture(scope="module")
def choice() -> Iterator[Choice]:
    with variants.open_choice(list(read_known().values()), variants.read_locked()) as opened:
        yield opened


@pytest.mark.parametrize("name", ["gpu"])
@pytest.mark.parametrize("python", variants.PYTHONS)
@pytest.mark.parametrize(("blas", "there"), [("netlib", True), ("mkl", False), ("openblas", False)])
@pytest.mark.parametrize("priority", variants.PRIORITIES)
def test_no_other_blas_goes_with_this_torch(
    name: str, python: str, blas: str, there: bool, priority: str, choice: Choice
) -> None:
    source = solver.Wanted(name, (variants.ROOT / "environments" / f"{name}.yaml",), ("win-64",))
    specs = [
        str(one)
        for one in solver.list_specs(solver.read_sources(source).dependencies["win-64"])
        if one.name.normalized != "python"
    ]
    case = variants.Case(variants.CHANNELS[0], priority, "12.1")
    found = choice.solve(case, *specs, f"python {python}.*", f"libblas * *{blas}")
    assert (found is not None) is there


@pytest.mark.parametrize("blas", ["mkl", "openblas"])
def test_each_blas_is_there_for_others(blas: str, choice: Choice) -> None:
    # So that the test above fails for torch's sake and not for want of records.
    case = variants.Case(variants.CHANNELS[0], "strict", None)
    assert choice.solve(case, f"libblas * *{blas}") is not None


@FOR_GPU
def test_the_parts_of_netlib_are_of_one_compiler(name: str) -> None:
    for package in ("libblas", "libcblas", "liblapack"):
        assert "m2w64-gcc-libs" in read_known()[url_of(read(name), package)].repodata["depends"]


@pytest.mark.parametrize(
    ("name", "variant"), [("gpu-py310", "cuda121"), ("gpu-py311", "cuda121"), ("cpu-py311", "cpu")]
)
def test_what_a_lock_holds_is_enough_for_the_package(name: str, variant: str, choice: Choice) -> None:
    """deepspeed-win can be added without a change to anything that is locked."""
    python = re.sub(r".*-py(\d)(\d+)", r"\1.\2", name)
    locked = [f"{one.name} =={one.version} {one.build}" for one in read(name).on("win-64")]
    case = variants.Case(
        (variants.OURS, "pytorch", "nvidia", "conda-forge"), "disabled", "12.1" if name in GPU else None
    )
    found = choice.solve(case, *locked, f"deepspeed-win * {variant}_py{python.replace('.', '')}_*")
    assert found is not None
    assert {one.name.normalized for one in found} == {one.name for one in read(name).on("win-64")} | {"deepspeed-win"}
