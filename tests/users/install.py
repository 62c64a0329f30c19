"""Makes an environment with py-rattler, run by the Python of the platform that it is for.

    python install.py PREFIX --channel URL ... --spec SPEC ... [--activate FILE]

--activate writes what a shell runs to activate the environment: a batch file on Windows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from pathlib import Path

import rattler
from rattler.shell.shell import ActivationVariables, Shell, activate


async def install(prefix: Path, channels: list[str], specs: list[str]) -> None:
    gateway = rattler.Gateway(
        default_config=rattler.SourceConfig(sharded_enabled=False, zstd_enabled=False, bz2_enabled=False)
    )
    records = await rattler.solve(
        sources=[rattler.Channel(url) for url in channels],
        specs=specs,
        gateway=gateway,
        platforms=[str(rattler.Subdir.current()), "noarch"],
        virtual_packages=rattler.VirtualPackage.detect(),
        channel_priority=rattler.ChannelPriority.Strict,
    )
    await rattler.install(records=records, target_prefix=prefix, show_progress=False)
    for record in records:
        print(record.name.normalized, record.version, record.build)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--channel", action="append", required=True)
    parser.add_argument("--spec", action="append", required=True)
    parser.add_argument("--activate", type=Path)
    arguments = parser.parse_args()
    try:
        asyncio.run(install(arguments.prefix.absolute(), arguments.channel, arguments.spec))
        if arguments.activate:
            shell = Shell.cmd_exe if sys.platform == "win32" else Shell.bash
            script = activate(arguments.prefix.absolute(), ActivationVariables(), shell).script
            # rattler switches cmd to UTF-8, which takes a console; without one it reads batch files in the OEM code page.
            script = script.replace("@chcp 65001 > nul", "")
            arguments.activate.write_text(script, encoding="oem" if sys.platform == "win32" else "utf-8")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # py-rattler can crash while the interpreter ends, after the work is done.
    os._exit(code)
