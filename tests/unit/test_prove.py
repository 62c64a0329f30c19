"""`dswin prove` with a stand-in for the build: what is in the report, and what must never be."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from dswin import binaries, build, evidence, facts, machine, privacy, proof, prove
from dswin.errors import BadInput, CheckFailed, MachineLacks
from dswin.facts import Fact
from dswin.privacy import Names, redact

RECIPE = Path(__file__).parents[2] / "recipe"

TEST_LOG = """
│ deepspeed-win     ┆ 0.19.8   ┆ cpu_py311_0                  ┆ .tmpiiWD2v                         ┆   3.75 MiB │
│ filelock          ┆ 4.3.1    ┆ pyh6e2c0f5_0                 ┆ conda-forge                        ┆ 207.96 KiB │
│ pytorch           ┆ 2.5.1    ┆ py3.11_cuda12.1_cudnn9_0     ┆ pytorch                            ┆   1.37 GiB │
cl.exe 19.39 for CUDA 12.1: accepted
ZeRO-2, fp16, FusedAdam: batch 8 = 8 x 1 x 1 rank(s)
  step   0  loss 1.08000
  step  99  loss 0.00001
  NVIDIA GeForce RTX 4090, FusedAdam: first step 80.0 ms, steady 4.78 ms, peak memory 445 MiB
ZeRO-2, fp16, optimizer offloaded: batch 8 = 8 x 1 x 1 rank(s)
  step   0  loss 1.08000
  step  20  loss 0.02026
"""


# Privacy

JOHN = Names(
    users=("John Smith", "johnsmith"),
    homes=(r"C:\Users\John Smith", r"D:\profiles\johnsmith"),
    hosts=("JOHNS-PC.corp.example", "JOHNS-PC"),
    secrets=("hf_AbCdEf123456", "abcd"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"log: C:\Users\John Smith\x\build.log", r"log: <home>\x\build.log"),
        (r'"C:\\Users\\John Smith\\x"', r'"<home>\\x"'),
        (r"c:\users\JOHN SMITH\x", r"<home>\x"),
        ("C:/Users/John Smith/x", "<home>/x"),
        (r"cl -IC:\Users\John Smith\x -IZ:\Users\John Smith\x", r"cl -I<home>\x -IZ:\Users\<user>\x"),
        ("file:///C:/Users/John%20Smith/channel", "file:///<home>/channel"),
        (r"d:\\Profiles\\JohnSmith\\x", r"<home>\\x"),
        (r"C:\Users\JOHNSM~1\AppData\Local\Temp", r"C:\Users\<user>\AppData\Local\Temp"),
        (r"E:\temp\JOHNSM~1\x", r"E:\temp\<user>\x"),
        ("/c/Users/johnsmith/x /mnt/c/Users/other/x", "/c/Users/<user>/x /mnt/c/Users/<user>/x"),
        ("/home/other/x C:\\Users\\Public\\x", "/home/<user>/x C:\\Users\\Public\\x"),
        ("owner: JOHNSMITH, group", "owner: <user>, group"),
        ("johnsmithson stays, johnsmith_1 goes", "johnsmithson stays, <user>_1 goes"),
        ("at johns-pc.corp.example and Johns-PC", "at <host> and <host>"),
        ("https://me:p%40ss@host/simple", "https://<secret>@host/simple"),
        ("https://token@host/x", "https://<secret>@host/x"),
        ("https://host/t/ab-123/channel/win-64", "https://host/t/<secret>/channel/win-64"),
        (r"https:\/\/me:p@host\/x", r"https:\/\/<secret>@host\/x"),
        (r"https:\/\/host\/t\/ab-123\/channel", r"https:\/\/host\/t\/<secret>\/channel"),
        ("https://host/x?token=ab123&y=1", "https://host/x?token=<secret>&y=1"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer <secret>"),
        ("authorization: basic am9objpzbWl0aA==", "authorization: basic <secret>"),
        ("it is HF_ABCDEF123456x", "it is <secret>x"),
        ("abcd but not abcde", "<secret> but not abcde"),
        ("cl.exe /D__AVX256__ a.cpp, see https://host/a@b", "cl.exe /D__AVX256__ a.cpp, see https://host/a@b"),
    ],
)
def test_nothing_private_stays_and_the_rest_does(text: str, expected: str) -> None:
    assert redact(text, JOHN) == expected


def test_names_in_other_letters_in_every_spelling() -> None:
    names = Names(users=("Jürgen", "张伟"), homes=(r"C:\Users\Jürgen",))
    assert redact(json.dumps(r"C:\Users\Jürgen\x"), names) == r'"<home>\\x"'
    assert redact(ascii("Jürgen") + " J%C3%BCrgen", names) == "'<user>' <user>"
    assert redact("用户张伟登录", names) == "用户<user>登录"


def test_a_short_name_is_hidden_where_it_is_one() -> None:
    names = Names(users=("li",), homes=("/srv/li",))
    assert redact("ls -li /srv/li/x /data/li/x li", names) == "ls -li <home>/x /data/<user>/x li"


def test_a_home_is_one_only_at_its_place() -> None:
    names = Names(homes=("/root",))
    assert redact("/root/x /var/root/x file:///root/x /rootfs", names) == "<home>/x /var/root/x file:<home>/x /rootfs"


def test_names_are_read_from_the_environment() -> None:
    names = privacy.read_names(
        {
            "USERNAME": "John Smith",
            "USERPROFILE": "C:\\Users\\John.CORP\\",
            "HOME": "/",
            "COMPUTERNAME": "JOHNS-PC",
            "USERDNSDOMAIN": "corp.example",
            "HF_TOKEN": "hf_AbCdEf123456",
            "AWS_SECRET_ACCESS_KEY": "line-one-of-it\nline-two-of-it",
            "USE_AUTH": "true",
            "PIP_INDEX_URL": "https://me:p%40ssword@host/simple",
            "OneDrive": "C:\\Users\\John.CORP\\OneDrive",
        }
    )
    assert {"John Smith", "John.CORP"} <= set(names.users)
    assert "C:\\Users\\John.CORP" in names.homes
    assert "/" not in names.homes
    assert "" not in names.homes
    assert {"JOHNS-PC", "corp.example", "corp"} <= set(names.hosts)
    assert {"hf_AbCdEf123456", "line-one-of-it", "line-two-of-it", "p@ssword"} == set(names.secrets)


# Evidence


def test_figures_are_read_from_the_logs() -> None:
    expected = [
        {
            "run": "fp16, FusedAdam",
            "first_loss": 1.08,
            "last_loss": 1e-5,
            "device": "NVIDIA GeForce RTX 4090",
            "optimizer": "FusedAdam",
            "first_step_ms": 80.0,
            "steady_step_ms": 4.78,
            "peak_memory_mib": 445,
        },
        {"run": "fp16, optimizer offloaded", "first_loss": 1.08, "last_loss": 0.02026},
    ]
    assert evidence.read_training(TEST_LOG) == evidence.read_training(TEST_LOG * 3) == expected
    assert evidence.read_training("nothing\n") == []
    packages = {"deepspeed-win": "0.19.8 cpu_py311_0", "pytorch": "2.5.1 py3.11_cuda12.1_cudnn9_0"}
    assert evidence.read_packages(TEST_LOG) == packages
    assert evidence.read_toolset(TEST_LOG) == "cl.exe 19.39 for CUDA 12.1: accepted"
    assert evidence.read_skipped(TEST_LOG) is None
    assert evidence.read_skipped("SKIPPED: the CUDA training step. torch sees no GPU\n") == (
        "the CUDA training step. torch sees no GPU"
    )


def test_the_lines_that_are_read_are_those_that_the_recipe_prints() -> None:
    train = (RECIPE / "tests" / "train.py").read_text(encoding="utf-8")
    for words in ("ZeRO-2, {name}: batch ", "  loss {losses", ": first step {", " ms, peak memory {", "SKIPPED: the"):
        assert words in train
    assert '"cl.exe {}.{} for CUDA {}: accepted"' in (RECIPE / "toolset.py").read_text(encoding="utf-8")


# The run


class Stage:
    """Runs prove with a build that does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "report.zip"
        self.asked: list[dict[str, Any]] = []
        self.said: list[str] = []
        #: Called in the place of a variant's build, after it wrote its log.
        self.does: dict[str, Callable[[], None]] = {}
        (folder / "root" / "recipe").mkdir(parents=True)

    def build(self, recipe: Path, out: Path, cache: Path, **asked: Any) -> build.Built:
        self.asked.append(asked)
        name = f"{asked['variant']}_py311_0"
        log = cache / "logs" / f"test-win-64-deepspeed-win-0.19.8-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{TEST_LOG}at {self.folder}\n/home/somebody/x\n", encoding="utf-8")
        self.does.get(asked["variant"], lambda: None)()
        package = self.folder / f"deepspeed-win-0.19.8-{name}.conda"
        package.write_bytes(b"x" * 7)
        op = binaries.Binary(
            path=Path("deepspeed/ops/adam/cpu_adam_op.pyd"),
            format="pe",
            size=70_000,
            libraries=("c10.dll", "libiomp5md.dll"),
            imports=frozenset({"__kmpc_fork_call"}),
            simd=binaries.Simd(9000, 3000, 1336, 0, 0),
            openmp="kmp",
            debug_info=False,
            gpu=binaries.GpuCode(("8.6", "8.9"), ("8.9",)),
            bf16_kernels=0,
        )
        return build.Built(package, package, [op], ["https://me:word@host/channel"])

    def run(self, *, tests: tuple[str, ...] = (), **options: Any) -> proof.Proof:
        root = self.folder / "root"
        return prove.prove(
            root / "recipe",
            root / "channel",
            root / ".dswin",
            self.report,
            python="3.11",
            tests=tests,
            progress=self.said.append,
            **options,
        )

    def read(self, name: str = "report.json") -> str:
        with zipfile.ZipFile(self.report) as file:
            return file.read(name).decode("utf-8")

    def results(self) -> dict[str, str]:
        return {step["name"]: step["result"] for step in json.loads(self.read())["steps"]}


GPU = Fact("gpus", [{"name": "NVIDIA GeForce RTX 4090"}], "nvidia-smi")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setattr(build, "build", stage.build)
    monkeypatch.setattr(build, "choose", lambda *_: None)
    monkeypatch.setattr(machine, "this_platform", lambda: "win-64")
    # The pytest that it starts needs none of this one's plugins.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(facts, "collect", lambda _: [GPU, Fact("cl", None, "cl", "cl is not on PATH")])
    return stage


def fail(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_a_run_where_all_is_well(stage: Stage) -> None:
    found = stage.run(variants=["cuda121", "cpu"])
    assert found.exit_code == 0
    document = json.loads(stage.read())
    assert (document["schema"], document["exit_code"]) == (1, 0)
    expected = {"tools": "passed", "machine": "passed", "build cuda121": "passed", "build cpu": "passed"}
    assert stage.results() == {**expected, "tests": "skipped"}
    step = document["steps"][2]["details"]
    assert step["ops"][0] == {
        "op": "cpu_adam",
        "file": "cpu_adam_op.pyd",
        "size": 70_000,
        "simd": "avx2",
        "openmp": "kmp",
        "gpu": "8.6 8.9+PTX",
        "libraries": ["c10.dll", "libiomp5md.dll"],
    }
    assert step["training"][0]["steady_step_ms"] == 4.78
    assert (step["platform"], step["python"], step["size"]) == ("win-64", "3.11", 7)
    assert document["facts"][1] == {"name": "cl", "value": None, "source": "cl", "problem": "cl is not on PATH"}
    assert document["steps"][0]["details"]["py-rattler-build"]
    text = stage.read("report.md")
    for part in ("RTX 4090", "| cpu_adam | cpu_adam_op.pyd | avx2 | kmp | 8.6 8.9+PTX |", "cl is not on PATH", "4.78"):
        assert part in text
    assert [file.name for file in stage.folder.glob("report*")] == ["report.zip"]
    with zipfile.ZipFile(stage.report) as file:
        assert len([name for name in file.namelist() if name.startswith("logs/test-win-64-")]) == 2


def test_where_there_is_a_gpu_cuda_must_train_on_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.run(variants=["cuda121", "cpu"])
    stage.run(variants=["cuda121"], require_gpu=False)
    monkeypatch.setattr(facts, "collect", lambda _: [])
    stage.run(variants=["cuda121"])
    stage.run(variants=["cuda121", "cpu"], require_gpu=True)
    asked = [(one["variant"], one["require_gpu"]) for one in stage.asked]
    assert asked == [
        *(("cuda121", True), ("cpu", False)),
        *(("cuda121", False), ("cuda121", False)),
        *(("cuda121", True), ("cpu", False)),
    ]


def test_a_failure_is_recorded_with_its_log_and_the_next_step_runs(stage: Stage) -> None:
    stage.does["cuda121"] = fail(
        CheckFailed("Compiling the op fused_adam failed.", fix="Mend it.", log="error C2039 | x")
    )
    assert stage.run(variants=["cuda121", "cpu"]).exit_code == 1
    step = json.loads(stage.read())["steps"][2]
    assert step["result"] == "failed"
    assert step["error"] == {"what": "Compiling the op fused_adam failed.", "fix": "Mend it.", "log": "error C2039 | x"}
    # What its logs tell is there all the same.
    assert step["details"]["toolset"] == "cl.exe 19.39 for CUDA 12.1: accepted"
    assert step["logs"] == ["test-win-64-deepspeed-win-0.19.8-cuda121_py311_0.log"]
    assert stage.results()["build cpu"] == "passed"
    assert "error C2039" in stage.read("report.md")


def test_what_nobody_foresaw_is_recorded_with_its_traceback(stage: Stage) -> None:
    stage.does["cpu"] = fail(ZeroDivisionError("odd"))
    assert stage.run(variants=["cpu"]).exit_code == 1
    error = json.loads(stage.read())["steps"][2]["error"]
    assert error["what"] == "ZeroDivisionError: odd"
    assert "Traceback" in error["log"]


def test_3_is_only_for_a_machine_that_can_build_nothing(stage: Stage) -> None:
    lacks = fail(MachineLacks("The conda channel nvidia does not answer.", fix="Check the network."))
    stage.does["cuda121"] = lacks
    assert stage.run(variants=["cuda121", "cpu"]).exit_code == 1
    assert stage.run(variants=["cuda121"]).exit_code == 3
    assert stage.results()["build cuda121"] == "lacks"
    assert "The conda channel nvidia does not answer." in stage.read("report.md")


def test_ctrl_c_leaves_what_was_done_so_far(stage: Stage) -> None:
    stage.does["cpu"] = fail(KeyboardInterrupt())
    assert stage.run(variants=["cuda121", "cpu"], tests=("tests",)).exit_code == 130
    results = stage.results()
    assert results.pop("tools") == "passed"
    expected = {"machine": "passed", "build cuda121": "passed", "build cpu": "interrupted", "tests": "not run"}
    assert results == expected
    assert json.loads(stage.read())["exit_code"] == 130


def test_the_report_is_there_while_the_run_goes_on(stage: Stage) -> None:
    seen = []
    stage.does["cpu"] = lambda: seen.append(stage.results())
    stage.run(variants=["cuda121", "cpu"])
    assert seen[0]["build cuda121"] == "passed"
    assert seen[0]["build cpu"] == "not run"


def test_a_variant_that_is_not_there_is_refused_before_anything_is_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "choose", lambda *_: fail(BadInput("No variant 'rocm'.", fix="Name another."))())
    with pytest.raises(BadInput, match="rocm"):
        stage.run(variants=["rocm"])
    assert not stage.report.exists()
    assert stage.asked == []


def test_a_machine_that_no_variant_is_for_gets_its_report(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "this_platform", fail(MachineLacks("No variant for Darwin.", fix="Use Windows.")))
    assert stage.run(variants=["cpu"]).exit_code == 3
    assert "No variant for Darwin." in stage.read("report.md")


def test_a_report_without_a_place_is_refused_first(stage: Stage) -> None:
    stage.report = stage.folder / "nowhere" / "report.zip"
    with pytest.raises(BadInput, match="no place"):
        stage.run(variants=["cpu"])
    stage.report = stage.folder
    with pytest.raises(BadInput, match="no place"):
        stage.run(variants=["cpu"])
    assert stage.asked == []


def test_nothing_private_is_in_any_file_of_the_report(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USERNAME", "zacharias")
    monkeypatch.setenv("COMPUTERNAME", "ZACKS-PC")
    monkeypatch.setenv("HF_TOKEN", "hf_AbCdEf123456")
    log = "C:\\\\Users\\\\Zacharias on zacks-pc with HF_TOKEN hf_AbCdEf123456"
    stage.does["cpu"] = fail(CheckFailed("In C:\\Users\\zacharias\\x.", fix="See /home/zacharias/log.", log=log))
    private = [GPU, Fact("conda", {"path": "C:\\Users\\Zacharias\\conda.bat"}, "conda"), Fact("x", None, "ZACKS-PC")]
    monkeypatch.setattr(facts, "collect", lambda _: private)
    stage.run(variants=["cuda121", "cpu"])
    with zipfile.ZipFile(stage.report) as file:
        everything = "\n".join(file.read(name).decode() for name in file.namelist()).lower()
        everything += " ".join(file.namelist()).lower()
    for word in ("zacharias", "zacks-pc", "hf_abcdef", "me:word", "somebody"):
        assert word not in everything, word
    assert "<user>" in everything
    assert "<secret>@host/channel" in everything


def test_a_windows_that_wine_plays_is_called_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = {"name": "Windows 10 Pro", "release": "22H2", "build": "19045.1"}
    monkeypatch.setattr(facts, "collect", lambda _: [Fact("windows", windows, ""), Fact("wine", "8.0", "ntdll.dll")])
    stage.run(variants=["cpu"])
    text = stage.read("report.md")
    assert text.startswith("# deepspeed-win on Windows 10 Pro 22H2 (19045.1)\n")
    assert "Wine 8.0" in text


# The tests of this project


def put_tests(stage: Stage, text: str) -> None:
    folder = stage.folder / "root" / "tests"
    folder.mkdir()
    (folder / "test_one.py").write_text(text, encoding="utf-8")
    (stage.folder / "root" / "pytest.ini").write_text("[pytest]\n")


def test_pytest_runs_in_the_checkout_and_its_record_is_kept(stage: Stage) -> None:
    put_tests(
        stage,
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 'apples' == 'pears'\n"
        "def test_gpu(): pytest.skip('no GPU')\n",
    )
    assert stage.run(variants=["cpu"], tests=("tests",)).exit_code == 1
    step = json.loads(stage.read())["steps"][-1]
    assert step["details"]["tests"] == {
        "count": 3,
        "passed": 1,
        "failed": ["tests.test_one::test_bad"],
        "skipped": {"tests.test_one::test_gpu": "no GPU"},
    }
    assert step["error"]["what"] == "pytest ended with code 1; 1 of 3 tests failed."
    assert "apples" in stage.read("logs/tests.log")
    assert "| tests.test_one::test_gpu | skipped | no GPU |" in stage.read("report.md")
    assert "tests: 100 %" in stage.said


def test_a_part_of_the_tests_can_be_chosen(stage: Stage) -> None:
    put_tests(stage, "def test_good(): pass\ndef test_bad(): assert False\n")
    assert stage.run(variants=["cpu"], tests=("tests", "-k", "good")).exit_code == 0
    assert json.loads(stage.read())["steps"][-1]["details"]["tests"]["count"] == 1
    assert stage.run(variants=["cpu"], tests=("tests", "-k", "neither")).exit_code == 1


def test_a_pytest_that_dies_is_a_failure(stage: Stage) -> None:
    put_tests(stage, "import os\ndef test_crash(): os._exit(77)\n")
    assert stage.run(variants=["cpu"], tests=("tests",)).exit_code == 1
    step = json.loads(stage.read())["steps"][-1]
    assert "code 77" in step["error"]["what"]
    assert step["details"] == {}


def test_ctrl_c_ends_pytest_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tests(stage, "import time\ndef test_a(): pass\ndef test_slow(): time.sleep(120)\n")
    monkeypatch.setattr(prove, "GRACE", 0.5)
    started: list[subprocess.Popen] = []
    popen = subprocess.Popen

    class Stopped(popen):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if self.poll() is None and timeout == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(prove.subprocess, "Popen", Stopped)
    step = proof.Step("tests", "tests")
    prove.take(step, lambda s: prove.run_tests(s, stage.folder / "root", ("tests",), stage.folder, lambda _: None))
    assert step.result == "interrupted"
    assert started[0].returncode is not None


# The checkout


def test_the_commit_is_named_if_it_is_this_checkouts(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert prove.describe_checkout(tmp_path) == {"commit": None, "changed": None}
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert prove.describe_checkout(tmp_path) == {"commit": commit, "changed": False}
    (tmp_path / "file").write_text("2")
    assert prove.describe_checkout(tmp_path) == {"commit": commit, "changed": True}
    (tmp_path / "below").mkdir()
    assert prove.describe_checkout(tmp_path / "below") == {"commit": None, "changed": None}


def test_the_reports_name_has_the_minute() -> None:
    assert prove.name_report(datetime(2026, 1, 2, 3, 4, 5)) == "dswin-proof-20260102-0304.zip"


def test_a_report_that_cannot_be_put_into_place_says_where_it_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(proof.os, "replace", replace)
    with pytest.raises(MachineLacks, match="Permission denied") as raised:
        stage.run(variants=["cpu"])
    assert "report.zip.new" in raised.value.fix


def test_the_default_variants_are_the_systems() -> None:
    assert prove.choose_variants() == (("cuda121", "cpu") if sys.platform == "win32" else ("cpu",))
