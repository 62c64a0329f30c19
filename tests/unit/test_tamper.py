"""Whatever was altered between a lock and the files of an environment is refused, by the name of what is wrong."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import making
from dswin import archives, cli, cli_env, downloads, environment, lock, logins
from dswin.prefixes import META
from making import Faults, Made, Served, serve

if "env" not in cli.dswin.commands:
    cli.dswin.add_command(cli_env.env)

ALPHA = "alpha-1.0-0.conda"
EVIL = b"evil"


@dataclass
class World:
    """What a case may alter before ``create`` or, with an environment made, before ``verify``."""

    folder: Path
    platform: str
    made: list[Made]
    served: Served | None = None
    mirror: str = ""
    entries: list[dict] = field(default_factory=list)

    @property
    def channel(self) -> Path:
        return self.folder / "channel"

    @property
    def prefix(self) -> Path:
        return self.folder / "an environment"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def lock(self) -> Path:
        return self.folder / "x.conda-lock.yml"

    def archive(self, name: str) -> Path:
        """In the channel."""
        return next(one.path for one in self.made if one.name == name)

    def stored(self, name: str) -> Path:
        [package] = [one for one in lock.read(self.lock).on(self.platform) if one.name == name]
        return archives.place(package, self.store)

    def serve_other(self, name: str, data: bytes) -> None:
        """Over http where that is, else in the channel's folder."""
        path = self.archive(name)
        if self.served:
            self.served.faults.bytes[f"/{path.relative_to(self.channel).as_posix()}"] = data
        else:
            path.write_bytes(data)

    def alter_lock(self, name: str, **fields: object) -> None:
        self.entries = making.alter(self.entries, name, **fields)

    def hash_of(self, name: str) -> dict:
        return dict(next(entry["hash"] for entry in self.entries if entry["name"] == name))

    def url_of(self, name: str) -> str:
        return next(entry["url"] for entry in self.entries if entry["name"] == name)

    def relock(self, made: Made) -> None:
        """The lock's hashes are those of an archive that whoever made the lock should not have trusted."""
        self.alter_lock(made.name, hash={"md5": made.md5, "sha256": made.sha256})

    def edit_record(self, name: str, edit: Callable[[dict], None]) -> None:
        [file] = (self.prefix / META).glob(f"{name}-*.json")
        record = json.loads(file.read_text(encoding="utf-8"))
        edit(record)
        file.write_text(json.dumps(record), encoding="utf-8")

    def edit_file(self, path: str, data: bytes) -> None:
        file = self.prefix / path
        file.unlink()  # it may be a hard link into the unpacked packages
        file.write_bytes(data)

    def entry(self, record: dict, path: str) -> dict:
        return next(one for one in record["paths_data"]["paths"] if one["_path"] == path)

    def link(self, path: str, target: str) -> None:
        (self.prefix / path).unlink()
        (self.prefix / path).symlink_to(target)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "PAUSES", (0.01,))
    monkeypatch.setattr(logins, "find_in_keyring", lambda host: None)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Made]]]:
    found = {}
    for platform in ("linux-64", "win-64"):
        folder = tmp_path_factory.mktemp(platform[:3]) / "channel"
        made = making.make_sample(folder, platform)
        making.index_channel(folder)
        found[platform] = (folder, made)
    return found


def make_world(folder: Path, template: dict, platform: str = "linux-64", served: Served | None = None) -> World:
    source, made = template[platform]
    copied = [Made(folder / "channel" / one.path.relative_to(source), one.index) for one in made]
    shutil.copytree(source, folder / "channel")
    world = World(folder, platform, copied, served)
    base = served.url if served else making.to_url(world.channel)
    world.entries = making.list_locked(world.made, base, platform)
    return world


def run(world: World, command: str) -> int:
    arguments = ["env", command, "--lock", world.lock, "--prefix", world.prefix, "--platform", world.platform]
    arguments += ["--store", world.store]
    arguments += ["--mirror", world.mirror] if world.mirror else []
    return cli.main([str(word) for word in arguments])


# --- what create must refuse -------------------------------------------------------------------------------------------------


def swap_hashes(world: World) -> None:
    alpha, old = world.hash_of("alpha"), world.hash_of("old")
    world.alter_lock("alpha", hash=old)
    world.alter_lock("old", hash=alpha)


def swap_archives(world: World) -> None:
    alpha, old = world.archive("alpha").read_bytes(), world.archive("old").read_bytes()
    world.serve_other("alpha", old)
    world.serve_other("old", alpha)


def rebuild_and_index(world: World) -> None:
    """The channel is whole and agrees with itself; only the lock knows better."""
    path = world.archive("alpha")
    making.make_package(path.parents[1], "alpha", files={"share/alpha.txt": EVIL}, subdir="linux-64")
    making.index_channel(world.channel)
    repodata = json.loads((world.channel / "linux-64" / "repodata.json").read_text(encoding="utf-8"))
    assert repodata["packages.conda"][ALPHA]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def rename_inside(world: World) -> None:
    made = making.make_package(world.channel, "alpha", subdir="linux-64", index={"name": "beta"})
    world.alter_lock("alpha", hash={"sha256": made.sha256, "md5": made.md5})


def other_version_inside(world: World) -> None:
    world.relock(making.make_package(world.channel, "alpha", subdir="linux-64", index={"version": "0.9"}))


def other_platform_inside(world: World) -> None:
    world.relock(making.make_package(world.channel, "alpha", subdir="linux-64", index={"subdir": "win-64"}))


def leave_the_prefix(world: World) -> None:
    world.relock(making.make_package(world.channel, "alpha", subdir="linux-64", files={"../../evil.txt": EVIL}))


def leave_by_absolute_path(world: World) -> None:
    made = making.make_package(
        world.channel, "alpha", subdir="linux-64", files={"x": EVIL}, paths={"x": {"_path": "/tmp/evil.txt"}}
    )
    world.relock(made)


def contradict_itself(world: World) -> None:
    made = making.make_package(
        world.channel, "alpha", subdir="linux-64", paths={"share/alpha.txt": {"sha256": "0" * 64}}
    )
    world.relock(made)


def no_package(world: World) -> None:
    path = world.archive("alpha")
    path.write_bytes(b"no archive at all")
    world.relock(Made(path, {"name": "alpha"}))


def wrong_mirror(world: World) -> None:
    """The mirror has other bytes, and the channel is gone."""
    other = world.folder / "mirror"
    shutil.copytree(world.channel, other)
    (other / "linux-64" / ALPHA).write_bytes(EVIL)
    world.mirror = f"{making.to_url(world.channel)}={making.to_url(other)}"
    world.archive("alpha").unlink()


def alter_store(world: World) -> None:
    """And the channel is gone."""
    making.write_lock(world.lock, world.entries)
    stored = world.stored("alpha")
    stored.parent.mkdir(parents=True)
    stored.write_bytes(EVIL)
    world.archive("alpha").unlink()


def truncate(world: World, name: str) -> None:
    world.serve_other(name, world.archive(name).read_bytes()[:-10])


def drop_hash(world: World) -> None:
    world.alter_lock("alpha", hash={})


BOTH, FILE = ("http", "file"), ("file",)
#: {case: (how, where it lies, exit code, what the message names)}
CREATE: dict[str, tuple[Callable[[World], object], tuple[str, ...], int, str]] = {
    "sha256 in the lock": (lambda w: w.alter_lock("alpha", hash={**w.hash_of("alpha"), "sha256": "a" * 64}), BOTH, 1, ALPHA),
    "md5 in the lock": (lambda w: w.alter_lock("alpha", hash={**w.hash_of("alpha"), "md5": "a" * 32}), BOTH, 1, ALPHA),
    "the only hash, an md5": (lambda w: w.alter_lock("old", hash={"md5": "a" * 32}), BOTH, 1, "old-1.0-0.tar.bz2"),
    "hashes swapped in the lock": (swap_hashes, BOTH, 1, "is not the package that the lock names"),
    "archive": (lambda w: w.serve_other("alpha", w.archive("alpha").read_bytes()[:-1] + b"x"), BOTH, 1, ALPHA),
    "archive of the old format": (lambda w: w.serve_other("old", EVIL), BOTH, 1, "old-1.0-0.tar.bz2"),
    "archive grown": (lambda w: w.serve_other("alpha", w.archive("alpha").read_bytes() + b"x"), BOTH, 1, ALPHA),
    "archive empty": (lambda w: w.serve_other("alpha", b""), BOTH, 1, ALPHA),
    "archive truncated": (lambda w: truncate(w, "alpha"), BOTH, 1, ALPHA),
    "archives swapped": (swap_archives, BOTH, 1, "is not the package that the lock names"),
    "channel rebuilt and indexed": (rebuild_and_index, BOTH, 1, ALPHA),
    "mirror": (wrong_mirror, FILE, 1, ALPHA),
    "store": (alter_store, FILE, 1, f"{ALPHA} in the store"),
    "archive that calls itself otherwise": (rename_inside, FILE, 1, "alpha-1.0-0.conda calls itself beta 1.0 0"),
    "archive of another version": (other_version_inside, FILE, 1, "alpha-1.0-0.conda calls itself alpha 0.9 0"),
    "archive for another platform": (other_platform_inside, FILE, 1, "alpha-1.0-0.conda is for win-64"),
    "path that leaves the prefix": (leave_the_prefix, FILE, 1, "alpha-1.0-0.conda would write ../../evil.txt"),
    "absolute path": (leave_by_absolute_path, FILE, 1, "alpha-1.0-0.conda would write /tmp/evil.txt"),
    "archive against its paths.json": (contradict_itself, FILE, 1, "share/alpha.txt (alpha 1.0 0)"),
    "no archive": (no_package, FILE, 1, ALPHA),
    "lock: url of another package": (lambda w: w.alter_lock("alpha", url=w.url_of("old")), FILE, 2, "alpha (package"),
    "lock: url of another version": (
        lambda w: w.alter_lock("alpha", url=w.url_of("alpha").replace("1.0", "2.0")), FILE, 2, "alpha (package"
    ),
    "lock: url of another platform": (
        lambda w: w.alter_lock("alpha", url=w.url_of("alpha").replace("linux-64", "win-64")), FILE, 2, "alpha (package"
    ),
    "lock: another way to fetch": (lambda w: w.alter_lock("alpha", url="ftp" + w.url_of("alpha")[4:]), FILE, 2, "alpha (package"),
    "lock: no hash": (drop_hash, FILE, 2, "alpha (package"),
    "lock: hash cut short": (lambda w: w.alter_lock("alpha", hash={"sha256": "a" * 63}), FILE, 2, "alpha (package"),
    "lock: package twice": (lambda w: w.entries.extend(copy.deepcopy(w.entries[1:2])), FILE, 2, "alpha is in it twice"),
    "lock: platform renamed": (lambda w: w.alter_lock("alpha", platform="osx-64"), FILE, 2, "alpha"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "where"), [(case, where) for case, row in CREATE.items() for where in row[1]])
def test_create_refuses(
    tmp_path: Path, template: dict, capfd: pytest.CaptureFixture[str], case: str, where: str
) -> None:
    tamper, _, code, name = CREATE[case]
    with serve(tmp_path / "channel", Faults()) as served:
        world = make_world(tmp_path, template, served=served if where == "http" else None)
        tamper(world)
        making.write_lock(world.lock, world.entries)
        assert run(world, "create") == code
        assert name in capfd.readouterr().err
        assert not (world.prefix / META / "dswin-stamp").exists()
        assert not (tmp_path.parent / "evil.txt").exists()
        assert cli.main(["env", "status", "--prefix", str(world.prefix)]) != 0


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_truncated_lock(tmp_path: Path, template: dict, capfd: pytest.CaptureFixture[str], cut: float) -> None:
    """A lock may be cut where it is still YAML: then it holds fewer packages, or one that is not whole."""
    world = make_world(tmp_path, template)
    making.write_lock(world.lock, world.entries)
    text = world.lock.read_text(encoding="utf-8")
    world.lock.write_text(text[: int(len(text) * cut)].rstrip(), encoding="utf-8")
    assert run(world, "create") == 2
    assert "x.conda-lock.yml" in capfd.readouterr().err


def test_unpacked_packages_altered(tmp_path: Path, template: dict, capfd: pytest.CaptureFixture[str]) -> None:
    """They are not linked: the package is named, unpacked again, and right."""
    world = make_world(tmp_path, template)
    making.write_lock(world.lock, world.entries)
    assert run(world, "create") == 0
    shutil.rmtree(world.prefix)
    unpacked = world.store / environment.UNPACKED / "linux-64" / "alpha-1.0-0"
    for path in ("share/alpha.txt", "etc/alpha.cfg"):
        (unpacked / path).unlink()
        (unpacked / path).write_bytes(EVIL)
    capfd.readouterr()
    assert run(world, "create") == 0
    assert "linked again: alpha" in capfd.readouterr().err
    assert (world.prefix / "share/alpha.txt").read_bytes() == b"alpha\n"
    assert run(world, "verify") == 0


# --- what verify must find ---------------------------------------------------------------------------------------------------


def edit_both(world: World, path: str, name: str = "alpha") -> None:
    """The file, and its hashes in conda-meta to match."""
    world.edit_file(path, EVIL)
    digest = hashlib.sha256(EVIL).hexdigest()

    def edit(record: dict) -> None:
        one = world.entry(record, path)
        one.update({key: digest for key in ("sha256", "sha256_in_prefix") if key in one}, size_in_bytes=len(EVIL))

    world.edit_record(name, edit)


def hide(world: World, path: str) -> None:
    """A file goes, and from conda-meta too."""

    def edit(record: dict) -> None:
        record["files"].remove(path)
        record["paths_data"]["paths"] = [one for one in record["paths_data"]["paths"] if one["_path"] != path]

    (world.prefix / path).unlink()
    world.edit_record("alpha", edit)


def smuggle(world: World) -> None:
    """A foreign file that conda-meta calls a package's own."""
    (world.prefix / "bin/evil").write_bytes(EVIL)
    entry = {
        "_path": "bin/evil",
        "path_type": "hardlink",
        "sha256": hashlib.sha256(EVIL).hexdigest(),
        "size_in_bytes": 4,
    }
    world.edit_record("alpha", lambda record: record["paths_data"]["paths"].append(entry))


def smuggle_package(world: World) -> None:
    (world.prefix / "bin/evil").write_bytes(EVIL)
    record = {"name": "evil", "version": "1", "build": "0", "url": "https://c/noarch/evil-1-0.conda",
              "paths_data": {"paths": [{"_path": "bin/evil", "path_type": "hardlink"}]}}  # fmt: skip
    (world.prefix / META / "evil-1-0.json").write_text(json.dumps(record))


def copy_as_link(world: World) -> None:
    """The same bytes, but from where anyone may change them later."""
    shutil.copy(world.prefix / "share/alpha.txt", world.folder / "copy.txt")
    world.link("share/alpha.txt", str(world.folder / "copy.txt"))


def edit_shell(world: World) -> None:
    file = world.prefix / "bin/pure"
    text = file.read_text(encoding="utf-8")
    world.edit_file("bin/pure", text.replace("sys.exit(main())", "print('evil'); sys.exit(main())").encode())


def edit_import(world: World) -> None:
    text = (world.prefix / "bin/pure").read_text(encoding="utf-8")
    world.edit_file("bin/pure", text.replace("import re", "import re\nimport evil").encode())


def break_record(world: World) -> None:
    [file] = (world.prefix / META).glob("alpha-*.json")
    file.write_text("{")


def become_folder(world: World) -> None:
    (world.prefix / "share/alpha.txt").unlink()
    (world.prefix / "share/alpha.txt").mkdir()


def swap_stored(world: World) -> None:
    alpha, old = world.stored("alpha").read_bytes(), world.stored("old").read_bytes()
    world.stored("alpha").write_bytes(old)
    world.stored("old").write_bytes(alpha)


def relock_hash(world: World) -> None:
    """Another lock than the one that the environment was made from."""
    world.alter_lock("alpha", hash={"sha256": "a" * 64, "md5": "b" * 32})
    making.write_lock(world.lock, world.entries)


def set_record(key: str, value: str) -> Callable[[World], None]:
    return lambda world: world.edit_record("alpha", lambda record: record.update({key: value}))


LINUX, WINDOWS = "linux-64", "win-64"
SITE = "lib/python3.11/site-packages"
#: {case: (how, platform, lines that must be among the findings)}
VERIFY: dict[str, tuple[Callable[[World], object], str, tuple[str, ...]]] = {
    "file altered": (lambda w: w.edit_file("share/alpha.txt", EVIL), LINUX, ("altered: share/alpha.txt (alpha 1.0 0)",)),
    "file of the old format altered": (lambda w: w.edit_file("share/old.txt", EVIL), LINUX, ("altered: share/old.txt",)),
    "file emptied": (lambda w: w.edit_file("share/alpha.txt", b""), LINUX, ("altered: share/alpha.txt",)),
    "file missing": (lambda w: (w.prefix / "share/alpha.txt").unlink(), LINUX, ("missing: share/alpha.txt (alpha 1.0 0)",)),
    "file became a folder": (become_folder, LINUX, ("altered: share/alpha.txt",)),
    "file became a link to its like": (copy_as_link, LINUX, ("altered: share/alpha.txt",)),
    "two altered": (
        lambda w: (w.edit_file("share/alpha.txt", EVIL), w.edit_file("share/second.txt", EVIL)),
        LINUX,
        ("altered: share/alpha.txt", "altered: share/second.txt"),
    ),
    "files swapped": (
        lambda w: (w.edit_file("share/alpha.txt", b"second\n"), w.edit_file("share/second.txt", b"alpha\n")),
        LINUX,
        ("altered: share/alpha.txt", "altered: share/second.txt"),
    ),
    "module altered": (
        lambda w: w.edit_file(f"{SITE}/pure/__init__.py", EVIL), LINUX, (f"altered: {SITE}/pure/__init__.py (pure 1.0 0)",)
    ),
    "text with the prefix": (
        lambda w: w.edit_file("etc/alpha.cfg", (w.prefix / "etc/alpha.cfg").read_bytes() + b"\nevil"),
        LINUX,
        ("altered: etc/alpha.cfg",),
    ),
    "text with another prefix": (
        lambda w: w.edit_file("etc/alpha.cfg", b"home = /tmp/evil/share\n"), LINUX, ("altered: etc/alpha.cfg",)
    ),
    "text and its hash in conda-meta": (lambda w: edit_both(w, "etc/alpha.cfg"), LINUX, ("altered: etc/alpha.cfg",)),
    "binary with the prefix": (
        lambda w: w.edit_file("lib/alpha.so", (w.prefix / "lib/alpha.so").read_bytes()[:-3] + EVIL), LINUX,
        ("altered: lib/alpha.so",),
    ),
    "binary and its hash in conda-meta": (lambda w: edit_both(w, "lib/alpha.so"), LINUX, ("altered: lib/alpha.so",)),
    "script's shebang": (
        lambda w: w.edit_file("bin/run", (w.prefix / "bin/run").read_bytes().replace(b"/bin/python", b"/bin/evil", 1)),
        LINUX,
        ("altered: bin/run",),
    ),
    "file and its hash in conda-meta": (lambda w: edit_both(w, "share/alpha.txt"), LINUX, (
        "altered: share/alpha.txt", "record: conda-meta/alpha-1.0-0.json (alpha 1.0 0): its hash of share/alpha.txt")),
    "link to another file": (lambda w: w.link("lib/alpha.so.1", "../share/alpha.txt"), LINUX, ("altered: lib/alpha.so.1",)),
    "link out of the prefix": (lambda w: w.link("lib/data", "/tmp"), LINUX, ("altered: lib/data",)),
    "link to nothing": (lambda w: w.link("lib/alpha.so.1", "gone"), LINUX, ("altered: lib/alpha.so.1",)),
    "link became a file": (lambda w: w.edit_file("lib/alpha.so.1", EVIL), LINUX, ("altered: lib/alpha.so.1",)),
    "link missing": (lambda w: (w.prefix / "lib/alpha.so.1").unlink(), LINUX, ("missing: lib/alpha.so.1",)),
    "foreign program": (lambda w: (w.prefix / "bin/evil").write_bytes(EVIL), LINUX, ("foreign: bin/evil",)),
    "foreign module": (lambda w: (w.prefix / SITE / "evil.pth").write_bytes(EVIL), LINUX, (f"foreign: {SITE}/evil.pth",)),
    "foreign bytecode": (lambda w: (w.prefix / SITE / "evil.pyc").write_bytes(EVIL), LINUX, (f"foreign: {SITE}/evil.pyc",)),
    "foreign link": (lambda w: (w.prefix / "lib/evil.so").symlink_to("/tmp/x"), LINUX, ("foreign: lib/evil.so",)),
    "foreign in a new folder": (
        lambda w: ((w.prefix / "lib/evil/deep").mkdir(parents=True), (w.prefix / "lib/evil/deep/x").write_bytes(EVIL)),
        LINUX,
        ("foreign: lib/evil/deep/x",),
    ),
    "foreign package": (smuggle_package, LINUX, ("foreign: conda-meta/evil-1-0.json (evil 1 0): not in the lock",)),
    "foreign file that conda-meta calls its own": (smuggle, LINUX, (
        "record: conda-meta/alpha-1.0-0.json (alpha 1.0 0): it lists bin/evil", "foreign: bin/evil")),
    "record missing": (
        lambda w: (w.prefix / META / "alpha-1.0-0.json").unlink(), LINUX, ("missing: conda-meta/alpha-1.0-0.json (alpha 1.0 0)",)
    ),
    "record missing, and a file altered": (
        lambda w: ((w.prefix / META / "alpha-1.0-0.json").unlink(), w.edit_file("share/alpha.txt", EVIL)),
        LINUX,
        ("missing: conda-meta/alpha-1.0-0.json (alpha 1.0 0)", "altered: share/alpha.txt (alpha 1.0 0)"),
    ),
    "record broken": (break_record, LINUX, ("record: conda-meta/alpha-1.0-0.json",)),
    "record's url": (set_record("url", "https://evil/linux-64/" + ALPHA), LINUX, ("its url is https://evil/linux-64/",)),
    "record's sha256": (set_record("sha256", "a" * 64), LINUX, ("its sha256 is aaaa",)),
    "record's md5": (set_record("md5", "a" * 32), LINUX, ("its md5 is aaaa",)),
    "record's version": (set_record("version", "2.0"), LINUX, ("conda-meta/alpha-1.0-0.json",)),
    "record hides a file": (lambda w: hide(w, "share/alpha.txt"), LINUX, (
        "missing: share/alpha.txt", "record: conda-meta/alpha-1.0-0.json (alpha 1.0 0): it does not list share/alpha.txt")),
    "command's script": (edit_shell, LINUX, ("altered: bin/pure (pure 1.0 0): it does not start pure:main",)),
    "command's imports": (edit_import, LINUX, ("altered: bin/pure",)),
    "command and its hash in conda-meta": (lambda w: edit_both(w, "bin/pure", "pure"), LINUX, ("altered: bin/pure",)),
    "Windows: command's script": (
        lambda w: w.edit_file("Scripts/pure-script.py", EVIL), WINDOWS, ("altered: Scripts/pure-script.py (pure 1.0 0)",)
    ),
    "Windows: command's launcher": (lambda w: w.edit_file("Scripts/pure.exe", EVIL), WINDOWS, ("altered: Scripts/pure.exe",)),
    "Windows: Python": (lambda w: w.edit_file("python.exe", EVIL), WINDOWS, ("altered: python.exe (python 3.11.7 0_cpython)",)),
    "Windows: foreign DLL at the top": (
        lambda w: (w.prefix / "python311.dll").write_bytes(EVIL), WINDOWS, ("foreign: python311.dll",)
    ),
    "Windows: foreign module": (
        lambda w: (w.prefix / "Lib/site-packages/evil.py").write_bytes(EVIL), WINDOWS, ("foreign: Lib/site-packages/evil.py",)
    ),
    "stored archive": (lambda w: w.stored("alpha").write_bytes(EVIL), LINUX, (f"archive: {ALPHA} (alpha 1.0 0): its sha256",)),
    "stored archive truncated": (
        lambda w: w.stored("old").write_bytes(w.stored("old").read_bytes()[:-1]), LINUX, ("archive: old-1.0-0.tar.bz2",)
    ),
    "stored archives swapped": (swap_stored, LINUX, (f"archive: {ALPHA}", "archive: old-1.0-0.tar.bz2")),
    "another lock": (relock_hash, LINUX, ("record: conda-meta/alpha-1.0-0.json (alpha 1.0 0): its sha256",)),
}  # fmt: skip


@pytest.mark.parametrize("case", VERIFY)
def test_verify_finds(tmp_path: Path, template: dict, capfd: pytest.CaptureFixture[str], case: str) -> None:
    tamper, platform, lines = VERIFY[case]
    world = make_world(tmp_path, template, platform)
    making.write_lock(world.lock, world.entries)
    assert run(world, "create") == 0
    assert run(world, "verify") == 0
    capfd.readouterr()
    tamper(world)
    assert run(world, "verify") == 1
    out = capfd.readouterr().out
    for line in lines:
        assert line in out
    # It names what is wrong and nothing else.
    named = {
        line.split(" ")[1].rstrip(":") for line in out.splitlines() if ": " in line and not line.startswith("note")
    }
    assert all(any(one in line for line in lines) or one.startswith(META) or one == "bin/evil" for one in named), named


def test_what_a_user_adds_elsewhere_is_not_foreign(tmp_path: Path, template: dict) -> None:
    world = make_world(tmp_path, template)
    making.write_lock(world.lock, world.entries)
    assert run(world, "create") == 0
    (world.prefix / "work").mkdir()
    (world.prefix / "work/thesis.txt").write_text("mine")
    (world.prefix / SITE / "pure/__pycache__").mkdir()
    (world.prefix / SITE / "pure/__pycache__/__init__.cpython-311.pyc").write_bytes(b"")
    os.utime(world.prefix / "share/alpha.txt")
    assert run(world, "verify") == 0


def test_the_table_is_long_enough() -> None:
    assert len(CREATE) + len(VERIFY) >= 30
