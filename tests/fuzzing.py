"""A hostile world for the command line: odd values for every argument and option by its type, files that must stay as they are,
and a watch over what a run writes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import click
import yaml
from hypothesis import strategies as st

import making
from dswin import cli
from dswin.errors import INTERRUPTED

#: Every code that a run may end with: design.md, section 3.
CODES = (0, 1, 2, 3, INTERRUPTED)
#: How an error begins that is printed for a person: ours, and click's own.
ERROR = re.compile(r"(?m)^[Ee]rror: ")
#: What a terminal obeys, in what a run prints.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Parameters that name what a command writes, in whatever command; all other paths are input, which must not change.
WRITTEN = {"out", "prefix", "store", "folder", "to", "file", "page", "json_file", "plot_file", "work"}
#: For parameters of these names, what is right for them, of :func:`make_world`: most runs get beyond the first check.
RIGHT: dict[str, tuple[str, ...]] = {
    "lock": ("good.conda-lock.yml", "two.conda-lock.yml"),
    "first": ("good.conda-lock.yml", "two.conda-lock.yml"),
    "second": ("good.conda-lock.yml", "two.conda-lock.yml"),
    "files": ("good.conda-lock.yml", "random.so"),
    "log": ("build.log", "utf16.txt", "gbk.txt"),
    "snapshot": ("records",),
    "deps": ("channel", "records"),
    "channel": ("channel",),
    "wheels": ("wheels",),
    "mirrors": ("tuna", "mirrors.toml", "https://a/x=https://b/x"),
    "platform": ("linux-64", "win-64"),
    "platforms": ("linux-64", "win-64"),
    "target": ("linux-64", "win-64"),
    "variant": ("cpu", "cuda121"),
    "variants": ("cpu", "cuda121"),
    "python": ("3.11", "bin/python"),
    "names": ("one", "two"),
    "spec": ("deepspeed-win", "alpha >=1"),
    "previous": ("SHA256SUMS",),
    "url": ("https://example.com/channel",),
}
#: The same for what is written: names below the folder of targets, which each run has fresh.
RIGHT_WRITTEN: dict[str, tuple[str, ...]] = {
    "prefix": ("env", "new", "empty folder"),
    "folder": ("channel", "locks"),
    "file": ("bundle.zip", "new.zip"),
    "page": ("new.html",),
    "to": ("new", "channel", "empty folder"),
    "out": ("new", "channel", "new.zip", "empty folder"),
    "store": ("store",),
}
#: Names that nothing has.
ABSENT = (
    "absent",
    "absent/below",
    "text.txt/below",
    "x" * 300,
    "-dash",
    "--out",
    "",
    ".",
    "..",
    "~",
    "CON",
    "a\nb",
    "\x1b[31mred",
    "\udcff\udcfe",
    "%s%n{0}",
    "[bold]",
    "*",
    "?",
    "a" + "/b" * 3000,
)
TEXTS = (
    "",
    " ",
    "x",
    "a b",
    "'\"`$(x)",
    "数据",
    "line\nline",
    "\x1b]0;title\x07\x1b[2J",
    "\udcff",
    "-1",
    "nan",
    "1" * 5000,
    "x" * 20_000,
    "[bold]",
    "[/]",
    "{}",
    "a=b",
    "=",
    "=https://b",
    "a::b",
    ">=1",
    "deepspeed-win ][",
    "deepspeed-win=*=cuda130*",
    "${HOME}",
    "$NOPE",
)
URLS = (
    "http://127.0.0.1:1/x",
    "http://127.0.0.1:1/x/good.conda-lock.yml",
    "https://",
    "https://[",
    "https://[::1",
    "http://a:b/",
    "http://h:0/",
    "file://",
    "file:///",
    "file:///absent.yml",
    "file://elsewhere/x",
    "file:x",
    "gopher://x/y",
    "s3://",
    "s3:///x",
    "quetz://",
    "http://\x00/",
    "https://me:secret@127.0.0.1:1/t/tk-1/x",
    "https://xn--/",
    "http://127.0.0.1:99999/",
    "https://anaconda.org/",
    "https://prefix.dev/",
    "http://127.0.0.1:1/" + "x" * 3000,
)
NUMBERS = ("-1", "0", "1", "2", "3", "1000000000000000000000000000000", "1e9", "0x1", "", " ", "1.5", "NaN", "٣", "1_0")


@dataclass(frozen=True)
class World:
    """Folders of one run after the other.

    :param inputs: files that no command may change. :param targets: where commands may write, made anew for each run.
    :param clone: what is taken for the checkout of this project. :param home: the user's; nothing may be written there.
    """

    root: Path

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def targets(self) -> Path:
        return self.root / "targets"

    @property
    def clone(self) -> Path:
        return self.root / "clone"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    def renew(self) -> None:
        """Make the targets and the clone as they were."""
        for name in ("targets", "clone"):
            if (self.root / name).is_dir() and _list_contents(self.root / name) == _list_contents(
                self.root / "models" / name
            ):
                continue
            shutil.rmtree(self.root / name, ignore_errors=True)
            shutil.copytree(self.root / "models" / name, self.root / name, symlinks=True, dirs_exist_ok=True)

    def list_inputs(self) -> list[str]:
        return sorted(os.path.relpath(path, self.inputs) for path in self.inputs.rglob("*"))


def make_world(root: Path) -> World:
    """A file of every kind that is hostile to a reader, and one of each kind that a command takes, from packages made here."""
    world = World(root)
    for folder in (world.inputs, world.home, world.scratch, root / "models/clone", root / "models/targets"):
        folder.mkdir(parents=True)
    _make_hostile(world.inputs)
    _make_right(world)
    world.renew()
    return world


def _make_hostile(folder: Path) -> None:
    deep = 100_000
    bomb = "a: &a [x]\n" + "".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    contents: dict[str, bytes | str] = {
        "empty": b"",
        "random.so": bytes(range(256)) * 40,
        "deep.json": "[" * deep + "]" * deep,
        "deeper.json": '{"a":' * deep + "1" + "}" * deep,
        "deep.yml": "[" * 2000 + "]" * 2000,
        "deep.toml": "a = " + "[" * deep + "]" * deep,
        "long number.toml": "a = " + "9" * 5000,
        "bomb.yml": bomb,
        "utf16.txt": "error C2065: 未声明\r\n".encode("utf-16"),
        "gbk.txt": "错误: 无法打开\n".encode("gbk"),
        "nul.yml": b"version: 1\n\0\0package: []\n",
        "nul.txt": b"\0" * 5000,
        "text.txt": "some text\n",
        "number.json": "9" * 5000,
        "list.json": "[]",
        "null.json": "null",
        "with space 'and' \"quotes\".yml": "version: 1\n",
        "数据.yml": "version: 1\n",
        "new\nline.yml": "- x\n",
        "-dash.yml": "- x\n",
        "\x1b[31mred.yml": "- x\n",
        "elf": b"\x7fELF\x02\x01\x01" + b"\xff" * 500,
        "pe.pyd": b"MZ" + b"\0" * 58 + b"\x40\0\0\0PE\0\0" + b"\xff" * 400,
        "zip.zip": b"PK\x03\x04" + b"\xff" * 100,
        "surrogate.json": '{"name": "\\ud800", "x": "\\u0000"}',
    }
    contents |= {os.fsdecode(b"\xff\xfe.yml"): b"x", "long" * 60: b"x"}
    # Windows has no such names, and links only for some users.
    refused = contextlib.suppress(OSError) if os.name == "nt" else contextlib.nullcontext()
    for name, content in contents.items():
        with refused:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    for name, target in (("loop", "loop"), ("dangling", "nowhere")):
        with refused:
            (folder / name).symlink_to(target)
    (folder / "folder").mkdir()
    (folder / "folder.yml").mkdir()


def _make_right(world: World) -> None:
    from dswin import bundle, environment, lock

    inputs, targets = world.inputs, world.root / "models/targets"
    made = making.make_sample(inputs / "channel")
    making.index_channel(inputs / "channel")
    url = making.to_url(inputs / "channel")
    good = making.lock_of(inputs / "good.conda-lock.yml", made, url)
    both = [entry for platform in ("linux-64", "win-64") for entry in making.list_locked(made[2:], url, platform)]
    making.write_lock(inputs / "two.conda-lock.yml", both, [url])
    (inputs / "build.log").write_text("cl : error D8021\nRuntimeError: Error compiling objects for extension\n")
    (inputs / "mirrors.toml").write_text(f'[[mirror]]\nfrom = "https://conda.invalid/c"\nto = ["{url}"]\n')
    (inputs / "SHA256SUMS").write_text(f"{'0' * 64}  noarch/x-1-0.conda\n")
    (inputs / "wheels").mkdir()
    (inputs / "wheels/x-1-py3-none-any.whl").write_bytes(b"PK")
    (inputs / "records").mkdir()
    seen = [
        {
            "channel": "conda-forge",
            "subdir": "noarch",
            "fn": "rc-1.0-0.conda",
            "name": "rc",
            "version": "1.0",
            "build": "0",
            "depends": [],
            "md5": "0" * 32,
            "source": "here",
        }
    ]
    (inputs / "records/x.jsonl").write_text("".join(json.dumps(one) + "\n" for one in seen))
    (inputs / "bin").mkdir()
    (inputs / "bin/python").write_text("#!/bin/sh\nexit 1\n")
    (inputs / "bin/python").chmod(0o755)
    table = '[{}]\nsources = ["environment.yaml"]\nplatforms = ["linux-64"]\nwhy = "for a test"\n'
    # One needs no network, the other asks a channel that does not answer.
    for folder, channel, name in (
        (targets / "locks", [], "alpha"),
        (world.root / "models/clone/locks", ["conda-forge"], "rc"),
    ):
        folder.mkdir(parents=True)
        (folder / "environment.yaml").write_text(yaml.safe_dump({"channels": channel, "dependencies": [name]}))
        (folder / "locks.toml").write_text(table.format("one") + table.format("two"))
    (targets / "empty folder").mkdir()
    (targets / "text.txt").write_text("text\n")
    shutil.copytree(inputs / "channel", targets / "channel")
    locked = lock.read(good)
    environment.create(locked, "linux-64", targets / "env", targets / "store")
    bundle.create(good, "linux-64", targets / "bundle.zip", targets / "store")


# What is given to a command


def list_commands(group: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words, command) of everything that the command line can do, found in its own tree."""
    if not isinstance(group, click.Group):
        yield words, group
        return
    for name, command in sorted(group.commands.items()):
        yield from list_commands(command, (*words, name))


def draw_arguments(draw: Any, command: click.Command, world: World) -> list[str]:
    """Arguments for a command: each of its parameters or not, with a value that is right or odd for its type."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in command.params:
        wanted = 9 if parameter.required or isinstance(parameter, click.Argument) else 4
        if draw(st.integers(0, 9)) > wanted:
            continue
        times = draw(st.integers(1, 2)) if getattr(parameter, "multiple", False) or parameter.nargs == -1 else 1
        for _ in range(times):
            values = [draw_value(draw, parameter, world) for _ in range(max(parameter.nargs, 1))]
            if isinstance(parameter, click.Argument):
                arguments += values
            elif getattr(parameter, "is_flag", False):
                options.append(draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts])))
            else:
                options += [draw(st.sampled_from(parameter.opts)), *values]
    if draw(st.integers(0, 19)) == 0:
        options.append(draw(st.sampled_from(["--no-such-option", "--\x1b[31m", "-\udcff", "--json=x", "-"])))
    return [*options, *(["--"] if draw(st.booleans()) else []), *arguments]


def draw_value(draw: Any, parameter: click.Parameter, world: World) -> str:
    kind, name = parameter.type, str(parameter.name)
    written = name in WRITTEN
    folder = world.targets if written else world.inputs
    right = (RIGHT_WRITTEN if written else RIGHT).get(name, ())
    is_path = isinstance(kind, click.Path) or written
    if right and draw(st.integers(0, 9)) < 6:
        chosen = draw(st.sampled_from(right))
        return _spell(draw, folder, chosen) if is_path or (folder / chosen).exists() else chosen
    if isinstance(kind, click.Choice):
        return draw(st.sampled_from([*map(str, kind.choices), "", "x", *TEXTS[:9]]))
    if isinstance(kind, (click.IntRange, click.types.IntParamType)):
        return draw(st.sampled_from(NUMBERS))
    paths = st.sampled_from([*(world.list_inputs() if not written else _TARGETS), *ABSENT])
    path = _spell(draw, folder, draw(paths))
    if isinstance(kind, click.Path):
        return path
    return draw(
        st.sampled_from(
            [path, path, draw(st.sampled_from(TEXTS)), draw(st.sampled_from(URLS)), draw(st.sampled_from(NUMBERS))]
        )
    )


_TARGETS = (
    "text.txt",
    "empty folder",
    "env",
    "channel",
    "locks",
    "bundle.zip",
    "new",
    "deep/er/new",
    "new.zip",
    "new.html",
    "数据 neu.zip",
    "text.txt/below",
    "env/conda-meta",
    "store",
)


def _spell(draw: Any, folder: Path, name: str) -> str:
    """A path as it is, or from the folder that commands run in; what leads out of the world does not."""
    path = os.path.normpath(os.path.join(folder, name)) if name not in ("", "~") and not name.startswith("-") else name
    if not path.startswith(str(folder)) and os.path.isabs(path):
        return str(folder)
    return path if draw(st.booleans()) or not os.path.isabs(path) else os.path.relpath(path, folder.parent / "scratch")


# What comes of it


@dataclass
class Said:
    """:param written: paths outside of the world that the run changed, and how."""

    code: int
    out: str
    err: str
    written: list[str] = field(default_factory=list)


class Watch:
    """Notes what this process writes outside of a folder, by Python's audit events; they cannot be taken away, only unheeded."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.found: list[str] = []
        sys.addaudithook(self._look)

    @contextlib.contextmanager
    def over(self, *allowed: Path) -> Iterator[list[str]]:
        self.found = []
        self.allowed = (*(f"{folder}{os.sep}" for folder in allowed), os.devnull, "/dev/tty")
        try:
            yield self.found
        finally:
            self.allowed = ()

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.allowed:
            return
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            paths = [path] if writes else []
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"):
            # Below a folder that is open already, shutil.rmtree's way, names are relative to it.
            paths = (
                []
                if event in ("os.remove", "os.rmdir", "os.mkdir") and arguments[-1] not in (-1, None)
                else [arguments[0]]
            )
        elif event in ("os.rename", "os.link", "os.symlink"):
            paths = [arguments[1]] if event == "os.symlink" else list(arguments[:2])
        else:
            return
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                text = os.path.abspath(os.fsdecode(path))
                if not f"{text}{os.sep}".startswith(self.allowed) and "__pycache__" not in text:
                    self.found.append(f"{event} {text!r}")


def run(watch: Watch, world: World, arguments: Sequence[str]) -> Said:
    """Run the command line in this process as ``python -m dswin`` does, and note what it says and writes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    nothing = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with (
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        mock.patch.object(sys, "stdin", nothing),
        watch.over(world.root) as written,
    ):
        code = cli.main(list(arguments))
        for stream in (out, err):
            stream.flush()
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]  # type: ignore[attr-defined]
    return Said(code, *texts, written=list(written))


@contextlib.contextmanager
def isolated(world: World) -> Iterator[None]:
    """No network, no waiting, and a checkout, a home and a temporary folder of the world's own, while the context lasts."""
    from dswin import downloads, logins

    connect = socket.socket.connect

    def stay(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
            raise ConnectionRefusedError(111, f"this test has no network: {address[0]}")
        connect(self, address)

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in ("127.0.0.1", "::1", "localhost"):
            raise socket.gaierror(-2, "this test has no network")
        return real(host, *rest, **more)

    real = socket.getaddrinfo
    # rattler and boto3 have their own ways out.
    dead = "http://127.0.0.1:1"
    variables = {
        "HOME": str(world.home),
        "TMPDIR": str(world.scratch),
        "XDG_CACHE_HOME": str(world.scratch / "cache"),
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), dead),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PATH": str(world.inputs / "bin"),
    }
    unset = ("DSWIN_DEBUG", "DSWIN_MSVC", "CONDA_PREFIX", "VIRTUAL_ENV")
    before = os.getcwd()
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(socket.socket, "connect", stay),
        mock.patch.object(socket, "getaddrinfo", resolve),
        mock.patch.object(downloads, "PAUSES", ()),
        mock.patch.object(logins, "find_in_keyring", return_value=None),
        mock.patch.object(cli, "ROOT", world.clone),
        mock.patch.object(cli, "CACHE", world.clone / ".dswin"),
        mock.patch.object(tempfile, "tempdir", str(world.scratch)),
    ):
        for name in unset:
            os.environ.pop(name, None)
        os.chdir(world.scratch)
        try:
            yield
        finally:
            os.chdir(before)


def _list_contents(folder: Path) -> dict[str, tuple[int, int]]:
    """As :func:`take_stock`, by paths in the folder; copies have their models' times."""
    stock = take_stock(folder)
    return {os.path.relpath(path, folder): found[:2] for path, found in stock.items()}


def take_stock(folder: Path) -> dict[str, tuple[int, int, int]]:
    """{path: (size, time of change, kind)} of everything in a folder: a file that was written has another time."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            try:
                about = os.lstat(path)
            except FileNotFoundError:  # rattler's threads clear away what a run has left
                continue
            found[path] = (about.st_size, about.st_mtime_ns if name in files else 0, about.st_mode)
    return found


# Documents, altered in one place


#: What stands in the place of a value: another type, nested, empty, huge, and what a terminal obeys.
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    10**400,
    1e308,
    "",
    "x",
    "\x1b[31m",
    "../x",
    "\ud800",
    "x" * 10_000,
    [],
    {},
    [None],
    {"a": None},
    [[["x"]]],
    {"x": {"x": {}}},
    [1, "x", {}],
)
DELETED = object()


def alter_each(document: Any, odd: Sequence[Any] = ODD) -> Iterator[tuple[str, Any]]:
    """(what was altered, the document) for each value in a document, the whole too: deleted, wrapped, or something else."""
    for place in _list_places(document):
        values = [*odd, [_get(document, place)], {"a": _get(document, place)}, *([DELETED] if place else [])]
        for value in values:
            shown = "deleted" if value is DELETED else repr(value)[:40]
            yield f"{'/'.join(map(str, place))} {shown}", _set(document, place, value)


def _list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _list_places(inner, (*place, key))


def _get(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


def _set(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    if len(place) == 1 and value is DELETED:
        del copy[place[0]]
    else:
        copy[place[0]] = _set(document[place[0]], place[1:], value)
    return copy


def to_toml(value: Any) -> str:
    """A value as TOML has it in one line, as far as TOML has it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {to_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml, value))}]"
    return json.dumps(value)
