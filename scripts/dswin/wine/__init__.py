"""Windows programs on Linux: Microsoft's compiler and a Windows Python in a Wine prefix.

tree = find_msvc(folder)
with open_host(cache, tree, progress) as host:
    python = make_python(host, cache, progress)
    host.check([python / "python.exe", "-c", "print(1)"])
"""

from __future__ import annotations

from .host import Finished, Host, open_host
from .msvc import Msvc
from .msvc import find as find_msvc
from .python import download_wheels, install_wheels, keep_packages, make_python

__all__ = [
    "Finished",
    "Host",
    "Msvc",
    "download_wheels",
    "find_msvc",
    "install_wheels",
    "keep_packages",
    "make_python",
    "open_host",
]
