"""Clients that fetch while publishes run: how many bytes they get wrong.

    .venv/bin/python tests/benchmarks/bench_publish.py [--seconds 45]

Two clients read every repodata.json, repodata.json.zst and current_repodata.json over http, again and again, and each
archive that these name; a third solves and installs with rattler. Meanwhile versions are published one after the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]
from channels import make_variant  # noqa: E402
from dswin import channel as channels  # noqa: E402
from dswin import channel_check, publish  # noqa: E402
from making import make_package, serve  # noqa: E402

VERSIONS = 12
#: Each prints: how many documents or installations, how many archives, how many of both were wrong.
READER = """
import hashlib, json, sys, time, urllib.request
from backports import zstd
url, end = sys.argv[1], float(sys.argv[2])
documents = archives = wrong = 0
def get(path):
    with urllib.request.urlopen(f"{url}/{path}") as answer:
        return answer.read()
while time.time() < end:
    for subdir in ("win-64", "noarch"):
        for name in ("repodata.json", "repodata.json.zst", "current_repodata.json"):
            documents += 1
            try:
                data = get(f"{subdir}/{name}")
                records = json.loads(zstd.decompress(data) if name.endswith(".zst") else data)["packages.conda"]
            except Exception:
                wrong += 1
                continue
            for fn, record in records.items():
                archives += 1
                try:
                    wrong += hashlib.sha256(get(f"{subdir}/{fn}")).hexdigest() != record["sha256"]
                except Exception:
                    wrong += 1
print(documents, archives, wrong)
"""
INSTALLER = """
import asyncio, pathlib, sys, tempfile, time
import rattler
url, end = sys.argv[1], float(sys.argv[2])
count = wrong = 0
async def install(folder):
    gateway = rattler.Gateway(cache_dir=folder / "cache")
    platforms = [rattler.Subdir("win-64"), rattler.Subdir("noarch")]
    found = await rattler.solve([rattler.Channel(url)], ["helper"], gateway=gateway, platforms=platforms)
    await rattler.install(
        found, folder / "prefix", cache_dir=folder / "packages", platform=rattler.Subdir("win-64"), show_progress=False
    )
while time.time() < end:
    with tempfile.TemporaryDirectory() as folder:
        count += 1
        try:
            asyncio.run(install(pathlib.Path(folder)))
        except Exception:
            wrong += 1
print(count, 0, wrong)
"""


def make_source(folder: Path, number: int) -> Path:
    for variant in ("cuda121", "cpu"):
        make_variant(folder, variant, f"0.19.{number}", files={"lib/x.bin": os.urandom(300_000)})
    make_package(folder, "helper", f"1.{number}", files={"share/helper.bin": os.urandom(50_000)})
    channels.reindex(folder)
    return folder


def run(scratch: Path, seconds: float) -> None:
    sources = [make_source(scratch / str(number) / "channel", number) for number in range(VERSIONS)]
    target = scratch / "target" / "channel"
    publish.publish(sources[0], str(target))
    count = 1
    with serve(target) as server:
        end = time.time() + seconds
        clients = [
            subprocess.Popen([sys.executable, "-c", code, server.url, str(end)], stdout=subprocess.PIPE, text=True)
            for code in (READER, READER, INSTALLER)
        ]
        while time.time() < end - 2:
            # When all versions are there, another url changes the pages and the list of sums.
            publish.publish(sources[count % VERSIONS], str(target), url=f"https://host/{count // VERSIONS}")
            count += 1
            time.sleep(0.2)
        figures = [[int(one) for one in client.communicate()[0].split()] for client in clients]
    print(f"{count} publishes in {seconds:.0f} s")
    print(f"{sum(one[0] for one in figures[:2])} documents and {sum(one[1] for one in figures)} archives read")
    print(f"{figures[2][0]} installations by rattler")
    print(f"{sum(one[2] for one in figures)} wrong or refused")
    print(f"{len(channel_check.check(target).findings)} findings in the channel at the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45)
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch), parser.parse_args().seconds)


if __name__ == "__main__":
    main()
