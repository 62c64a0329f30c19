"""The recipe's files agree with each other: flags with ops.yaml, patches with the recipe, bld.bat with build.sh."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipe"
SCRIPTS = {"bld.bat": "win-64", "build.sh": "linux-64"}
#: What the scripts set beside the flags of ops: everything is off unless named, and the instruction set.
OTHER_FLAGS = {"DS_BUILD_OPS": "0", "DS_BUILD_SIMD": "avx2"}


def read(name: str) -> str:
    return (RECIPE / name).read_text(encoding="utf-8")


def read_code(name: str) -> str:
    """The script without its comments."""
    return "\n".join(line for line in read(name).splitlines() if not line.startswith(("#", "::", "rem ")))


def read_flags(name: str) -> list[tuple[str, str]]:
    """Every DS_BUILD_ variable that a build script sets, in order."""
    pattern = r'^set "(DS_BUILD_\w+)=(\w*)"$' if name == "bld.bat" else r"^export (DS_BUILD_\w+)=(\w*)$"
    return re.findall(pattern, read(name), re.MULTILINE)


OPS = yaml.safe_load(read("ops.yaml"))
RECIPE_YAML = yaml.safe_load(read("recipe.yaml"))
PATCHES = sorted(path.relative_to(RECIPE).as_posix() for path in (RECIPE / "patches").iterdir())


@pytest.mark.parametrize(("script", "platform"), SCRIPTS.items())
def test_every_flag_is_set_once_with_the_value_of_its_platform(script: str, platform: str) -> None:
    flags = read_flags(script)
    assert [name for name, count in Counter(name for name, _ in flags).items() if count > 1] == []
    expected = {op["flag"]: str(op[platform]) for op in OPS["ops"].values()}
    assert dict(flags) == expected | OTHER_FLAGS


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_flag_is_written_in_another_way(script: str) -> None:
    """A flag in a line that the test above does not read would slip through."""
    assert re.findall(r"DS_BUILD_\w+", read_code(script)) == [name for name, _ in read_flags(script)]


def test_both_scripts_set_the_flags_in_the_same_order() -> None:
    assert [name for name, _ in read_flags("bld.bat")] == [name for name, _ in read_flags("build.sh")]


def test_rows_of_ops_yaml_are_complete_and_distinct() -> None:
    rows = OPS["ops"]
    for name, row in rows.items():
        assert set(row) == {"flag", "module", "accelerators", "win-64", "linux-64", "reason"}, name
        assert re.fullmatch(r"DS_BUILD_[A-Z_]+", row["flag"])
        assert row["win-64"] in (0, 1)
        assert row["linux-64"] in (0, 1)
        assert row["accelerators"]
        assert set(row["accelerators"]) <= {"cuda", "cpu"}
        assert row["reason"].endswith(".")
    for column in ("flag", "module"):
        assert len({row[column] for row in rows.values()}) == len(rows)


def test_both_scripts_use_the_same_time() -> None:
    (windows,) = re.findall(r'^set "SOURCE_DATE_EPOCH=(\d+)"$', read("bld.bat"), re.M)
    (linux,) = re.findall(r"^export SOURCE_DATE_EPOCH=(\d+)$", read("build.sh"), re.M)
    assert windows == linux
    assert int(windows) % 86400 == 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_know_every_variant(script: str) -> None:
    variants = yaml.safe_load(read("conda_build_config.yaml"))["ds_variant"]
    assert len(variants) == 3
    for variant in variants:
        assert re.search(rf"\b{variant}\b", read_code(script))


@pytest.mark.parametrize("script", SCRIPTS)
def test_programs_that_the_scripts_run_are_there(script: str) -> None:
    text = read_code(script).replace("\\", "/")
    programs = re.findall(r'RECIPE_DIR[%}]/([\w/]+\.\w+)"', text)
    assert "jobs.py" in programs
    assert "tests/check_ops.py" in programs
    assert [program for program in programs if not (RECIPE / program).is_file()] == []


def test_every_patch_is_listed_in_recipe_yaml() -> None:
    listed = [patch for source in RECIPE_YAML["source"] for patch in source.get("patches", [])]
    assert listed == PATCHES
    assert len(PATCHES) == len({patch.split("-")[0] for patch in PATCHES})


def test_every_patch_is_listed_in_meta_yaml() -> None:
    assert re.findall(r"^ +- (patches/\S+)$", read("meta.yaml"), re.MULTILINE) == PATCHES


@pytest.mark.parametrize("patch", PATCHES)
def test_patch_says_why_and_what_upstream_does(patch: str) -> None:
    header, separator, body = read(patch).partition("\n--- a/")
    assert separator
    lines = header.splitlines()
    assert re.match(r"[A-Za-z].*\.$", lines[0])
    assert lines[1] == ""
    for word in ("Reason: ", "Upstream: "):
        assert len([line for line in lines if line.startswith(word) and len(line) > len(word) + 10]) == 1
    assert "\n+++ b/" in body
    assert "\r" not in header + body


def test_number_of_patches_is_the_one_that_the_description_names() -> None:
    words = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten", 11: "eleven"}
    assert f"with {words[len(PATCHES)]} small patches" in RECIPE_YAML["about"]["description"]


def test_source_is_one_version_with_its_two_hashes() -> None:
    context = RECIPE_YAML["context"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", context["version"])
    assert context["version"] == OPS["deepspeed"]
    assert re.fullmatch(r"[0-9a-f]{64}", context["sha256"])
    # A blake2b-256 digest, cut into 2/2/rest: the folder of the file on PyPI and its mirrors.
    assert re.fullmatch(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}", context["stored_at"])
    urls = RECIPE_YAML["source"][0]["else"]["url"]
    assert len(urls) == 2
    for url in urls:
        assert re.match(
            r"https://[^/]+/(pypi/)?packages/\$\{\{ stored_at \}\}/deepspeed-\$\{\{ version \}\}\.tar\.gz$", url
        )


def test_both_recipes_name_the_same_source() -> None:
    for name in ("version", "sha256", "stored_at"):
        assert re.findall(rf'^{{% set {name} = "(\S+)" %}}$', read("meta.yaml"), re.MULTILINE) == [
            RECIPE_YAML["context"][name]
        ]


def test_files_that_the_recipe_names_are_there() -> None:
    files = list(RECIPE_YAML["about"]["license_file"])
    files.remove("LICENSE")  # upstream's
    files += [f"tests/{name}" for name in re.findall(r"\$\{\{ share \}\}(\w+\.py)", read("recipe.yaml"))]
    assert len(files) > 3
    assert [file for file in files if not (RECIPE / file).is_file()] == []


def test_activation_scripts_come_in_three_kinds() -> None:
    names = {path.name for path in (RECIPE / "activate").iterdir()}
    assert names == {f"{kind}.{suffix}" for kind in ("activate", "deactivate") for suffix in ("bat", "ps1", "sh")}


@pytest.mark.parametrize("suffix", ["bat", "ps1", "sh"])
def test_deactivation_takes_back_what_activation_set(suffix: str) -> None:
    for name in ("USE_LIBUV", "_DSWIN_SET_USE_LIBUV"):
        for kind in ("activate", "deactivate"):
            assert re.search(rf"(?<!\w){name}\b", read(f"activate/{kind}.{suffix}"))


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh on this machine")
@pytest.mark.parametrize(
    ("before", "during", "after"), [(None, "0", "unset"), ("1", "1", "1"), ("0", "0", "0"), ("", "0", "unset")]
)
def test_activation_leaves_a_value_of_the_user_alone(before: str | None, during: str, after: str) -> None:
    script = (
        'set -u; . "$0/activate.sh"; echo "${USE_LIBUV-unset}"; . "$0/deactivate.sh"; echo "${USE_LIBUV-unset}"; '
        'echo "${_DSWIN_SET_USE_LIBUV-unset}"'
    )
    environment = {"PATH": "/usr/bin:/bin"} | ({} if before is None else {"USE_LIBUV": before})
    command = ["sh", "-c", script, str(RECIPE / "activate")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [during, after, "unset"]


BATCH_FILES = [
    path for folder in (RECIPE, ROOT / "scripts") for path in folder.rglob("*") if path.suffix in (".bat", ".cmd")
]


def test_batch_files_are_found() -> None:
    names = {path.name for path in BATCH_FILES}
    assert {"bld.bat", "ds_report.bat", "deepspeed.bat", "activate.bat", "dswin.cmd"} <= names


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_batch_file_is_ascii(path: Path) -> None:
    """cmd.exe reads a script in whatever code page the console has."""
    assert path.read_bytes().isascii()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
@pytest.mark.parametrize(
    ("name", "eol"),
    [
        ("recipe/bld.bat", "crlf"),
        ("recipe/windows/bin/ds_report.bat", "crlf"),
        ("recipe/activate/activate.bat", "crlf"),
        ("recipe/activate/activate.ps1", "crlf"),
        ("scripts/dswin.cmd", "crlf"),
        ("anywhere/else.cmd", "crlf"),
        ("recipe/build.sh", "lf"),
        ("recipe/activate/activate.sh", "lf"),
        ("recipe/patches/any.patch", "lf"),
        ("recipe/toolset.py", "lf"),
    ],
)
def test_line_endings_of_a_checkout(name: str, eol: str) -> None:
    """cmd.exe loses labels in a script with LF; sh and patch do not take CRLF."""
    command = ["git", "check-attr", "text", "eol", "--", name]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    attributes = dict(line.split(": ")[1:] for line in lines)
    assert attributes["eol"] == eol
    assert attributes["text"] != "unset"
