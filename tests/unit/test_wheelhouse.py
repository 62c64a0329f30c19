"""Wheels into conda packages, and the cache of channels made of them. No network: the wheels are made here."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from threading import Event, Thread

import pytest
from packaging.requirements import Requirement

from dswin import interpreter, shims, wheelhouse
from dswin.errors import BadInput, MachineLacks
from dswin.wheels import Source, convert_wheel, write_as_match, write_package
from packages import read_json, read_package


def make_wheel(folder: Path, name: str, *, metadata: str = "", files: dict[str, str] | None = None) -> Path:
    """A wheel with the file name *name*; its project and version come from there."""
    project, version = name.split("-")[:2]
    dist_info = f"{project}-{version}.dist-info"
    content = {
        f"{project}/__init__.py": "",
        **(files or {}),
        f"{dist_info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n{metadata}",
        f"{dist_info}/WHEEL": "Wheel-Version: 1.0\n",
    }
    content[f"{dist_info}/RECORD"] = "".join(f"{path},sha256=x,1\n" for path in content)
    wheel = folder / name
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o755 if ".data/scripts" in path else 0o644) << 16
            archive.writestr(entry, text)
    return wheel


def convert(wheel: Path, *, platform: str = "linux-64") -> Path:
    return convert_wheel(wheel, wheel.parent / "out", platform=platform, python="3.11", digest="0123456789abcdef")


@pytest.mark.parametrize(
    ("requirement", "match"),
    [
        ("torch==2.13.*", "pytorch 2.13.*"),
        ("torch==2.13.0+cpu", "pytorch ==2.13.0"),
        ("typing-extensions>=4.10", "typing_extensions >=4.10"),
        ("Typing_Extensions", "typing_extensions"),
        ("msgpack", "msgpack-python"),
        ("annotated_types~=0.6", "annotated-types ~=0.6"),
        ("numpy<3,>=1.26,!=2.0.*", "numpy !=2.0.*,<3,>=1.26"),
    ],
)
def test_requirement_in_condas_words(requirement: str, match: str) -> None:
    assert write_as_match(Requirement(requirement)) == match


def test_pure_wheel_is_noarch_with_its_commands(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "hjson-3.1.0-py3-none-any.whl",
        metadata="Requires-Python: >=3.9\nRequires-Dist: msgpack>=1\nRequires-Dist: pytest; extra == 'test'\n",
        files={
            "hjson-3.1.0.dist-info/entry_points.txt": "[console_scripts]\nHjson = hjson.tool:main\n[other]\na = b\n"
        },
    )
    package = convert(wheel)
    assert package.relative_to(tmp_path / "out").as_posix() == "noarch/hjson-py-3.1.0-pyh0123456_0.conda"
    index = read_json(package, "index.json")
    assert (index["noarch"], index["subdir"]) == ("python", "noarch")
    assert index["depends"] == ["msgpack-python >=1", "python >=3.9"]
    assert read_json(package, "link.json")["noarch"]["entry_points"] == ["Hjson = hjson.tool:main"]


def test_compiled_wheel_is_pinned_and_keeps_its_metadata(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "psutil-7.2.2-cp36-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl",
        metadata="Requires-Python: >=3.6\nRequires-Dist: einops>=0.8\n",
    )
    package = convert(wheel)
    assert package.parent.name == "linux-64"
    assert read_json(package, "index.json")["depends"] == [
        "__glibc >=2.17,<3.0.a0",
        "einops >=0.8",
        "python >=3.11,<3.12.0a0",
        "python_abi 3.11.* *_cp311",
    ]
    assert b"Requires-Dist: einops>=0.8" in read_package(package)["site-packages/psutil-7.2.2.dist-info/METADATA"]


def test_cpu_torch_has_no_local_version_and_no_test_programs(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        files={
            "torch/test/atest": "x",
            "torch/bin/test_api": "x",
            "torch/bin/TCPStoreTest": "x",
            "torch/bin/protoc-3.13.0.0": "x",
            "torch/bin/torch_shm_manager": "x",
            "torch/lib/libtorch.so": "x",
            "torch/include/torch/extension.h": "x",
            "torch/testing/__init__.py": "",
        },
    )
    package = convert(wheel)
    assert package.name == "pytorch-2.13.0-cpu_py311_h0123456_0.conda"
    files = read_package(package)
    modules = {path.removeprefix("site-packages/torch/") for path in files if path.startswith("site-packages/torch/")}
    assert modules == {
        "__init__.py",
        "bin/torch_shm_manager",
        "lib/libtorch.so",
        "include/torch/extension.h",
        "testing/__init__.py",
    }
    assert b"test_api" not in files["site-packages/torch-2.13.0+cpu.dist-info/RECORD"]


@pytest.mark.parametrize(
    ("platform", "tag", "folder"),
    [("linux-64", "manylinux_2_17_x86_64", "bin"), ("win-64", "win_amd64", "Scripts")],
)
def test_data_of_a_wheel_goes_where_it_runs(tmp_path: Path, platform: str, tag: str, folder: str) -> None:
    wheel = make_wheel(
        tmp_path,
        f"ninja-1.13.2-py3-none-{tag}.whl",
        files={
            "ninja-1.13.2.data/scripts/ninja": "\x7fELF",
            "ninja-1.13.2.data/scripts/tool": "#!python\nprint()\n",
            "ninja-1.13.2.data/data/share/doc": "x",
            "ninja-1.13.2.data/platlib/extra.py": "x",
        },
    )
    package = convert(wheel, platform=platform)
    assert package.parent.name == platform
    files = read_package(package)
    assert f"{folder}/ninja" in files
    assert files["python-scripts/tool"].startswith(b"#!/usr/bin/env python\n")
    assert {"share/doc", "site-packages/extra.py"} <= set(files)


def test_markers_are_the_targets(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "tqdm-4.70.1-py3-none-any.whl",
        metadata='Requires-Dist: colorama; platform_system == "Windows"\nRequires-Dist: old; python_version < "3.11"\n',
    )
    assert read_json(convert(wheel, platform="win-64"), "index.json")["depends"] == ["colorama", "python"]
    (tmp_path / "out" / "noarch" / "tqdm-4.70.1-pyh0123456_0.conda").unlink()
    assert read_json(convert(wheel, platform="linux-64"), "index.json")["depends"] == ["python"]


def test_paths_json_holds_each_file_with_its_hash(tmp_path: Path) -> None:
    package = convert(make_wheel(tmp_path, "einops-0.8.2-py3-none-any.whl", files={"einops/a.py": "a = 1\n"}))
    files = read_package(package)
    paths = {path["_path"]: path for path in read_json(package, "paths.json")["paths"]}
    assert set(paths) == {path for path in files if not path.startswith("info/")}
    for path, record in paths.items():
        assert record["sha256"] == hashlib.sha256(files[path]).hexdigest()
        assert record["size_in_bytes"] == len(files[path])


@pytest.mark.parametrize("name", ["numpy-2.4.6-cp311-cp311-win_amd64.whl", "numpy-2.4.6-cp310-cp310-linux_x86_64.whl"])
def test_wheel_for_another_target_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"numpy.*cannot be made a conda package for linux-64, Python 3\.11"):
        convert(make_wheel(tmp_path, name))


def test_broken_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "einops-0.8.2-py3-none-any.whl"
    wheel.write_text("not a zip")
    with pytest.raises(BadInput, match="einops"):
        convert(wheel)


# ---- torch for the CPU


@pytest.mark.parametrize(
    ("version", "requires", "refused"),
    [
        ("2.13.0+cpu", ["filelock"], False),
        ("2.13.0+cu130", [], True),
        ("2.12.1", ['nvidia-cublas==13; platform_system == "Linux"'], True),
        ("2.12.1", ['nvidia-cublas==13; platform_system == "Windows"'], False),
        ("2.12.1", ["filelock"], False),
    ],
)
def test_only_a_cpu_build_of_torch_is_taken(version: str, requires: list[str], refused: bool) -> None:
    deps = wheelhouse.Deps("linux-64", "3.11", version.rpartition(".")[0])
    metadata = {"version": version, "requires_dist": requires}
    if refused:
        with pytest.raises(MachineLacks, match="no CPU build of torch"):
            wheelhouse.check_cpu_build(metadata, deps)
    else:
        wheelhouse.check_cpu_build(metadata, deps)


def test_cuda_torch_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def run_pip(arguments: list[str]) -> None:
        calls.append(arguments[0])
        report = Path(arguments[arguments.index("--report") + 1])
        report.write_text(json.dumps({"install": [{"metadata": {"version": "2.12.0+cu130"}}]}))

    monkeypatch.setattr(wheelhouse, "_run_pip", run_pip)
    with pytest.raises(MachineLacks):
        wheelhouse.download_wheels(wheelhouse.Deps("linux-64", "3.11", "2.12"), tmp_path / "wheels", print)
    assert calls == ["install"]


# ---- What pip is asked, and what it answers


def test_requirements_pin_torch_and_what_the_user_pins() -> None:
    deps = wheelhouse.Deps("linux-64", "3.11", "2.13", {"numpy": "1.26.4", "sympy": "<1.14"})
    assert deps.requirements[0] == "torch==2.13.*"
    assert {"numpy==1.26.4", "sympy<1.14", "einops"} <= set(deps.requirements)
    assert "colorama" in wheelhouse.Deps("win-64", "3.11", "2.13").requirements


@pytest.mark.parametrize(("python", "torch"), [("3", "2.13"), ("3.11", "2"), ("3.11", "latest")])
def test_half_a_version_is_refused(python: str, torch: str) -> None:
    with pytest.raises(BadInput):
        wheelhouse.Deps("linux-64", python, torch)


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("ERROR: No matching distribution found for torch==9.9.*", "no wheel for torch==9.9"),
        ("OSError: [Errno 28] No space left on device", "no space left"),
        ("ReadTimeoutError: something", "could not get the wheels"),
    ],
)
def test_pip_failures_say_what_to_do(monkeypatch: pytest.MonkeyPatch, output: str, what: str) -> None:
    result = subprocess.CompletedProcess([], 1, stdout="early line\n" * 50 + output)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: result)
    with pytest.raises(MachineLacks, match=what) as caught:
        wheelhouse._run_pip(["download"])
    assert caught.value.log.endswith(output)
    assert len(caught.value.log.splitlines()) == 20
    assert caught.value.fix


# ---- The cache


class Machine:
    """Stands in for pip and for this machine's own packages, and counts what is made."""

    def __init__(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = source
        self.compiler = "gcc 12.2.0"
        self.made: list[str] = []
        self.downloads = 0
        self.before_download = lambda: None
        self.wheels = ["einops-0.8.2-py3-none-any.whl", "hjson-3.1.0-py3-none-any.whl"]
        monkeypatch.setattr(wheelhouse, "list_local_sources", self.list_local)
        monkeypatch.setattr(wheelhouse, "download_wheels", self.download)

    def list_local(self, _platform: str, _python: str) -> list[Source]:
        return [Source("gcc_linux-64", self.compiler, "packing gcc", self.make_gcc)]

    def make_gcc(self, folder: Path, digest: str) -> Path:
        index = {"name": "gcc_linux-64", "version": "12.0", "build": f"h{digest[:7]}_0", "build_number": 0}
        return write_package(folder, {**index, "subdir": "linux-64", "depends": []}, [], about={})

    def download(self, _deps: wheelhouse.Deps, folder: Path, _progress: object) -> list[Path]:
        self.downloads += 1
        self.before_download()
        folder.mkdir()
        return [make_wheel(folder, name) for name in self.wheels]

    def make_channel(self, root: Path, **changes: object) -> Path:
        self.made = []
        arguments: dict = {"platform": "linux-64", "python": "3.11", "torch": "2.13", **changes}
        return wheelhouse.make_channel(root, progress=self.made.append, **arguments)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def list_packages(channel: Path) -> set[str]:
    found = set()
    for subdir in ("linux-64", "noarch"):
        repodata = json.loads((channel / subdir / "repodata.json").read_text())
        found |= {record["name"] for record in repodata["packages.conda"].values()}
    return found


def test_channel_is_indexed_and_marked(tmp_path: Path, machine: Machine) -> None:
    channel = machine.make_channel(tmp_path / "deps")
    assert channel.name.startswith("torch2.13-py3.11-linux-64-")
    assert list_packages(channel) == {"gcc_linux-64", "einops", "hjson-py"}
    assert "DO NOT PUBLISH" in (channel / wheelhouse.FIXTURE_MARK).read_text()


def test_nothing_is_done_twice(tmp_path: Path, machine: Machine) -> None:
    first = machine.make_channel(tmp_path / "deps")
    assert machine.make_channel(tmp_path / "deps") == first
    assert machine.downloads == 1
    assert machine.made == []


def test_only_what_changed_is_made_again(tmp_path: Path, machine: Machine) -> None:
    first = machine.make_channel(tmp_path / "deps")
    machine.compiler = "gcc 13.1.0"
    second = machine.make_channel(tmp_path / "deps")
    assert second != first
    assert [line for line in machine.made if line.startswith(("packing", "converting"))] == ["packing gcc"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_interrupted_work_leaves_no_channel(tmp_path: Path, machine: Machine, failure: type[BaseException]) -> None:
    def fail() -> None:
        raise failure

    machine.before_download = fail
    with pytest.raises(failure):
        machine.make_channel(tmp_path / "deps")
    assert {path.name for path in (tmp_path / "deps").iterdir()} <= {".lock"}
    machine.before_download = lambda: None
    assert machine.make_channel(tmp_path / "deps").is_dir()


def test_leftovers_of_a_killed_process_go(tmp_path: Path, machine: Machine) -> None:
    left = tmp_path / "deps" / "scratch-killed"
    left.mkdir(parents=True)
    machine.make_channel(tmp_path / "deps")
    assert not left.exists()


def test_full_disk_is_told(tmp_path: Path, machine: Machine) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    machine.before_download = fail
    with pytest.raises(MachineLacks, match="no space left"):
        machine.make_channel(tmp_path / "deps")


def test_second_caller_waits_and_finds_the_work_done(tmp_path: Path, machine: Machine) -> None:
    inside, go = Event(), Event()

    def hold() -> None:
        inside.set()
        assert go.wait(20)

    machine.before_download = hold
    results: list[Path] = []
    lines: list[str] = []
    root = tmp_path / "deps"

    def tell(line: str) -> None:
        lines.append(line)
        go.set()

    def call(progress: object) -> None:
        results.append(
            wheelhouse.make_channel(root, platform="linux-64", python="3.11", torch="2.13", progress=progress)  # type: ignore[arg-type]
        )

    first = Thread(target=call, args=(lambda _: None,))
    first.start()
    assert inside.wait(20)
    second = Thread(target=call, args=(tell,))
    second.start()
    first.join(30)
    second.join(30)
    assert lines == [f"waiting for another process that works in {root}"]
    assert len(results) == 2
    assert results[0] == results[1]
    assert machine.downloads == 1


# ---- What this machine gives of its own


def test_other_platforms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="osx-64"):
        wheelhouse.make_channel(tmp_path, platform="osx-64", python="3.11", torch="2.13")


def test_only_the_running_python_is_repackaged() -> None:
    with pytest.raises(BadInput, match=r"Python 3\.3 is wanted"):
        interpreter.describe_python("3.3")


@pytest.mark.parametrize(
    ("folders", "reason"),
    [
        (["conda-meta"], "conda environment"),
        ([], "no lib/python3.11"),
        (["lib/python3.11"], "dist-packages"),
        (["lib/python3.11/site-packages"], "header files"),
    ],
)
def test_python_that_cannot_move_is_named(tmp_path: Path, folders: list[str], reason: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(MachineLacks, match=reason):
        interpreter.check_movable(tmp_path, "3.11")


def test_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(MachineLacks, match=r"no C\+\+ compiler") as caught:
        shims.describe_gcc("3.11")
    assert "g++" in caught.value.fix


needs_gcc = pytest.mark.skipif(sys.platform != "linux", reason="the gcc shims are for Linux")


@needs_gcc
def test_shims_have_conda_forges_names_and_exports(tmp_path: Path) -> None:
    packages = {p.name: p.make(tmp_path, "0123456789") for p in shims.describe_gcc("3.11")}
    assert set(packages) == {"gcc_linux-64", "gxx_linux-64", "sysroot_linux-64", "libgcc", "libstdcxx"}
    exports = {name: read_json(packages[name], "run_exports.json")["strong"] for name in list(packages)[:3]}
    assert exports == {
        "gcc_linux-64": ["libgcc >=12"],
        "gxx_linux-64": ["libstdcxx >=12", "libgcc >=12"],
        "sysroot_linux-64": ["__glibc >=2.28,<3.0.a0"],
    }
    index = read_json(packages["gxx_linux-64"], "index.json")
    assert index["version"].startswith("12.")
    assert index["build"].startswith("system_gcc_")
    assert "lib/libstdc++.so.6" in read_package(packages["libstdcxx"])


@needs_gcc
def test_activation_sets_and_restores(tmp_path: Path) -> None:
    variables = {
        "CC": "${CONDA_PREFIX}/bin/cc",
        "CFLAGS": "-I${_dswin_prefix}/include${CFLAGS:+ }${CFLAGS:-}",
        "GCC": "g",
    }
    on, off = tmp_path / "on.sh", tmp_path / "off.sh"
    on.write_text(shims.write_activation(variables))
    off.write_text(shims.write_deactivation(variables))
    show = 'echo "${CC-unset}|${CFLAGS-unset}|${GCC-unset}"'
    script = f"set -eu; . {on}; {show}; . {off}; {show}; set | grep -c dswin || true"
    environment = {"PATH": "/usr/bin:/bin", "CONDA_PREFIX": "/env", "CFLAGS": "-O3", "GCC": "mine"}
    for build, prefix in (
        ({}, "/env"),
        ({"CONDA_BUILD": "1", "PREFIX": "/host", "SRC_DIR": "/s", "PKG_NAME": "n", "PKG_VERSION": "1"}, "/host"),
    ):
        result = subprocess.run(
            ["sh", "-c", script], env={**environment, **build}, capture_output=True, text=True, check=True
        )
        assert result.stdout.splitlines() == [f"/env/bin/cc|-I{prefix}/include -O3|g", "unset|-O3|mine", "0"]


def test_python_abi_goes_with_conda_forges_build_strings(tmp_path: Path) -> None:
    package = interpreter.write_python_abi("3.11", tmp_path)
    assert package.name == "python_abi-3.11-8_cp311.conda"
    assert read_json(package, "index.json")["constrains"] == ["python 3.11.* *_cpython"]
