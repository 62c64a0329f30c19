"""What a Python said before its end, and files full of garbage: no check ever fails itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doctoring import make_prefix, put_deepspeed, put_record, put_torch
from dswin import doctor, installation, torch_probe
from dswin.installation import Installation
from dswin.seen import Seen
from dswin.torch_probe import Probe


@pytest.mark.parametrize(
    ("code", "said", "end"),
    [
        (-11, "Fatal Python error: Segmentation fault\n", "it crashed: SIGSEGV"),
        (0xC0000005, "", "it crashed: access violation (0xC0000005)"),
        (-1073741515, "", "it crashed: a DLL was not found (0xC0000135)"),
        (103, "\nNo Python at 'C:\\Python311'\n\n", "it ended with code 103 and said: No Python at 'C:\\Python311'"),
        (9009, "", "it ended with code 9009 and said: nothing"),
    ],
)
def test_how_a_python_ended(code: int, said: str, end: str) -> None:
    assert torch_probe.name_end(code, said) == end


def test_what_was_said_before_a_crash_is_kept() -> None:
    said = '["version", "3.11.9"]\n["stage", "import torch"]\n["path", ["/a"]]\n["torch", "2.'
    probe = torch_probe.read(said, "it crashed")
    assert (probe.version, probe.stage, probe.path, probe.torch) == ("3.11.9", "import torch", ("/a",), "")
    assert probe.error == "it crashed"
    assert torch_probe.read('["stage", "done"]\n', "it crashed").error == ""


KEYS = st.sampled_from(["version", "cuda_version", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(key=st.sampled_from([*Probe.__dataclass_fields__, "other"]), value=ANYTHING)
def test_any_answer_is_survived(key: str, value: Any) -> None:
    probe = torch_probe.read(json.dumps([key, value]), "")
    assert not [
        one for one in judge(Installation("/p", "--prefix", "/p/bin/python", probe)) if "this check failed" in one
    ]


def judge(installed: Installation) -> list[str]:
    """Return what every check says, which must never be that it failed itself."""
    report = doctor.judge("run", Seen("linux-64", {}, installed))
    json.dumps(report.to_json())
    return [finding.verdict.found for finding in report.findings]


@pytest.fixture(scope="module")
def garbage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("garbage")
    site = prefix / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    put_torch(site)
    put_deepspeed(site)
    put_record(prefix, site)
    return prefix


FILES = (
    "conda-meta/deepspeed-win-0.19.8-cpu_py311_0.json",
    "lib/python3.11/site-packages/torch/version.py",
    "lib/python3.11/site-packages/deepspeed/git_version_info_installed.py",
    "lib/python3.11/site-packages/deepspeed-0.19.8.dist-info/METADATA",
    "lib/python3.11/site-packages/deepspeed-0.19.8.dist-info/INSTALLER",
)
RECORD = b'{"name": "deepspeed-win", "version": "0.19.8", "build": "cpu_py311_0", "paths_data": {"paths": '
WORDS = (
    *(
        b"__version__ = ",
        b"cuda: Optional[str] = ",
        b"'2.5'",
        b"[" * 500,
        b"torch_info=",
        b"{'version': 1}",
        b"\n",
        b"\0",
    ),
    *(
        b"installed_ops={'a': 1}",
        b"accelerator_name=[]",
        b"version=b'x'",
        b"Requires-Dist: ",
        b"numpy >",
        b"; extra == ",
    ),
    *(b"\xff\xfe", b"9" * 5000, RECORD, b'[{"_path": "x"}]', b"}}"),
)
PIECES = st.lists(st.sampled_from(WORDS) | st.binary(max_size=12), max_size=8).map(b"".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(FILES), content=PIECES)
def test_any_file_is_survived(garbage: Path, name: str, content: bytes) -> None:
    file = garbage / name
    before = file.read_bytes()
    try:
        file.write_bytes(content)
        installed = installation.read(garbage, garbage / "bin" / "python", "--prefix", Probe())
        assert not [one for one in judge(installed) if "this check failed" in one]
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_a_files_place(tmp_path: Path, name: str) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    put_torch(site)
    put_deepspeed(site)
    put_record(tmp_path, site)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    installed = installation.read(tmp_path, tmp_path / "bin" / "python", "--prefix", Probe())
    assert not [one for one in judge(installed) if "this check failed" in one]


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_torch(make_prefix(tmp_path))
    open_file = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "version.py":
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    installed = installation.read(tmp_path, None, "--prefix", Probe())
    assert "version.py: Permission denied" in installed.problems[0]
    assert installed.torch is not None
    assert installed.torch.version == ""
