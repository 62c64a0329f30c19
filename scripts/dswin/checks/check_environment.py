"""What an environment is, and what its torch and its DeepSpeed see of the machine: ``python check_environment.py --out FILE``.

Exit codes: 0, or 1 where torch or deepspeed do not import. What was found until then is in FILE.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any


def find_package() -> str | None:
    """Return name, version and build of the conda package that brought DeepSpeed, or None where none did."""
    for file in sorted(Path(sys.prefix, "conda-meta").glob("deepspeed-win-*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        return f"{record['name']} {record['version']} {record['build']}"
    return None


def find_driver() -> str | None:
    """Return the version of NVIDIA's driver, as the library that comes with the CUDA packages reads it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # no such library, or no driver: other lines of the report say that
        return None


def list_gpus() -> list[dict[str, Any]]:
    """Return each GPU that torch can use: name, bytes of memory, compute capability."""
    import torch

    found = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        of = torch.cuda.get_device_properties(number)
        found.append({"name": of.name, "memory_bytes": of.total_memory, "capability": f"{of.major}.{of.minor}"})
    return found


def name_processor() -> str:
    """Return the processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return next(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def describe(found: dict[str, Any]) -> None:
    """Put everything into ``found``, as far as it comes."""
    found.update(
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        processor=name_processor(),
        package=find_package(),
        driver=find_driver(),
    )
    import torch

    found["torch"] = {"version": str(torch.__version__), "cuda": torch.version.cuda}
    found["threads"] = torch.get_num_threads()
    found["gpus"] = list_gpus()

    import deepspeed
    from deepspeed import git_version_info as build

    found["deepspeed"] = {
        "version": str(deepspeed.__version__).strip(),
        "folder": str(Path(deepspeed.__file__).parent),
        "accelerator": build.accelerator_name,
        "torch": build.torch_info["version"],
        "cuda": build.torch_info["cuda_version"],
        "ops": {name: bool(built) for name, built in build.installed_ops.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    try:
        describe(found)
    finally:
        arguments.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
