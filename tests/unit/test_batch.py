"""The static check of batch files, rule by rule, and then over every batch file of the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import batch

ROOT = Path(__file__).parents[2]


def found(text: str) -> list[tuple[int, str]]:
    return [(problem.line, problem.rule) for problem in batch.check(text)]


GUARDED = {
    "a program": "cl x.cpp || exit /b 1\necho done\n",
    "with another number": "cl x.cpp || exit /b 23\necho done\n",
    "leaving cmd.exe altogether": "cl x.cpp || exit 1\necho done\n",
    "by a jump": "cl x.cpp || goto :failed\necho done\n",
    "by a jump that needs no space": "cl x.cpp || goto:eof\necho done\n",
    "by a block that says why": "cl x.cpp || (\n  echo ERROR: it does not compile\n  exit /b 1\n)\necho done\n",
    "by a block on one line": "cl x.cpp || (echo ERROR: no & exit /b 1)\necho done\n",
    "what runs on the way out": "cl x.cpp || (type log.txt & exit /b 1)\necho done\n",
    "a second attempt": "py -3 x.py || python x.py || exit /b 1\necho done\n",
    "two that must both work": "cl x.cpp && link x.obj || exit /b 1\necho done\n",
    "two on a line, each": "cl x.cpp || exit /b 1 & link x.obj || exit /b 1 & echo done\necho next\n",
    "in a block": "if defined CUDA (\n  nvcc x.cu || exit /b 1\n) else (\n  cl x.cpp || exit /b 1\n)\necho done\n",
    "as the body of if": "if not exist out mkdir out || exit /b 1\necho done\n",
    "as the body of for": "for %%f in (a b) do cl %%f.cpp || exit /b 1\necho done\n",
    "in nested loops": (
        "for %%k in (a b) do (\n  for %%x in (bat sh) do (\n    copy /y %%k.%%x out || exit /b 1\n  )\n)\necho done\n"
    ),
    "the last of a block, behind it": "(\n  echo compiling\n  cl x.cpp\n) || exit /b 1\necho done\n",
    "over a continued line": "cl x.cpp ^\n  /O2 ^\n  || exit /b 1\necho done\n",
    "the last one": "echo compiling\ncl x.cpp\n",
    "the last one without a newline": "cl x.cpp",
    "the last one before a comment": "cl x.cpp\n:: that was all\nrem really\n",
    "the last one, its status handed on": "cl x.cpp\nexit /b %ERRORLEVEL%\n",
    "its status handed on before a subroutine": "cl x.cpp\nexit /b %ERRORLEVEL%\n:sub\nset A=1\ngoto :eof\n",
    "its status handed on with endlocal": "cl x.cpp\nendlocal & exit /b %ERRORLEVEL%\n",
    "a subroutine": "call :compile x || exit /b 1\ngoto :eof\n:compile\ncl %1.cpp || exit /b 1\n",
    "with a redirection": "python jobs.py > jobs.bat 2>&1 || exit /b 1\necho done\n",
    "with a redirection in front": "> jobs.bat python jobs.py || exit /b 1\necho done\n",
    "parentheses in quotes": '(\n  "C:\\Program Files (x86)\\cl.exe" "a)b" || exit /b 1\n)\necho done\n',
    "operators in quotes": 'cl "a & b | c" || exit /b 1\necho done\n',
    "an escaped operator": "cl a ^& b || exit /b 1\necho done\n",
    "an operator in a variable's substitution": "cl %NAME:&=and% || exit /b 1\necho done\n",
    "a set": "for %%f in (\n  a.cpp\n  b.cpp\n) do (\n  cl %%f || exit /b 1\n)\necho done\n",
    "a set in quotes with a parenthesis": 'for %%f in ("a)b.cpp" c.cpp) do cl %%f || exit /b 1\necho done\n',
    "a probe": (
        'set "PY="\nfor %%p in (py python) do (\n  if not defined PY %%p -V > nul && set "PY=%%p"\n)\n'
        "if not defined PY (\n  echo ERROR: no Python\n  exit /b 1\n)\n"
    ),
    "for /f over a file": 'for /f "usebackq delims=(" %%i in ("list.txt") do echo %%i\necho done\n',
}


@pytest.mark.parametrize("text", GUARDED.values(), ids=GUARDED)
def test_guarded_command_passes(text: str) -> None:
    assert found(text) == []
    assert found(text.replace("\n", "\r\n")) == []


UNGUARDED = {
    "a program": ("cl x.cpp\necho done\n", 1),
    "with @ in front": ("@cl x.cpp\n@echo done\n", 1),
    "a program in quotes": ('"%PYTHON%" x.py\necho done\n', 1),
    "by an exit with 0": ("cl x.cpp || exit /b 0\necho done\n", 1),
    "by a message alone": ("cl x.cpp || echo ERROR: it does not compile\necho done\n", 1),
    "by a block that goes on": ("cl x.cpp || (\n  exit /b 1 & echo ERROR\n)\necho done\n", 1),
    "by a second attempt that is not": ("py -3 x.py || python x.py\necho done\n", 1),
    "by success": ("cl x.cpp && echo done\necho next\n", 1),
    "a probe that nobody reads": ('py -V && set "PY=py"\nif defined PY echo found\n', 1),
    "a probe whose reader goes on": ('py -V && set "PY=py"\nif not defined PY echo none\n', 1),
    "a probe of another name": ('py -V && set "PY=py"\nif not defined PYTHON exit /b 1\n', 1),
    "a probe that was read before": ('if not defined PY exit /b 1\npy -V && set "PY=py"\necho done\n', 2),
    "by a guard after the next command": ("cl x.cpp & link x.obj || exit /b 1\necho done\n", 1),
    "by a guard in a comment": ("cl x.cpp\n:: || exit /b 1\necho done\n", 1),
    "by a guard in quotes": ('cl x.cpp "|| exit /b 1"\necho done\n', 1),
    "by a guard whose operator the line end escapes": ("cl x.cpp ^\n|| exit /b 1\necho done\n", 1),
    "the left side of a pipe": ("cl x.cpp | find ERROR || exit /b 1\necho done\n", 1),
    "in a block": ("if defined CUDA (\n  echo nvcc\n  nvcc x.cu\n)\necho done\n", 3),
    "in a block whose parenthesis is in quotes": ('if defined A (\n  cl "x)"\n  cl y || exit /b 1\n)\n', 2),
    "in the else branch": ("if defined A (\n  set B=1\n) else (\n  cl x.cpp\n)\necho done\n", 4),
    "in the first branch, guarded in the second": ("if defined A (cl a) else (cl b) || exit /b 1\necho done\n", 1),
    "all but the last of a block": ("(\n  cl x.cpp\n  link x.obj\n) || exit /b 1\necho done\n", 2),
    "as the body of if": ('if "%A%"=="(b)" cl x.cpp\necho done\n', 1),
    "in a loop at the end": ("for %%f in (a b) do cl %%f.cpp\n", 1),
    "the last one before another statement": ("cl x.cpp\nset A=1\n", 1),
    "the last one, its status lost": ("cl x.cpp\nexit /b 0\n", 1),
    "an exit that reads the status too early": ("cl x.cpp & exit /b %ERRORLEVEL%\n", 1),
    "a batch file": ("call jobs.bat\necho done\n", 1),
    "a subroutine": ("call :compile\ngoto :eof\n:compile\ncl x.cpp || exit /b 1\n", 1),
    "over a continued line": ("cl x.cpp ^\n  /O2\necho done\n", 1),
    "with a redirection": ("python jobs.py > jobs.bat 2>&1\necho done\n", 1),
    "with a redirection in front": ("> jobs.bat python jobs.py\necho done\n", 1),
    "what for /f runs": ("for /f %%i in ('python x.py') do set A=%%i\n", 1),
    "what for /f runs in back quotes": ('for /f "usebackq delims=" %%i in (`python "x).py"`) do set A=%%i\n', 1),
} | {
    f"the builtin {line.split()[0]}": (f"{line}\necho done\n", 1)
    for line in ("copy a b", "mkdir a", "md a", "cd a", "cd..", "pushd a", "del a", "move a b", "ren a b", "type a > b")
}


@pytest.mark.parametrize(("text", "line"), UNGUARDED.values(), ids=UNGUARDED)
def test_unguarded_command_is_found(text: str, line: int) -> None:
    assert (line, "unguarded") in found(text)
    assert {rule for _, rule in found(text)} <= {"unguarded", "stale"}


HARMLESS = {
    "settings": '@echo off\nsetlocal EnableExtensions\nset "A=1"\nset B=2\n@set C=3\necho.\necho(\nendlocal\n',
    "comments": ":: cl x.cpp\nrem cl x.cpp & cl y.cpp\n@rem (\nREM\n:label cl x.cpp\necho done\n",
    "a comment with a parenthesis in a block": "if defined A (\n  rem :-)\n  :: :-)\n  set B=1\n)\necho done\n",
    "jumps": "if defined A goto :eof\nif not exist b goto next\ngoto:next\n:next\nexit /b 0\n",
    "comparisons": "if not %A% equ 1 set B=1\nif %A%==1 set B=1\nif %A% == 1 set B=1\nif %A%== 1 set B=1\necho done\n",
    "call set": "call set A=%%B%%\necho done\n",
    "only a comment": "rem nothing\n",
    "nothing": "",
}


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_cannot_fail_needs_no_guard(text: str) -> None:
    assert found(text) == []


ROBOCOPY = "robocopy a b /e /njh /njs\n"


@pytest.mark.parametrize(
    "text",
    [
        ROBOCOPY + "if %ERRORLEVEL% geq 8 exit /b 1\necho done\n",
        ROBOCOPY + "if %ERRORLEVEL% GTR 7 (\n  echo ERROR: not copied\n  exit /b 1\n)\necho done\n",
        "setlocal EnableDelayedExpansion\n(\nrobocopy.exe a b\nif !ERRORLEVEL! geq 8 exit /b 1\n)\necho done\n",
    ],
)
def test_robocopy_with_its_own_test_passes(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        ROBOCOPY + "echo done\n",
        ROBOCOPY,
        "robocopy a b || exit /b 1\necho done\n",
        ROBOCOPY + "if %ERRORLEVEL% geq 1 exit /b 1\necho done\n",
        ROBOCOPY + "if %ERRORLEVEL% geq 8 echo ERROR\necho done\n",
        "(\n" + ROBOCOPY + "if %ERRORLEVEL% geq 8 exit /b 1\n)\necho done\n",
    ],
)
def test_robocopy_without_a_test_for_eight_is_found(text: str) -> None:
    assert "unguarded" in {rule for _, rule in found(text)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("if defined A (\n  set B=%ERRORLEVEL%\n)\n", 2),
        ("if defined A (\n  if %errorlevel% neq 0 exit /b 1\n)\n", 2),
        ("(\n  (\n    echo ^) %ErrorLevel%\n  )\n)\n", 3),
        ("for %%i in (a b) do echo %ERRORLEVEL%\n", 1),
        ("cl x.cpp || exit /b %ERRORLEVEL%\n", 1),
        ("( cl x.cpp || exit /b 1 ) & set A=%ERRORLEVEL:~0,1%\n", 1),
        ("if defined A (\n  echo !ERRORLEVEL!\n)\n", 2),
        (":: setlocal EnableDelayedExpansion\necho !ERRORLEVEL!\n", 2),
    ],
)
def test_errorlevel_that_is_read_too_early_is_found(text: str, line: int) -> None:
    assert (line, "stale") in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "set A=%ERRORLEVEL%\n",
        "if %ERRORLEVEL% neq 0 set A=1\n",
        "if defined A (\n  set B=1\n)\nset C=%ERRORLEVEL%\n",
        "if defined A echo (\nset C=%ERRORLEVEL%\n",
        "if defined A (\n  echo %%ERRORLEVEL%%\n  rem %ERRORLEVEL%\n  echo %NOT_ERRORLEVEL%\n)\n",
        "setlocal EnableDelayedExpansion\nif defined A (\n  echo !ERRORLEVEL!\n)\n",
    ],
)
def test_errorlevel_that_is_read_in_time_passes(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("condition", ["errorlevel 1", "ERRORLEVEL 1", "not errorlevel 1", "/i not errorlevel 1"])
def test_if_errorlevel_is_found(condition: str) -> None:
    assert found(f"if {condition} exit /b 1\n") == [(1, "negative")]
    assert found(f"if defined A (\n  if {condition} exit /b 1\n)\n") == [(2, "negative")]


def test_comparison_with_errorlevel_is_not_if_errorlevel() -> None:
    assert found("if %ERRORLEVEL% geq 1 exit /b 1\nif defined errorlevel exit /b 1\n") == []


@pytest.mark.parametrize(
    "command",
    [
        "jobs.bat",
        "JOBS.CMD 1 2",
        '"%~dp0jobs.bat" %*',
        '".\\a folder\\jobs.cmd"',
        "@jobs.bat",
        "ds_report",
        "deepspeed --help",
        "Scripts\\deepspeed",
        "conda activate x",
        "activate x",
        "> log.txt jobs.bat",
        "if defined A (jobs.bat)",
        "for %%i in (1 2) do jobs.bat",
        "echo 1 & jobs.bat",
    ],
)
def test_batch_file_without_call_is_found(command: str) -> None:
    assert (1, "no call") in found(f"{command} || exit /b 1\n")
    assert (1, "no call") in found(f"{command}\n")


@pytest.mark.parametrize(
    "command",
    ["call jobs.bat", 'call "%~dp0jobs.bat" %*', "call conda activate x", "@call ds_report", "cmd /c jobs.bat",
     "deepspeed.exe", "python jobs.bat", "echo jobs.bat", "set A=jobs.bat", "copy a.bat b.bat"],
)  # fmt: skip
def test_what_comes_back_needs_no_call(command: str) -> None:
    assert found(f"{command} || exit /b 1\necho done\n") == []


@pytest.mark.parametrize(
    "text",
    ["(\necho 1\n", "echo 1\n)\n", "if defined A\n", "if A set B=1\n", "|| exit /b 1\n", "for %%i in (a b) echo %%i\n",
     "for %%i do echo 1\n", "cl x.cpp ||\nexit /b 1\n"],
)  # fmt: skip
def test_what_cmd_would_not_take_is_refused(text: str) -> None:
    with pytest.raises(batch.BatchError, match=r"^line [12]: "):
        batch.check(text)


def test_problems_say_where_and_what() -> None:
    (problem,) = batch.check("echo 1\n\ncl ^\n  x.cpp\necho 2\n")
    assert str(problem) == "3: unguarded: a failure goes unnoticed: cl x.cpp"


def list_batch_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.bat", "*.cmd"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in set(listed) if (ROOT / name).is_file())


def test_every_batch_file_of_the_repository_is_clean() -> None:
    names = list_batch_files()
    assert "recipe/bld.bat" in names
    problems = [
        f"{name}:{problem}" for name in names for problem in batch.check((ROOT / name).read_text(encoding="ascii"))
    ]
    assert problems == []


def test_a_guard_that_is_taken_away_is_missed() -> None:
    """Every guard of bld.bat but the last command's, one at a time."""
    text = (ROOT / "recipe" / "bld.bat").read_text(encoding="ascii")
    lines = text.splitlines(keepends=True)
    guards = [number for number, line in enumerate(lines) if " || exit /b 1" in line and not line.startswith("::")]
    assert len(guards) > 5
    for number in guards[:-1]:
        line = lines[number].replace(" || exit /b 1", "")
        assert found("".join([*lines[:number], line, *lines[number + 1 :]])) == [(number + 1, "unguarded")]
