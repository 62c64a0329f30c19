from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from dswin import source
from dswin.errors import BadInput, CheckFailed, MachineLacks

CONTENT = b"an sdist"
SOURCE = source.Source("1.2.3", hashlib.sha256(CONTENT).hexdigest())
RECIPE = Path(__file__).parents[2] / "recipe"


def run_pip(code: int, output: str, content: bytes | None):
    """A stand-in for pip: it writes ``content`` where it was told to, prints ``output`` and ends with ``code``."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if content is not None:
            (Path(command[command.index("--dest") + 1]) / SOURCE.file_name).write_bytes(content)
        return subprocess.CompletedProcess(command, code, stdout=output)

    return run


def test_the_recipe_pins_a_version_and_a_hash() -> None:
    assert source.read(RECIPE).version == "0.19.8"
    assert source.read(RECIPE).sha256.startswith("9e491abd")


def test_a_recipe_without_a_pin_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        source.read(tmp_path)
    (tmp_path / "recipe.yaml").write_text("context: {}\n")
    with pytest.raises(BadInput, match="pins no version"):
        source.read(tmp_path)


def test_pip_brings_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", run_pip(0, "", CONTENT))
    path = source.fetch(SOURCE, tmp_path / "cache", lambda _: None)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == [SOURCE.file_name]
    monkeypatch.setattr(subprocess, "run", run_pip(1, "not asked again", None))
    assert source.fetch(SOURCE, tmp_path / "cache", lambda _: None) == path


def test_another_file_from_the_index_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    monkeypatch.setattr(subprocess, "run", run_pip(1, said, None))
    with pytest.raises(CheckFailed, match="serves another") as caught:
        source.fetch(SOURCE, tmp_path, lambda _: None)
    assert "mirror" in caught.value.fix
    monkeypatch.setattr(subprocess, "run", run_pip(0, "", b"something else"))
    with pytest.raises(CheckFailed, match="is not the source"):
        source.fetch(SOURCE, tmp_path, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_file_in_the_cache_is_refused_and_left(tmp_path: Path) -> None:
    (tmp_path / SOURCE.file_name).write_bytes(b"half of an sd")
    with pytest.raises(CheckFailed, match=SOURCE.sha256):
        source.fetch(SOURCE, tmp_path, lambda _: None)
    assert (tmp_path / SOURCE.file_name).exists()


def test_no_network_says_what_pip_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", run_pip(1, "ERROR: No matching distribution found", None))
    with pytest.raises(MachineLacks) as caught:
        source.fetch(SOURCE, tmp_path, lambda _: None)
    assert "No matching distribution" in caught.value.log
    assert caught.value.exit_code == 3
