"""Each rule finds what it is for, and nothing in a lock that has nothing wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dswin import lock_check
from dswin.errors import BadInput
from dswin.lock_check import Finding
from locking import FORGE, SOURCE, Alter, add, make_entry, on_metadata, on_package, write


def check(tmp_path: Path, *alter: Alter, **options: Any) -> list[Finding]:
    return lock_check.check(write(tmp_path, *alter), **options)


def custom(**words: str) -> Alter:
    """More words in custom_metadata; a double underscore stands for a dot."""
    return lambda document: document["metadata"]["custom_metadata"].update(
        {name.replace("__", "."): text for name, text in words.items()}
    )


def set_depends(number: int, **depends: str) -> Alter:
    return lambda document: document["package"][number]["dependencies"].update(depends)


def test_nothing_is_found_in_a_good_lock(tmp_path: Path) -> None:
    assert check(tmp_path) == []


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not there"):
        lock_check.check(tmp_path / "not.conda-lock.yml")
    with pytest.raises(BadInput, match="holds no package records"):
        check(tmp_path, snapshot=tmp_path)


@pytest.mark.parametrize("hashes", [{"md5": "0" * 31}, {"md5": "0" * 32, "sha256": "x"}, {}, None])
def test_a_bad_hash_is_one_finding(tmp_path: Path, hashes: object) -> None:
    [found] = check(tmp_path, on_package(1, hash=hashes))
    assert (found.rule, found.severity) == ("readable", "error")
    assert "python" in found.text


# fresh


@pytest.mark.parametrize(
    "source",
    [SOURCE + "# another comment\n", SOURCE.replace("channels: [", "name: other\nchannels: [")],
    ids=["comment", "name"],
)
def test_what_conda_lock_does_not_hash_makes_no_lock_stale(tmp_path: Path, source: str) -> None:
    path = write(tmp_path)
    (tmp_path / "environment.yaml").write_text(source, encoding="utf-8")
    assert lock_check.check(path) == []


@pytest.mark.parametrize(
    "source",
    [SOURCE.replace("numpy", "numpy >=2"), SOURCE.replace("[conda-forge", "[nvidia, conda-forge")],
    ids=["spec", "channel"],
)
def test_changed_sources_make_a_lock_stale(tmp_path: Path, source: str) -> None:
    path = write(tmp_path)
    (tmp_path / "environment.yaml").write_text(source, encoding="utf-8")
    [found] = [one for one in lock_check.check(path) if one.rule == "fresh"]
    assert found.severity == "error"
    assert "the sources have changed since it was made for win-64" in found.text


@pytest.mark.parametrize("content_hash", [{}, {"win-64": "0" * 64}, {"linux-64": "0" * 64}])
def test_another_content_hash_is_stale(tmp_path: Path, content_hash: dict) -> None:
    assert [one.rule for one in check(tmp_path, on_metadata(content_hash=content_hash))] == ["fresh"]


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "environment.yaml").write_text("dependencies: 7", encoding="utf-8")
    [found] = lock_check.check(path)
    assert (found.rule, "environment.yaml" in found.text) == ("fresh", True)
    (tmp_path / "environment.yaml").unlink()
    [found] = lock_check.check(path)
    assert "environment.yaml, a source of the lock, is not there" in found.text
    [found] = check(tmp_path, on_metadata(sources=["a" * 5000]))
    assert "a source of the lock, is not there" in found.text
    [found] = check(tmp_path, on_metadata(sources=[]))
    assert (found.rule, "names no sources" in found.text) == ("fresh", True)


# complete


@pytest.mark.parametrize(
    ("alter", "package", "said"),
    [
        (lambda d: d["package"].pop(2), "numpy", "numpy (win-64) requires tzdata, which is not in the lock"),
        (set_depends(0, python="3.12.*"), "numpy", "numpy (win-64) requires python 3.12.* and has 3.11.9"),
        (set_depends(0, python=">=3.12|<3.11"), "numpy", "requires python >=3.12|<3.11 and has 3.11.9"),
        (set_depends(0, tzdata="2026b"), "numpy", "requires tzdata 2026b and has 2026c"),
        (set_depends(0, __cuda=">=13"), "numpy", "requires __cuda >=13 and has 12.1"),
        (set_depends(0, __glibc=""), "numpy", "requires __glibc, which the machine is not taken to have"),
        (set_depends(0, python=">=="), "numpy", "which cannot be compared"),
        (on_package(1, version="1..2", url=f"{FORGE}/win-64/python-1..2-0.conda"), "numpy", "which cannot be compared"),
        (lambda d: d["package"].pop(0), None, "the sources ask for numpy, which is not in the lock (win-64)"),
        (
            on_package(1, version="3.10.9", url=f"{FORGE}/win-64/python-3.10.9-0.conda"),
            None,
            "the sources ask for python 3.11.*, and the lock has python 3.10.9 0 (win-64)",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, alter: Alter, package: str | None, said: str) -> None:
    [one] = [one for one in check(tmp_path, alter) if said in one.text]
    assert (one.rule, one.severity, one.package) == ("complete", "error", package)


@pytest.mark.parametrize(
    "spec", ["", "*", "3.11.9", "==3.11.9", "3.11.*", "=3.11", ">=3.10,<3.12.0a0", "(<3|>3.10),!=3.11.8", "~=3.11.0"]
)
def test_conda_version_specs_are_understood(tmp_path: Path, spec: str) -> None:
    assert check(tmp_path, set_depends(0, python=spec)) == []


def test_epochs_are_compared(tmp_path: Path) -> None:
    later = on_package(2, version="1!2.0", url=f"{FORGE}/noarch/tzdata-1!2.0-0.conda")
    assert check(tmp_path, later, set_depends(0, tzdata=">=2026a")) == []
    assert len(check(tmp_path, later, set_depends(0, tzdata="<2026a"))) == 1


def test_a_lock_that_takes_nothing_for_granted_is_not_asked_for_virtual_packages(tmp_path: Path) -> None:
    assert check(tmp_path, on_metadata(custom_metadata=None), set_depends(0, __glibc=">=9")) == []


# urls and secrets


def test_a_mirrors_url_is_flagged_with_the_canonical_one(tmp_path: Path) -> None:
    url = "https://mirror.example/anaconda/cloud/conda-forge/win-64/python-3.11.9-h1_0_cpython.conda"
    [found] = check(tmp_path, on_package(1, url=url))
    assert (found.rule, found.severity, found.package) == ("urls", "error", "python")
    assert "python is from https://mirror.example/anaconda/cloud/conda-forge, a mirror of conda-forge" in found.text
    assert FORGE in found.fix


@pytest.mark.parametrize(
    "base",
    [
        "https://evil.example/c",
        "https://conda.anaconda.org/conda-forge/../evil",
        "http://conda.anaconda.org/conda-forge2",
    ],
)
def test_a_channel_that_the_lock_does_not_name_is_flagged(tmp_path: Path, base: str) -> None:
    [found] = check(tmp_path, *(on_package(n, url=f"{base}/win-64/{f}.conda") for n, f in
                                enumerate(["numpy-2.4.6-py311_0", "python-3.11.9-h1_0_cpython"])))  # fmt: skip
    assert (found.rule, found.severity) == ("urls", "error")
    assert f"numpy and 1 more are from {base}, which is no channel of the lock" in found.text


@pytest.mark.parametrize(
    ("channel", "base"),
    [
        ("nvidia/label/cuda-12.1.0", "https://conda.anaconda.org/nvidia/label/cuda-12.1.0"),
        ("https://host.example/c/", "https://host.example/c"),
        ("file://${PLACE}/a%20b", "file://$PLACE/a%20b"),
        ("file://server/share/c", "file://server/share/c"),
        ("https://$ME:$WORD@host.example/t/${TOKEN}/c", "https://${ME}:${WORD}@host.example/t/${TOKEN}/c"),
        ("defaults", "https://repo.anaconda.com/pkgs/main"),
        ("pkgs/msys2", "https://repo.anaconda.com/pkgs/msys2"),
    ],
)
def test_the_channels_that_the_lock_names_are_canonical(tmp_path: Path, channel: str, base: str) -> None:
    def alter(document: dict[str, Any]) -> None:
        document["metadata"]["channels"].append({"url": channel, "used_env_vars": []})
        document["package"][2]["url"] = f"{base}/noarch/tzdata-2026c-pyh_0.conda"

    assert check(tmp_path, alter) == []


@pytest.mark.parametrize(
    ("base", "secret"),
    [
        ("https://me:s3cret@host.example/c", "s3cret"),
        ("https://s3cret@host.example/c", "s3cret"),
        ("https://host.example/t/tk-s3cret/c", "s3cret"),
    ],
)
def test_a_secret_is_flagged_and_not_repeated(tmp_path: Path, base: str, secret: str) -> None:
    in_url = check(tmp_path, on_package(2, url=f"{base}/noarch/tzdata-2026c-pyh_0.conda"))
    assert {one.rule for one in in_url} == {"urls", "secrets"}
    in_channel = check(tmp_path, on_metadata(channels=["conda-forge", base]))
    assert [(one.rule, one.severity) for one in in_channel] == [("secrets", "error")]
    for one in (*in_url, *in_channel):
        assert secret not in one.text + one.fix


def test_a_folder_of_this_machine_is_a_warning(tmp_path: Path) -> None:
    [found] = check(tmp_path, on_metadata(channels=["conda-forge", "file:///home/me/channel"]))
    assert (found.rule, found.severity) == ("local", "warning")


# what is known of packages


def test_md5_only_is_a_warning_unless_the_lock_says_so(tmp_path: Path) -> None:
    bare = on_package(1, hash={"md5": "0" * 32})
    [found] = check(tmp_path, bare)
    assert (found.rule, found.severity, found.package) == ("sha256", "warning", "python")
    assert check(tmp_path, bare, custom(md5_only="no sha256 is known of pip, python")) == []
    assert len(check(tmp_path, bare, custom(md5_only="no sha256 is known of python-dateutil, ipython"))) == 1


def write_record(folder: Path, **fields: object) -> Path:
    """A snapshot that knows tzdata."""
    record = {
        "channel": "conda-forge",
        "subdir": "noarch",
        "fn": "tzdata-2026c-pyh_0.conda",
        "name": "tzdata",
        "version": "2026c",
        "build": "pyh_0",
        "md5": f"{6:032x}",
        "sha256": f"{6:064x}",
        "depends": [],
        **fields,
    }
    folder.mkdir()
    (folder / "records.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return folder


def test_inferred_records_are_a_warning_unless_the_lock_says_so(tmp_path: Path) -> None:
    assert check(tmp_path, snapshot=write_record(tmp_path / "seen")) == []
    doubtful = write_record(tmp_path / "doubtful", fn_doubtful=True)
    [found] = check(tmp_path, snapshot=doubtful)
    assert (found.rule, found.severity, found.package) == ("inferred", "warning", "tzdata")
    assert check(tmp_path, custom(inferred__tzdata="it was"), snapshot=doubtful) == []


@pytest.mark.parametrize(("kind", "length"), [("md5", 32), ("sha256", 64)])
def test_a_hash_that_the_records_do_not_have_is_an_error(tmp_path: Path, kind: str, length: int) -> None:
    [found] = check(tmp_path, snapshot=write_record(tmp_path / "other", **{kind: "f" * length}))
    assert (found.rule, found.severity, found.package) == ("records", "error", "tzdata")
    assert f"{kind} {6:0{length}x}, and the records have {'f' * length}" in found.text


def test_the_reference_blas_is_a_warning_unless_the_lock_says_why(tmp_path: Path) -> None:
    blas = add(make_entry("libblas", "3.9.0", "1_h8933c1f_netlib"), make_entry("libcblas", "3.9.0", "35_h2a3cdd5_mkl"))
    [found] = check(tmp_path, blas)
    assert (found.rule, found.severity, found.package) == ("blas", "warning", "libblas")
    assert check(tmp_path, blas, custom(note__blas="because")) == []


# CUDA


CUDA_121 = (
    make_entry("pytorch-cuda", "12.1", "hde6ce7c_6"),
    make_entry("pytorch", "2.5.1", "py3.11_cuda12.1_cudnn9_0"),
    make_entry("cuda-cudart", "12.1.105"),
    make_entry("cuda-libraries-dev", "12.1.0"),
    make_entry("libcublas", "12.1.0.26"),
    make_entry("libcublas-dev", "12.1.0.26"),
    make_entry("libcusparse", "12.0.2.55"),
    make_entry("libcurand-dev", "10.3.2.56"),
    make_entry("libnvjitlink", "12.1.105"),
    make_entry("libnvjpeg", "12.1.1.14"),
    make_entry("cuda-python", "13.0.1"),
)


def test_one_cuda_is_no_finding(tmp_path: Path) -> None:
    assert check(tmp_path, add(*CUDA_121)) == []


@pytest.mark.parametrize(
    ("name", "version", "build"),
    [
        ("cuda-nvcc", "12.4.99", "0"),
        ("cuda-nvcc", "13.0.88", "0"),
        ("cuda-version", "12.9", "0"),
        ("cuda-opencl", "12.3.101", "0"),
        ("libcurand", "10.3.10.19", "0"),
        ("libcusolver", "11.6.1.9", "0"),
        ("libnvjitlink-dev", "12.4.127", "0"),
        ("cudatoolkit", "11.8.0", "0"),
    ],
)
def test_a_package_of_another_cuda_is_an_error(tmp_path: Path, name: str, version: str, build: str) -> None:
    [found] = check(tmp_path, add(*CUDA_121, make_entry(name, version, build)))
    assert (found.rule, found.severity, found.package) == ("cuda", "error", name)
    assert f"{name} {version} {build} (win-64) is not of CUDA 12.1" in found.text


def test_a_torch_of_another_cuda_is_an_error(tmp_path: Path) -> None:
    packages = [CUDA_121[0], make_entry("pytorch", "2.5.1", "py3.11_cuda12.4_cudnn9_0")]
    assert [one.package for one in check(tmp_path, add(*packages))] == ["pytorch"]
    forge = [make_entry("pytorch", "2.10.0", "cuda130_mkl_py311_h1_300"), make_entry("cuda-cudart", "12.8.90")]
    assert [one.package for one in check(tmp_path, add(*forge, make_entry("cuda-version", "13.0")))] == ["cuda-cudart"]


def test_opencl_may_differ_where_the_note_says_so(tmp_path: Path) -> None:
    opencl = add(*CUDA_121, make_entry("cuda-opencl", "12.3.101"))
    assert check(tmp_path, opencl, custom(note__cuda="All is 12.1 but cuda-opencl, which torch does not use.")) == []
    assert len(check(tmp_path, opencl, custom(note__cuda="All is 12.1 but cuda-opencl-dev."))) == 1
    other = add(*CUDA_121, make_entry("cuda-nvcc", "12.4.99"))
    assert len(check(tmp_path, other, custom(note__cuda="cuda-nvcc is of 12.4"))) == 1


@pytest.mark.parametrize(
    ("build", "cuda"),
    [
        ("py3.11_cuda12.1_cudnn9_0", "12.1"),
        ("cuda130_mkl_py311_h1_300", "13.0"),
        ("cuda126_py310_1", "12.6"),
        ("cpu_mkl_py311_1", None),
    ],
)
def test_the_cuda_of_a_torch_is_told_from_its_build(tmp_path: Path, build: str, cuda: str | None) -> None:
    [torch] = [one for one in lock_check.lock.read(write(tmp_path, add(make_entry("pytorch", "2.5.1", build)))).packages
               if one.name == "pytorch"]  # fmt: skip
    assert lock_check.tell_cuda({"pytorch": torch}) == cuda


def test_every_rule_is_explained() -> None:
    for name, rule in lock_check.RULES.items():
        assert rule.__doc__, name
