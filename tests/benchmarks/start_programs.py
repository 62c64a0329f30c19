"""How many Windows programs end before they begin, under Wine: with a layout of memory that is fixed, and with a random one.

    .venv/bin/python tests/benchmarks/start_programs.py [--starts N] [--random] [--msvc FOLDER]

cl.exe compiles a small file again and again, two at a time, each one started by Wine's loader and a Windows program in it.
Nothing is started anew when it fails. Prints how many failed, and how many starts a second there were.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from dswin.errors import DswinError  # noqa: E402
from dswin.wine import find_msvc, host, open_host  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=5000)
    parser.add_argument("--random", action="store_true", help="as Linux does by default")
    parser.add_argument("--msvc", type=Path, help="by default what DSWIN_MSVC names")
    arguments = parser.parse_args()
    host._ATTEMPTS = 1
    with (
        open_host(ROOT / ".dswin" / "wine", find_msvc(arguments.msvc), print) as machine,
        TemporaryDirectory() as folder,
    ):
        if arguments.random:
            machine.wine = dataclasses.replace(machine.wine, before=())
        elif not machine.wine.before:
            sys.exit("setarch -R is not there, or this system forbids it.")
        (source := Path(folder) / "one.c").write_text("int one(void) { return 1; }\n")

        def start(number: int) -> bool:
            try:
                command = ["cl.exe", "/nologo", "/c", source, f"/Fo{number % 7}.obj"]
                machine.check(command, cwd=Path(folder), timeout=120)
            except DswinError as error:
                print(f"start {number}: {error.what}", flush=True)
                return False
            return True

        begin = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            failed = arguments.starts - sum(pool.map(start, range(arguments.starts)))
        rate = arguments.starts / (time.perf_counter() - begin)
    print(f"{failed} of {arguments.starts} failed; {rate:.1f} a second")


if __name__ == "__main__":
    main()
