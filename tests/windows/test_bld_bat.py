"""bld.bat run by cmd.exe, with a stand-in for Python that plays every step, or lets one of them fail."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import bld_bat
from bld_bat import RECIPE, Tree
from dswin.wine import Finished, Host

ACCESS_VIOLATION = -1073741819  # 0xC0000005
EXIT_CODES = [1, 3, ACCESS_VIOLATION]
REASON = "the reason why it fails"

#: Plays %PYTHON%. It writes call N to the file N.txt in STANDIN_CALLS: its arguments, "---", its environment; all UTF-8. Where
#: the arguments hold the text STANDIN_FAILS it says STANDIN_REASON and ends with STANDIN_CODE.
STAND_IN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static void write(FILE *file, const wchar_t *text) {
    static char bytes[65536];
    WideCharToMultiByte(CP_UTF8, 0, text, -1, bytes, sizeof bytes, NULL, NULL);
    fprintf(file, "%s\n", bytes);
}

int wmain(int count, wchar_t **words) {
    wchar_t path[1024], line[8192] = L"";
    int call = 0;
    do
        swprintf(path, 1024, L"%s\\%02d.txt", _wgetenv(L"STANDIN_CALLS"), ++call);
    while (GetFileAttributesW(path) != INVALID_FILE_ATTRIBUTES);
    FILE *file = _wfopen(path, L"wb");
    if (!file) return 99;
    for (int i = 1; i < count; i++) {
        write(file, words[i]);
        wcscat(wcscat(line, words[i]), L" ");
    }
    write(file, L"---");
    for (wchar_t *one = GetEnvironmentStringsW(); *one; one += wcslen(one) + 1) write(file, one);
    fclose(file);

    if (wcsstr(line, L"\\jobs.py")) printf("%s\n", getenv("STANDIN_JOBS"));
    fflush(stdout);
    const wchar_t *fails = _wgetenv(L"STANDIN_FAILS");
    if (fails && wcsstr(line, fails)) {
        fprintf(stderr, "%s\n", getenv("STANDIN_REASON"));
        fflush(stderr);
        ExitProcess((UINT)atoi(getenv("STANDIN_CODE")));
    }
    return 0;
}
"""
JOBS = 'set "MAX_JOBS=5"'

#: Every call of %PYTHON%, in bld.bat's order: a part of its arguments that no other call has.
CPU_CALLS = ["toolset.py", "jobs.py", "openmp_library.py", "pin_torch.py", "pip wheel", "pip install", "compileall"]
CALLS = {
    "cpu": [*CPU_CALLS, "check_ops.py"],
    "cuda121": [*CPU_CALLS[:3], "cuda_home.py", *CPU_CALLS[3:], "check_ops.py"],
    "cuda130": [*CPU_CALLS[:3], "cuda_home.py", *CPU_CALLS[3:], "check_ops.py"],
}
ALL_FOLDERS = ["plain", "a folder é", "bang! é", "(x86) & co"]


@dataclass(frozen=True)
class Call:
    arguments: list[str]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def stand_in(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "python.c").write_text(STAND_IN)
    host.check(["cl", "/nologo", "/W3", "/WX", "/D_CRT_SECURE_NO_WARNINGS", "python.c"], cwd=folder, timeout=300)
    return folder / "python.exe"


class Build:
    """One run of bld.bat with the stand-in."""

    def __init__(self, host: Host, stand_in: Path, folder: Path) -> None:
        self.host = host
        self.tree: Tree = bld_bat.make_tree(folder)
        self.python = self.tree.prefix / "python.exe"
        shutil.copyfile(stand_in, self.python)
        self.log = folder / "calls"
        self.log.mkdir()

    def run(
        self,
        variant: str,
        fails: str = "",
        code: int = 0,
        jobs: str = JOBS,
        cmd: tuple[str, ...] = ("cmd", "/d"),
        **env: str,
    ) -> Finished:
        settings = {"CALLS": self.host.to_windows(self.log), "REASON": REASON, "CODE": str(code), "JOBS": jobs}
        settings |= {"FAILS": fails} if fails else {}
        environment = env | {f"STANDIN_{name}": value for name, value in settings.items()}
        done = bld_bat.run(self.host, self.tree, self.python, variant, environment, cmd)
        print(done.output)
        return done

    @property
    def calls(self) -> list[Call]:
        found = []
        for file in sorted(self.log.iterdir()):
            arguments, environment = file.read_text(encoding="utf-8").split("---\n", 1)
            pairs = (line.split("=", 1) for line in environment.splitlines() if not line.startswith("="))
            found.append(Call(arguments.splitlines(), dict(pairs)))
        return found

    def steps(self, variant: str) -> list[str]:
        """The calls by their names in CALLS."""
        named = []
        for call in self.calls:
            [name] = [name for name in CALLS[variant] if name in " ".join(call.arguments)]
            named.append(name)
        return named


@pytest.fixture
def new_build(host: Host, stand_in: Path, tmp_path: Path) -> Callable[[str], Build]:
    return lambda name: Build(host, stand_in, tmp_path / name)


@pytest.fixture
def build(new_build: Callable[[str], Build]) -> Build:
    return new_build("build")


# ---- nothing fails


@pytest.mark.parametrize("variant", CALLS)
def test_every_step_runs_once_and_in_order(build: Build, variant: str) -> None:
    assert build.run(variant).code == 0
    assert build.steps(variant) == CALLS[variant]


@pytest.mark.parametrize("variant", ["cuda121", "cpu"])
def test_steps_are_told_where_things_are(build: Build, variant: str) -> None:
    assert build.run(variant).code == 0
    given = dict(zip(CALLS[variant], (call.arguments for call in build.calls), strict=True))
    prefix, work, recipe = (build.host.to_windows(p) for p in (build.tree.prefix, build.tree.work, build.tree.recipe))
    site_packages = f"{prefix}\\Lib\\site-packages"
    accelerator = "cpu" if variant == "cpu" else "cuda"
    assert given["toolset.py"] == [f"{recipe}\\toolset.py"]
    assert given["jobs.py"] == [f"{recipe}\\jobs.py"]
    assert given["openmp_library.py"] == [f"{recipe}\\openmp_library.py", "--into", f"{work}\\openmp"]
    if accelerator == "cuda":
        assert given["cuda_home.py"] == [f"{recipe}\\cuda_home.py", "--into", f"{work}\\cuda_home"]
    assert given["pin_torch.py"] == [f"{recipe}\\pin_torch.py", "requirements\\requirements.txt"]
    assert given["pip wheel"][:4] == ["-m", "pip", "wheel", "."]
    assert given["pip install"][:4] == ["-m", "pip", "install", "deepspeed"]
    for step in ("pip wheel", "pip install"):
        assert {"--no-deps", "--no-index"} < set(given[step])
    assert given["compileall"][-3:] == ["-s", prefix, f"{site_packages}\\deepspeed"]
    assert given["check_ops.py"] == [
        f"{recipe}\\tests\\check_ops.py",
        *("--accelerator", accelerator, "--ops", f"{recipe}\\ops.yaml", "--installed-in", site_packages),
    ]


@pytest.mark.parametrize("variant", CALLS)
def test_the_compiler_gets_the_environment_of_ops_yaml(build: Build, variant: str) -> None:
    assert build.run(variant).code == 0
    environment = build.calls[CALLS[variant].index("pip wheel")].environment
    ops = yaml.safe_load((RECIPE / "ops.yaml").read_text(encoding="utf-8"))["ops"]
    flags = {op["flag"]: str(op["win-64"]) for op in ops.values()}
    assert {name: value for name, value in environment.items() if name.startswith("DS_BUILD_")} == {
        **flags,
        "DS_BUILD_OPS": "0",
        "DS_BUILD_SIMD": "avx2",
    }
    work = build.host.to_windows(build.tree.work)
    assert environment["DS_ACCELERATOR"] == ("cpu" if variant == "cpu" else "cuda")
    assert environment["MAX_JOBS"] == "5"
    assert environment["LINK"] == "/NODEFAULTLIB:LIBOMP /Brepro dswin_openmp.lib"
    assert environment["LIB"] == f"{work}\\openmp;{build.host.environment['LIB']}"
    assert environment["DISTUTILS_USE_SDK"] == environment["DS_ENABLE_NINJA"] == environment["PYTHONUTF8"] == "1"
    assert environment["VSLANG"] == "1033"
    path = environment["PATH"].split(";")
    if variant == "cpu":
        assert "CUDA_HOME" not in environment
        assert f"{work}\\cuda_home\\bin" not in path
    else:
        assert environment["CUDA_HOME"] == environment["CUDA_PATH"] == f"{work}\\cuda_home"
        assert path[0] == f"{work}\\cuda_home\\bin"


@pytest.mark.parametrize("variant", CALLS)
def test_activation_scripts_come_with_the_torch_that_has_no_libuv(build: Build, variant: str) -> None:
    assert build.run(variant).code == 0
    folder = build.tree.prefix / "etc" / "conda"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    wanted = {
        f"{kind}.d/deepspeed-win_{kind}.{suffix}": (RECIPE / "activate" / f"{kind}.{suffix}").read_bytes()
        for kind in ("activate", "deactivate")
        for suffix in ("bat", "ps1", "sh")
    }
    assert found == ({} if variant == "cuda130" else wanted)


@pytest.mark.parametrize("cmd", [("cmd", "/d"), ("cmd", "/d", "/v:on")], ids=" ".join)
@pytest.mark.parametrize("name", ALL_FOLDERS)
def test_folders_of_every_name(new_build: Callable[[str], Build], name: str, cmd: tuple[str, ...]) -> None:
    """Delayed expansion would take a `!` out of a path."""
    build = new_build(name)
    assert build.run("cuda121", cmd=cmd).code == 0
    assert build.steps("cuda121") == CALLS["cuda121"]
    compiling = build.calls[CALLS["cuda121"].index("pip wheel")].environment
    assert compiling["CUDA_HOME"] == build.host.to_windows(build.tree.work / "cuda_home")
    assert compiling["LIB"].startswith(build.host.to_windows(build.tree.work / "openmp") + ";")
    assert build.calls[-1].arguments[-1] == build.host.to_windows(build.tree.site_packages)
    assert (build.tree.prefix / "etc/conda/deactivate.d/deepspeed-win_deactivate.sh").is_file()


@pytest.mark.parametrize("name", ALL_FOLDERS)
def test_a_failure_arrives_from_folders_of_every_name(new_build: Callable[[str], Build], name: str) -> None:
    build = new_build(name)
    done = build.run("cuda121", fails="check_ops.py", code=3, cmd=("cmd", "/d", "/v:on"))
    assert done.code == 1
    assert REASON in done.output


# ---- one thing fails


@pytest.mark.parametrize("code", EXIT_CODES)
@pytest.mark.parametrize("step", CALLS["cuda121"])
def test_a_failing_step_ends_the_build(build: Build, step: str, code: int) -> None:
    done = build.run("cuda121", fails=step, code=code)
    assert done.code == 1
    assert REASON in done.output
    assert build.steps("cuda121") == CALLS["cuda121"][: CALLS["cuda121"].index(step) + 1]


@pytest.mark.parametrize("variant", ["cpu", "cuda130"])
def test_the_last_step_of_each_branch_is_heard(build: Build, variant: str) -> None:
    done = build.run(variant, fails="check_ops.py", code=ACCESS_VIOLATION)
    assert done.code == 1
    assert REASON in done.output
    assert build.steps(variant) == CALLS[variant]


@pytest.mark.parametrize("code", EXIT_CODES)
def test_a_failing_jobs_bat_ends_the_build(build: Build, code: int) -> None:
    done = build.run("cpu", jobs=f"echo {REASON} & exit /b {code}")
    assert done.code == 1
    assert REASON in done.output
    assert build.steps("cpu") == ["toolset.py", "jobs.py"]


def test_what_a_failing_step_left_in_jobs_bat_is_not_called(build: Build) -> None:
    done = build.run("cpu", fails="jobs.py", code=3, jobs="exit /b 0")
    assert done.code == 1
    assert build.steps("cpu") == ["toolset.py", "jobs.py"]


@pytest.mark.parametrize("variant", ["cpu", "cuda130"])
@pytest.mark.parametrize("code", [0, *EXIT_CODES])
def test_a_compiler_cache_on_path_is_called(build: Build, variant: str, code: int) -> None:
    folder = build.tree.prefix.parent / "a cache é"
    folder.mkdir()
    lines = ['@set "STANDIN_CACHE=on"', f"@echo {REASON}", f"@exit /b {code}"]
    (folder / "dswin-compiler-cache.bat").write_bytes("\r\n".join(lines).encode())
    path = f"{build.host.to_windows(folder)};{build.host.environment['WINEPATH']}"
    done = build.run(variant, WINEPATH=path)
    assert REASON in done.output
    assert done.code == (0 if code == 0 else 1)
    before = CALLS[variant].index("pin_torch.py")
    assert build.steps(variant) == (CALLS[variant] if code == 0 else CALLS[variant][:before])
    assert build.calls[-1].environment.get("STANDIN_CACHE") == ("on" if code == 0 else None)


def test_a_jobs_bat_that_cannot_be_written_ends_the_build(build: Build) -> None:
    (build.tree.work / "jobs.bat").mkdir()
    assert build.run("cpu").code == 1
    assert build.steps("cpu") == ["toolset.py"]


@pytest.mark.parametrize(
    "file",
    ["share", "share/deepspeed-win", "etc", "etc/conda", "etc/conda/activate.d", "etc/conda/deactivate.d"],
)
def test_something_in_the_way_of_a_copied_file_ends_the_build(build: Build, file: str) -> None:
    place = build.tree.prefix / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("in the way\n")
    done = build.run("cuda121")
    assert done.code == 1
    assert build.steps("cuda121") == CALLS["cuda121"][:-1]
    assert place.read_text() == "in the way\n"
    # One message: what comes after the failure is not tried.
    assert done.output.count("Path not found.") == 1
    assert done.output.rstrip().endswith("Path not found.")


@pytest.mark.parametrize(
    "name",
    [
        *(f"activate/{kind}.{x}" for kind in ("activate", "deactivate") for x in ("bat", "ps1", "sh")),
        "ops.yaml",
        "tests/train.py",
        "tests/check_ops.py",
    ],
)
def test_a_missing_file_that_comes_with_the_package_ends_the_build(build: Build, name: str) -> None:
    (build.tree.recipe / name).unlink()
    done = build.run("cpu")
    assert done.code == 1
    assert build.steps("cpu") == CALLS["cpu"][:-1]
    assert done.output.rstrip().endswith("File not found.")


def test_a_python_that_is_not_there_ends_the_build(build: Build) -> None:
    build.python.unlink()
    assert build.run("cpu").code == 1
    assert build.calls == []


@pytest.mark.parametrize("variant", ["", "cuda", "cuda12", "CPU", "cuda121 "])
def test_an_unknown_variant_is_refused_with_a_sentence(build: Build, variant: str) -> None:
    done = build.run(variant)
    assert done.code == 1
    assert f'ERROR: ds_variant is "{variant}"; bld.bat knows cpu, cuda121 and cuda130.' in done.output
    assert "conda_build_config.yaml" in done.output
    assert build.calls == []


# ---- the scripts that conda runs when a user activates the environment


@pytest.mark.parametrize(
    ("before", "during", "after"), [(None, "0", "unset"), ("1", "1", "1"), ("0", "0", "0"), ("a b", "a b", "a b")]
)
def test_activation_leaves_a_value_of_the_user_alone(
    host: Host, tmp_path: Path, before: str | None, during: str, after: str
) -> None:
    folder = tmp_path / "an environment é"
    shutil.copytree(RECIPE / "activate", folder)
    show = (
        "if defined USE_LIBUV (echo [%%USE_LIBUV%%]) else (echo [unset])\r\n"
        "if defined _DSWIN_SET_USE_LIBUV (echo [mark]) else (echo [no mark])\r\n"
    ).replace("%%", "%")
    lines = ["@echo off", "call activate.bat || exit /b 5", show, "call activate.bat || exit /b 6", show]
    lines += ["call deactivate.bat || exit /b 7", show, "call deactivate.bat || exit /b 8", show]
    (folder / "session.bat").write_bytes("\r\n".join(lines).encode())
    done = host.run(["cmd", "/d", "/c", "session.bat"], cwd=folder, env={"USE_LIBUV": before} if before else {})
    mark = "[no mark]" if before else "[mark]"
    expected = [f"[{during}]", mark] * 2 + [f"[{after}]", "[no mark]"] * 2
    assert (done.code, done.output.splitlines()) == (0, expected)
