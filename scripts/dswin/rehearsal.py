"""Build a CUDA variant for Windows as far as a machine without CUDA's own torch can: everything is compiled and linked, and
nothing that comes out of it is a package.

bld.bat runs unchanged, with Microsoft's compiler and NVIDIA's nvcc.exe. What stands in is torch: PyPI's for Windows has no
CUDA, so that import libraries made from lists of known symbols take the place of c10_cuda and torch_cuda. The stand-in exports
the requirement ``__rehearsal``, which no machine fulfils, to all that is built with it.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from . import binaries, build, source, wheelhouse
from .binaries import GpuCode
from .channel import REHEARSAL_MARK, read_depends
from .errors import BadInput, CheckFailed
from .machine import check_target, open_machine

Progress = Callable[[str], None]

PLATFORM = "win-64"
#: The variants of which all tools can be had without a conda channel, with their CUDA.
CUDA = {"cuda130": "13.0"}
#: The ops that hold kernels of their own; the others call torch or the CPU.
KERNELS = ("fused_adam", "fused_lamb", "fused_lion", "inference_core_ops", "quantizer", "random_ltd",
           "spatial_inference", "stochastic_transformer", "transformer", "transformer_inference")  # fmt: skip
#: Those of them that have BF16 kernels, which one architecture below 8.0 would switch off without patch 0009.
BF16 = ("inference_core_ops", "transformer_inference")
#: The DLLs that an op of a CUDA variant may ask for: torch's, CUDA's runtime libraries, which torch brings, and Windows' own.
KNOWN_DLLS = ("c10", "torch", "cudart64_", "cublas64_", "cublaslt64_", "curand64_", "cusparse64_", "cusolver64_",
              "python3", "vcruntime140", "msvcp140", "api-ms-win-crt-", "kernel32", "libiomp5md", "libomp", "nvcuda")  # fmt: skip


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal showed.

    :param folder: the ops and report.json; nothing in it can be installed.
    :param archs: the compute capabilities asked for, as ``TORCH_CUDA_ARCH_LIST`` has them.
    :param seconds: what compiling and linking took.
    """

    folder: Path
    archs: str
    binaries: list[binaries.Binary]
    seconds: float


def rehearse(
    recipe: Path,
    cache: Path,
    *,
    variant: str,
    python: str,
    archs: str | None = None,
    msvc: Path | None = None,
    progress: Progress = lambda _: None,
) -> Rehearsed:
    """Compile and link every op of a CUDA variant for Windows and look into the result.

    :param archs: compute capabilities to compile for instead of the recipe's, in the form ``8.6;8.9+PTX``.
    :raises BadInput: the variant cannot be rehearsed.
    :raises CheckFailed: an op does not compile, asks for a symbol or a DLL that its torch would not have, or lacks an arch.
    """
    recipe, cache = recipe.absolute(), cache.absolute()
    check_target(PLATFORM)
    chosen = build.choose(recipe, PLATFORM, variant, python)
    if variant not in CUDA:
        raise BadInput(
            f"The variant {variant} cannot be rehearsed.",
            fix=f"Variants that can: {', '.join(CUDA)}. CUDA 12.1's nvcc.exe is on no Python package index; cpu is built.",
        )
    wanted = archs or build.read_archs(recipe, PLATFORM, variant)
    environment = {"DSWIN_BUILD_NUMBER": "0", "DSWIN_REQUIRE_GPU": "0", "DSWIN_ARCH_LIST": archs or ""}
    cache.mkdir(parents=True, exist_ok=True)
    build.check_space(cache)
    with open_machine(PLATFORM, cache, msvc, progress) as machine:
        if machine.windows is None:
            raise BadInput("Only Linux rehearses a build for Windows.", fix="Build the variant itself: --deps conda.")
        sdist = source.fetch(source.read(recipe), cache / "source", progress)
        channel = wheelhouse.make_channel(
            cache / "deps", platform=PLATFORM, python=python, torch=build.torch_of(recipe, PLATFORM, variant),
            windows=machine.windows, cuda=CUDA[variant], progress=progress,
        )  # fmt: skip
        start = time.monotonic()
        with build.work_folder(machine.work, chosen, progress) as work:
            package, _ = build.compile_package(
                recipe, sdist, PLATFORM, chosen, [channel], machine, work, cache, environment, progress
            )
            seconds = time.monotonic() - start
            if REHEARSAL_MARK not in read_depends(package):
                raise CheckFailed(
                    f"The rehearsal's package lacks the requirement {REHEARSAL_MARK}.",
                    fix="It could be taken for a real one. The stand-in of torch must export that requirement.",
                )
            progress("looking into the ops")
            found = build.inspect(package, recipe, PLATFORM, chosen, machine, work)
            folder = cache / "rehearsals" / f"{variant}_py{python.replace('.', '')}"
            found = _keep(found, folder)
    result = Rehearsed(folder, wanted, found, seconds)
    report = {
        "variant": variant,
        "archs": wanted,
        "seconds": round(seconds, 1),
        "ops": [one.to_json() for one in found],
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if faults := [fault for one in found for fault in find_faults(one, list_archs(wanted))]:
        raise CheckFailed("; ".join(faults) + ".", fix=f"The ops are in {folder}.")
    return result


def _keep(found: list[binaries.Binary], folder: Path) -> list[binaries.Binary]:
    """Copy the ops, and nothing else of the package, to ``folder``, and return them with their new paths."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return [replace(binary, path=Path(shutil.copy(binary.path, folder))) for binary in found]


def list_archs(text: str) -> GpuCode:
    """Return what a ``TORCH_CUDA_ARCH_LIST`` asks for.

    >>> str(list_archs("8.6;9.0+PTX"))
    '8.6 9.0+PTX'
    """
    names = [one for one in text.replace(" ", ";").split(";") if one]
    ptx = [name.removesuffix("+PTX") for name in names if name.endswith("+PTX")]
    return GpuCode(tuple(name.removesuffix("+PTX") for name in names), tuple(ptx))


def find_faults(binary: binaries.Binary, wanted: GpuCode) -> list[str]:
    """Return a sentence for each way in which an op of a CUDA variant is not what was asked for."""
    faults = []
    # An op without kernels of its own has no GPU code, and need not have.
    if str(binary.gpu) and binary.gpu != wanted:
        faults.append(f"{binary.op} holds GPU code for {binary.gpu}, not for {wanted}")
    if binary.op in KERNELS and not str(binary.gpu):
        faults.append(f"{binary.op} holds no GPU code")
    if binary.op in BF16 and not binary.bf16_kernels:
        faults.append(f"{binary.op} holds no BF16 kernels")
    faults += [
        f"{binary.op} imports {library}, which neither torch nor Windows brings"
        for library in binary.libraries
        if not library.lower().startswith(KNOWN_DLLS)
    ]
    return faults
