from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from backports import zstd

from channels import make_variant
from dswin import channel as channels
from dswin import channel_check, channel_data, sbom
from dswin.channel_check import Finding
from dswin.cli import main
from dswin.errors import BadInput, DswinError, MachineLacks
from making import make_package, to_url

CPU = "win-64/deepspeed-win-0.19.8-cpu_py311_0.conda"
HELPER = "noarch/helper-1.0-0.conda"


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    folder = tmp_path / "Kanäle 频道" / "channel"
    make_variant(folder)
    make_package(folder, "helper", info={"run_exports.json": {"weak": ["helper >=1"]}})
    make_package(folder, "old", ending=".tar.bz2")
    channels.reindex(folder)
    return folder


def check(channel: Path, **options: object) -> list[tuple[str, str]]:
    return [(finding.kind, finding.place) for finding in channel_check.check(channel, **options).findings]  # type: ignore[arg-type]


def change(path: Path, alter: Callable[[dict], object]) -> None:
    """Change a JSON document in place, and the .zst beside it with it."""
    document = json.loads(path.read_text(encoding="utf-8"))
    alter(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    if (packed := path.with_name(path.name + ".zst")).exists():
        packed.write_bytes(zstd.compress(path.read_bytes()))


def change_record(channel: Path, place: str, **fields: object) -> None:
    """Change a record in all repodata that have it."""
    subdir, _, fn = place.partition("/")
    for name in ("repodata.json", "current_repodata.json"):
        change(channel / subdir / name, lambda document: document["packages.conda"][fn].update(fields))


def test_a_channel_in_order_has_no_finding(channel: Path) -> None:
    done = channel_check.check(channel)
    assert done.findings == ()
    assert set(done.records) == {CPU, HELPER, "noarch/old-1.0-0.tar.bz2"}
    assert [note.partition(":")[0] for note in done.notes] == ["Not checked"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 1),
        ("md5", "0" * 32),
        ("sha256", "0" * 64),
        ("depends", ["python 3.11.*"]),
        ("build_number", 7),
        ("license", "MIT"),
        ("timestamp", 1),
        ("constrains", ["torch <0"]),
    ],
)
def test_repodata_that_say_something_else_than_the_archive_are_found(channel: Path, field: str, value: object) -> None:
    change_record(channel, CPU, **{field: value})
    done = channel_check.check(channel)
    assert [(one.kind, one.place) for one in done.findings] == [("metadata", CPU)]
    assert f"repodata have {field} {value!r}" in done.findings[0].detail


def test_an_archive_that_is_not_there_and_one_that_nobody_names_are_found(channel: Path) -> None:
    old = channel / "noarch" / "old-1.0-0.tar.bz2"
    old.rename(old.with_name("old-1.0-1.tar.bz2"))
    assert check(channel) == [
        ("missing", "noarch/old-1.0-0.tar.bz2"),
        ("name", "noarch/old-1.0-1.tar.bz2"),
        ("orphan", "noarch/old-1.0-1.tar.bz2"),
    ]


def test_a_newer_archive_under_another_name_can_be_read_by_nobody(channel: Path) -> None:
    (channel / HELPER).rename(channel / "noarch" / "helper-1.0-1.conda")
    assert check(channel) == [
        ("contents", "noarch/helper-1.0-1.conda"),
        ("missing", HELPER),
        ("orphan", "noarch/helper-1.0-1.conda"),
    ]


def test_an_archive_of_another_subdir_is_found(channel: Path) -> None:
    (channel / "linux-64").mkdir()
    (channel / CPU).rename(channel / "linux-64" / Path(CPU).name)
    channels.reindex(channel)
    assert ("name", "linux-64/deepspeed-win-0.19.8-cpu_py311_0.conda") in check(channel)


def test_a_packed_repodata_that_differs_is_found(channel: Path) -> None:
    packed = channel / "win-64" / "repodata.json.zst"
    packed.write_bytes(zstd.compress((channel / "noarch" / "repodata.json").read_bytes()))
    assert check(channel) == [("zst", "win-64/repodata.json.zst")]
    packed.write_bytes(b"no zstd")
    assert check(channel) == [("document", "win-64/repodata.json.zst")]
    packed.unlink()
    assert check(channel) == [("document", "win-64/repodata.json.zst")]


@pytest.mark.parametrize(
    "path",
    ["noarch/repodata.json", "win-64/run_exports.json", "win-64/current_repodata.json", "channeldata.json"],
)
@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_document_that_is_not_there_or_is_none_is_found(channel: Path, path: str, text: str | None) -> None:
    (channel / path).unlink() if text is None else (channel / path).write_text(text)
    assert ("document", path) in check(channel)


def test_repodata_that_no_client_can_read_are_found(channel: Path) -> None:
    change_record(channel, CPU, version="1..0 or so")
    assert ("document", "win-64/repodata.json") in check(channel)


def test_run_exports_that_differ_from_the_archive_are_found(channel: Path) -> None:
    def alter(document: dict) -> None:
        document["packages.conda"]["helper-1.0-0.conda"]["run_exports"] = {"weak": ["helper >=2"]}
        document["packages.conda"]["gone-1.0-0.conda"] = {"run_exports": {}}

    change(channel / "noarch" / "run_exports.json", alter)
    assert check(channel) == [("run_exports", "noarch/gone-1.0-0.conda"), ("run_exports", HELPER)]


def test_an_older_current_repodata_is_found(channel: Path) -> None:
    before = (channel / "noarch" / "current_repodata.json").read_bytes()
    make_package(channel, "helper", "2.0")
    channels.reindex(channel)
    assert check(channel) == []
    (channel / "noarch" / "current_repodata.json").write_bytes(before)
    assert check(channel) == [("current", "noarch/current_repodata.json")]


def test_a_channeldata_that_names_another_version_is_found(channel: Path) -> None:
    change(channel / "channeldata.json", lambda document: document["packages"]["helper"].update(version="0.9"))
    change(channel / "channeldata.json", lambda document: document["packages"].pop("old"))
    assert check(channel) == [("channeldata", "helper"), ("channeldata", "old")]


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_a_file_that_is_not_what_its_paths_say_is_found(channel: Path, ending: str) -> None:
    wrong = {"share/a.txt": {"sha256": hashlib.sha256(b"other").hexdigest()}, "share/b.txt": {"_path": "share/c.txt"}}
    make_package(channel, "odd", ending=ending, files={"share/a.txt": b"a", "share/b.txt": b"b"}, paths=wrong)
    channels.reindex(channel)
    found = [one for one in channel_check.check(channel).findings if one.place == f"noarch/odd-1.0-0{ending}"]
    assert [(one.kind, one.detail) for one in found] == [
        ("contents", "its paths.json does not have share/b.txt"),
        ("contents", "share/a.txt has other bytes than its paths.json says"),
        ("contents", "share/c.txt is not in it"),
    ]


def test_an_archive_that_is_cut_is_found(channel: Path) -> None:
    archive = channel / CPU
    archive.write_bytes(archive.read_bytes()[:-100])
    assert check(channel) == [("contents", CPU)]


def test_the_outcome_of_a_rehearsal_is_found(channel: Path) -> None:
    make_package(channel, "bad", depends=["__rehearsal"])
    assert ("contents", "noarch/bad-1.0-0.conda") in check(channel)


WRONG: tuple[object, ...] = (None, [], "x")


def list_altered(document: object) -> Iterator[str]:
    """The texts of a document in which one value, at any depth, is another."""
    places: list[tuple] = [()]
    while places:
        place = places.pop()
        inner = document
        for key in place:
            inner = inner[key]  # type: ignore[index]
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else []
        places += [(*place, key) for key in keys]
        for value in WRONG:
            altered = copy.deepcopy({"whole": document})
            outer: object = altered
            for key in ("whole", *place)[:-1]:
                outer = outer[key]  # type: ignore[index]
            outer[("whole", *place)[-1]] = value  # type: ignore[index]
            if altered["whole"] != document:
                yield json.dumps(altered["whole"])


@pytest.mark.parametrize(
    "path",
    [
        "noarch/repodata.json",
        "noarch/current_repodata.json",
        "noarch/run_exports.json",
        "channeldata.json",
        "packages.json",
    ],
)
def test_a_document_with_any_value_altered_never_ends_in_a_traceback(tmp_path: Path, path: str) -> None:
    depends = ["python 3.11.*", "pytorch ==2.5.1"]
    make_package(tmp_path, "helper", depends=depends, info={"run_exports.json": {"weak": ["helper >=1"]}})
    channels.reindex(tmp_path)
    document = json.loads((tmp_path / path).read_bytes())
    count = 0
    for text in list_altered(document):
        (tmp_path / path).write_text(text, encoding="utf-8")
        findings = channel_check.check(tmp_path).findings
        if path == "noarch/repodata.json":
            assert findings, text
        with suppress(BadInput):
            channel_data.render(channel_data.read(lambda one: read_if_there(tmp_path / one), "here"))
        count += 1
    assert count > 20


def read_if_there(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def test_an_archive_with_any_value_altered_never_ends_in_a_traceback(tmp_path: Path) -> None:
    made = make_package(
        tmp_path, "helper", depends=["python 3.11.*"], info={"run_exports.json": {"weak": ["helper >=1"]}}
    )
    channels.reindex(tmp_path)
    about = {"summary": "x", "extra": {"simd": "avx2", "cuda_arch_list": "7.5;8.6"}}
    paths = {"paths": [{"_path": "share/helper.txt", "path_type": "hardlink", "sha256": "0" * 64}], "paths_version": 1}
    documents = {
        "index.json": dict(made.index),
        "about.json": about,
        "paths.json": paths,
        "run_exports.json": {"weak": ["x"]},
    }
    for name, document in documents.items():
        for text in list_altered(document):
            make_package(tmp_path, "helper", info={name: json.loads(text)})
            assert channel_check.check(tmp_path).findings, (name, text)
            with suppress(DswinError):
                channels.reindex(tmp_path)
                assert not channel_check.check(tmp_path).findings or name in ("index.json", "paths.json"), (name, text)
                [record] = channels.list_records(tmp_path).values()
                sbom.make(made.path, record)


def write_sums(channel: Path) -> Path:
    """By other means than the code under test."""
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(channel).as_posix()}\n"
        for file in channel.rglob("*")
        if file.is_file()
    ]
    (channel / "SHA256SUMS").write_text("".join(lines), encoding="utf-8", newline="\n")
    return channel / "SHA256SUMS"


def test_a_name_with_other_bytes_than_were_published_is_found(channel: Path, tmp_path: Path) -> None:
    published = write_sums(channel).rename(tmp_path / "sums of the last release")
    make_package(channel, "helper", files={"share/helper.txt": b"other"})
    channels.reindex(channel)
    assert check(channel, previous=published) == [("replaced", HELPER)]
    assert check(channel) == []
    with pytest.raises(BadInput, match="cannot be read"):
        channel_check.check(channel, previous=tmp_path / "nowhere")


def test_files_that_are_not_what_the_list_of_sums_says_are_found(channel: Path) -> None:
    write_sums(channel)
    assert check(channel) == []
    (channel / "index.html").write_text("defaced")
    (channel / "extra.txt").write_text("new")
    (channel / "packages.json").unlink()
    found = [("sums", "extra.txt"), ("sums", "index.html"), ("sums", "packages.json")]
    assert check(channel) == [("document", "packages.json"), *found]
    (channel / "SHA256SUMS").write_bytes(b"\xff no sum\n")
    assert check(channel) == [("document", "SHA256SUMS"), ("document", "packages.json")]


def test_indexing_renews_the_sums_and_refuses_a_replaced_name(channel: Path) -> None:
    write_sums(channel)
    make_package(channel, "more")
    assert main(["channel", "index", str(channel)]) == 0
    assert check(channel) == []
    make_package(channel, "helper", files={"share/helper.txt": b"other"})
    assert main(["channel", "index", str(channel)]) == 1
    assert ("replaced", HELPER) in check(channel)


def test_a_newest_version_with_fewer_variants_is_found(tmp_path: Path) -> None:
    channel = tmp_path / "channel"
    for variant in ("cpu", "cuda121"):
        for python in ("3.10", "3.11"):
            make_variant(channel, variant, "0.19.8", python)
    make_variant(channel, "cuda121", "0.19.8", "3.11", "linux-64")
    make_variant(channel, "cuda121", "0.19.10", "3.11", "linux-64")
    make_variant(channel, "cpu", "0.19.10", "3.10")
    make_variant(channel, "cpu", "0.19.10", "3.11")
    make_variant(channel, "cuda121", "0.19.10", "3.11")
    channels.reindex(channel)
    [finding] = channel_check.check(channel).findings
    assert (finding.kind, finding.place) == ("incomplete", "win-64/deepspeed-win 0.19.10")
    assert "0.19.8 has cuda121 for Python 3.10, and 0.19.10 has not" in finding.detail
    assert check(channel, allow_incomplete=True) == []
    make_variant(channel, "cuda121", "0.19.10", "3.10")
    channels.reindex(channel)
    assert check(channel) == []


def make_rest(folder: Path, *torches: str) -> str:
    """A channel with Python and builds of torch, and its url."""
    make_package(folder, "python", "3.11.7", subdir="win-64")
    for build in torches:
        make_package(folder, "pytorch", "2.5.1", build, subdir="win-64")
    channels.reindex(folder)
    return to_url(folder)


def test_a_package_whose_requirements_nobody_has_is_found(channel: Path, tmp_path: Path) -> None:
    done = channel_check.check(channel, deps=[make_rest(tmp_path / "rest", "cuda12.1_0")])
    [finding] = done.findings
    assert (finding.kind, finding.place) == ("unsolvable", CPU)
    assert "pytorch 2.5.* *cpu*" in finding.detail
    assert done.notes == ()
    done = channel_check.check(channel, deps=[make_rest(tmp_path / "more", "cuda12.1_0", "py3.11_cpu_0")])
    assert (done.findings, done.notes) == ((), ())


def test_a_cuda_build_is_solved_for_a_machine_with_its_driver(tmp_path: Path) -> None:
    channel = tmp_path / "channel"
    make_variant(channel, "cuda121")
    make_package(channel, "pytorch-cuda", "12.1", subdir="win-64")
    channels.reindex(channel)
    assert check(channel, deps=[make_rest(tmp_path / "rest", "py3.11_cuda12.1_cudnn9_0")]) == []


def test_package_records_do_in_place_of_channels(channel: Path, tmp_path: Path) -> None:
    def write(folder: Path, build: str) -> str:
        folder.mkdir()
        lines = [
            {"channel": name, "subdir": "win-64", "fn": f"{package}-{version}-{text}.conda", "name": package,
             "version": version, "build": text, "depends": [], "timestamp": 1_700_000_000_000, "source": "a test"}
            for name, package, version, text in (
                ("conda-forge", "python", "3.11.7", "0"), ("conda-forge", "pytorch", "2.5.1", build))
        ]  # fmt: skip
        (folder / "records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        return str(folder)

    assert check(channel, deps=[write(tmp_path / "good", "py3.11_cpu_0")]) == []
    assert check(channel, deps=[write(tmp_path / "bad", "py3.11_cuda_0")]) == [("unsolvable", CPU)]


def test_a_channel_that_does_not_answer_is_an_error_without_its_secret(channel: Path) -> None:
    with pytest.raises(MachineLacks, match="nowhere") as error:
        channel_check.check(channel, deps=["file:///nowhere/t/secret/channel"])
    assert "secret" not in error.value.what + error.value.fix


@pytest.mark.parametrize("dep", ["https://[::1", "\udcff\udcfe", "https://u:secret@[x"])
def test_a_channel_by_no_name_is_bad_input(channel: Path, dep: str) -> None:
    with pytest.raises(BadInput, match="names no channel") as caught:
        channel_check.check(channel, deps=[dep])
    assert "secret" not in str(caught.value)


def test_each_variant_is_solved_with_the_channels_that_its_install_line_names(tmp_path: Path) -> None:
    channel, rest = tmp_path / "channel", tmp_path / "rest"
    make_variant(channel, "cuda121")
    make_variant(channel, "cuda130")
    channels.reindex(channel)
    for name, version, build in (("pytorch", "2.5.1", "py3.11_cuda12.1_0"), ("conda-forge", "2.10.0", "cuda130_0")):
        make_package(rest / name, "pytorch", version, build, subdir="win-64")
    make_package(rest / "nvidia", "pytorch-cuda", "12.1", subdir="win-64")
    make_package(rest / "conda-forge", "cuda-version", "13.0")
    make_package(rest / "conda-forge", "python", "3.11.7", subdir="win-64")
    names = ("pytorch", "nvidia", "conda-forge")
    # With pytorch in front, a solver that keeps to the order does not see conda-forge's torch.
    assert check(channel, deps=[to_url(channels.reindex(rest / name) and rest / name) for name in names]) == []
    (rest / "conda-forge" / "noarch" / "cuda-version-13.0-0.conda").unlink()
    channels.reindex(rest / "conda-forge")
    found = check(channel, deps=[to_url(rest / name) for name in names])
    assert found == [("unsolvable", "win-64/deepspeed-win-0.19.8-cuda130_py311_0.conda")]


def test_a_channel_with_torch_in_it_is_solved_by_itself(tmp_path: Path) -> None:
    make_variant(tmp_path)
    make_package(tmp_path, "pytorch", "2.5.1", "py3.11_cpu_0", subdir="win-64")
    channels.reindex(tmp_path)
    done = channel_check.check(tmp_path)
    assert [(one.kind, one.place, done.notes) for one in done.findings] == [("unsolvable", CPU, ())]
    make_package(tmp_path, "python", "3.11.7", subdir="win-64")
    channels.reindex(tmp_path)
    assert channel_check.check(tmp_path).findings == ()


def test_the_command_line(channel: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["channel", "check", str(channel)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    change_record(channel, CPU, size=1)
    assert main(["channel", "check", str(channel)]) == 1
    assert f"metadata: {CPU}: repodata have size 1" in capsys.readouterr().out
    assert main(["channel", "check", str(channel), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], [Finding(**one).place for one in document["findings"]]) == (False, [CPU])
    assert main(["channel", "check", str(channel.parent)]) == 2
