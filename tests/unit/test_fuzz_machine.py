"""A machine that gets in the way: a full disk, folders that may not be written to, two runs at once, closed pipes, Ctrl-C.

All as processes of their own, as a user starts them. A disk that is full is played by the limit that the system has for a
file's size, which stops Python's writes and Rust's alike and needs no mount; /dev/full is a real one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fuzzing
import making
from fuzzing import ERROR, World

resource = pytest.importorskip("resource", reason="Windows has no limits for a process")
SCRIPTS = Path(__file__).parents[2] / "scripts"
FAULT = "This is a fault of dswin"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fuzzing.make_world(tmp_path_factory.mktemp("machine").resolve() / "world")


@pytest.fixture
def world(model: World) -> World:
    model.renew()
    return model


def start(world: World, *words: object, code: str = "", **options: object) -> subprocess.Popen[str]:
    """``python -m dswin``, or code that ends in the same."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "dswin"]), *map(str, words)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(SCRIPTS),
        "DSWIN_CACHE": str(world.scratch / "cache"),
        "TMPDIR": str(world.scratch),
        "HOME": str(world.home),
    }
    for name in ("DSWIN_DEBUG", "PYTHONUNBUFFERED"):
        environment.pop(name, None)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, text=True, cwd=world.scratch, env=environment, **pipes)  # type: ignore[call-overload]


def finish(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = running.communicate(timeout=120)
    err = err or ""
    assert "Traceback" not in err, err
    assert FAULT not in err, err
    return running.returncode, out or "", err


def limit(size: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


#: What writes, with the path that its error must name.
WRITERS: dict[str, tuple[list[str], str]] = {
    "lock": (
        ["lock", "one", "--folder", "{t}/locks", "--channel", "{i}/channel", "--spec", "pure", "--out", "{t}/new"],
        "{t}/new",
    ),
    "env": (
        [
            "env",
            "create",
            "--lock",
            "{i}/good.conda-lock.yml",
            "-p",
            "{t}/new",
            "--store",
            "{t}/other",
            "--platform",
            "linux-64",
        ],
        "{t}/",
    ),
    "bundle": (
        ["bundle", "create", "--lock", "{i}/good.conda-lock.yml", "--out", "{t}/new/it.zip", "--store", "{t}/store"],
        "{t}/new",
    ),
    "install": (["bundle", "install", "{t}/bundle.zip", "-p", "{t}/new", "--store", "{t}/other/store"], "{t}/other"),
    "condarc": (["env", "condarc", "--mirror", "tuna", "--out", "{t}/new/condarc"], "{t}/new/condarc"),
}


def fill(world: World, words: list[str]) -> list[str]:
    return [word.format(t=world.targets, i=world.inputs) for word in words]


def list_finished(folder: Path) -> dict[str, bytes]:
    """What is in a folder but for what runs hold for one another and go on with: lock files, and pieces of downloads."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.suffix != ".part"}


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, 0) for name in WRITERS] + [("lock", 700), ("lock", 1500), ("env", 700), ("bundle", 6000), ("install", 700)],
)
def test_a_full_disk(world: World, name: str, size: int) -> None:
    """With no room at all, for temporary files either, and with room for those and a part of what is to be written.

    700 bytes do not hold the lists that a solver keeps, 1,500 hold them and not the lock; 6,000 a third of the bundle.
    """
    words, named = WRITERS[name]
    if name == "condarc":
        (world.targets / "new").mkdir()
    before = list_finished(world.targets)
    code, out, err = finish(start(world, *fill(world, words), preexec_fn=limit(size)))
    assert (code, out) == (3, ""), err
    assert len(ERROR.findall(err)) == 1, err
    assert "disk is full" in err or "Free some space" in err, err
    elsewhere = "No usable temporary directory" in err if not size else "cache/repodata" in err and size == 700
    assert elsewhere or fill(world, [named])[0] in err, err
    after = list_finished(world.targets)
    new = {path: data for path, data in after.items() if before.get(path) != data}
    # An environment is gone on with: its records say what is whole. Nothing else may be there in part.
    assert not [
        path for path in new if not path.startswith(("new/conda-meta/", "new/", "other/") if name == "env" else "\0")
    ], new.keys()
    code, _, err = finish(start(world, *fill(world, words)))
    assert code == 0, err
    if name in ("env", "install"):
        store = f"{world.targets}/other{'/store' if name == 'install' else ''}"
        options = [
            "--lock",
            f"{world.inputs}/good.conda-lock.yml",
            "-p",
            f"{world.targets}/new",
            "--platform",
            "linux-64",
        ]
        code, out, _ = finish(start(world, "env", "verify", *options, "--store", store))
        assert (code, "0 findings" in out) == (0, True), out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_behind_standard_output(world: World) -> None:
    with open("/dev/full", "w") as full:
        code, _, err = finish(start(world, "explain", "--json", f"{world.inputs}/build.log", stdout=full))
    assert code == 3
    assert "The disk is full" in err
    assert len(ERROR.findall(err)) == 1


def test_a_report_on_a_full_disk(tmp_path: Path, model: World) -> None:
    document = json.loads((Path(__file__).parents[1] / "data/verify-cpu.json").read_text(encoding="utf-8"))
    (tmp_path / "d.json").write_text(json.dumps(document))
    code = f"""
import json, sys
from dswin import __main__, report, verify, cli
document = json.load(open({str(tmp_path / "d.json")!r}))
verify.find_python = lambda *_: {sys.executable!r}
verify.examine = lambda *_, **__: None
verify.make_document = lambda *_: document
__main__.run()
"""
    page = tmp_path / "it.html"
    page.write_text("the old one")
    words = ("verify", "--report", page)
    ended, _, err = finish(start(model, *words, code=code, preexec_fn=limit(2000)))
    assert (ended, str(page) in err) == (3, True), err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.json", "it.html"]
    assert page.read_text() == "the old one"
    ended, _, err = finish(start(model, *words, code=code))
    assert ended == document["exit_code"], err
    assert "</html>" in page.read_text(encoding="utf-8")


def obey_modes() -> None:
    """Let root be refused what others are: without the capabilities to override modes, which a new program does not get back."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's capabilities")
@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_may_not_be_written_to(world: World, name: str) -> None:
    words, _ = WRITERS[name]
    folders = [world.targets]
    if name in ("lock", "bundle", "condarc"):
        folders.append(world.targets / "new")
        folders[-1].mkdir()
    before = set(fuzzing.take_stock(world.targets))
    try:
        for folder in folders:
            folder.chmod(0o555)
        code, out, err = finish(start(world, *fill(world, words), preexec_fn=obey_modes))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert (code, out) == (3, ""), err
    assert len(ERROR.findall(err)) == 1, err
    assert "Permission denied" in err
    assert str(world.targets) in err
    assert {
        path for path in fuzzing.take_stock(world.targets) if path not in before and not path.endswith(".lock")
    } == set()


@pytest.mark.parametrize("name", ["lock", "env", "bundle", "condarc"])
def test_two_at_once(world: World, name: str) -> None:
    """Both end well, one after the other or side by side, and what they leave is whole."""
    words = fill(world, WRITERS[name][0]) + (["--force"] if name == "condarc" else [])
    if name == "condarc":
        (world.targets / "new").mkdir()
    ended = [finish(one) for one in [start(world, *words), start(world, *words)]]
    assert [code for code, _, _ in ended] == [0, 0], ended
    left = list_finished(world.targets / "new")
    checks = {
        "lock": ["lock", "check", f"{world.targets}/new/one.conda-lock.yml"],
        "env": ["env", "verify", *words[2:]],
        "bundle": ["bundle", "check", f"{world.targets}/new/it.zip"],
    }
    if name in checks:
        code, _, err = finish(start(world, *checks[name]))
        assert code == 0, err
    if name != "env":
        expected = {
            "lock": {"one.conda-lock.yml", "one.deepspeed-win.yaml"},
            "bundle": {"it.zip"},
            "condarc": {"condarc"},
        }[name]
        assert {path for path in left if not path.endswith(".lock")} == expected


def test_two_builds_at_once(world: World, tmp_path: Path) -> None:
    """With everything stood in for that takes long: the channel holds what each run said that it added, whole."""
    code = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
import making
from dswin import __main__, build, machine, reproducible, source
class Open:
    windows = None
    def __init__(self, cache): self.work = cache / "build"
    def __enter__(self): return self
    def __exit__(self, *_): pass
build.open_machine = lambda platform, cache, *_: Open(cache)
build.check_space = lambda folder: None
build.source.fetch = lambda *_: Path()
build.find_deps = lambda *_: []
build.inspect = lambda *_: []
build.test_package = lambda *_: None
reproducible.settle = lambda *_: None
def compile_package(recipe, sdist, platform, variant, channels, machine, work, *_):
    time.sleep(0.5)
    made = making.make_package(work, "deepspeed-win", "0.19.8", variant.build_string, subdir=platform)
    (work / "x.whl").write_bytes(b"x")
    return made.path, work / "x.whl"
build.compile_package = compile_package
__main__.run()
""".format(path=[str(SCRIPTS), str(SCRIPTS.parent / "tests")])
    words = ["build", "--variant", "cpu", "--python", "3.11", "--out", str(tmp_path / "own"), "--json"]
    ended = [finish(one) for one in [start(world, *words, code=code), start(world, *words, code=code)]]
    codes = sorted(one for one, _, _ in ended)
    assert codes in ([0, 0], [0, 1]), ended
    packages = {Path(json.loads(out)["package"]).name for one, out, _ in ended if one == 0}
    repodata = json.loads((tmp_path / "own/linux-64/repodata.json").read_text(encoding="utf-8"))
    assert set(repodata["packages.conda"]) == packages
    assert {path.name for path in (tmp_path / "own/linux-64").glob("*.conda")} == packages
    assert all("already" in err for one, _, err in ended if one == 1)


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "{i}/build.log"],
        ["explain", "--json", "{i}/build.log"],
        ["--help"],
        ["lock", "check", "{i}/good.conda-lock.yml", "--strict"],
    ],
    ids=" ".join,
)
def test_nobody_reads_what_is_said(world: World, words: list[str]) -> None:
    """As with ``| head -1``: the exit code is that of the work, and nothing is said of a pipe."""
    expected, _, said = finish(start(world, *fill(world, words)))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert finish(start(world, *fill(world, words), stdout=writer)) == (expected, "", said)
        # 2>&1: what goes to standard error must not end the work either.
        assert finish(start(world, *fill(world, words), stdout=writer, stderr=writer))[0] == expected
    finally:
        os.close(writer)


def test_streams_that_are_closed_from_the_start(world: World) -> None:
    out = world.targets / "new.zip"
    words = [
        "bundle",
        "create",
        "--lock",
        world.inputs / "good.conda-lock.yml",
        "--out",
        out,
        "--store",
        world.targets / "store",
    ]
    command = shlex.join(["exec", sys.executable, "-m", "dswin", *map(str, words)])
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"],
            env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert finish(start(world, "bundle", "check", out))[0] == 0
    code, _, err = finish(start(world, "explain", stdin=subprocess.DEVNULL))
    assert code == 2, err


@contextlib.contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """A server that takes a connection, says so, and never answers."""
    asked, held = threading.Event(), []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                held.append(server.accept()[0])
                asked.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/channel", asked
        server.shutdown(socket.SHUT_RDWR)
    for one in held:
        one.close()


@pytest.mark.parametrize("name", ["lock", "env", "bundle", "url"])
def test_ctrl_c_while_a_server_is_waited_for(world: World, name: str, tmp_path: Path) -> None:
    with silent_server() as (url, asked):
        entries = making.list_locked([], url)
        made = making.make_package(tmp_path / "channel", "tiny")
        entries = making.list_locked([made], url)
        lock = making.write_lock(tmp_path / "x.conda-lock.yml", entries)
        target = world.targets / "new"
        words = {
            "lock": ["lock", "one", "--folder", world.targets / "locks", "--channel", url, "--out", target],
            "env": [
                "env",
                "create",
                "--lock",
                lock,
                "-p",
                target / "env",
                "--store",
                tmp_path / "store",
                "--platform",
                "linux-64",
            ],
            "bundle": ["bundle", "create", "--lock", lock, "--out", target / "it.zip", "--store", tmp_path / "store"],
            "url": ["env", "plan", "--lock", f"{url}/x.conda-lock.yml", "-p", target, "--platform", "linux-64"],
        }[name]
        running = start(world, *words)
        assert asked.wait(60), finish(running)
        running.send_signal(signal.SIGINT)
        begun = time.monotonic()
        code, _, err = finish(running)
    assert code == 130, err
    assert "interrupted" in err
    assert time.monotonic() - begun < 10
    assert (
        not [path for path in target.rglob("*") if path.is_file() and path.name != ".lock"] if target.is_dir() else True
    )


def test_ctrl_c_while_a_log_is_waited_for(world: World) -> None:
    running = start(
        world,
        "explain",
        "-",
        stdin=subprocess.PIPE,
        code="import sys\nfrom dswin import __main__, explain\nprint('ready', file=sys.stderr, flush=True)\n__main__.run()",
    )
    assert running.stderr is not None
    assert running.stderr.readline() == "ready\n"
    time.sleep(0.7)
    running.send_signal(signal.SIGINT)
    code, _, err = finish(running)
    assert (code, "interrupted" in err) == (130, True), err


def test_ctrl_c_while_it_starts(world: World, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom dswin import __main__\n__main__.run()"
    assert finish(start(world, "--help", code=code)) == (130, "", "")
