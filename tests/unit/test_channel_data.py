from __future__ import annotations

import json
from pathlib import Path

import pytest

from channels import make_variant
from dswin import channel as channels
from dswin import channel_data
from making import File, make_package, text_with_prefix


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_current_repodata_have_the_newest_and_what_it_requires(tmp_path: Path) -> None:
    made = [
        make_package(tmp_path, "app", "1.10", depends=["lib <2"]),
        make_package(tmp_path, "app", "1.9", depends=["lib >=3"]),  # older than 1.10
        make_package(tmp_path, "lib", "3.0"),
        make_package(tmp_path, "lib", "1.0", "0"),
        make_package(tmp_path, "lib", "1.1", "0"),
        make_package(tmp_path, "lib", "1.1", "1", depends=["base 1.*"], ending=".tar.bz2"),
        make_package(tmp_path, "base", "2.0"),
        make_package(tmp_path, "base", "1.0"),
    ]
    channels.reindex(tmp_path)
    current = read(tmp_path / "noarch" / "current_repodata.json")
    whole = read(tmp_path / "noarch" / "repodata.json")
    assert len(whole["packages"]) + len(whole["packages.conda"]) == len(made)
    assert set(current["packages.conda"]) == {
        "app-1.10-0.conda", "lib-3.0-0.conda", "lib-1.1-0.conda", "base-2.0-0.conda", "base-1.0-0.conda",
    }  # fmt: skip
    assert set(current["packages"]) == {"lib-1.1-1.tar.bz2"}
    assert current["packages.conda"]["app-1.10-0.conda"] == whole["packages.conda"]["app-1.10-0.conda"]


def test_channeldata_say_what_cep_38_asks_for(tmp_path: Path) -> None:
    make_package(
        tmp_path, "tool", "1.0", index={"timestamp": 1_600_000_000_000},
        info={"about.json": {"summary": "the old words"}, "run_exports.json": {"strong": ["tool 1.*"]}},
    )  # fmt: skip
    make_package(
        tmp_path, "tool", "1.10", subdir="win-64", index={"timestamp": 1_700_000_000_000, "license": "MIT"},
        files={"etc/conda/activate.d/tool.bat": b"", "etc/tool.cfg": text_with_prefix(), "Scripts/.tool-post-link.bat": b""},
        info={"about.json": {"summary": "the new words", "home": "https://tool.example"}},
    )  # fmt: skip
    make_package(tmp_path, "lib", files={"lib/lib.so": File(b"lib")})
    channels.reindex(tmp_path)
    document = read(tmp_path / "channeldata.json")
    assert (document["channeldata_version"], document["subdirs"]) == (1, ["noarch", "win-64"])
    assert document["packages"]["tool"] == {
        "version": "1.10", "summary": "the new words", "home": "https://tool.example", "license": "MIT",
        "activate.d": True, "deactivate.d": False, "post_link": True, "pre_link": False, "pre_unlink": False,
        "text_prefix": True, "binary_prefix": False, "subdirs": ["noarch", "win-64"], "timestamp": 1_700_000_000,
        "run_exports": {"1.0": {"strong": ["tool 1.*"]}},
    }  # fmt: skip
    assert document["packages"]["lib"]["text_prefix"] is False


def test_packages_json_say_what_is_in_a_build(tmp_path: Path) -> None:
    made = make_variant(tmp_path, "cuda130", python="3.10", number=2)
    channels.reindex(tmp_path)
    [row] = read(tmp_path / "packages.json")["packages"]
    assert row == {
        "name": "deepspeed-win", "version": "0.19.8", "build": "cuda130_py310_2", "build_number": 102, "subdir": "win-64",
        "fn": "deepspeed-win-0.19.8-cuda130_py310_2.conda", "variant": "cuda130", "python": "3.10", "torch": "2.10",
        "cuda": "13.0", "driver": "13", "archs": ["7.5", "8.0", "8.6", "9.0", "12.0+PTX"], "simd": "avx2",
        "license": "Apache-2.0", "size": made.path.stat().st_size, "sha256": made.sha256, "sbom": "",
        "timestamp": 1_700_000_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ("pytorch ==2.5.1[build='*cuda12.1*']", "2.5.1"),
        ("pytorch 2.10.* *cuda130*", "2.10"),
        ("conda-forge::pytorch >=2.5,<2.6", "2.5"),
        ("pytorch=2.5", "2.5"),
        ("pytorch", ""),
        ("pytorch * *cpu*", ""),
        ("pytorch-cuda 12.1", ""),
    ],
)
def test_the_version_in_a_requirement(spec: str, version: str) -> None:
    assert channel_data.find_version(["numpy 1.26", spec], "pytorch") == version


def test_indexing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    make_variant(tmp_path)
    channels.reindex(tmp_path)

    def take() -> dict[str, bytes]:
        # rattler writes into repodata when it indexed.
        return {
            path.relative_to(tmp_path).as_posix(): path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file() and "repodata" not in path.name
        }

    before = take()
    channels.reindex(tmp_path)
    assert take() == before
    assert {"index.html", "win-64/index.html", "noarch/index.html", "noarch/run_exports.json"} <= set(before)


def test_the_builder_itself_puts_where_pages_look_what_the_recipe_says_is_inside(tmp_path: Path) -> None:
    import rattler_build

    recipe = {
        "package": {"name": "tiny", "version": "1.0"},
        "build": {"string": "cuda121_py311_0", "noarch": "generic", "script": {"content": "cd ."}},
        "about": {"license": "MIT", "summary": "made for a test"},
        "extra": {"simd": "avx2", "cuda_arch_list": "7.5;8.6+PTX"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    tool = rattler_build.ToolConfiguration(test_strategy="skip", use_zstd=False, use_bz2=False, use_sharded=False)
    [variant] = rattler_build.Stage0Recipe.from_file(tmp_path / "recipe.yaml").render(rattler_build.VariantConfig())
    built = variant.run_build(tool_config=tool, output_dir=tmp_path / "work", channels=[])
    channels.add(tmp_path / "channel", [Path(one) for one in built.packages])
    [row] = read(tmp_path / "channel" / "packages.json")["packages"]
    assert (row["variant"], row["python"], row["archs"], row["simd"]) == ("cuda121", "3.11", ["7.5", "8.6+PTX"], "avx2")
