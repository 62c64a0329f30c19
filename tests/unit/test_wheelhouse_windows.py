"""The deps channel for win-64, made on any system of tiny wheels, a tiny Python and an MSVC tree that is only named."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from dswin import interpreter, msvc_shims, redistributables, wheelhouse
from dswin.errors import BadInput
from dswin.wheels import Source, convert_wheel
from dswin.wine.msvc import Msvc
from packages import read_json, read_package


def make_wheel(folder: Path, name: str, *files: str, requires: tuple[str, ...] = ()) -> Path:
    """A wheel with the file name *name*; each of its files holds its own path."""
    project, version = name.split("-")[:2]
    dist_info = f"{project}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
    content = {
        **{file: file for file in files},
        f"{dist_info}/METADATA": metadata + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{dist_info}/RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return folder / name


def make_python(folder: Path, version: str = "3.11.2") -> Path:
    for path in (
        "python.exe", "pythonw.exe", "python3.dll", "python311.dll", "vcruntime140.dll", "msvcp140.dll", "LICENSE.txt",
        "made-from.json", "DLLs/_ctypes.pyd", "DLLs/_testcapi.pyd", "Lib/os.py", "Lib/__pycache__/os.cpython-311.pyc",
        "Lib/ensurepip/__init__.py", "Lib/unittest/case.py", "Lib/test/support.py", "Lib/ctypes/test/test_x.py",
        "Lib/site-packages/pip/__init__.py", "Scripts/pip.exe", "include/Python.h", "libs/python311.lib",
    ):  # fmt: skip
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    (folder / "include" / "patchlevel.h").write_text(f'#define PY_VERSION      "{version}"\n')
    return folder


def name_msvc(root: str = "/opt/ms vc", toolset: str = "14.44.35207") -> Msvc:
    tools, kit = Path(root) / "VC/Tools/MSVC" / toolset, Path(root) / "Windows Kits/10"
    return Msvc(
        Path(root),
        toolset,
        "10.0.26100.0",
        programs=(tools / "bin/Hostx64/x64", kit / "bin/10.0.26100.0/x64"),
        includes=(tools / "include", kit / "Include/10.0.26100.0/ucrt"),
        libraries=(tools / "lib/x64", kit / "Lib/10.0.26100.0/ucrt/x64"),
    )


def make_all(sources: list[Source], folder: Path) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    return {source.name: source.make(folder, "0123456789abcdef") for source in sources}


def list_files(package: Path) -> set[str]:
    return {path for path in read_package(package) if not path.startswith("info/")}


# ---- Runtime libraries


def make_runtime_wheel(folder: Path) -> Path:
    data = "msvc_runtime-14.44.35112.data/data"
    return make_wheel(
        folder,
        "msvc_runtime-14.44.35112-cp311-cp311-win_amd64.whl",
        "msvc_runtime.cp311-win_amd64.pyd",
        f"{data}/msvcp140.dll",
        f"{data}/Scripts/msvcp140.dll",
        f"{data}/Scripts/vcruntime140.dll",
        f"{data}/ucrtbase.dll",
        f"{data}/api-ms-win-crt-heap-l1-1-0.dll",
    )


def make_openmp_wheel(folder: Path) -> Path:
    data = "intel_openmp-2024.2.3.data/data"
    return make_wheel(
        folder,
        "intel_openmp-2024.2.3-py2.py3-none-win_amd64.whl",
        f"{data}/Library/bin/libiomp5md.dll",
        f"{data}/Library/bin/omptarget.dll",
        f"{data}/Library/lib/libiomp5md.lib",
        f"{data}/opt/compiler/Library/lib/libomp-cmath.obj",
        requires=("intel-cmplr-lib-ur==2024.2.3",),
    )


def test_runtime_lies_beside_python(tmp_path: Path) -> None:
    packages = make_all(redistributables.describe_runtime(make_runtime_wheel(tmp_path)), tmp_path / "out")
    assert {name: list_files(package) for name, package in packages.items()} == {
        "vc14_runtime": {"msvcp140.dll", "vcruntime140.dll"},
        "ucrt": {"ucrtbase.dll", "api-ms-win-crt-heap-l1-1-0.dll"},
        "vc": set(),
    }
    indexes = {name: read_json(package, "index.json") for name, package in packages.items()}
    assert indexes["vc14_runtime"]["version"] == "14.44.35112"
    assert indexes["vc"]["version"] == "14.3"
    assert indexes["vc"]["depends"] == ["vc14_runtime >=14.44.35112"]
    assert {index["subdir"] for index in indexes.values()} == {"win-64"}


def test_openmp_is_laid_out_as_by_conda_and_needs_no_python(tmp_path: Path) -> None:
    [package] = make_all(redistributables.describe_openmp(make_openmp_wheel(tmp_path)), tmp_path / "out").values()
    assert list_files(package) == {"Library/bin/libiomp5md.dll", "Library/lib/libiomp5md.lib"}
    assert read_json(package, "index.json")["depends"] == []


def test_openmp_without_its_runtime_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "intel_openmp-2030.0.0-py2.py3-none-win_amd64.whl")
    with pytest.raises(BadInput, match=r"no libiomp5md\.dll"):
        make_all(redistributables.describe_openmp(wheel), tmp_path / "out")


def test_torch_keeps_what_extensions_link_to(tmp_path: Path) -> None:
    needed = {f"torch/lib/{name}.lib" for name in ("c10", "torch", "torch_cpu", "torch_python")}
    needed |= {"torch/lib/torch_cpu.dll", "torch/lib/libiomp5md.dll", "torch/__init__.py"}
    static = {f"torch/lib/{name}.lib" for name in ("dnnl", "libprotoc", "libprotobuf-lite", "kineto", "XNNPACK")}
    programs = {"torch/bin/protoc.exe", "torch/bin/FileStoreTest.exe", "torch/bin/fbgemm.dll"}
    wheel = make_wheel(tmp_path, "torch-2.5.1-cp311-cp311-win_amd64.whl", *needed, *static, *programs)
    package = convert_wheel(wheel, tmp_path / "out", platform="win-64", python="3.11", digest="0123456789")
    assert package.name == "pytorch-2.5.1-cpu_py311_h0123456_0.conda"
    found = {path.removeprefix("site-packages/") for path in list_files(package) if "dist-info" not in path}
    assert found == needed


# ---- Python


def test_python_is_packed_without_what_others_own(tmp_path: Path) -> None:
    sources = interpreter.describe_windows_python(make_python(tmp_path / "tree"), "3.11")
    packages = make_all(sources, tmp_path / "out")
    assert list_files(packages["python"]) == {
        "python.exe", "pythonw.exe", "python3.dll", "python311.dll", "LICENSE.txt", "DLLs/_ctypes.pyd", "Lib/os.py",
        "Lib/ensurepip/__init__.py", "Lib/unittest/case.py", "include/Python.h", "include/patchlevel.h",
        "libs/python311.lib",
    }  # fmt: skip
    index = read_json(packages["python"], "index.json")
    assert (index["version"], index["build"], index["subdir"]) == ("3.11.2", "h0123456_0_cpython", "win-64")
    assert {line.split()[0] for line in index["depends"]} == {"ucrt", "vc", "vc14_runtime"}
    assert read_json(packages["python"], "run_exports.json") == {
        "noarch": ["python"],
        "weak": ["python_abi 3.11.* *_cp311"],
    }
    assert packages["python_abi"].name == "python_abi-3.11-8_cp311.conda"


def test_moved_python_is_the_same_and_rebuilt_one_another(tmp_path: Path) -> None:
    tree = make_python(tmp_path / "tree")
    first = interpreter.describe_windows_python(tree, "3.11")[0].identity
    moved = Path(shutil.copytree(tree, tmp_path / "moved"))
    assert interpreter.describe_windows_python(moved, "3.11")[0].identity == first
    (moved / "python311.dll").write_text("python312.dll")
    assert interpreter.describe_windows_python(moved, "3.11")[0].identity != first


@pytest.mark.parametrize(
    ("version", "missing", "message"),
    [
        ("3.12.1", "", r"holds Python 3\.12\.1"),
        ("3.11.2", "python.exe", r"python\.exe is missing"),
        ("3.11.2", "include/patchlevel.h", r"patchlevel\.h is missing"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, version: str, missing: str, message: str) -> None:
    tree = make_python(tmp_path, version)
    if missing:
        (tree / missing).unlink()
    with pytest.raises(BadInput, match=message):
        interpreter.describe_windows_python(tree, "3.11")


# ---- The compiler


def test_compiler_has_conda_forges_names_and_exports(tmp_path: Path) -> None:
    packages = make_all(msvc_shims.describe_msvc(name_msvc()), tmp_path / "out")
    indexes = {name: read_json(package, "index.json") for name, package in packages.items()}
    assert {name: index["version"] for name, index in indexes.items()} == {
        "vs2022_win-64": "19.44.35207",
        "vs_win-64": "2022.14",
    }
    assert indexes["vs2022_win-64"]["build"].startswith("system_msvc_14.44.35207_")
    assert indexes["vs2022_win-64"]["constrains"] == ["vs_win-64 2022.14"]
    assert indexes["vs_win-64"]["depends"] == ["vs2022_win-64 19.44.35207.*"]
    assert list_files(packages["vs2022_win-64"]) == {"etc/conda/activate.d/vs2022_compiler_vars.bat"}
    for package in packages.values():
        exports = read_json(package, "run_exports.json")["strong"]
        assert exports == ["vc >=14.3,<15", "vc14_runtime >=14.44", "ucrt >=10.0.20348.0"]


@pytest.mark.parametrize("toolset", ["14.29.30133", "14.50.35717", "latest"])
def test_toolset_of_another_visual_studio_is_refused(toolset: str) -> None:
    with pytest.raises(BadInput, match=re.escape(toolset)):
        msvc_shims.describe_msvc(name_msvc(toolset=toolset))


@pytest.mark.parametrize("root", ["/opt/100%", "/opt/a;b", "/opt/vs!", "/opt/é"])
def test_tree_that_a_batch_file_cannot_name_is_refused(root: str) -> None:
    with pytest.raises(BadInput, match="batch file"):
        msvc_shims.describe_msvc(name_msvc(root))


@pytest.mark.parametrize(
    ("path", "name"), [("/opt/ms vc/VC", r"Z:\opt\ms vc\VC"), (r"D:\VS\VC", r"D:\VS\VC"), ("D:/VS", "D:/VS")]
)
def test_paths_are_named_as_windows_sees_them(path: str, name: str) -> None:
    assert msvc_shims.name_on_windows(Path(path)) == name


def activate(script: str, environment: dict[str, str]) -> dict[str, str]:
    """What a batch file sets that consists of ``set``, of ``rem``, and of ``if`` on one line."""
    variables = dict(environment)
    for line in script.split("\r\n"):
        text = re.sub(r"%(\w+)%", lambda m: variables.get(m[1], ""), line)
        if text == "" or text.startswith("@rem "):
            continue
        found = re.fullmatch(r'@(?:if (not )?"(.*?)" == "" )?set "(\w+)=(.*)"', text)
        assert found, line
        condition = True if "@if" not in line else (found[2] == "") != bool(found[1])
        if condition:
            variables[found[3]] = found[4]
    return {name: value for name, value in variables.items() if value}


@pytest.mark.parametrize("building", [True, False])
def test_activation_puts_the_environment_first(building: bool) -> None:
    script = msvc_shims.write_activation(name_msvc())
    assert script.isascii()
    assert not re.search(r"(?<!\r)\n|@[A-Z]+@", script)
    environment = {"PATH": r"C:\Program Files (x86)\x", "INCLUDE": "own", "CONDA_PREFIX": r"C:\env"}
    if building:
        environment |= {
            "CONDA_BUILD": "1",
            "PREFIX": r"C:\h",
            "BUILD_PREFIX": r"C:\b",
            "LIBRARY_PREFIX": r"C:\h\Library",
            "LIBRARY_INC": r"C:\h\Library\include",
            "LIBRARY_LIB": r"C:\h\Library\lib",
        }
    found = activate(script, environment)
    library = r"C:\h\Library" if building else r"C:\env\Library"
    tools = r"Z:\opt\ms vc\VC\Tools\MSVC\14.44.35207"
    assert found["INCLUDE"].startswith(rf"{library}\include;{tools}\include;Z:\opt\ms vc\Windows Kits\10\Include")
    assert found["INCLUDE"].endswith(";own")
    assert found["LIB"].startswith(rf"{library}\lib;{tools}\lib\x64;")
    assert found["PATH"].startswith("C:\\b;" if building else "C:\\env;")
    assert rf"{tools}\bin\Hostx64\x64;" in found["PATH"]
    assert found["PATH"].endswith(environment["PATH"])
    assert found["WindowsSDKVersion"] == "10.0.26100.0\\"
    assert {name: found[name] for name in ("DISTUTILS_USE_SDK", "MSSdk", "VS_VERSION", "VS_MAJOR", "VS_YEAR")} == {
        "DISTUTILS_USE_SDK": "1",
        "MSSdk": "1",
        "VS_VERSION": "17.0",
        "VS_MAJOR": "17",
        "VS_YEAR": "2022",
    }
    assert found["CC"] == found["CXX"] == "cl.exe"
    assert not [name for name in found if name.startswith("_dswin")]


# ---- The whole channel

TORCH_REQUIRES = (
    "filelock",
    "sympy==1.13.1; python_version >= '3.9'",
    "triton==3.1.0; platform_system == 'Linux'",
    "setuptools; python_version >= '3.12'",
    "optree; extra == 'optree'",
)


class Pip:
    """Stands in for pip, which takes every marker as this machine's: it misses what only Windows needs."""

    def __init__(self) -> None:
        self.downloads: list[list[str]] = []

    def run(self, arguments: list[str]) -> None:
        if arguments[0] == "install":
            report = Path(arguments[arguments.index("--report") + 1])
            metadata = {"version": "2.5.1", "requires_dist": TORCH_REQUIRES}
            report.write_text(json.dumps({"install": [{"metadata": metadata}]}))
            return
        folder = Path(arguments[arguments.index("--dest") + 1])
        wanted = [
            word for word in arguments if re.match(r"[a-z]", word) and arguments[arguments.index(word) - 1][0] != "-"
        ]
        wanted = [word for word in wanted if word != "download"]
        self.downloads.append(wanted if "--no-deps" not in arguments else ["--no-deps", *wanted])
        for requirement in wanted:
            self.serve(folder, re.split(r"[<=>]", requirement)[0])

    def serve(self, folder: Path, project: str) -> None:
        if project == "torch":
            make_wheel(folder, "torch-2.5.1-cp311-cp311-win_amd64.whl", "torch/lib/c10.dll", requires=TORCH_REQUIRES)
        elif project == "msvc-runtime":
            make_runtime_wheel(folder)
        elif project == "intel-openmp":
            make_openmp_wheel(folder)
        else:
            requires = ("pywin-only>=2; sys_platform == 'win32'",) if project == "pydantic" else ()
            make_wheel(folder, f"{project.replace('-', '_')}-1.0-py3-none-any.whl", requires=requires)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    pip = Pip()
    monkeypatch.setattr(wheelhouse, "_run_pip", pip.run)
    monkeypatch.setattr(wheelhouse, "_is_foreign", lambda _: True)
    return pip


def test_pip_is_asked_for_what_windows_needs(tmp_path: Path, pip: Pip) -> None:
    deps = wheelhouse.Deps("win-64", "3.11", "2.5")
    wheels = wheelhouse.download_wheels(deps, tmp_path / "wheels", lambda _: None)
    assert pip.downloads[0] == ["--no-deps", "torch==2.5.1"]
    assert {"sympy==1.13.1", "filelock", "colorama", "intel-openmp<2025", "msvc-runtime"} <= set(pip.downloads[1])
    assert not [word for word in pip.downloads[1] if word.startswith(("triton", "optree", "pywin"))]
    assert "pywin-only>=2" in pip.downloads[2]
    assert len(pip.downloads) == 3
    assert len(wheels) == len({wheel.name.split("-")[0] for wheel in wheels})


def test_pins_are_stronger_than_our_own() -> None:
    deps = wheelhouse.Deps("win-64", "3.11", "2.5", {"intel-openmp": "2021.4.0", "numpy": "<2"})
    assert {"intel-openmp==2021.4.0", "numpy<2"} <= set(deps.requirements)
    assert "intel-openmp<2025" not in deps.requirements


def test_channel_holds_a_windows_machine(tmp_path: Path, pip: Pip) -> None:
    parts = wheelhouse.WindowsParts(make_python(tmp_path / "python"), name_msvc())

    def make(parts: wheelhouse.WindowsParts) -> Path:
        return wheelhouse.make_channel(tmp_path / "deps", platform="win-64", python="3.11", torch="2.5", windows=parts)

    channel = make(parts)
    found = {}
    for subdir in ("win-64", "noarch"):
        repodata = json.loads((channel / subdir / "repodata.json").read_text())
        found[subdir] = {record["name"] for record in repodata["packages.conda"].values()}
    assert found["win-64"] == {
        "python", "vs2022_win-64", "vs_win-64", "vc14_runtime", "ucrt", "vc", "intel-openmp", "pytorch",
    }  # fmt: skip
    assert {"python_abi", "colorama", "sympy", "pywin-only"} <= found["noarch"]
    assert "intel-cmplr-lib-ur" not in found["noarch"]

    asked = len(pip.downloads)
    assert make(parts) == channel
    assert len(pip.downloads) == asked
    assert make(replace(parts, msvc=name_msvc("/other"))) != channel


def test_windows_takes_its_parts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="win-64") as caught:
        wheelhouse.make_channel(tmp_path, platform="win-64", python="3.11", torch="2.5")
    assert "MSVC" in caught.value.fix
