"""What the documents say to type can be typed, and what they name is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import documents
from documents import ROOT, compare, find_faults, parse, read, split_commands, split_comment

#: README.zh.md and others, beside the document that they translate.
TRANSLATIONS = sorted(ROOT.glob("README.*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "recipe/README.md", "locks/README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *TRANSLATIONS,
    *sorted((ROOT / "docs").glob("**/*.md")),
]


def write(folder: Path, text: str, name: str = "README.md") -> documents.Document:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_names_what_there_is(path: Path) -> None:
    assert find_faults(read(path)) == []


def test_documents_have_commands() -> None:
    """The checks above look at something."""
    found = [words[0] for path in DOCUMENTS for block in read(path).blocks for line in block.lines
             for words in split_commands(split_comment(line)[0])]  # fmt: skip
    assert {"scripts/dswin.sh", "scripts\\dswin.cmd", "conda", "conda-lock", "rattler-build"} <= set(found)
    assert len(found) > 30


def test_translations_say_the_same() -> None:
    originals = {path: path.with_name(f"{path.name.split('.')[0]}.md") for path in TRANSLATIONS}
    assert [fault for path, original in originals.items() for fault in compare(read(original), read(path))] == []


# ---- the checks themselves


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("    scripts/dswin.sh biuld", "No such command 'biuld'"),
        ("    scripts/dswin.sh", "a command is missing"),
        ("    scripts/dswin.sh env", "a command is missing"),
        ("    scripts/dswin.sh build --varient cpu", "No such option '--varient'"),
        ("    scripts/dswin.sh build --variant cuda999", "there is no variant cuda999"),
        ("    scripts/dswin.sh build --target win-46", "there is no target win-46"),
        ("    scripts/dswin.sh build --deps none", "'none' is not one of"),
        ("    scripts/dswin.sh build --variant", "requires an argument"),
        ("    scripts/dswin.sh build cpu", "unexpected extra argument"),
        ("    scripts/dswin.sh env create --prefix env", "--lock"),
        ("    scripts/dswin.sh channel check", "FOLDER"),
        ("    scripts/dswin.sh test tests/unit/test_nothing.py", "there is no tests/unit/test_nothing.py"),
        ("    scripts\\dswin.cmd lock chekc --no", "No such option '--no'"),
        ("    scripts\\dswin.cmd env verfy --prefix env", "No such command 'verfy'"),
        ("    scripts\\dswin.cmd doctor   # looks", "cmd has no # comments"),
        ("    scripts/dswin.sh lock    asks the channels", "words for people have a # before them"),
        ("    scripts/dswin.sh build   # the same    (Windows: scripts\\dswin.cmd biuld)", "No such command 'biuld'"),
        ("    scripts/dswin.sh doctor  # or COMMAND 2>&1 | scripts/dswin.sh explian", "No such command 'explian'"),
        ("    make 2>&1 | scripts/dswin.sh explian", "No such command 'explian'"),
        ("    scripts\\dswin.sh build", "is none of"),
        ("    script/dswin.sh build", "is none of"),
        ("```sh\ncd x\nscripts/dswin.sh biuld\n```", "README.md:3:"),
        ("- a list:\n\n      scripts/dswin.sh biuld", "No such command 'biuld'"),
        ("    python tests/benchmarks/nothing.py", "there is no tests/benchmarks/nothing.py"),
        ("    python tests/benchmarks/build_ops.py --ps cpu_adam", "has no option --ps"),
        ("    conda env create -f environments/none.yaml", "there is no environments/none.yaml"),
        ("Say `dswin env condarc --mirrors tuna`.", "No such option '--mirrors'"),
        ("Say `env plam`.", "No such command 'plam'"),
        ("Say `build --rehearsed`.", "No such option '--rehearsed'"),
        ("Say `--require-gpus`.", "no command has the option --require-gpus"),
        ("| a |\n| --- |\n| `scripts/dswin.sh biuld` |", "No such command 'biuld'"),
        ("See `tests/unit/test_nothing.py`.", "there is no tests/unit/test_nothing.py"),
        ("See [this](nothing.md).", "leads to no file"),
        ("# One\n\nSee [this](#two).", "leads to no heading"),
        ("# One\n\nSee [this](README.md#two).", "leads to no heading"),
        ("Get it from https://files.pythonhosted" + ".org/x.", "host of a package registry"),
        ("Get it from deb.debian" + ".org.", "host of a package registry"),
        ("It is in /home/someone/env.", "a path of one machine"),
        (f"It is in {ROOT}.", "a path of one machine"),
    ],
)  # fmt: skip
def test_a_mistake_is_found(tmp_path: Path, text: str, said: str) -> None:
    faults = find_faults(write(tmp_path, text + "\n"))
    assert [fault for fault in faults if said in fault], faults


@pytest.mark.parametrize(
    "text",
    [
        "    scripts/dswin.sh build --variant cuda130 --archs \"7.5;8.6+PTX\"  # all of it",
        "    scripts/dswin.sh build   # from a clone (Windows: scripts\\dswin.cmd build)",
        "    scripts\\dswin.cmd env create --lock \\\\server\\share\\x.conda-lock.yml --prefix C:\\envs\\x",
        "    scripts/dswin.sh lock diff OLD NEW && scripts/dswin.sh lock check",
        "    scripts/dswin.sh lock gpu-py311 --channel https://intranet/channel",
        "    scripts/dswin.sh test -m long -k \"not build\" -n 2",
        "    scripts/dswin.sh bundle create --lock locks/gpu-py311.conda-lock.yml",
        "    .\\scripts\\dswin.cmd doctor --for build  # in PowerShell",
        "    dswin verify --report out/verify.html",
        "    conda install -c OURCHANNEL \"deepspeed-win=*=cuda130*\"",
        "    .venv/bin/python tests/benchmarks/build_ops.py --ops cpu_adam",
        "Say `env create` or `lock diff OLD NEW`, `--deps auto`, `dswin-compiler-cache`, `explain`, `it's`.",
        "# One & `two`: three\n\n# One\n\n# One\n\n[1](#one--two-three) [2](#one-1) [3](https://example.org/#x) [4](README.md)",
    ],
)  # fmt: skip
def test_what_is_right_is_left_alone(tmp_path: Path, text: str) -> None:
    assert find_faults(write(tmp_path, text + "\n")) == []


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["env", "condarc", "--mirror", "tuna"]) == ""
    assert parse(["bundle", "check", "nothing.zip"]) == ""
    assert parse(["--version"]) == ""
    assert list(tmp_path.iterdir()) == []


TEXT = """# One

    scripts/dswin.sh build    # from a clone

| a | b |
| --- | --- |
| 1 | [2](LICENSE) |

## Two
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("## Two", "# Two", "levels of the headings"),
        ("## Two", "", "levels of the headings"),
        ("dswin.sh build ", "dswin.sh test ", "commands are not those"),
        ("    scripts", "    scripts/dswin.sh test\n    scripts", "commands are not those"),
        ("| 1 | [2](LICENSE) |\n", "| 1 | [2](LICENSE) |\n| 3 | 4 |\n", "rows of the tables"),
        ("[2](LICENSE)", "2", "files that links lead to"),
    ],
)
def test_a_translation_that_says_something_else_is_found(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    [fault] = compare(write(tmp_path, TEXT), write(tmp_path, TEXT.replace(old, new), "README.xx.md"))
    assert said in fault


def test_a_translation_may_have_other_words(tmp_path: Path) -> None:
    translated = TEXT.replace("One", "一").replace("from a clone", "从克隆").replace("| 1 |", "| 一 |")
    assert compare(write(tmp_path, TEXT), write(tmp_path, translated, "README.xx.md")) == []
