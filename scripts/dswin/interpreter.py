"""The running Python as a conda package, for an environment on the same machine."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from .errors import BadInput, DswinError, MachineLacks
from .wheels import Source, write_package


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

_NO_PART_OF_PYTHON = shutil.ignore_patterns(
    "__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "_tkinter*", "*.a",
    "EXTERNALLY-MANAGED",
)  # fmt: skip


def _copy_python(base: Path, python: str, tree: Path) -> None:
    """Copy the interpreter alone: a prefix such as /usr/local holds other people's files too."""
    for part in (f"lib/python{python}", f"include/python{python}"):
        shutil.copytree(base / part, tree / part, symlinks=True, ignore=_NO_PART_OF_PYTHON)
    names = ("python", "python3", f"python{python}", "python3-config", f"python{python}-config", f"pydoc{python}")
    files = [base / "bin" / name for name in names]
    files += (base / "lib").glob("libpython3*.so*")
    files += (base / "lib" / "pkgconfig").glob("python*.pc")
    for file in files:
        if file.exists():
            target = tree / file.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)


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
