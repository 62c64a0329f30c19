"""Packages of another Debian suite, through the mirrors that this machine's own apt uses; nothing is installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from ..errors import MachineLacks

#: The archive's keys, as every Debian installs them; its releases are signed with them on every mirror.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def fetch(kind: Literal["deb", "deb-src"], packages: list[str], suite: str, folder: Path) -> list[Path]:
    """Download packages, or their upstream source archives, of a Debian suite into ``folder``.

    apt works in folders of its own: the machine's lists and packages stay as they are, and no rights are needed.

    :param suite: Debian's code name of a release, ``trixie``.
    :returns: the files, in the order of their names.
    :raises MachineLacks: this is no Debian, it has no apt, or no mirror serves the packages.
    """
    check_debian()
    log = ""
    with tempfile.TemporaryDirectory(prefix="apt-", ignore_cleanup_errors=True) as scratch:
        for mirror in list_mirrors():
            state = Path(scratch) / f"{len(list(Path(scratch).iterdir()))}"
            options = _prepare(state, f"{kind}{_sign()} {mirror} {suite} main\n")
            command = ["download"] if kind == "deb" else ["source", "--download-only", "--only-source"]
            for step in (["update"], [*command, *packages]):
                done = _run(["apt-get", "-q", *options, *step], state / "files")
                log = done.stdout
                if done.returncode:
                    break
            else:
                folder.mkdir(parents=True, exist_ok=True)
                return sorted(Path(shutil.move(file, folder / file.name)) for file in (state / "files").iterdir())
    raise MachineLacks(
        f"apt could not get {', '.join(packages)} of Debian {suite}.",
        fix="Check the network and the Debian mirror in /etc/apt, and run again.",
        log="\n".join(log.strip().splitlines()[-15:]) or "No entry for this Debian is in /etc/apt.",
    )


def check_debian() -> None:
    """Make sure that this machine is a Debian with apt.

    :raises MachineLacks: it is not.
    """
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {}
    if system.get("ID") != "debian" or shutil.which("apt-get") is None:
        raise MachineLacks(
            f"{system.get('PRETTY_NAME', 'This system')} is not a Debian with apt, where parts of Wine and the source "
            "of Python come from.",
            fix="Run this on Debian 12 or newer, for instance in the container image debian:bookworm.",
        )


def list_mirrors() -> list[str]:
    """Return the addresses that this machine's apt has for its own Debian release, security and updates left out."""
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    # Both formats of sources, and whatever else apt allows in them, are apt's to read.
    command = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE)", "Component: main"]
    lines = _run(command, Path.cwd()).stdout.splitlines()
    names = {codename, "stable", "oldstable", "testing"}
    found = [line.split()[0] for line in lines if line.split()[1:] in [[name] for name in names]]
    return list(dict.fromkeys(found))


def _sign() -> str:
    return f" [signed-by={KEYRING}]" if KEYRING.is_file() else ""


def _prepare(state: Path, entry: str) -> list[str]:
    """Make apt's folders below ``state`` and return the options that keep it in them."""
    for name in ("lists/partial", "cache/archives/partial", "files"):
        (state / name).mkdir(parents=True)
    sources = state / "sources.list"
    sources.write_text(entry, encoding="utf-8")
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",  # its own user could not write here
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
