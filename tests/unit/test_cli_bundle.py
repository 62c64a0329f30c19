from __future__ import annotations

import json
from pathlib import Path

import pytest

import making
from dswin import cli, cli_bundle, cli_channel
from dswin import lock as locks
from making import make_package


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cli.dswin.commands, "bundle", cli_bundle.bundle)
    monkeypatch.setitem(cli.channel.commands, "mirror", cli_channel.mirror_lock)
    monkeypatch.setattr(cli, "ROOT", tmp_path / "clone")
    monkeypatch.setattr(cli, "CACHE", tmp_path / "clone" / ".dswin")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    home = tmp_path / "upstream"
    made = [
        make_package(home, "deepspeed-win", "0.19.8", "cuda121_0", subdir="win-64", depends=["cuda-cudart"]),
        make_package(
            home, "cuda-cudart", subdir="win-64", index={"license": "LicenseRef-NVIDIA-End-User-License-Agreement"}
        ),
    ]
    return making.lock_of(tmp_path / f"gpu{locks.SUFFIX}", made, making.to_url(home), "win-64")


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    assert cli.main([str(one) for one in arguments]) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.out, said.err


def test_create_check_install(lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "bundle", "create", "--lock", lock)
    file = tmp_path / "gpu-win-64.dswin-bundle.zip"
    assert f"Bundle   {file}" in out
    assert "warning: 1 package under licences of NVIDIA's" in err
    assert "warning: the lock, which is in the bundle, names a folder of this machine" in err
    sha256 = out.split("SHA-256  ")[1].split()[0]
    out, _ = run(capsys, "bundle", "check", file)
    assert f"SHA-256  {sha256}" in out
    assert "2 packages for win-64" in out
    out, _ = run(capsys, "bundle", "install", file, "--prefix", tmp_path / "prefix")
    assert "done, 2 files verified" in out
    out, _ = run(capsys, "bundle", "install", file, "--prefix", tmp_path / "prefix")
    assert "nothing to do, 2 packages" in out


def test_json(lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "it.zip"
    created = json.loads(run(capsys, "bundle", "create", "--lock", lock, "--out", file, "--json")[0])
    checked = json.loads(run(capsys, "bundle", "check", file, "--json")[0])
    assert created["sha256"] == checked["sha256"]
    assert created["packages"] == checked["packages"] == ["cuda-cudart 1.0 0", "deepspeed-win 0.19.8 cuda121_0"]
    assert len(created["warnings"]) == 2
    installed = json.loads(run(capsys, "bundle", "install", file, "--prefix", tmp_path / "prefix", "--json")[0])
    assert installed["done"] is True
    assert installed["prefix"] == str(tmp_path / "prefix")


def test_an_altered_bundle_is_exit_code_1(lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "it.zip"
    run(capsys, "bundle", "create", "--lock", lock, "--out", file)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"deepspeed-win=0.19.8", b"deepspeed-win=0.19.9"))
    for command in (["check", file], ["install", file, "--prefix", tmp_path / "prefix"]):
        _, err = run(capsys, "bundle", *command, code=1)
        assert "packages.txt is altered" in err
        assert "what to do:" in err
    assert not (tmp_path / "prefix").exists()


def test_mirror(lock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "channel", "mirror", lock)
    channel = tmp_path / "clone" / "channel"
    assert f"{channel}: 2 packages added, 0 were there" in out
    assert "licences of NVIDIA's" in err
    assert (channel / "win-64" / "repodata.json").is_file()
    document = json.loads(run(capsys, "channel", "mirror", lock, "--out", channel, "--platform", "win-64", "--json")[0])
    assert document["added"] == []
    assert document["licences"]["win-64/deepspeed-win-0.19.8-cuda121_0.conda"] == "Apache-2.0"
    # The bundle from the mirrored channel, with the channels of the lock gone.
    (tmp_path / "upstream").rename(tmp_path / "gone")
    run(
        capsys,
        "bundle",
        "create",
        "--lock",
        lock,
        "--channel",
        channel,
        "--store",
        tmp_path / "empty",
        "--out",
        tmp_path / "it.zip",
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["bundle", "create"], 2),
        (["bundle", "create", "--lock", "absent.yml"], 2),
        (["bundle", "create", "--lock", "gpu.conda-lock.yml", "--platform", "linux-64"], 2),
        (["bundle", "create", "--lock", "gpu.conda-lock.yml", "--out", "."], 2),
        (["bundle", "create", "--lock", "gpu.conda-lock.yml", "--channel", "absent"], 2),
        (["bundle", "create", "--lock", "gpu.conda-lock.yml", "--mirror", "nowhere"], 2),
        (["bundle", "check", "absent.zip"], 2),
        (["bundle", "check", "."], 2),
        (["bundle", "check", "gpu.conda-lock.yml"], 1),
        (["bundle", "install", "gpu.conda-lock.yml", "--prefix", "p"], 1),
        (["bundle", "install", "gpu.conda-lock.yml"], 2),
        (["channel", "mirror", "absent.yml"], 2),
        (["channel", "mirror", "gpu.conda-lock.yml", "--platform", "osx-64"], 2),
        (["channel", "mirror", "gpu.conda-lock.yml", "--out", "upstream"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_has_its_exit_code(
    lock: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    _, err = run(capsys, *arguments, code=code)
    assert err.strip()


def test_a_lock_for_two_platforms_asks_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = making.to_url(tmp_path / "upstream")
    made = [make_package(tmp_path / "upstream", "tiny")]
    entries = [entry for platform in ("linux-64", "win-64") for entry in making.list_locked(made, url, platform)]
    path = making.write_lock(tmp_path / "both.yml", entries)
    _, err = run(capsys, "bundle", "create", "--lock", path, code=2)
    assert "is for linux-64 and win-64" in err
    run(capsys, "bundle", "create", "--lock", path, "--platform", "linux-64")
    assert (tmp_path / "both-linux-64.dswin-bundle.zip").is_file()
