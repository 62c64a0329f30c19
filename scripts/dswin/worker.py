"""Runs py-rattler-build in a process of its own: ``python worker.py job.json``.

A process, because a build must be stopped whole by Ctrl-C, because its output is a log, and because the same file runs under
another Python, a Windows one too. It imports nothing of dswin. A job is one JSON object:

    {"do": "build", "recipe": folder, "platform": subdir, "variant": {key: value}, "channels": [url],
     "priority": "strict" (default) or "disabled", "output": folder}
    {"do": "test",  "package": file, "channels": [url], "priority": ...}

Its log goes to standard output, and one line of JSON to the file that the job names in "result".
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import rattler_build as rb


class Log:
    """Prints what rattler-build reports, a line each."""

    def on_download_start(self, event: rb.progress.DownloadStartEvent) -> None:
        print(f"downloading {event.url}", flush=True)

    def on_download_progress(self, event: rb.progress.DownloadProgressEvent) -> None:
        pass

    def on_download_complete(self, event: rb.progress.DownloadCompleteEvent) -> None:
        pass

    def on_build_step(self, event: rb.progress.BuildStepEvent) -> None:
        print(f"== {event.step_name}: {event.message}", flush=True)

    def on_log(self, event: rb.progress.LogEvent) -> None:
        print(event.message, flush=True)


def render(recipe: Path, platform: str) -> list[rb.RenderedVariant]:
    """Return every variant of the recipe in folder ``recipe`` for ``platform``."""
    target = rb.PlatformConfig(target_platform=platform)
    variants = rb.VariantConfig.from_conda_build_config(
        recipe / "conda_build_config.yaml", rb.JinjaConfig(platform=target)
    )
    return rb.Stage0Recipe.from_file(recipe / "recipe.yaml").render(variants, rb.RenderConfig(platform=target))


def build(job: dict) -> dict:
    """Build one variant without its tests; return {"package": file}."""
    chosen = [
        v
        for v in render(Path(job["recipe"]), job["platform"])
        if all(v.variant.get(k) == w for k, w in job["variant"].items())
    ]
    if len(chosen) != 1:
        raise SystemExit(f"{len(chosen)} variants match {job['variant']}")
    # Plain repodata.json only: what every channel has, a folder too.
    tool = rb.ToolConfiguration(
        keep_build=True,
        test_strategy="skip",
        channel_priority=job.get("priority", "strict"),
        use_sharded=False,
        use_zstd=False,
        use_bz2=False,
    )
    result = chosen[0].run_build(
        tool_config=tool, output_dir=job["output"], channels=job["channels"], no_build_id=True, progress_callback=Log()
    )
    return {"package": str(result.packages[0])}


def test(job: dict) -> dict:
    """Run the tests that a package carries, each in a fresh environment; return {"tests": [passed, ...]}."""
    package = rb.Package.from_file(job["package"])
    results = package.run_tests(
        channel=job["channels"],
        channel_priority=job.get("priority", "strict"),
        progress_callback=Log(),
        use_sharded=False,
        use_zstd=False,
        use_bz2=False,
    )
    for result in results:
        for line in result.output:
            print(line, flush=True)
    return {"tests": [result.success for result in results]}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    failed = True
    try:
        result = {"build": build, "test": test}[job["do"]](job)
        Path(job["result"]).write_text(json.dumps(result), encoding="utf-8")
        failed = False
    except rb.RattlerBuildError as error:
        print(f"rattler-build: {error}", flush=True)
    finally:
        sys.stdout.flush()
        # py-rattler can crash while the interpreter ends, after the work is done.
        os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
