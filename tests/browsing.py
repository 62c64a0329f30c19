"""Chromium without a window, on pages that a local server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

#: Chromium's blink setting preferredColorScheme.
SCHEMES = {"dark": 0, "light": 1}
#: A page with another in a frame of a size, and with what a script there finds out of `view` and `page`. A window is never
#: narrower than 500 pixels; a frame is. One that is a sandbox runs no script, and can be looked into all the same.
_WRAPPER = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><body style="margin:0">
<iframe src="{page}" style="border:0;width:{width}px;height:{height}px"{sandbox}></iframe><script>
onload = async () => {{
  const view = document.querySelector("iframe").contentWindow, page = view.document, root = page.documentElement;
  const found = await (async () => {{ {script} }})();
  document.body.append(Object.assign(document.createElement("output"), {{textContent: JSON.stringify(found)}}));
}};
</script>"""


def find_chromium() -> str:
    """The program; without it a test is skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("Chromium is not installed")
    return found


def browse(scratch: Path, *arguments: str) -> tuple[str, list[str]]:
    """Run it without talking to anyone but the page; return what it prints, and what the pages' own consoles say."""
    shutil.rmtree(profile := scratch / "profile", ignore_errors=True)
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    done = subprocess.run(
        [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={profile}",
         "--enable-logging=stderr", "--hide-scrollbars", *arguments],
        capture_output=True, text=True, encoding="utf-8", check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def look(
    site: Path, url: str, page: str, scratch: Path, script: str,
    *, width: int = 360, height: int = 740, scheme: str = "light", scripts: bool = True,
) -> Any:  # fmt: skip
    """Open a page in a frame of a size and return what JavaScript, which ends in a return, finds out of it.

    :param site: the folder that is served as ``url``; the frame's page is written there.
    :param page: its path there.
    :param scripts: False: the page's own do not run.
    """
    sandbox = "" if scripts else ' sandbox="allow-same-origin"'
    text = _WRAPPER.format(page=page, width=width, height=height, sandbox=sandbox, script=script)
    (site / "wrapper.html").write_text(text, encoding="utf-8")
    blink = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    size = f"--window-size={max(width, 500)},{height}"
    said, console = browse(scratch, blink, size, "--virtual-time-budget=5000", "--dump-dom", f"{url}/wrapper.html")
    said_wrong = [line for line in console if scripts or "Blocked script execution" not in line]
    assert said_wrong == [], said_wrong
    return json.loads(re.findall(r"<output>(.*)</output>", said)[0].replace("&lt;", "<").replace("&amp;", "&"))
