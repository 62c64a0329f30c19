"""Each document that dswin reads, altered in one place after the other: read, or refused by one clear error of ours.

Locks, bundles' members and conda-meta at random are in test_lock.py, test_bundle.py and test_environment.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import fuzzing
import making
from dswin import (
    bundle,
    contents,
    env_verify,
    environment,
    failures,
    lock,
    mirror,
    mirrors,
    ops,
    prefixes,
    records,
    solver,
    stored_zip,
)
from dswin.bundle_format import MANIFEST
from dswin.errors import BadInput, CheckFailed, DswinError
from dswin.stored_zip import Member
from fuzzing import CONTROL, World

ROOT = Path(__file__).parents[2]
LINUX = "linux-64"
watch = fuzzing.Watch()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fuzzing.make_world(tmp_path_factory.mktemp("documents").resolve() / "world")


def count_refused(
    read: Callable[[], object], cases: Iterator[tuple[str, object]], kinds: tuple[type[DswinError], ...]
) -> tuple[int, int]:
    """(cases, refused ones). Anything else than an error of these kinds fails the test and names the case."""
    tried = refused = 0
    for name, _ in cases:
        tried += 1
        try:
            read()
        except kinds as error:
            if not (error.what and error.fix):
                pytest.fail(f"{name}: {error!r} does not say what is wrong and what to do")
            refused += 1
        except Exception as error:
            pytest.fail(f"{name}: {type(error).__name__}: {error}")
    return tried, refused


def written(
    path: Path, document: Any, dump: Callable[[Any], str], odd: Sequence[Any] = fuzzing.ODD
) -> Iterator[tuple[str, object]]:
    """Write a document altered in each place, one after the other; what the format cannot say is left out."""
    for name, altered in fuzzing.alter_each(document, odd):
        try:
            text = dump(altered)
        except (yaml.YAMLError, ValueError, AttributeError):
            continue
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        yield name, altered


def dump_toml(document: dict) -> str:
    return "".join(f"{json.dumps(key)} = {fuzzing.to_toml(value)}\n" for key, value in document.items())


def test_locks_toml(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("channels: []\ndependencies: [rc]\n", encoding="utf-8")
    document = {"one": {"sources": ["e.yaml"], "platforms": [LINUX], "cuda": "12.1", "why": "x", "notes": {"a": "b"}}}
    cases = written(tmp_path / "locks.toml", document, dump_toml)
    tried, refused = count_refused(lambda: solver.read_wanted(tmp_path), cases, (BadInput,))
    assert tried > 150
    assert refused > 100


def test_mirrors_toml(tmp_path: Path) -> None:
    document = {"mirror": [{"from": "https://a/x", "to": ["https://b/x"]}]}
    path = tmp_path / "mirrors.toml"
    tried, refused = count_refused(lambda: mirrors.read(path), written(path, document, dump_toml), (BadInput,))
    assert tried > 80
    assert refused > 60


def test_environment_yaml(tmp_path: Path) -> None:
    document = {
        "name": "x",
        "channels": ["conda-forge"],
        "platforms": [LINUX],
        "dependencies": ["python 3.11.*", {"pip": ["x"]}],
    }
    path = tmp_path / "e.yaml"
    wanted = solver.Wanted("one", (path,), (LINUX,))

    def read() -> None:
        spec = solver.read_sources(wanted)
        solver.list_specs(spec.dependencies[LINUX])

    tried, refused = count_refused(read, written(path, document, yaml.safe_dump), (BadInput,))
    assert tried > 150
    assert refused > 50


def test_ops_yaml(tmp_path: Path) -> None:
    whole = yaml.safe_load((ROOT / "recipe/ops.yaml").read_text(encoding="utf-8"))
    name, row = next(iter(whole["ops"].items()))

    def read() -> None:
        ops.write_table(ops.read(tmp_path))

    tried, refused = count_refused(
        read, written(tmp_path / "ops.yaml", {"ops": {name: row}}, yaml.safe_dump), (BadInput,)
    )
    assert tried > 150
    assert refused > 50


def test_failures_yaml(tmp_path: Path) -> None:
    whole = yaml.safe_load(failures.DATA.read_text(encoding="utf-8"))
    document = {**whole, "words": whole["words"][:3], "failures": [], "harmless": [], "alarms": []}
    word = document["words"][0]
    entry = {
        "id": "a",
        "stage": "build",
        "rank": "cause",
        "any": [f"{word} x"],
        "cause": "c",
        "fix": "f",
        "applies": "a",
        "source": "s",
    }
    document |= {
        "failures": [entry],
        "harmless": [{"id": "b", "any": [f"{word} y"], "reason": "r"}],
        "alarms": [f"{word} z"],
    }
    path = tmp_path / "failures.yaml"
    cases = written(path, document, yaml.safe_dump)
    tried, refused = count_refused(lambda: failures.parse(path.read_text(encoding="utf-8"), "it"), cases, (BadInput,))
    assert tried > 300
    assert refused > 200


def test_package_records(tmp_path: Path) -> None:
    document = {
        "channel": "conda-forge",
        "subdir": "noarch",
        "fn": "rc-1.0-0.conda",
        "name": "rc",
        "version": "1.0",
        "build": "0",
        "build_number": 0,
        "depends": ["a"],
        "constrains": ["b"],
        "md5": "0" * 32,
        "license": "x",
        "track_features": ["x"],
        "inferred": {"basis": "why", "version": "1.0", "fn": "rc-1.0-0.conda"},
        "fn_doubtful": True,
        "timestamp": 1,
    }
    wanted = solver.Wanted("one", (tmp_path / "e.yaml",), (LINUX,))
    (tmp_path / "e.yaml").write_text("channels: [conda-forge]\ndependencies: [rc]\n", encoding="utf-8")
    (tmp_path / "s").mkdir()

    def solve() -> None:
        solver.solve(wanted, snapshot=tmp_path / "s", cache=tmp_path / "cache")

    # What is read must also be what rattler can read, or be refused.
    cases = written(tmp_path / "s/x.jsonl", document, json.dumps)
    tried, refused = count_refused(lambda: records.read(tmp_path / "s"), cases, (BadInput,))
    assert tried > 300
    assert refused > 100
    some = (case for number, case in enumerate(written(tmp_path / "s/x.jsonl", document, json.dumps)) if not number % 8)
    count_refused(solve, some, (BadInput, CheckFailed))


@pytest.mark.parametrize("part", ["index.json", "paths.json", "link.json"])
def test_the_metadata_of_an_archive(tmp_path: Path, part: str) -> None:
    """From the lock on: the lock has the hash of the altered archive, as one would have that comes from a hostile channel."""
    files = {"site-packages/pure.py": making.text_with_prefix(), "python-scripts/tool": making.File(b"#!/x\n")}
    folder = tmp_path / "channel"
    link = {"noarch": {"type": "python", "entry_points": ["pure = pure:main"]}, "package_metadata_version": 1}
    options: dict[str, Any] = {"files": files, "depends": ["python"], "index": {"noarch": "python"}}
    good = making.make_package(folder, "pure", **options, info={"link.json": link})
    info = contents.stream_info(good.path, [f"info/{part}"])
    document = json.loads(info[f"info/{part}"])
    entry = making.list_locked([good], making.to_url(folder))[0]
    lock_file = tmp_path / "x.conda-lock.yml"

    def cases() -> Iterator[tuple[str, object]]:
        for name, altered in fuzzing.alter_each(document):
            made = making.make_package(folder, "pure", **options, info={"link.json": link, part: altered})
            entry["hash"] = {"md5": made.md5, "sha256": made.sha256}
            making.write_lock(lock_file, [entry])
            shutil.rmtree(tmp_path / "store", ignore_errors=True)
            yield name, altered

    def read() -> None:
        locked = lock.read(lock_file)
        found = mirror.gather(locked.packages, tmp_path / "store")
        mirror.find_unmet(found)
        mirror.warn_of_licences(found)
        for one in found:
            content = contents.read(one.package, one.path)
            environment._to_record(one.package, content)
            env_verify.verify(locked, tmp_path, LINUX, tmp_path / "store", known={one.package.name: content})

    tried, refused = count_refused(read, cases(), (CheckFailed, BadInput))
    assert tried > 60
    assert refused > 20


def test_the_manifest_of_a_bundle(world: World, tmp_path: Path) -> None:
    source = world.targets / "bundle.zip"
    import zipfile

    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members.pop(MANIFEST))
    few = dict(list(document["members"].items())[:2])
    path = tmp_path / "it.zip"

    def cases() -> Iterator[tuple[str, object]]:
        for name, altered in fuzzing.alter_each({**document, "members": few}):
            if isinstance(altered, dict) and altered.get("members") is few:
                altered = {**altered, "members": document["members"]}
            elif isinstance(altered, dict) and isinstance(altered.get("members"), dict):
                altered = {**altered, "members": {**document["members"], **altered["members"]}}
            data = json.dumps(altered, indent=1, sort_keys=True).encode()
            _seal(path, {MANIFEST: data, **members})
            yield name, altered

    tried, refused = count_refused(lambda: bundle.check(path), cases(), (CheckFailed,))
    assert tried > 150
    assert refused > tried - 60


def _seal(path: Path, files: dict[str, bytes]) -> None:
    import zlib

    members = [Member(name, len(data), zlib.crc32(data)) for name, data in files.items()]
    text = b"".join(part for one in members for part in (stored_zip.head(one), files[one.name]))
    path.write_bytes(text + stored_zip.tail(members))


@pytest.mark.parametrize("name", ["record", "stamp", "journal"])
def test_what_lies_in_conda_meta(world: World, name: str) -> None:
    """By the command line, since what stands there is printed: nothing that a terminal obeys comes out."""
    world.renew()
    meta = world.targets / "env/conda-meta"
    file = {"record": meta / "alpha-1.0-0.json", "stamp": meta / prefixes.STAMP, "journal": meta / prefixes.JOURNAL}[
        name
    ]
    document = json.loads(file.read_text(encoding="utf-8")) if name != "journal" else ["share/x", "bin/run"]
    if name == "record":
        document = {
            **{key: document[key] for key in ("name", "version", "build", "url", "md5", "sha256")},
            "paths_data": {"paths": document["paths_data"]["paths"][:2]},
        }
    options = [
        "--lock",
        str(world.inputs / "good.conda-lock.yml"),
        "-p",
        str(world.targets / "env"),
        "--platform",
        LINUX,
    ]
    options += ["--store", str(world.targets / "store")]
    tried = 0
    with fuzzing.isolated(world):
        for what, _ in written(
            file, document, json.dumps, (None, 2**70, "\x1b[31m", "../x", "\ud800", [], [1, "x", {}])
        ):
            tried += 1
            for words in (["plan", *options], ["verify", *options], ["status", "-p", str(world.targets / "env")]):
                said = fuzzing.run(watch, world, ["env", *words, *(["--json"] if tried % 5 == 0 else [])])
                assert said.code in (0, 1, 2), (what, said)
                assert "This is a fault" not in said.err, (what, said)
                assert not CONTROL.search(said.out + said.err), (what, said)
    assert tried >= 29
