"""cuda130 rehearsed: bld.bat, Microsoft's compiler and NVIDIA's nvcc.exe make all of its ops; nothing comes out that could be
installed. Two architectures of the recipe's seven; the whole list takes an hour."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from building import ROOT, run_dswin
from dswin import binaries, ops, rehearsal
from dswin.wine import Msvc

ARCHS = "7.5;8.6+PTX"
WANTED = rehearsal.list_archs(ARCHS)


@pytest.fixture(scope="session")
def rehearsed(msvc: Msvc, wine_cache: Path) -> dict:
    # In a cache of its own, since a Wine prefix is one process's at a time, and this one may run beside the other tests.
    cache = ROOT / ".dswin" / "rehearsal"
    for python in wine_cache.glob("compiled-python-*"):
        if not (cache / "wine" / python.name).is_dir():
            shutil.copytree(python, cache / "scratch", dirs_exist_ok=True)
            (cache / "wine").mkdir(exist_ok=True)
            (cache / "scratch").rename(cache / "wine" / python.name)
    done = run_dswin(
        "build", "--target", "win-64", "--variant", "cuda130", "--rehearse", "--archs", ARCHS, "--json",
        "--msvc", str(msvc.root), timeout=5400, DSWIN_CACHE=str(cache),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_every_op_is_compiled_and_linked(rehearsed: dict) -> None:
    expected = {op.name for op in ops.read(ROOT / "recipe") if op.is_built("win-64", "cuda")}
    assert len(expected) == 15
    assert {op["op"] for op in rehearsed["ops"]} == expected


def test_gpu_code_is_for_what_was_asked(rehearsed: dict) -> None:
    with_kernels = {op["op"] for op in rehearsed["ops"] if op["gpu"]["sass"]}
    assert with_kernels >= set(rehearsal.KERNELS)
    for op in rehearsed["ops"]:
        if op["op"] in with_kernels:
            assert (tuple(op["gpu"]["sass"]), tuple(op["gpu"]["ptx"])) == (WANTED.sass, WANTED.ptx), op["op"]


def test_bf16_kernels_are_there_beside_older_gpus(rehearsed: dict) -> None:
    assert {op["op"] for op in rehearsed["ops"] if op["bf16_kernels"] > 5} >= set(rehearsal.BF16)


def test_the_cpu_ops_of_a_cuda_variant_hold_avx2_too(rehearsed: dict) -> None:
    for op in rehearsed["ops"]:
        if op["op"] in ("cpu_adam", "cpu_adagrad", "cpu_lion"):
            assert op["simd"]["level"] == "avx2", op["op"]
            assert op["openmp"] == "kmp", op["op"]


def test_nothing_of_it_is_a_package(rehearsed: dict) -> None:
    folder = Path(rehearsed["ops"][0]["path"]).parent
    assert sorted(file.suffix for file in folder.iterdir()) == [".json", *[".pyd"] * 15]


def test_an_op_is_held_to_its_archs_and_its_dlls(rehearsed: dict) -> None:
    path = next(Path(op["path"]) for op in rehearsed["ops"] if op["op"] == "fused_adam")
    binary = binaries.read(path)
    assert rehearsal.find_faults(binary, WANTED) == []
    assert len(rehearsal.find_faults(binary, rehearsal.list_archs("7.5;8.9+PTX"))) == 1


def test_an_op_without_its_bf16_kernels_is_found(rehearsed: dict) -> None:
    path = next(Path(op["path"]) for op in rehearsed["ops"] if op["op"] == "inference_core_ops")
    binary = replace(binaries.read(path), bf16_kernels=0)
    assert rehearsal.find_faults(binary, WANTED) == ["inference_core_ops holds no BF16 kernels"]
