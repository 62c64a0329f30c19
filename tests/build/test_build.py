"""`dswin build` on this machine: DeepSpeed's real source compiled, packaged, tested, indexed, installed and training."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

from conda_package_streaming.package_streaming import stream_conda_component

from building import PYTHON, ROOT, Build, build, run_dswin
from dswin import channel, ops
from dswin.digests import hash_file
from training import train

TAG = PYTHON.replace(".", "")


def test_the_package_is_in_the_channel_and_indexed(built: Build) -> None:
    assert built.package == built.out / "linux-64" / f"deepspeed-win-0.19.8-cpu_py{TAG}_0.conda"
    repodata = json.loads((built.out / "linux-64" / "repodata.json").read_text())
    assert list(repodata["packages.conda"]) == [built.package.name]
    for file in ("noarch/repodata.json", "linux-64/repodata.json.zst", "linux-64/run_exports.json"):
        assert (built.out / file).is_file(), file
    assert [p.name for p in built.out.parent.iterdir() if p.name.startswith(".channel-")] == []


def test_the_metadata_pins_torch_and_python(built: Build) -> None:
    [record] = channel.list_packages(built.out, "deepspeed-win")
    depends = set(record["depends"])
    major, minor = map(int, PYTHON.split("."))
    assert {"pytorch 2.13.* *cpu*", f"python >={PYTHON},<{major}.{minor + 1}.0a0"} <= depends
    assert {"libstdcxx >=12", "libgcc >=12", "__glibc >=2.28,<3.0.a0"} <= depends
    assert not [spec for spec in depends if spec.startswith("__cuda")]
    assert record["constrains"] == ["deepspeed <0.0a0"]
    assert record["build_number"] == 0


def test_no_path_of_this_machine_is_in_what_is_installed(built: Build) -> None:
    paths = json.loads(channel.read_info(built.package, ["info/paths.json"])["info/paths.json"])["paths"]
    rewritten = {path["_path"] for path in paths if path.get("prefix_placeholder")}
    named = set()
    for tar, member in stream_conda_component(str(built.package), component="pkg"):
        if member.isfile() and str(ROOT).encode() in tar.extractfile(member).read():
            named.add(member.name)
    # The installer puts the user's own prefix in these; no op is among them.
    assert named <= rewritten
    assert rewritten
    assert all(path.startswith("bin/") for path in rewritten)


def test_the_optimizers_hold_avx2_and_openmp_and_nothing_else(built: Build) -> None:
    found = {op["op"]: op for op in built.ops}
    expected = {op.name for op in ops.read(ROOT / "recipe") if op.is_built("linux-64", "cpu")}
    assert {name.removesuffix("_op") for name in found} == expected
    for name in ("cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam"):
        op = found[name]
        assert op["simd"]["ymm"] > 100, name
        assert op["simd"]["zmm"] == 0, name
        assert op["simd"]["evex"] == 0, name
        assert op["openmp"] == "gomp", name
    assert [name for name, op in found.items() if op["debug_info"]] == []


def test_the_package_is_small(built: Build) -> None:
    # With upstream's debug information the ops alone take most of 17.6 MiB. What is left is Python and op sources.
    assert sum(op["size"] for op in built.ops) < 2 * 2**20
    assert built.package.stat().st_size < 5 * 2**20


def test_the_wheel_asks_for_the_torch_it_was_built_with(built: Build) -> None:
    assert built.wheel.parent == built.out / "wheels" / f"cpu_py{TAG}_0"
    with zipfile.ZipFile(built.wheel) as wheel:
        [metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        text = wheel.read(metadata).decode()
    assert "Requires-Dist: torch==2.13.*" in text
    assert "Requires-Dist: ninja" not in text


def test_an_environment_from_the_channel_trains(prefix: Path, tmp_path: Path) -> None:
    train(prefix, tmp_path)


def test_pip_is_content_with_the_environment(prefix: Path) -> None:
    done = subprocess.run(
        [prefix / "bin" / "python", "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_pip_sees_deepspeed_and_would_not_replace_it(prefix: Path) -> None:
    code = (
        "import importlib.metadata as m; print(m.version('deepspeed')); import deepspeed; print(deepspeed.__version__)"
    )
    done = subprocess.run([prefix / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "0.19.8"
    assert done.stdout.split()[-1] == "0.19.8"


def test_a_required_gpu_that_is_not_there_fails_the_package(built: Build) -> None:
    before = sorted(p.relative_to(built.out) for p in built.out.rglob("*"))
    done = run_dswin("build", "--variant", "cpu", "--out", str(built.out), "--require-gpu")
    assert done.returncode == 1
    assert "a GPU is required and cannot be used" in done.stderr
    assert sorted(p.relative_to(built.out) for p in built.out.rglob("*")) == before


def test_a_second_build_is_the_same_files(built: Build, tmp_path: Path) -> None:
    again = build(tmp_path / "another channel")
    for one, other in ((built.package, again.package), (built.wheel, again.wheel)):
        assert one != other
        assert hash_file(one) == hash_file(other), one.name


def test_a_build_number_that_is_taken_is_refused_at_once(built: Build) -> None:
    done = run_dswin("build", "--variant", "cpu", "--out", str(built.out), "--build-number", "0")
    assert done.returncode == 2
    assert "never replaced" in done.stderr
