from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import rattler
from backports import zstd

from channels import make_variant
from dswin import channel as channels
from dswin import channel_check, channel_data, mutex, publish, publish_targets, sums
from dswin.cli import main
from dswin.errors import BadInput, CheckFailed, DswinError, MachineLacks
from dswin.files import to_json
from making import make_package, serve, to_url


def list_tree(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != ".lock")
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def make_channel(folder: Path, version: str = "0.19.8", number: int = 0, text: str = "one") -> Path:
    """A channel with one CPU build for Windows, a wheel, and another package; with another text, of the same names."""
    make_variant(folder, version=version, number=number, files={"share/text.txt": text.encode()})
    make_package(folder, "helper", version, str(number))
    (folder / "wheels" / "cpu").mkdir(parents=True, exist_ok=True)
    (folder / "wheels" / "cpu" / f"deepspeed-{version}+{number}-py3-none-any.whl").write_bytes(version.encode())
    channels.reindex(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_channel(tmp_path / "a source" / "channel")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "Freigabe für 团队" / "channel"


def read_repodata(folder: Path, subdir: str = "win-64") -> dict[str, dict]:
    return json.loads((folder / subdir / "repodata.json").read_bytes())["packages.conda"]


def test_what_was_published_is_a_whole_channel(source: Path, target: Path) -> None:
    done = publish.publish(source, str(target))
    archives = {"win-64/deepspeed-win-0.19.8-cpu_py311_0.conda", "noarch/helper-0.19.8-0.conda"}
    assert set(done.sent) == {*archives, *(f"{place}.cdx.json" for place in archives),
                              "wheels/cpu/deepspeed-0.19.8+0-py3-none-any.whl"}  # fmt: skip
    assert done.present == ()
    for path in archives:
        assert (target / path).read_bytes() == (source / path).read_bytes()
    tree = list_tree(target)
    for name in ("channeldata.json", "packages.json", "index.html", "noarch/index.html", "win-64/repodata.json.zst",
                 "win-64/current_repodata.json", "win-64/run_exports.json"):  # fmt: skip
        assert name in tree
    assert channel_check.check(target).findings == ()


def test_the_sums_are_those_of_every_file(source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    tree = list_tree(target)
    lines = tree.pop("SHA256SUMS").decode().splitlines()
    assert lines == sorted((f"{hashlib.sha256(data).hexdigest()}  {path}" for path, data in tree.items()),
                           key=lambda line: line[66:])  # fmt: skip


def test_publishing_again_changes_nothing(source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    before = {path: (target / path).stat().st_mtime_ns for path in list_tree(target)}
    done = publish.publish(source, str(target))
    assert (done.sent, done.written) == ((), ())
    assert len(done.present) == 3
    assert {path: (target / path).stat().st_mtime_ns for path in list_tree(target)} == before


def test_older_versions_stay(tmp_path: Path, source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    before = list_tree(target)
    publish.publish(make_channel(tmp_path / "next" / "channel", "0.19.9"), str(target))
    after = list_tree(target)
    fixed = [path for path in before if path.endswith((".conda", ".whl", ".cdx.json"))]
    assert len(fixed) == 5
    assert {path: after[path] for path in fixed} == {path: before[path] for path in fixed}
    assert set(read_repodata(target)) == {
        "deepspeed-win-0.19.8-cpu_py311_0.conda",
        "deepspeed-win-0.19.9-cpu_py311_0.conda",
    }
    assert read_repodata(target)["deepspeed-win-0.19.8-cpu_py311_0.conda"] == json.loads(
        before["win-64/repodata.json"]
    )["packages.conda"]["deepspeed-win-0.19.8-cpu_py311_0.conda"]  # fmt: skip
    assert json.loads(after["channeldata.json"])["packages"]["deepspeed-win"]["version"] == "0.19.9"
    rows = json.loads(after["packages.json"])["packages"]
    assert [(row["version"], row["simd"]) for row in rows if row["name"] == "deepspeed-win"] == [
        ("0.19.8", "avx2"),
        ("0.19.9", "avx2"),
    ]
    assert channel_check.check(target).findings == ()


def test_a_channel_that_dswin_built_straight_becomes_a_published_one(tmp_path: Path, source: Path) -> None:
    target = make_channel(tmp_path / "old" / "channel", "0.19.7")
    publish.publish(source, str(target))
    assert channel_check.check(target).findings == ()
    assert "win-64/deepspeed-win-0.19.7-cpu_py311_0.conda" in sums.read(target / "SHA256SUMS")


@pytest.mark.parametrize("path", ["win-64/deepspeed-win-0.19.8-cpu_py311_0.conda",
                                  "wheels/cpu/deepspeed-0.19.8+0-py3-none-any.whl"])  # fmt: skip
@pytest.mark.parametrize("gone", [False, True])
def test_a_name_is_never_given_to_other_bytes(
    tmp_path: Path, source: Path, target: Path, path: str, gone: bool
) -> None:
    publish.publish(source, str(target))
    if gone:  # taken away by hand, and still known from the list of sums
        (target / path).unlink()
    before = list_tree(target)
    other = make_channel(tmp_path / "other" / "channel")
    if path.endswith(".whl"):
        (other / path).write_bytes(b"other")
        for archive in (place for place in before if place.endswith(".conda")):
            (other / archive).write_bytes((source / archive).read_bytes())
    else:
        make_variant(other, files={"share/other.txt": b"other"})
    channels.reindex(other)
    with pytest.raises(CheckFailed, match="never replaced") as error:
        publish.publish(other, str(target))
    assert path in error.value.what
    assert list_tree(target) == before


def test_a_broken_channel_is_not_published(source: Path, target: Path) -> None:
    archive = source / "noarch" / "helper-0.19.8-0.conda"
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(CheckFailed, match="not in order") as error:
        publish.publish(source, str(target))
    assert "helper-0.19.8-0.conda" in error.value.log
    assert not target.exists()


def test_a_newer_version_with_fewer_variants_is_refused(tmp_path: Path, target: Path) -> None:
    old, new = tmp_path / "old" / "channel", tmp_path / "new" / "channel"
    for variant in ("cpu", "cuda121"):
        make_variant(old, variant)
    make_variant(new, "cpu", "0.19.9")
    for folder in (old, new):
        channels.reindex(folder)
    publish.publish(old, str(target))
    before = list_tree(target)
    for dry_run in (True, False):
        with pytest.raises(CheckFailed, match="fewer variants") as error:
            publish.publish(new, str(target), dry_run=dry_run)
        assert "cuda121 for Python 3.11" in error.value.log
        assert list_tree(target) == before
    publish.publish(new, str(target), allow_incomplete=True)
    assert len(read_repodata(target)) == 3


def test_a_dry_run_writes_nothing_and_says_what_it_would(source: Path, target: Path) -> None:
    planned = publish.publish(source, str(target), dry_run=True)
    assert not target.parent.exists()
    done = publish.publish(source, str(target))
    assert planned.sent == done.sent
    assert set(done.written) - set(planned.written) == {"SHA256SUMS"}


KILLED = """
import os, sys
from pathlib import Path
from dswin import publish, publish_targets

source, folder, first, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
publish.publish(source, str(folder / "whole"))
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def copy_in_two(reader, writer, size):
    data = reader.read()
    writer.write(data[: len(data) // 2])
    writer.flush()
    sys.audit("half", writer.name)
    writer.write(data[len(data) // 2 :])

point = first
while True:
    target = folder / str(point)
    if (child := os.fork()) == 0:
        left = point
        def die(event, arguments):
            global left
            if event in ("half", "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and str(target) in str(arguments[0]):
                if event != "open" or arguments[2] & WRITES:
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), 9)
        publish_targets.shutil.copyfileobj = copy_in_two
        sys.addaudithook(die)
        publish.publish(source, str(target))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    point += step
print(point)
"""


@pytest.mark.parametrize("step", ["9", pytest.param("1", marks=pytest.mark.long)])
def test_a_run_killed_at_any_point_leaves_a_channel_and_the_next_one_goes_on(
    tmp_path: Path, source: Path, step: str
) -> None:
    folder = tmp_path / "targets"
    command = [sys.executable, "-c", KILLED, str(source), str(folder), "0", step]
    scripts = str(Path(publish.__file__).parents[1])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": scripts}, capture_output=True, text=True, check=True, timeout=300
    )
    whole = list_tree(folder / "whole")
    killed = [one for one in folder.iterdir() if one.name.isdigit() and one.name != done.stdout.strip()]
    assert len(killed) >= 80 // int(step)
    for target in killed:
        files = {path: data for path, data in list_tree(target).items() if not f"/{path}".count("/.")}
        for path, data in files.items():
            if path.endswith("repodata.json"):
                for name, record in json.loads(data)["packages.conda"].items():
                    assert hashlib.sha256(files[f"{path.partition('/')[0]}/{name}"]).hexdigest() == record["sha256"]
            assert data in (whole[path], to_json(channel_data.make_repodata("noarch", {}))), path
        assert len(publish.publish(source, str(target)).sent) <= 5
        assert list_tree(target) == whole


def read_all(read: Callable[[str], bytes]) -> int:
    """Read a channel as clients do, and return how many archives were as its repodata say."""
    count = 0
    for subdir in ("win-64", "noarch"):
        for document in ("repodata.json", "repodata.json.zst", "current_repodata.json"):
            data = read(f"{subdir}/{document}")
            records = json.loads(zstd.decompress(data) if document.endswith(".zst") else data)["packages.conda"]
            for name, record in records.items():
                assert hashlib.sha256(read(f"{subdir}/{name}")).hexdigest() == record["sha256"], name
                count += document == "repodata.json"
    return count


def test_clients_that_read_meanwhile_never_see_a_wrong_byte(tmp_path: Path, source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    stop, counts, wrong = threading.Event(), {"http": 0, "file": 0}, []

    def follow(kind: str, read: Callable[[str], bytes]) -> None:
        try:
            while not stop.is_set():
                counts[kind] += read_all(read)
        except Exception as error:
            wrong.append((kind, error))

    with serve(target) as served:

        def read_http(path: str) -> bytes:
            with urllib.request.urlopen(f"{served.url}/{path}") as answer:
                return answer.read()

        readers = [
            threading.Thread(target=follow, args=("http", read_http)),
            threading.Thread(target=follow, args=("file", lambda path: (target / path).read_bytes())),
        ]
        for reader in readers:
            reader.start()
        try:
            for number in range(1, 6):
                version = "0.19.8" if number % 2 else f"0.20.{number}"
                publish.publish(make_channel(tmp_path / str(number) / "channel", version, number), str(target))
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    assert wrong == []
    assert min(counts.values()) > 0
    assert read_all(lambda path: (target / path).read_bytes()) == 12


def test_two_runs_at_once_end_with_both_in_the_channel(tmp_path: Path, target: Path) -> None:
    sources = [make_channel(tmp_path / str(number) / "channel", f"0.19.{number}") for number in range(4)]
    wrong = []

    def run(source: Path) -> None:
        try:
            publish.publish(source, str(target))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(read_repodata(target)) == 4
    assert channel_check.check(target).findings == ()


def test_indexing_a_target_while_a_publish_to_it_runs_loses_nothing(tmp_path: Path, target: Path) -> None:
    sources = [make_channel(tmp_path / str(number) / "channel", f"0.19.{number}") for number in range(3)]
    publish.publish(sources[0], str(target))
    stop, wrong = threading.Event(), []

    def index() -> None:
        try:
            while not stop.is_set():
                channels.reindex(target)
                time.sleep(0.1)
        except Exception as error:
            wrong.append(error)

    (thread := threading.Thread(target=index)).start()
    try:
        for source in sources[1:]:
            publish.publish(source, str(target))
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    assert len(read_repodata(target)) == 3
    assert channel_check.check(target).findings == ()


def test_indexing_what_was_published_keeps_its_boms_and_sums(source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    before = list_tree(target)
    channels.reindex(target)
    after = list_tree(target)
    changed = {path for path in before if before[path] != after[path]}
    # rattler writes into repodata when it indexed.
    assert {path for path in changed if "repodata" not in path} <= {"SHA256SUMS"}
    assert after.keys() == before.keys()
    assert channel_check.check(target).findings == ()


def test_a_link_to_a_folder_is_published_into_and_stays(tmp_path: Path, source: Path) -> None:
    (tmp_path / "disk" / "channel").mkdir(parents=True)
    link = tmp_path / "served"
    link.symlink_to(tmp_path / "disk" / "channel", target_is_directory=True)
    publish.publish(source, str(link))
    assert link.is_symlink()
    assert channel_check.check(tmp_path / "disk" / "channel").findings == ()


def test_a_run_that_waits_for_another_says_so(source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    said: list[str] = []
    for held in (channels.hold(target), mutex.hold(target, "", said.append)):
        said.clear()
        with held:
            thread = threading.Thread(
                target=publish.publish, args=(source, str(target)), kwargs={"progress": said.append}
            )
            thread.start()
            deadline = time.monotonic() + 60
            while not any("waiting for it" in line for line in said) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert any(f"to {target}" in line and "waiting for it" in line for line in said)
            assert thread.is_alive()
        thread.join()


@pytest.mark.parametrize("inner", ["source", "target"])
def test_folders_in_each_other_are_refused(source: Path, inner: str) -> None:
    target = source / "public" if inner == "target" else source.parent
    with pytest.raises(BadInput, match="in the other"):
        publish.publish(source, str(target))
    assert not (source / "public").exists()


def test_a_targets_documents_that_cannot_be_read_are_named(source: Path, target: Path) -> None:
    publish.publish(source, str(target))
    for path, data in (("SHA256SUMS", b"\xffno sum"), ("win-64/repodata.json", b"{"), ("channeldata.json", b"[]")):
        whole = (target / path).read_bytes()
        (target / path).write_bytes(data)
        with pytest.raises(BadInput, match=path):
            publish.publish(source, str(target))
        (target / path).write_bytes(whole)


def test_a_channel_that_changes_after_its_check_is_not_published(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = channel_check.check

    def check_and_change(*arguments: object, **options: object) -> object:
        done = check(*arguments, **options)  # type: ignore[arg-type]
        make_package(source, "late")
        channels.reindex(source)
        return done

    monkeypatch.setattr(channel_check, "check", check_and_change)
    with pytest.raises(CheckFailed, match="changed since it was checked"):
        publish.publish(source, str(target))
    assert not (target / "noarch" / "late-1.0-0.conda").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("path", ["win-64/.deepspeed-win-0.19.8-cpu_py311_0.conda.part", "win-64/.repodata.json.part"])
def test_a_target_that_cannot_be_written_is_named_and_left_in_order(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, number: int, path: str
) -> None:
    part, open_file = target / path, Path.open

    def fail(self: Path, mode: str = "r", *arguments: object, **options: object) -> object:
        if self == part and "w" in mode:
            raise OSError(number, os.strerror(number), str(self))
        return open_file(self, mode, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(MachineLacks, match="cannot be written") as error:
        publish.publish(source, str(target))
    assert os.strerror(number) in error.value.what
    assert list(target.rglob("*.part")) == []
    assert not (target / "win-64" / "repodata.json").exists()
    monkeypatch.undo()
    publish.publish(source, str(target))
    assert channel_check.check(target).findings == ()


def test_bytes_that_do_not_arrive_are_found(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = publish_targets.shutil.copyfileobj

    def corrupt(reader: object, writer: object, size: int) -> None:
        copy(reader, writer, size)  # type: ignore[arg-type]
        writer.write(b"!")  # type: ignore[attr-defined]

    monkeypatch.setattr(publish_targets.shutil, "copyfileobj", corrupt)
    with pytest.raises(CheckFailed, match="did not arrive"):
        publish.publish(source, str(target))
    assert list(target.rglob("*.conda")) == []


def test_what_is_no_channel_is_left_alone(tmp_path: Path, source: Path) -> None:
    (thesis := tmp_path / "mine" / "thesis.docx").parent.mkdir()
    thesis.write_text("mine")
    with pytest.raises(BadInput, match="not a conda channel"):
        publish.publish(source, str(thesis.parent))
    assert [file.name for file in thesis.parent.iterdir()] == ["thesis.docx"]


def test_rattler_solves_and_installs_from_what_was_published(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "source" / "channel"
    make_package(source, "helper", "1.0", files={"share/helper.txt": b"helps\n"})
    make_package(source, "user", "1.0", depends=["helper >=1"], subdir="linux-64")
    channels.reindex(source)
    publish.publish(source, str(target))

    async def install(url: str, prefix: Path) -> list[str]:
        gateway = rattler.Gateway(cache_dir=tmp_path / prefix.name / "cache")
        platforms = [rattler.Subdir("linux-64"), rattler.Subdir("noarch")]
        found = await rattler.solve([rattler.Channel(url)], ["user"], gateway=gateway, platforms=platforms)
        await rattler.install(
            found,
            prefix,
            cache_dir=tmp_path / prefix.name / "packages",
            platform=rattler.Subdir("linux-64"),
            show_progress=False,
        )
        return sorted(record.name.normalized for record in found)

    with serve(target) as served:
        for number, url in enumerate((served.url, to_url(target))):
            prefix = tmp_path / f"prefix{number}"
            assert asyncio.run(install(url, prefix)) == ["helper", "user"]
            assert (prefix / "share" / "helper.txt").read_text() == "helps\n"


def test_the_command_line(source: Path, target: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["channel", "publish", str(source), "--to", str(target), "--dry-run"]) == 0
    assert "to send   win-64/deepspeed-win-0.19.8-cpu_py311_0.conda" in capsys.readouterr().out
    assert (
        main(["channel", "publish", str(source), "--to", to_url(target), "--url", "https://intranet/c", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert (document["target"], len(document["sent"])) == (str(target), 5)
    assert "https://intranet/c" in (target / "index.html").read_text(encoding="utf-8")
    make_variant(source, files={"share/other.txt": b"other"})
    channels.reindex(source)
    assert main(["channel", "publish", str(source), "--to", str(target)]) == 1
    assert main(["channel", "publish", str(source), "--to", "ftp://host/x"]) == 2


# Servers


@pytest.mark.parametrize(
    ("text", "kind", "channel", "owner"),
    [
        ("https://anaconda.org/me", "anaconda", "https://conda.anaconda.org/me", "me"),
        ("https://anaconda.org/me/dev", "anaconda", "https://conda.anaconda.org/me/label/dev", "me"),
        ("https://prefix.dev/ours", "prefix", "https://prefix.dev/ours", "ours"),
        ("quetz://conda.example.com/ours", "quetz", "https://conda.example.com/get/ours", "ours"),
    ],
)
def test_servers_are_named_as_rattler_build_names_them(text: str, kind: str, channel: str, owner: str) -> None:
    server = publish_targets.open_target(text)
    assert isinstance(server, publish_targets.Server)
    assert (server.kind, server.channel, server.owner) == (kind, channel, owner)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:secret@anaconda.org/me",
        "https://prefix.dev/t/secret/ours",
        "ftp://host/x",
        "https://host/x",
        "s3://",
        "\\\\server\\share",
    ],
)
def test_a_target_that_is_none_is_refused_without_its_secret(text: str) -> None:
    with pytest.raises(BadInput) as error:
        publish_targets.open_target(text)
    assert "secret" not in error.value.what + error.value.fix


class Uploads:
    """In place of py-rattler-build's uploaders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: dict[str, dict], notes: list[str]) -> None:
        from rattler_build import upload

        self.calls: list[tuple[str, str, dict]] = []
        for kind in ("anaconda", "prefix"):
            monkeypatch.setattr(upload, f"upload_package_to_{kind}", self.take(kind))
        monkeypatch.setattr(publish_targets.Server, "find_records", lambda *_: (records, notes))

    def take(self, kind: str) -> Callable:
        def upload(files: list[str], *arguments: object, **options: object) -> None:
            self.calls += [(kind, Path(file).name, options) for file in files]

        return upload


def test_a_server_gets_what_it_does_not_have(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = channels.list_records(source)
    helper = "noarch/helper-0.19.8-0.conda"
    monkeypatch.setenv("ANACONDA_API_KEY", "a-key")
    uploads = Uploads(monkeypatch, {helper: records[helper]}, [])
    planned = publish.publish(source, "https://anaconda.org/me/dev", dry_run=True)
    assert uploads.calls == []
    done = publish.publish(source, "https://anaconda.org/me/dev")
    assert planned.sent == done.sent == ("win-64/deepspeed-win-0.19.8-cpu_py311_0.conda",)
    assert uploads.calls == [
        (
            "anaconda",
            "deepspeed-win-0.19.8-cpu_py311_0.conda",
            {"channel": ["dev"], "api_key": "a-key", "force": False},
        )
    ]


def test_a_server_that_has_other_bytes_gets_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = channels.list_records(source)
    helper = "noarch/helper-0.19.8-0.conda"
    uploads = Uploads(monkeypatch, {helper: {**records[helper], "sha256": "0" * 64}}, [])
    with pytest.raises(CheckFailed, match="never replaced"):
        publish.publish(source, "https://prefix.dev/ours")
    assert uploads.calls == []


def test_a_key_is_in_no_message(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Uploads(monkeypatch, {}, ["Not checked: what it has."])
    monkeypatch.setenv("PREFIX_API_KEY", "pfx-topsecret")

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError(f"401 for {options['api_key']}")

    monkeypatch.setattr("rattler_build.upload.upload_package_to_prefix", refuse)
    with pytest.raises(DswinError) as error:
        publish.publish(source, "https://prefix.dev/ours")
    assert "topsecret" not in error.value.what + error.value.fix + error.value.log
    assert "401 for ***" in error.value.log


SERVER = """
import hashlib, http.server

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    names = set()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head, _, rest = body.partition(bytes([13, 10, 13, 10]))
        fields = dict(line.split(": ", 1) for line in head.decode().lower().splitlines() if ": " in line)
        data = rest[:int(fields["content-length"])]
        right = hashlib.sha256(data).hexdigest() == fields["x-file-sha256"]
        new = fields["x-file-name"] not in self.names
        self.names.add(fields["x-file-name"])
        print(self.path, self.headers["Authorization"], fields["x-file-name"], right, flush=True)
        self.send_response(200 if new else 409)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_the_uploader_itself_sends_whole_files_and_stops_at_a_name_that_is_there(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = source / "noarch" / "helper-0.19.8-0.conda"
    monkeypatch.setenv("PREFIX_API_KEY", "pfx-key")
    # Another process: the uploader lets no other thread of this one run.
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            server = publish_targets.Server("prefix", f"{url}/ours", url, "ours")
            server.upload(archive)
            assert process.stdout.readline() == f"/api/v1/upload/ours Bearer pfx-key {archive.name} True\n"
            with pytest.raises(MachineLacks, match="did not take"):
                server.upload(archive)
        finally:
            process.terminate()


# S3


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch):
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="team")
        yield client


def list_objects(client: object) -> dict[str, bytes]:
    names = [one["Key"] for one in client.list_objects_v2(Bucket="team").get("Contents", [])]  # type: ignore[attr-defined]
    return {name: client.get_object(Bucket="team", Key=name)["Body"].read() for name in names}  # type: ignore[attr-defined]


def test_a_bucket_gets_the_same_channel_as_a_folder(tmp_path: Path, bucket: object, source: Path, target: Path) -> None:
    new = make_channel(tmp_path / "next" / "channel", "0.19.9")
    for one in (source, new, new):
        done = publish.publish(one, "s3://team/conda/ours")
        publish.publish(one, str(target))
    assert (done.sent, done.written) == ((), ())
    assert list_objects(bucket) == {f"conda/ours/{path}": data for path, data in list_tree(target).items()}


def test_in_a_bucket_too_no_name_is_given_to_other_bytes(tmp_path: Path, bucket: object, source: Path) -> None:
    publish.publish(source, "s3://team/ours")
    before = list_objects(bucket)
    with pytest.raises(CheckFailed, match="never replaced"):
        publish.publish(make_channel(tmp_path / "other" / "channel", text="other"), "s3://team/ours")
    assert list_objects(bucket) == before


def test_a_bucket_in_which_another_run_is_under_way_is_named(bucket: object, source: Path) -> None:
    bucket.put_object(Bucket="team", Key="ours/.lock", Body=b"")  # type: ignore[attr-defined]
    with pytest.raises(CheckFailed, match=r"s3://team/ours/\.lock"):
        publish.publish(source, "s3://team/ours")
    assert list(list_objects(bucket)) == ["ours/.lock"]


def test_a_bucket_that_is_not_there_is_named(bucket: object, source: Path) -> None:
    with pytest.raises(MachineLacks, match="s3://nowhere/ours cannot be written"):
        publish.publish(source, "s3://nowhere/ours")
