"""``dswin explain``: a known failure is found first in a log of it, in any encoding, and good logs do not alarm."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from documents import REGISTRIES
from dswin import cli, failures, log_text
from dswin.errors import BadInput
from dswin.explain import REACH, Explained, explain
from dswin.failures import Known

LOGS = Path(__file__).parents[1] / "data" / "logs"
SAMPLES = sorted(LOGS.glob("*.txt"))
HARMLESS = sorted((LOGS / "harmless").glob("*.txt"))
KNOWN = failures.load()

SMALL = r"""
words: [rror, fatal, kept, warning]
failures:
  - {id: root, stage: build, rank: cause, any: ['rror: root'], cause: c, fix: f, applies: a, source: s}
  - {id: special, stage: build, rank: cause, any: ['rror: E1 \w+'], cause: c, fix: f, applies: a, source: s}
  - {id: general, stage: build, rank: cause, any: ['rror: E1'], cause: c, fix: f, applies: a, source: s}
  - {id: both, stage: run, rank: cause, all: ['rror: one', 'rror: two'], unless: ['rror: three'],
     cause: c, fix: f, applies: a, source: s}
  - {id: perhaps, stage: run, rank: symptom, any: ['rror: perhaps'], cause: c, fix: f, applies: a, source: s}
  - {id: chinese, stage: run, rank: cause, any: ['fatal 内部'], cause: c, fix: f, applies: a, source: s}
  - {id: after, stage: build, rank: consequence, any: ['rror: stopped'], cause: c, fix: f, applies: a, source: s}
harmless:
  - {id: probe, any: ['rror: root of the probe'], reason: r}
alarms: ['rror: ']
"""


def small(text: str = SMALL) -> Known:
    return failures.parse(text, "small.yaml")


def read(log: bytes | str, known: Known = KNOWN) -> Explained:
    return explain(io.BytesIO(log.encode() if isinstance(log, str) else log), "a log", known)


def ids(found: Explained) -> list[str]:
    return [failure.id for failure, _ in (*found.causes, *found.consequences)]


# ---- the data ----------------------------------------------------------------------------------------------------------


def test_each_entry_has_a_log_and_each_log_an_entry() -> None:
    assert sorted(log.stem for log in SAMPLES) == sorted(failure.id for failure in KNOWN.failures)
    assert len(HARMLESS) >= 20


@pytest.mark.parametrize("log", SAMPLES, ids=lambda log: log.stem)
def test_the_cause_comes_first_in_every_encoding(log: Path) -> None:
    text = log.read_text(encoding="utf-8")
    assert 18 <= text.count("\n") <= 80
    whole = read(text)
    assert ids(whole)[0] == log.stem
    first = (whole.causes or whole.consequences)[0][1]
    windows = text.replace("\n", "\r\n")
    encoded = {
        "utf-16-le": b"\xff\xfe" + windows.encode("utf-16-le"),
        "utf-16-be": b"\xfe\xff" + text.encode("utf-16-be"),
        "no mark": text.encode("utf-16-le"),
        "crlf": windows.encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "gbk": text.encode("gbk", "replace"),
    }
    for name, data in encoded.items():
        found = read(data)
        assert (ids(found), found.lines) == (ids(whole), whole.lines), name
        assert (found.causes or found.consequences)[0][1].line == first.line, name
        if name != "gbk":
            assert (found.causes or found.consequences)[0][1].text == first.text, name


@pytest.mark.parametrize("log", HARMLESS, ids=lambda log: log.stem)
def test_good_logs_do_not_alarm(log: Path) -> None:
    found = read(log.read_bytes())
    assert (found.verdict, ids(found), found.unknown, found.exit_code) == ("nothing", [], (), 0)


LINES = [line.split(": ", 1) for line in (LOGS.parent / "log-lines.txt").read_text(encoding="utf-8").splitlines()]


def test_each_pattern_has_a_line() -> None:
    """In the logs, or in log-lines.txt: no pattern is there by guess, and none that another one makes needless by its text."""
    lines = [line for log in (*SAMPLES, *HARMLESS) for line in log.read_bytes().splitlines()]
    lines += [line.encode() for _, line in LINES]
    patterns = [pattern for entry in KNOWN.failures for pattern in entry.patterns]
    patterns += [pattern for entry in KNOWN.harmless for pattern in entry.any] + list(KNOWN.alarms)
    assert [pattern.text for pattern in patterns if not any(pattern.search(line) for line in lines)] == []


@pytest.mark.parametrize(("entry", "line"), LINES, ids=[f"{number}-{one[0]}" for number, one in enumerate(LINES)])
def test_each_line_alone_is_explained(entry: str, line: str) -> None:
    found = read(f"before\n{line}\n")
    if entry in [one.id for one in KNOWN.harmless]:
        assert (found.verdict, [one.id for one, _ in found.harmless]) == ("nothing", [entry])
        return
    failure = next(failure for failure in KNOWN.failures if failure.id == entry)
    if failure.every:  # it takes another line too
        assert any(pattern.search(line.encode()) for pattern in failure.any)
    else:
        assert ids(found) == [entry]


def test_each_harmless_entry_is_seen_in_a_good_log() -> None:
    seen = {one.id for log in HARMLESS for one, _ in read(log.read_bytes()).harmless}
    assert seen == {one.id for one in KNOWN.harmless}


def test_each_literal_is_in_all_that_its_pattern_matches() -> None:
    """A literal taken wrongly would hide matches; here patterns are tried on each line of each log without it."""
    lines = [line for log in (*SAMPLES, *HARMLESS) for line in log.read_bytes().splitlines()]
    matched = 0
    for failure in KNOWN.failures:
        for form in (form for pattern in failure.patterns for form in pattern.forms):
            for line in filter(form.regex.search, lines):
                matched += 1
                assert form.literal in line
                assert form.word in line
    assert matched > 500


def test_what_is_tracked_names_no_package_index() -> None:
    for path in (failures.DATA, LOGS.parent / "log-lines.txt", *SAMPLES, *HARMLESS):
        # In any of the encodings that a log may have, its ASCII letters stand in this order.
        text = path.read_bytes().replace(b"\0", b"").decode("latin-1")
        assert not REGISTRIES.search(text), path
        assert "/work/" not in text, path
        assert "/tmp/" not in text, path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("id: root", "id: Root"), "not made of small letters"),
        (("id: general", "id: special"), "the id special is there twice"),
        (
            ("stage: build, rank: cause, any: ['rror: root']", "stage: cook, rank: cause, any: ['rror: root']"),
            "stage is 'cook'",
        ),
        (("rank: symptom", "rank: guess"), "rank is 'guess'"),
        (("any: ['rror: root'],", ""), "neither any nor all"),
        (("any: ['rror: root'], cause: c", "any: ['rror: root'], cause: 7"), "cause is no text"),
        (("any: ['rror: root']", "any: 'rror: root'"), "any is no list"),
        (("any: ['rror: root']", "any: ['nothing of it']"), "none of the words"),
        (("any: ['rror: root']", "any: ['rror: (root']"), "is no pattern"),
        (("any: ['rror: root']", "any: ['rror|fatal']"), "two patterns"),
        (("any: ['rror: root']", "any: ['rror.*root']"), "has no limit"),
        (("any: ['rror: root']", "any: ['rror(a+)+']"), "has no limit"),
        (("any: ['rror: root']", "any: ['rror(?:ab?){2,9}']"), "has no limit"),
        (("any: ['rror: root']", "any: ['rror[^a]+b']"), "has no limit"),
        (("any: ['rror: root']", "many: ['rror: root']"), "unknown key 'many'"),
        (("reason: r", "reason: ''"), "reason is no text"),
        (("words:", "words: ]"), "cannot be used"),
        (("alarms:", "alarm:"), "unknown key 'alarm'"),
    ],
)
def test_damaged_data_is_refused(change: tuple[str, str], message: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(BadInput, match=r"small\.yaml cannot be used") as refused:
        small(SMALL.replace(*change, 1))
    assert message in refused.value.what


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        (r"error C1083: .{0,80}\.h", ["error C1083: ", ".h"]),
        (r"ab?c", ["a", "c"]),
        (r"ab+c", ["ab", "c"]),
        (r"a(?:b|c(?:d))e[fg]h", ["a", "e", "h"]),
        (r"\[WinError 2\]", ["[WinError 2]"]),
        (r"x\d{1,3}y", ["x", "y"]),
        (r"[\]a)]b", ["b"]),
        (r"\(a\)", ["(a)"]),
    ],
)
def test_literals(pattern: str, literals: list[str]) -> None:
    assert failures.find_literals(pattern) == literals


# ---- what is said of a log ------------------------------------------------------------------------------------------------


def test_causes_stand_before_symptoms_and_consequences_last() -> None:
    found = read("error: stopped\nerror: perhaps\nx\nerror: root\n", small())
    assert ids(found) == ["root", "perhaps", "after"]
    assert [hit.line for _, hit in found.causes] == [4, 2]
    assert (found.verdict, found.exit_code) == ("cause", 1)


def test_the_first_of_two_causes_comes_first_and_its_first_line() -> None:
    found = read("error: E1 abc\nerror: root\nerror: E1 abc\n", small())
    assert [(failure.id, hit.line) for failure, hit in found.causes] == [("special", 1), ("root", 2), ("general", 1)][
        :2
    ]


def test_all_and_unless() -> None:
    assert ids(read("error: two\nerror: one\n", small())) == ["both"]
    assert ids(read("error: two\n", small())) == []
    assert ids(read("error: two\nerror: one\nerror: three\n", small())) == []


def test_a_harmless_line_is_no_failure_and_hides_none() -> None:
    quiet = read("x\nerror: root of the probe\n", small())
    assert (quiet.verdict, [(one.id, hit.line) for one, hit in quiet.harmless]) == ("nothing", [("probe", 2)])
    assert [hit.line for _, hit in read("error: root of the probe\nerror: root\n", small()).causes] == [2]


def test_an_unknown_error_is_shown() -> None:
    log = "".join(f"fine\nerror: strange {number}\n" for number in range(9))
    found = read(log, small())
    assert (found.verdict, found.exit_code) == ("unknown", 1)
    assert [(hit.line, hit.text) for hit in found.unknown] == [(2 * n + 2, f"error: strange {n}") for n in range(5)]


def test_only_consequences_are_no_cause() -> None:
    found = read("error: odd\nerror: stopped\n", small())
    assert (found.verdict, ids(found), [hit.line for hit in found.unknown]) == ("unknown", ["after"], [1])


@pytest.mark.parametrize("encoding", ["utf-8", "gbk", "utf-16"])
def test_chinese_letters_in_a_pattern(encoding: str) -> None:
    found = read("编译\nfatal 内部命令\n".encode(encoding), small())
    assert [(failure.id, hit.text) for failure, hit in found.causes] == [("chinese", "fatal 内部命令")]


def test_chinese_compilers_are_understood_by_their_numbers() -> None:
    log = "LINK : fatal error LNK1181: 无法打开输入文件“cublas.lib”\r\n".encode("gbk")
    assert ids(read(log)) == ["cuda-library-not-found"]
    assert read("LINK : fatal error LNK1181: 无法打开输入文件“aio.lib”\n".encode("gbk")).verdict == "nothing"


# ---- logs as they come ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding", "called"),
    [
        ("plain", "ascii", "ascii"),
        ("größer", "utf-8", "utf-8"),
        ("größer, für, Öl", "cp1252", "cp1252"),
        ("größer, für, Öl", "cp850", "cp850"),
        ("accès refusé à l'élève", "cp850", "cp850"),
        ("accès refusé à l'élève", "cp1252", "cp1252"),
        ("无法打开输入文件", "gbk", "gbk"),
        ("error 系统找不到指定的文件。", "utf-16", "utf-16-le"),
        ("error 系统找不到指定的文件。", "utf-16-be", "utf-16-be"),
    ],
)
def test_encodings(text: str, encoding: str, called: str) -> None:
    log = log_text.Log(io.BytesIO((f"{text}\n" * 3).encode(encoding)))
    block, first = next(log.read_blocks())
    assert (log.encoding, first) == (called, 1)
    assert log.show(block.splitlines()[1]) == text


def test_colours_and_nul_bytes_are_taken_out() -> None:
    found = read(b"\x1b[31mer\x1b[0mror: \x1b[1;4mro\x1b[mot\x1b]0;title\x07\n", small())
    assert found.causes[0][1].text == "error: root"
    assert ids(read(b"fine\n" * 50 + b"e\0r\0r\0o\0r\0:\0 \0r\0o\0o\0t\0\n\0", small())) == ["root"]


def test_a_progress_bar_is_not_shown_with_the_error() -> None:
    bar = "\r".join(f"fetching {percent}%" for percent in range(100))
    assert read(f"{bar}\rerror: root\r\nx\n", small()).causes[0][1].text == "error: root"


def test_a_small_pipe_is_read_to_its_end() -> None:
    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 7))

    assert ids(explain(Pipe(b"line\n" * 100 + b"error: root"), "pipe", small())) == ["root"]


@pytest.mark.parametrize(
    "before", [0, 1, 100, log_text.BLOCK - 8, log_text.BLOCK - 3, log_text.BLOCK, 3 * log_text.BLOCK - 5]
)
@pytest.mark.parametrize("filler", [b"a", b"line of a log\n", b"rror: "])
def test_blocks_and_long_lines_hide_nothing(before: int, filler: bytes) -> None:
    text = (filler * (before // len(filler) + 1))[:before]
    found = read(text + b" error: root\nlast", small())
    assert [(failure.id, hit.line) for failure, hit in found.causes] == [("root", text.count(b"\n") + 1)]
    assert "error: root" in found.causes[0][1].text
    assert len(found.causes[0][1].text) < 500
    assert found.lines == text.count(b"\n") + 2


@pytest.mark.parametrize("before", range(REACH - 20, REACH + 3))
def test_a_cut_of_a_long_line_hides_nothing(before: int) -> None:
    """The word at the line's beginning ends what is looked at after REACH bytes, in the midst of the error."""
    assert ids(read(b"rror: ".ljust(before, b"x") + b"error: root" + b"y" * 50_000, small())) == ["root"]


def test_lines_of_a_million_letters_that_almost_match() -> None:
    """Each literal of each pattern, over and over: quadratic patterns would take hours."""
    literals = sorted({form.literal for failure in KNOWN.failures for p in failure.patterns for form in p.forms})
    for literal in literals[::7]:
        read(literal * (2**17 // len(literal)))
    assert read(b" ".join(literals) * (2**20 // sum(map(len, literals)))).lines == 1


@given(
    st.one_of(st.binary(max_size=400), st.text(max_size=200).map(lambda text: text.encode("utf-16", "surrogatepass")))
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_log_or_bad_input(data: bytes) -> None:
    try:
        found = read(data)
    except BadInput:
        return
    assert found.exit_code in (0, 1)
    json.dumps(found.to_json())
    assert found.lines <= len(data)


@given(
    st.lists(
        st.sampled_from(["fine", "error: root", "error: stopped", "error: root of the probe", "warning", "error: x"])
    )
)
@settings(deadline=None)
def test_the_first_line_is_found_by_another_way(lines: list[str]) -> None:
    if not lines:
        return
    found = read("\n".join(lines), small())
    expected = {
        word: [lines.index(word) + 1] if word in lines else [] for word in ("error: root", "error: stopped", "error: x")
    }
    assert [hit.line for _, hit in found.causes] == expected["error: root"]
    assert [hit.line for _, hit in found.consequences] == expected["error: stopped"]
    # A line that is there many times is shown once.
    assert [hit.line for hit in found.unknown] == expected["error: x"]


# ---- the command ----------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> int:
    return cli.main(["explain", *map(str, arguments)])


def test_the_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS / "cl-too-new-for-nvcc.txt"
    assert run(log) == 1
    said = capsys.readouterr().out
    assert said.index("cl-too-new-for-nvcc (build)") < said.index("-vcvars_ver=14.39") < said.index("ninja-stopped")
    assert "unsupported Microsoft Visual Studio version" in said


def test_json_has_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(LOGS / "libuv.txt", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema", "verdict", "exit_code", "encoding", "lines", "causes", "consequences", "harmless",
                              "unknown", "looked_for"]  # fmt: skip
    keys = ["id", "rank", "stage", "cause", "fix", "applies", "source", "line", "text"]
    assert list(document["causes"][0]) == list(document["consequences"][0]) == keys
    assert (document["causes"][0]["id"], document["verdict"]) == ("libuv", "cause")
    assert sum(document["looked_for"].values()) == len(KNOWN.failures)
    assert list(document["harmless"][0]) == ["id", "reason", "line", "text"]


def test_a_good_log_and_an_unknown_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(LOGS / "harmless" / "ds-report.txt") == 0
    said = capsys.readouterr().out
    assert f"Looked for {len(KNOWN.failures)} known failures" in said
    assert "op-not-compatible" in said
    (tmp_path / "ein Protokoll, größer.txt").write_text("StrangeError: nobody wrote this down\n", encoding="utf-8")
    assert run(tmp_path / "ein Protokoll, größer.txt") == 1
    said = capsys.readouterr().out
    assert "line 1: StrangeError: nobody wrote this down" in said
    assert "dswin prove" in said
    assert run(LOGS / "ninja-stopped.txt") == 1
    assert 'Look above for "FAILED:"' in capsys.readouterr().out


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "report.zip").write_bytes(b"PK\x03\x04 and so on")
    for name, message in [("absent.log", "cannot be read"), (".", "it is a folder"), ("empty.log", "is empty"),
                          ("report.zip", "an archive"), ("a\0b", "cannot be read")]:  # fmt: skip
        assert run(f"{tmp_path}/{name}") == 2
        assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_standard_input_and_an_old_console(arguments: list[str]) -> None:
    """A log with letters that the output's encoding lacks."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; from dswin import cli; sys.exit(cli.main(['explain', *{arguments!r}]))"
    log = (LOGS / "cuda-library-not-found.txt").read_bytes()
    environment = {"PYTHONIOENCODING": "ascii:strict", "PATH": "", "SYSTEMROOT": "C:\\Windows"}
    done = subprocess.run([sys.executable, "-c", code], input=log, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"CAUSE  cuda-library-not-found" in done.stdout
