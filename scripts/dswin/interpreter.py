"""A Python as a conda package: the running one, for an environment on the same machine, or a Windows one from its folder."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

from .errors import BadInput, DswinError, MachineLacks
from .redistributables import UCRT, VC
from .wheels import Member, Source, write_package


def describe_python(python: str) -> list[Source]:
    """The running interpreter's installation as ``python``, and the ``python_abi`` that goes with it."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python != running:
        raise BadInput(
            f"Python {python} is wanted and Python {running} is running; only the running one can be repackaged.",
            fix=f"Ask for Python {running}, or start dswin with Python {python}.",
        )
    base = Path(sys.base_prefix)
    check_movable(base, python)
    return [
        Source(
            "python",
            f"{sys.version} {base}",
            f"packing this machine's Python {sys.version.split()[0]}",
            lambda folder, digest: _repackage(base, python, folder, digest),
        ),
        Source("python_abi", python, "packing python_abi", lambda folder, _: write_python_abi(python, folder)),
    ]


def check_movable(base: Path, python: str) -> None:
    library = base / "lib" / f"python{python}"
    if (base / "conda-meta").is_dir():
        reason = "it is a conda environment, whose Python needs the other packages in it"
    elif not library.is_dir():
        reason = f"it has no lib/python{python}"
    elif not (library / "site-packages").is_dir():
        reason = "it is a Debian or Ubuntu system Python, which looks for packages in dist-packages"
    elif not (base / "include" / f"python{python}" / "Python.h").is_file():
        reason = "its header files are not installed"
    else:
        return
    raise MachineLacks(
        f"The Python in {base} cannot be made a conda package: {reason}.",
        fix=f"Install a Python {python} that stands alone, with pyenv, uv or from python.org's source, start dswin "
        "with it, and run again.",
    )


def _repackage(base: Path, python: str, folder: Path, digest: str) -> Path:
    import rattler_build

    tree = folder / "tree"
    _copy_python(base, python, tree)
    tag = "cp" + python.replace(".", "")
    recipe = {
        "package": {"name": "python", "version": sys.version.split()[0]},
        "source": {"path": str(tree)},
        "build": {
            "number": 0,
            "string": f"h{digest[:7]}_0_cpython",
            "script": {"content": _INSTALL_PYTHON, "env": {"OLD_PREFIX": str(base), "PYTHON_MINOR": python}},
            # It would start the interpreter once a file: three minutes for nothing that an import does not do.
            "python": {"skip_pyc_compilation": ["**/*.py"]},
        },
        "requirements": {
            "run_exports": {"noarch": ["python"], "weak": [f"python_abi {python}.* *_{tag}"]},
        },
        "tests": [{"script": [f"python{python} -c 'import bz2, ctypes, hashlib, lzma, sqlite3, ssl, venv, zlib'"]}],
        "about": {
            "summary": "The Python of the machine that made this package, for that machine only.",
            "license": "Python-2.0",
        },
    }
    work = folder / "work"
    source = folder / "recipe" / "recipe.yaml"
    source.parent.mkdir()
    source.write_text(json.dumps(recipe), encoding="utf-8")
    tool = rattler_build.ToolConfiguration(test_strategy="native", use_zstd=False, use_bz2=False, use_sharded=False)
    try:
        [variant] = rattler_build.Stage0Recipe.from_file(source).render(rattler_build.VariantConfig())
        built = variant.run_build(
            tool_config=tool, output_dir=work, channels=[], package_format="conda:1", no_include_recipe=True
        )
    except (rattler_build.RattlerBuildError, ValueError, RuntimeError) as error:
        raise DswinError(
            f"The Python in {base} could not be made a conda package.",
            fix="See what its test misses below; a Python without one of these modules must be built again with it.",
            log=str(error),
        ) from error
    [package] = built.packages
    return Path(package)


# rattler-build finds the prefix in the files and makes the run paths relative by itself.
_INSTALL_PYTHON = """\
set -eu
cp -a bin include lib "$PREFIX/"
cd "$PREFIX"
for file in lib/python$PYTHON_MINOR/_sysconfigdata*.py lib/python$PYTHON_MINOR/config-*/* lib/pkgconfig/* bin/*; do
  if [ -f "$file" ] && [ ! -L "$file" ] && grep -qIF "$OLD_PREFIX" "$file"; then
    sed -i "s|$OLD_PREFIX|$PREFIX|g" "$file"
  fi
done
"""

_NO_PART_OF_PYTHON = (
    "__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "_tkinter*", "*.a",
    "EXTERNALLY-MANAGED",
)  # fmt: skip


def _copy_python(base: Path, python: str, tree: Path) -> None:
    """Copy the interpreter alone: a prefix such as /usr/local holds other people's files too."""
    for part in (f"lib/python{python}", f"include/python{python}"):
        shutil.copytree(base / part, tree / part, symlinks=True, ignore=shutil.ignore_patterns(*_NO_PART_OF_PYTHON))
    names = ("python", "python3", f"python{python}", "python3-config", f"python{python}-config", f"pydoc{python}")
    files = [base / "bin" / name for name in names]
    files += (base / "lib").glob("libpython3*.so*")
    files += (base / "lib" / "pkgconfig").glob("python*.pc")
    for file in files:
        if file.exists():
            target = tree / file.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)


def describe_windows_python(tree: Path, python: str) -> list[Source]:
    """A Windows Python as ``python`` for win-64, and the ``python_abi`` that goes with it.

    :param tree: the folder that holds python.exe, as python.org's installer leaves it.
    :raises BadInput: it holds no Python, or another version.
    """
    version = _read_version(tree)
    if not version.startswith(f"{python}."):
        raise BadInput(
            f"Python {python} is wanted, and {tree} holds Python {version}.", fix="Name a tree of the version you want."
        )
    files = _list_windows_python(tree, python)
    return [
        Source(
            "python",
            f"win-64 {version} {_hash_tree(files)}",
            f"packing Python {version} for Windows",
            lambda folder, digest: _pack_windows_python(files, version, python, folder, digest),
        ),
        Source("python_abi", python, "packing python_abi", lambda folder, _: write_python_abi(python, folder)),
    ]


def _read_version(tree: Path) -> str:
    header = tree / "include" / "patchlevel.h"
    found = re.search(r'#define\s+PY_VERSION\s+"([^"]+)"', header.read_text("utf-8")) if header.is_file() else None
    if found is None or not (tree / "python.exe").is_file():
        missing = "python.exe" if found else "include/patchlevel.h"
        raise BadInput(
            f"{tree} holds no Windows Python: {missing} is missing.", fix="Name the folder that holds python.exe."
        )
    return found[1].rstrip("+")


def _list_windows_python(tree: Path, python: str) -> dict[str, Path]:
    """Where each file goes in the package. The C++ runtime beside python.exe is vc14_runtime's."""
    names = ("python.exe", "pythonw.exe", "python3.dll", f"python{python.replace('.', '')}.dll", "LICENSE.txt")
    found = [tree / name for name in names if (tree / name).is_file()]
    for folder in ("DLLs", "Lib", "include", "libs"):
        found += (file for file in sorted((tree / folder).rglob("*")) if file.is_file())
    files = {file.relative_to(tree).as_posix(): file for file in found}
    left_out = (*_NO_PART_OF_PYTHON, "_test*.pyd", "*.pdb")
    return {
        path: file
        for path, file in files.items()
        if not any(fnmatch.fnmatchcase(part, pattern) for part in path.split("/") for pattern in left_out)
    }


def _hash_tree(files: dict[str, Path]) -> str:
    """A digest of what the files are called, of their sizes, and of the content of the programs among them."""
    digest = hashlib.sha256()
    for path, file in files.items():
        digest.update(f"{path} {file.stat().st_size}\n".encode())
        if path.endswith((".exe", ".dll", ".pyd")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _pack_windows_python(files: dict[str, Path], version: str, python: str, folder: Path, digest: str) -> Path:
    tag = "cp" + python.replace(".", "")
    index = {
        "name": "python",
        "version": version,
        "build": f"h{digest[:7]}_0_cpython",
        "build_number": 0,
        "depends": [UCRT, VC, "vc14_runtime"],
        "constrains": [f"python_abi {python}.* *_{tag}"],
        "license": "Python-2.0",
        "subdir": "win-64",
    }
    exports = {"noarch": ["python"], "weak": [f"python_abi {python}.* *_{tag}"]}
    return write_package(
        folder,
        index,
        [Member.from_file(path, file) for path, file in files.items()],
        about={"summary": "A Python for Windows, from a folder of the machine that made this package."},
        info={"run_exports.json": exports},
    )


def write_python_abi(python: str, folder: Path) -> Path:
    index = {
        "name": "python_abi",
        "version": python,
        "build": f"8_cp{python.replace('.', '')}",
        "build_number": 8,
        "depends": [],
        "constrains": [f"python {python}.* *_cpython"],
        "subdir": "noarch",
        "noarch": "generic",
    }
    return write_package(folder, index, [], about={"summary": "The ABI of CPython. Not for publication."})
