"""Releases of DeepSpeed that never were, each with one thing that breaks the recipe."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from dswin import build, cli, patches, pins, sdist, source, upgrade
from dswin.errors import BadInput, CheckFailed, MachineLacks

ROOT = Path(__file__).parents[2]
OLD = source.read(ROOT / "recipe")
TORCH = build.torch_of(ROOT / "recipe", "linux-64", "cpu")
LINUX = upgrade.Target("linux-64", "cpu", "3.11")
OCTOBER = 1_792_454_400 + 86_400

OPS = (
    f'deepspeed: "{OLD.version}"\n'
    + """\
ops:
  cpu_adam:
    {flag: DS_BUILD_CPU_ADAM, module: deepspeed.ops.adam.cpu_adam_op, accelerators: [cuda, cpu], win-64: 1, linux-64: 1,
     reason: a}
  utils: {flag: DS_BUILD_UTILS, module: deepspeed.ops.utils_op, accelerators: [cuda], win-64: 1, linux-64: 1, reason: b}
  gds: {flag: DS_BUILD_GDS, module: deepspeed.ops.gds.gds_op, accelerators: [cuda], win-64: 0, linux-64: 0, reason: c}
"""
)
BUILDER = """\
class {klass}({base}):
    BUILD_VAR = "{flag}"
    NAME = '{name}'

    def absolute_name(self):
        return f'{module}'
"""
NUMBERS = [f"line {number}" for number in range(1, 31)]
REQUIREMENTS = [
    "einops", "hjson", "msgpack", "ninja", "numpy", "packaging>=20.0", "psutil", "py-cpuinfo", "pydantic>=2.0.0", "torch>=2.0.0",
    "tqdm",
]  # fmt: skip
#: Two hunks of one file, then one that builds on the second, then one of another file.
PATCHES = {
    "0001-two.patch": """\
Reason: a test.

--- a/csrc/code.cpp
+++ b/csrc/code.cpp
@@ -3,7 +3,7 @@
 line 3
 line 4
 line 5
-line 6
+LINE 6
 line 7
 line 8
 line 9
@@ -20,6 +20,7 @@
 line 20
 line 21
 line 22
+line 22 and a half
 line 23
 line 24
 line 25
""",
    "0002-on-top.patch": """\
--- a/csrc/code.cpp
+++ b/csrc/code.cpp
@@ -21,5 +21,5 @@
 line 21
 line 22
-line 22 and a half
+line 22 and two thirds
 line 23
 line 24
""",
    "0003-requirements.patch": """\
--- a/requirements/requirements.txt
+++ b/requirements/requirements.txt
@@ -1,7 +1,6 @@
 einops
 hjson
 msgpack
-ninja
 numpy
 packaging>=20.0
 psutil
""",
}


def write_builder(name: str, flag: str, module: str, klass: str = "", base: str = "OpBuilder") -> str:
    klass = klass or f"{name.title().replace('_', '')}Builder"
    return BUILDER.format(klass=klass, base=base, flag=flag, name=name, module=module)


def list_files(recipe: Path) -> dict[str, str]:
    """The files of an sdist that the recipe fits."""
    scripts = (recipe / "bld.bat").read_text() + (recipe / "build.sh").read_text()
    return {
        "setup.py": "\n".join(f"# {name}" for name in sorted(set(re.findall(r"\bDS_[A-Z_]+", scripts)))),
        "op_builder/__init__.py": "",
        "op_builder/builder.py": "class OpBuilder:\n    pass\n\nclass CUDAOpBuilder(OpBuilder):\n    pass\n",
        "op_builder/utils.py": write_builder("utils", "DS_BUILD_UTILS", "deepspeed.ops.{self.NAME}_op"),
        "op_builder/gds.py": write_builder("gds", "DS_BUILD_GDS", "deepspeed.ops.gds.{self.NAME}_op"),
        "op_builder/cpu/__init__.py": "",
        "op_builder/cpu/cpu_adam.py": write_builder(
            "cpu_adam", "DS_BUILD_CPU_ADAM", "deepspeed.ops.adam.{self.NAME}_op", "CPUAdamBuilder", "CPUOpBuilder"
        ),
        "accelerator/cuda_accelerator.py": "for name in ['CPUAdamBuilder']:\n    pass\n",
        "requirements/requirements.txt": "".join(f"{one}\n" for one in REQUIREMENTS),
        "csrc/code.cpp": "".join(f"{line}\n" for line in NUMBERS),
    }


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The recipe, with three ops and three patches of this file."""
    copy = tmp_path / "recipe"
    pins.copy(ROOT / "recipe", copy)
    for number, path in enumerate(sorted((copy / "patches").iterdir())):
        if number >= len(PATCHES):
            pins.drop_patch(copy, path.name)
            continue
        name = list(PATCHES)[number]
        path.unlink()
        (copy / "patches" / name).write_bytes(PATCHES[name].encode())
        for one in ("recipe.yaml", "meta.yaml"):
            text = (copy / one).read_bytes()
            (copy / one).write_bytes(text.replace(path.name.encode(), name.encode()))
    (copy / "ops.yaml").write_text(OPS, encoding="utf-8")
    return copy


@pytest.fixture
def make(tmp_path: Path, recipe: Path) -> Callable[..., Path]:
    """Make an sdist: other or further files (None: not there), requirements, and lines of metadata."""

    def write(
        files: Mapping[str, str | None] | None = None,
        requirements: list[str] | None = None,
        metadata: str = "Classifier: Programming Language :: Python :: 3.10\n"
        "Classifier: Programming Language :: Python :: 3.11\nClassifier: Programming Language :: Python :: 3.12\n",
        version: str = "0.20.0",
        project: str = "deepspeed",
    ) -> Path:
        required = "".join(f"Requires-Dist: {one}\n" for one in requirements or REQUIREMENTS)
        info = f"Metadata-Version: 2.4\nName: {project}\nVersion: {version}\n{metadata}{required}\nText\n"
        content = {**list_files(recipe), "PKG-INFO": info, **(files or {})}
        path = tmp_path / f"deepspeed-{version}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for name, text in content.items():
                if text is not None:
                    member = tarfile.TarInfo(f"deepspeed-{version}/{name}")
                    member.size, member.mtime = len(text.encode()), OCTOBER + 3_601
                    tar.addfile(member, io.BytesIO(text.encode()))
        return path

    return write


@pytest.fixture
def attempt(tmp_path: Path, recipe: Path) -> Callable[..., upgrade.Trial]:
    def run(file: Path | str, builder: upgrade.Builder | None = None, target: upgrade.Target = LINUX) -> upgrade.Trial:
        return upgrade.attempt(recipe, tmp_path / "cache", str(file), target, builder)

    return run


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def select(trial: upgrade.Trial, step: str, *statuses: str) -> list[str]:
    return [one.found for one in trial.findings if one.step == step and (not statuses or one.status in statuses)]


def test_a_release_that_fits_breaks_nothing_and_gives_the_recipe_of_it(make, attempt, recipe, tmp_path) -> None:
    before = read_all(recipe)
    file = make()
    trial = attempt(file)
    assert read_all(recipe) == before
    assert trial.exit_code == 0
    assert trial.count() == {"ok": 9, "skipped": 1}
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert source.read(trial.folder / "recipe") == source.Source("0.20.0", digest)
    stored = hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest()
    place = f"{stored[:2]}/{stored[2:4]}/{stored[4:]}"
    for name in ("recipe.yaml", "meta.yaml"):
        text = (trial.folder / "recipe" / name).read_text()
        assert (text.count('"0.20.0"'), text.count(digest), text.count(place)) == (1, 1, 1)
        assert OLD.version not in text
    assert f'set "SOURCE_DATE_EPOCH={OCTOBER}"\r\n'.encode() in (trial.folder / "recipe/bld.bat").read_bytes()
    assert f"export SOURCE_DATE_EPOCH={OCTOBER}\n".encode() in (trial.folder / "recipe/build.sh").read_bytes()
    # The patch makes the one recipe the other, line ends and all.
    (tmp_path / "a.diff").write_bytes(trial.diff.encode())
    assert patches.apply(tmp_path / "a.diff", tmp_path).state == "applies"
    assert read_all(recipe) == read_all(trial.folder / "recipe")


CHANGES: list[tuple[str, dict, str, list[str]]] = [
    (
        "a new op",
        {"files": {"op_builder/new.py": write_builder("new", "DS_BUILD_NEW", "deepspeed.ops.new.{self.NAME}_op")}},
        "ops",
        ["New op new: DS_BUILD_NEW, deepspeed.ops.new.new_op, for cuda."],
    ),
    ("an op less", {"files": {"op_builder/utils.py": None}}, "ops", ["The op utils is gone."]),
    (
        "an op less that was not built",
        {"files": {"op_builder/gds.py": None}},
        "ops",
        ["The op gds is gone. It was not built."],
    ),
    (
        "another flag and module",
        {"files": {"op_builder/utils.py": write_builder("utils", "DS_BUILD_TOOLS", "deepspeed.ops.tools_op")}},
        "ops",
        [
            "Flag of utils: DS_BUILD_UTILS in ops.yaml, DS_BUILD_TOOLS in the sdist.",
            "Module of utils: deepspeed.ops.utils_op in ops.yaml, deepspeed.ops.tools_op in the sdist.",
        ],
    ),
    (
        "an op that CUDA has no more",
        {"files": {"accelerator/cuda_accelerator.py": "pass"}},
        "ops",
        ["Accelerators of cpu_adam: cpu, cuda in ops.yaml, cpu in the sdist."],
    ),
    (
        "an op that the CPU has by import",
        {
            "files": {
                "op_builder/cpu/utils.py": "try:\n    from op_builder.utils import UtilsBuilder\nexcept ImportError:\n    pass"
            }
        },
        "ops",
        ["Accelerators of utils: cuda in ops.yaml, cpu, cuda in the sdist."],
    ),
    (
        "a builder of a Python to come",
        {"files": {"op_builder/utils.py": "class = 1"}},
        "ops",
        ["op_builder/utils.py cannot be read: invalid syntax (<unknown>, line 1)."],
    ),
    (
        "no builders",
        {"files": {"op_builder/cpu/__init__.py": None, "op_builder/cpu/cpu_adam.py": None}},
        "ops",
        ["op_builder/cpu is gone from the sdist."],
    ),
    (
        "a requirement more",
        {
            "requirements": [
                *REQUIREMENTS,
                "hf-transfer>=1",
                'pytest; extra == "dev"',
                'pywin32; sys_platform == "win32"',
            ]
        },
        "requirements",
        ["It requires hf-transfer>=1, and the package does not."],
    ),
    (
        "another bound",
        {"requirements": [one.replace(">=2.0.0", ">=2.5") if "pydantic" in one else one for one in REQUIREMENTS]},
        "requirements",
        ["It requires pydantic>=2.5; the package pydantic >=2.0.0."],
    ),
    (
        "a newer torch",
        {"requirements": [one.replace("torch>=2.0.0", "torch>=99") for one in REQUIREMENTS]},
        "requirements",
        [f"It requires torch>=99; the package has {TORCH}.* *cpu*."],
    ),
    (
        "requirements elsewhere",
        {"files": {"requirements/requirements.txt": None}},
        "requirements",
        ["requirements/requirements.txt is gone."],
    ),
    (
        "a Python less",
        {"metadata": "Requires-Python: >=3.11.4\n"},
        "python",
        ["It requires Python >=3.11.4: not 3.10."],
    ),
    (
        "a switch less",
        {"files": {"setup.py": "# DS_BUILD_OPS DS_BUILD_SIMD DS_ACCELERATOR DS_HOST_FLAGS DS_ENABLE_NINJAS"}},
        "variables",
        ["Nothing in setup.py, op_builder or accelerator reads DS_ENABLE_NINJA."],
    ),
]


@pytest.mark.parametrize(("change", "step", "found"), [one[1:] for one in CHANGES], ids=[one[0] for one in CHANGES])
def test_what_breaks_is_found_and_nothing_else(make, attempt, recipe, change, step, found) -> None:
    if step == "variables":
        ours = {op["flag"] for op in (yaml.safe_load(OPS)["ops"]).values()}
        for name in ("bld.bat", "build.sh"):
            text = (recipe / name).read_bytes().decode()
            lines = [x for x in text.split("\n") if not (m := re.search(r"DS_BUILD_[A-Z_]+", x)) or m[0] in ours]
            (recipe / name).write_bytes("\n".join(lines).encode())
    trial = attempt(make(**change))
    broken = [(one.step, one.found) for one in trial.findings if one.status == "broke" and one.step != "patches"]
    assert broken == [(step, one) for one in found]
    assert all(one.fix for one in trial.findings if one.status in ("broke", "note"))
    assert trial.exit_code == 1


NOTES: list[tuple[str, dict, str, str]] = [
    (
        "a bound less",
        {"requirements": [one.split(">")[0] for one in REQUIREMENTS]},
        "requirements",
        "It requires packaging;",
    ),
    ("a requirement less", {"requirements": REQUIREMENTS[1:]}, "requirements", "It does not require einops any more."),
    (
        "a requirement of some machines",
        {"files": {"setup.py": "install_requires.append('cupy')\ninstall_requires.append('nvidia-ml-py')"}},
        "requirements",
        "Its setup.py adds cupy under a condition, and no variant requires it.",
    ),
    (
        "a Python more",
        {"metadata": "".join(f"Classifier: Programming Language :: Python :: 3.{n}\n" for n in (10, 11, 12, 13))},
        "python",
        "It names Python 3.13, which the recipe does not build.",
    ),
    (
        "a Python that it is silent of",
        {
            "metadata": "Classifier: Programming Language :: Python :: 3.11\nClassifier: Programming Language :: Python :: 3.12\n"
        },
        "python",
        "It does not name Python 3.10 among those it is for.",
    ),
    (
        "a file for Windows",
        {"files": {"bin/ds_report.bat": "@echo other\n"}},
        "windows files",
        "bin/ds_report.bat is in the sdist now, with other content as the recipe's, which replaces it.",
    ),
    (
        "the recipe's file for Windows",
        {"files": {"bin/ds_report.bat": (ROOT / "recipe/windows/bin/ds_report.bat").read_text()}},
        "windows files",
        "bin/ds_report.bat is in the sdist now, the same as the recipe's, which replaces it.",
    ),
]


@pytest.mark.parametrize(("change", "step", "found"), [one[1:] for one in NOTES], ids=[one[0] for one in NOTES])
def test_what_someone_should_look_at_breaks_nothing(make, attempt, change, step, found) -> None:
    trial = attempt(make(**change))
    notes = select(trial, step, "note")
    assert notes
    assert notes[0].startswith(found)
    assert not select(trial, step, "broke")


def cut(*numbers: int, more: Mapping[int, list[str]] | None = None, other: Mapping[int, str] | None = None) -> str:
    """csrc/code.cpp without some lines, with ``more`` before others, and some otherwise."""
    lines: list[str] = []
    for number, line in enumerate(NUMBERS, 1):
        lines += (more or {}).get(number, [])
        if number not in numbers:
            lines.append((other or {}).get(number, line))
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (cut(), ["ok 0001-two.patch applies.", "ok 0002-on-top.patch applies."]),
        (
            cut(more={2: ["new"] * 4, 15: ["new"]}),
            [
                "ok 0001-two.patch applies with offset: csrc/code.cpp by +4, csrc/code.cpp by +5.",
                "ok 0002-on-top.patch applies with offset: csrc/code.cpp by +5.",
            ],
        ),
        (cut(1, 2), ["ok 0001-two.patch applies with offset: csrc/code.cpp by -2, csrc/code.cpp by -2.",
                     "ok 0002-on-top.patch applies with offset: csrc/code.cpp by -2."]),
        (
            cut(other={3: "other", 9: "other"}),
            [
                "note 0001-two.patch applies, but the lines around it are others: csrc/code.cpp at hunk 1 (line 3).",
                "ok 0002-on-top.patch applies.",
            ],
        ),
        (
            cut(other={6: "LINE 6"}, more={23: ["line 22 and a half"]}),
            ["note 0001-two.patch is upstream already.", "ok 0002-on-top.patch applies."],
        ),
        (
            cut(other={6: "other"}),
            [
                "broke 0001-two.patch: csrc/code.cpp at hunk 1 (line 3) fails.",
                "broke 0002-on-top.patch: csrc/code.cpp at hunk 1 (line 21) fails. It may want 0001-two.patch, which does not "
                "apply either.",
            ],
        ),
        (
            cut(22, 23, other={6: "LINE 6"}),
            [
                "broke 0001-two.patch: csrc/code.cpp at hunk 1 (line 3) is upstream already; csrc/code.cpp at hunk 2 (line 20) "
                "fails.",
                "broke 0002-on-top.patch: csrc/code.cpp at hunk 1 (line 21) fails. It may want 0001-two.patch, which does not "
                "apply either.",
            ],
        ),
    ],
    ids=["applies", "lower", "higher", "fuzz", "upstream", "fails", "half upstream"],
)  # fmt: skip
def test_each_patch_says_whether_it_applies(make, attempt, code: str, said: list[str]) -> None:
    trial = attempt(make(files={"csrc/code.cpp": code}))
    found = [f"{one.status} {one.found}" for one in trial.findings if one.step == "patches"]
    assert found == [*said, "ok 0003-requirements.patch applies."]
    applied = (trial.folder / f"source/deepspeed-{trial.version}/csrc/code.cpp").read_text()
    fails = any(one.startswith("broke") for one in said)
    # Whole or not at all.
    assert applied == code if fails else ("LINE 6\n" in applied and "line 22 and two thirds\n" in applied)


def test_a_patch_that_upstream_has_leaves_the_recipe(make, attempt, recipe, tmp_path) -> None:
    without = [one for one in REQUIREMENTS if one != "ninja"]
    trial = attempt(make(files={"requirements/requirements.txt": "".join(f"{one}\n" for one in without)}))
    assert select(trial, "patches", "note") == ["0003-requirements.patch is upstream already."]
    assert trial.exit_code == 0
    for name in ("recipe.yaml", "meta.yaml"):
        assert "0003-requirements" not in (trial.folder / "recipe" / name).read_text()
        assert "0002-on-top" in (trial.folder / "recipe" / name).read_text()
    (tmp_path / "a.diff").write_bytes(trial.diff.encode())
    patches.apply(tmp_path / "a.diff", tmp_path)
    assert not (recipe / "patches/0003-requirements.patch").exists()
    assert read_all(recipe) == read_all(trial.folder / "recipe")


def test_a_patch_that_makes_a_file_fails_where_another_is(tmp_path: Path) -> None:
    patch = tmp_path / "new.patch"
    patch.write_text("--- /dev/null\n+++ b/folder/new.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n")
    tree = tmp_path / "tree"
    assert patches.apply(patch, tree).state == "applies"
    assert (tree / "folder/new.txt").read_bytes() == b"one\ntwo\n"
    assert patches.apply(patch, tree).state == "upstream"
    (tree / "folder/new.txt").write_text("three\n")
    assert patches.apply(patch, tree).state == "fails"


@pytest.mark.parametrize("text", ["no diff\n", "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-b\n"])
def test_a_damaged_patch_is_bad_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.patch").write_text(text)
    with pytest.raises(BadInput, match=r"bad\.patch"):
        patches.apply(tmp_path / "bad.patch", tmp_path)


def test_the_recipes_own_ops_are_read_from_a_class_and_those_it_is_made_of(tmp_path: Path) -> None:
    files = {
        "op_builder/a.py": write_builder("transformer", "DS_A", "d.{self.NAME}_op", "TransformerBuilder"),
        "op_builder/b.py": "class StochasticBuilder(TransformerBuilder):\n    BUILD_VAR = 'DS_B'\n    NAME = 'stochastic'\n",
        "op_builder/c.py": "class OddBuilder:\n    NAME = 'odd'\n    def absolute_name(self):\n        return f'd.{find()}'\n",
        "op_builder/d.py": "class Helper:\n    NAME = 'helper'\n",
        "op_builder/cpu/a.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sdist.read_ops(tmp_path) == [
        sdist.UpstreamOp("transformer", "DS_A", "d.transformer_op", ("cuda",)),
        sdist.UpstreamOp("stochastic", "DS_B", "d.stochastic_op", ("cuda",)),
        sdist.UpstreamOp("odd", "", "", ("cuda",)),
    ]


# The build


def test_a_build_has_the_copy_and_the_sdist_and_leaves_no_file_of_the_users_in_the_cache(
    make, attempt, tmp_path
) -> None:
    file = make()

    def run(recipe: Path, channel: Path) -> str:
        assert (
            source.fetch(source.read(recipe), tmp_path / "cache/source", pytest.fail).read_bytes() == file.read_bytes()
        )
        assert (recipe.parent, channel) == (tmp_path / "cache/upgrade", tmp_path / "cache/upgrade/channel")
        return "Built."

    trial = attempt(file, run)
    assert [(one.status, one.found) for one in trial.findings if one.step == "build"] == [("ok", "Built.")]
    assert trial.exit_code == 0
    assert list((tmp_path / "cache/source").iterdir()) == []


def test_what_broke_in_a_build_is_told_by_its_log(make, attempt, tmp_path) -> None:
    logs = tmp_path / "cache/logs"
    logs.mkdir(parents=True)
    (logs / "build-linux-64-cpu_py311_9.log").write_text("nvcc fatal   : Unsupported gpu architecture 'compute_120'\n")
    os.utime(logs / "build-linux-64-cpu_py311_9.log", (1, 1))
    (logs / "build-win-64-cpu_py311_0.log").write_text("nvcc fatal   : Unsupported gpu architecture 'compute_120'\n")
    failed = (ROOT / "tests/data/logs/patch-does-not-apply.txt").read_text()

    def run(recipe: Path, channel: Path) -> str:
        (logs / "build-linux-64-cpu_py311_0.log").write_text(failed)
        raise CheckFailed("The build failed.", fix="The whole log is there.", log="the end")

    trial = attempt(make(), run)
    first, cause, *_ = [one for one in trial.findings if one.step == "build"]
    assert (first.status, first.found, first.fix) == ("broke", "The build failed.", "The whole log is there.")
    assert re.match(r"build-linux-64-cpu_py311_0\.log, line \d+, patch-does-not-apply: ", cause.found)
    assert cause.fix
    assert trial.exit_code == 1


def test_without_a_log_the_errors_own_words_are_explained(make, attempt) -> None:
    def run(recipe: Path, channel: Path) -> str:
        raise CheckFailed("A failure.", fix="See.", log="error: something nobody knows\n")

    found = select(attempt(make(), run), "build")
    assert found == ["A failure.", "the error, line 2: error: something nobody knows"]


def test_a_machine_that_cannot_build_is_no_fault_of_the_release(make, attempt) -> None:
    def run(recipe: Path, channel: Path) -> str:
        raise MachineLacks("No compiler.", fix="Install one.")

    trial = attempt(make(), run)
    assert [(one.status, one.found, one.fix) for one in trial.findings if one.step == "build"] == [
        ("lacks", "No compiler.", "Install one.")
    ]
    assert trial.exit_code == 3
    assert attempt(make(files={"op_builder/gds.py": None}), run).exit_code == 1


def test_nothing_is_built_with_a_patch_missing(make, attempt) -> None:
    trial = attempt(make(files={"csrc/code.cpp": None}), lambda *_: pytest.fail("built"))
    assert select(trial, "patches", "broke")[0].startswith("0001-two.patch: csrc/code.cpp at hunk 1 (line 3) fails")
    assert select(trial, "build", "skipped") == ["Not tried: a patch does not apply."]


def test_another_file_of_that_name_in_the_cache_is_left_alone(make, attempt, tmp_path) -> None:
    place = tmp_path / "cache/source/deepspeed-0.20.0.tar.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"another")
    trial = attempt(make(), lambda *_: pytest.fail("built"))
    assert f"{place} is another file" in select(trial, "build", "lacks")[0]
    assert place.read_bytes() == b"another"


# torch


@pytest.mark.parametrize(
    ("platform", "line"), [("linux-64", '  - "9.9"     # [linux]'), ("win-64", '  - "9.9"      # [win]')]
)
def test_another_torch_changes_one_number(make, attempt, platform: str, line: str) -> None:
    trial = attempt(make(), target=upgrade.Target(platform, "cpu", "3.11", "9.9"))
    old = (ROOT / "recipe/conda_build_config.yaml").read_text().splitlines()
    new = (trial.folder / "recipe/conda_build_config.yaml").read_text().splitlines()
    assert [two for one, two in zip(old, new, strict=True) if one != two] == [line]
    assert f"+{line}\n" in trial.diff


def test_a_torch_that_no_variant_can_have_is_bad_input(make, attempt) -> None:
    with pytest.raises(BadInput, match="names torch together with its CUDA"):
        attempt(make(), target=upgrade.Target("win-64", "cuda130", "3.11", "9.9"))
    for text in ("2", "2.14.1", "two"):
        with pytest.raises(BadInput, match="no minor version of torch"):
            attempt(make(), target=upgrade.Target("linux-64", "cpu", "3.11", text))
    with pytest.raises(BadInput, match=r"no Python 3\.9"):
        attempt(make(), target=upgrade.Target("linux-64", "cpu", "3.9"))


# The source


def answer(code: int, said: str, content: bytes | None = None) -> Callable[..., tuple[int, str]]:
    """A stand-in for pip, whose index has 0.19.8 as the newest."""

    def run(arguments: list[str], *_: object) -> tuple[int, str]:
        if arguments[0] == "index":
            return 0, "deepspeed (0.19.8)\nAvailable versions: 0.19.8, 0.19.7"
        if content is not None:
            (Path(arguments[arguments.index("--dest") + 1]) / "deepspeed-0.20.0.tar.gz").write_bytes(content)
        return code, said

    return run


def replace_pip(monkeypatch: pytest.MonkeyPatch, stand_in: Callable[..., tuple[int, str]]) -> None:
    for module in (sdist, source):
        monkeypatch.setattr(module, "run_pip", stand_in)


def test_pip_brings_the_sdist_once(make, attempt, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = make().read_bytes()
    replace_pip(monkeypatch, answer(0, "", content))
    trial = attempt("0.20.0")
    assert trial.sha256 == hashlib.sha256(content).hexdigest()
    replace_pip(monkeypatch, answer(1, "not asked again"))
    assert attempt("0.20.0").exit_code == 0
    assert [one.name for one in (tmp_path / "cache/source").iterdir()] == ["deepspeed-0.20.0.tar.gz"]


@pytest.mark.parametrize(
    ("release", "said", "error", "match"),
    [
        (
            "0.20.0",
            "ERROR: Could not find a version that satisfies the requirement deepspeed==0.20.0 (from versions: 0.19.7, 0.19.8)",
            BadInput,
            r"There is no DeepSpeed 0\.20\.0\. The newest on the package index is 0\.19\.8\.",
        ),
        (
            "0.20.0",
            "ERROR: Could not find a version (from versions: none)",
            MachineLacks,
            "pip finds no version of deepspeed",
        ),
        ("0.20.0", "error: metadata-generation-failed", CheckFailed, r"setup\.py of DeepSpeed 0\.20\.0 fails"),
        ("0.20.0", "ERROR: 503 Server Error", MachineLacks, r"pip could not get DeepSpeed 0\.20\.0"),
        ("0.20.0rc1", "", BadInput, r"0\.20\.0rc1 is no release\. The newest on the package index is 0\.19\.8"),
        ("0.20.0+cu130", "", BadInput, "is no release"),
        ("newest", "", BadInput, "'newest' is neither a version"),
    ],
)
def test_a_release_that_is_not_there_gives_one_clear_error(
    attempt, monkeypatch: pytest.MonkeyPatch, release: str, said: str, error: type[Exception], match: str
) -> None:
    replace_pip(monkeypatch, answer(1, said))
    with pytest.raises(error, match=match):
        attempt(release)


def test_an_index_that_names_nothing_names_no_newest(attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdist, "run_pip", lambda *_: (1, "ERROR: no such command"))
    with pytest.raises(BadInput, match=r"0\.20\.0rc1 is no release\. The package index names no release\."):
        attempt("0.20.0rc1")


def test_a_file_that_is_no_sdist_of_deepspeed_is_bad_input(make, attempt, tmp_path) -> None:
    with pytest.raises(BadInput, match=r"missing\.tar\.gz is no sdist of DeepSpeed"):
        attempt(tmp_path / "missing.tar.gz")
    (tmp_path / "text.tar.gz").write_text("text")
    with pytest.raises(BadInput, match=r"text\.tar\.gz is no sdist"):
        attempt(tmp_path / "text.tar.gz")
    with pytest.raises(BadInput, match="is an sdist of other"):
        attempt(make(project="other"))
    with pytest.raises(BadInput, match="is no sdist of DeepSpeed"):
        attempt(make(files={"../../outside.txt": "x"}))
    assert not (tmp_path / "cache/outside.txt").exists()
    with pytest.raises(BadInput, match="is no sdist of DeepSpeed"):
        attempt(make(files={"PKG-INFO": None}))


def test_a_recipe_that_does_not_pin_as_expected_is_bad_input(make, attempt, recipe) -> None:
    (recipe / "meta.yaml").write_text((recipe / "meta.yaml").read_text().replace(OLD.sha256, "0" * 64))
    with pytest.raises(BadInput, match=rf"meta\.yaml has {OLD.sha256} in 0 places"):
        attempt(make())


# The command line


@pytest.fixture
def at_home(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "RECIPE", recipe)
    monkeypatch.setattr(cli, "CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("at_home")
def test_the_command_prints_a_table_or_json_and_writes_the_patch(
    make, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = make(files={"op_builder/gds.py": None})
    common = ["upgrade", str(file), "--source-only", "--target", "linux-64", "--python", "3.11"]
    assert cli.main([*common, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"], document["exit_code"]) == (1, "0.20.0", 1)
    assert document["counts"] == {"ok": 8, "broke": 1, "skipped": 1}
    broke = [one for one in document["findings"] if one["status"] == "broke"]
    assert [one["step"] for one in broke] == ["ops"]
    assert cli.main(common) == 1
    said = capsys.readouterr().out
    assert "The op gds is gone. It was not built." in said
    assert "8 ok, 1 broke, 1 skipped\n" in said
    assert said.endswith(document["diff"])
    assert cli.main([*common, "--diff", str(tmp_path / "a.patch")]) == 1
    assert (tmp_path / "a.patch").read_bytes() == document["diff"].encode()
    assert "--- a/recipe" not in capsys.readouterr().out


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--archs", "8.6"], "--archs goes with --rehearse"),
        (["--rehearse", "--target", "linux-64"], "A build for linux-64 is not rehearsed"),
        (["--diff", "nowhere/a.patch"], "nowhere is no folder"),
        (["--variant", "rocm"], "'rocm'"),
        (["--deps", "npm"], "npm"),
    ],
)
def test_options_that_mean_nothing_are_refused(make, arguments, said, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["upgrade", str(make()), *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("at_home")
def test_a_build_is_that_of_dswin_build(make, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path) -> None:
    asked: dict = {}

    def stand_in(recipe: Path, out: Path, cache: Path, **options: object) -> build.Built:
        asked.update(options, recipe=recipe, out=out, cache=cache)
        return build.Built(Path("a.conda"), Path("a.whl"), [])

    monkeypatch.setattr(build, "build", stand_in)
    arguments = ["--target", "win-64", "--python", "3.12", "--deps", "pypi", "--msvc", "folder"]
    assert cli.main(["upgrade", str(make()), *arguments, "--diff", str(tmp_path / "a.patch")]) == 0
    assert "Built and tested, 0 ops: a.conda" in capsys.readouterr().out
    asked.pop("progress")
    assert asked == {
        "recipe": tmp_path / "cache/upgrade/recipe", "out": tmp_path / "cache/upgrade/channel", "cache": tmp_path / "cache",
        "platform": "win-64", "variant": "cpu", "python": "3.12", "deps": "pypi", "msvc": Path("folder"),
    }  # fmt: skip


# docs/upgrading.md


def test_the_page_names_constants_that_exist() -> None:
    text = (ROOT / "docs/upgrading.md").read_text(encoding="utf-8")
    pairs = re.findall(r"`([A-Z_]{4,})` in `([\w./]+\.py)`", text)
    assert {"FIRST_REFUSED", "CHANNELS", "WHEELS", "CUDA", "TORCH"} == {name for name, _ in pairs}
    for name, file in pairs:
        assert re.search(rf"^{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name
