"""Stops the build before the first compile when this CUDA does not accept this cl.exe.

nvcc 12.1 refuses _MSC_VER 1940 and later (host_config.h), and the headers of MSVC 14.41 and later refuse CUDA before 12.4
(STL1002, yvals_core.h). DeepSpeed passes -allow-unsupported-compiler, which lifts the first and not the second, so that the
build would fail after minutes and with another message.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

#: CUDA major.minor -> the first cl.exe version that it does not accept. A CUDA that is not here accepts all of VS 2022.
FIRST_REFUSED = {"12.1": (19, 40)}
#: CUDA -> the minor version of the newest toolset below that bound of which conda-forge was seen to have a vs2022_win-64. That
#: package asks vcvars for the toolset of its own version: 19.37 for 14.37. So both must be there, a pair.
PAIRED = {"12.1": 37}
OLDEST = (19, 29)


def name_component(minor: int) -> str:
    """Return what the Visual Studio Installer calls toolset 14.``minor``. 14.37 came with Visual Studio 17.7, 14.39 with 17.9."""
    return f"MSVC v143 - VS 2022 C++ x64/x86 build tools (v14.{minor}-17.{minor - 30})"


def read_version(banner: str) -> tuple[int, int]:
    """Return (major, minor) of cl.exe from the banner it prints, in whatever language.

    :raises ValueError: when there is no version in it.
    """
    found = re.search(r"\b(\d+)\.(\d+)\.\d+(?:\.\d+)?\b", banner)
    if found is None:
        raise ValueError(f"no version in what cl.exe printed: {banner.strip()[:200]!r}")
    return int(found[1]), int(found[2])


def judge(cl: tuple[int, int], cuda: str) -> str | None:
    """Return what is wrong with compiling for CUDA ``cuda`` with ``cl`` and what to do, or None."""
    version = "{}.{}".format(*cl)
    if cl < OLDEST:
        return (
            f"cl.exe {version} is older than 19.29 (Visual Studio 2019 16.10), the oldest that torch's headers accept. "
            "Install the C++ build tools of Visual Studio 2022."
        )
    bound = FIRST_REFUSED.get(cuda)
    if bound is not None and cl >= bound:
        minor = PAIRED[cuda]
        return (
            f"cl.exe {version} is too new for CUDA {cuda}, which accepts toolsets up to 14.{bound[1] - 1}. In the Visual Studio "
            f"Installer, under Individual components, add '{name_component(minor)}', and have vs2022_win-64 19.{minor} in the "
            "build environment, which asks vcvars for that toolset. "
            "Or build the cuda130 variant, which takes any Visual Studio 2022."
        )
    return None


def main() -> int:
    cuda = os.environ.get("cuda_compiler_version", "None")  # noqa: SIM112 - the variant key's own name
    try:
        # Without arguments cl prints its banner on stderr and ends with 0. No shell: cl.exe is found on PATH.
        done = subprocess.run(["cl"], capture_output=True, check=False)
        cl = read_version((done.stderr + done.stdout).decode("utf-8", "replace"))
    except FileNotFoundError:
        print(
            "ERROR: no cl.exe on PATH. Install the C++ build tools of Visual Studio 2022; vs2022_win-64 then finds them.",
            file=sys.stderr,
        )
        return 1
    except ValueError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 1
    problem = judge(cl, cuda)
    if problem:
        print(f"ERROR: {problem}", file=sys.stderr)
        return 1
    print("cl.exe {}.{} for CUDA {}: accepted".format(*cl, cuda))
    return 0


if __name__ == "__main__":
    sys.exit(main())
