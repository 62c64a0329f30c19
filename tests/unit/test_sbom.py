from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from dswin import channel as channels
from dswin import sbom
from making import File, Made, make_package

SDIST = "9e491abd0827ea5c389dd702e15e11e13d83d904bac4a20d6c2a4cb37207a9af"
PATCH = b"--- a/x\n+++ b/x\n"


def make(tmp_path: Path, sources: object, **options: object) -> tuple[Made, dict]:
    """A package with its rendered recipe in it, and its SBOM, which fits CycloneDX's own schema."""
    recipe = yaml.safe_dump({"finalized_sources": sources})
    # These are not JSON, and info/ takes files too where a package's files are given by path.
    files = {
        "share/x.txt": b"x",
        "info/recipe/rendered_recipe.yaml": File(recipe.encode()),
        "info/recipe/patches/0001-x.patch": File(PATCH),
    }
    made = make_package(tmp_path, "deepspeed-win", "0.19.8", "cpu_py311_0", files=files, **options)  # type: ignore[arg-type]
    channels.reindex(tmp_path)
    [record] = channels.list_packages(tmp_path, "deepspeed-win")
    text = sbom.make(made.path, record)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
    assert sbom.make(made.path, record) == text
    return made, json.loads(text)


def test_it_names_the_package_its_sources_and_what_it_requires(tmp_path: Path) -> None:
    made, document = make(
        tmp_path,
        [
            {"path": "/home/me/.dswin/source/deepspeed-0.19.8.tar.gz", "sha256": SDIST},
            {"path": "windows", "patches": ["patches/0001-x.patch"]},
        ],
        depends=["python >=3.11,<3.12.0a0", "pytorch 2.13.* *cpu*", "pytorch !=2.13.1", "__glibc >=2.28"],
    )
    package = document["metadata"]["component"]
    assert (package["name"], package["version"]) == ("deepspeed-win", "0.19.8")
    assert package["purl"] == "pkg:conda/deepspeed-win@0.19.8?build=cpu_py311_0&subdir=noarch&type=conda"
    assert {one["alg"]: one["content"] for one in package["hashes"]} == {"SHA-256": made.sha256, "MD5": made.md5}
    assert document["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    components = {one["bom-ref"]: one for one in document["components"]}
    assert set(components) == {"source:deepspeed-0.19.8.tar.gz", "requires:python", "requires:pytorch"}
    source = components["source:deepspeed-0.19.8.tar.gz"]
    assert (source["name"], source["version"]) == ("deepspeed", "0.19.8")
    assert source["hashes"] == [{"alg": "SHA-256", "content": SDIST}]
    assert source["pedigree"]["patches"][0]["diff"]["text"]["content"] == PATCH.decode()
    asked = [one["value"] for one in components["requires:pytorch"]["properties"]]
    assert sorted(asked) == ["pytorch !=2.13.1", "pytorch 2.13.* *cpu*"]
    [graph] = [one for one in document["dependencies"] if one["ref"] == package["bom-ref"]]
    assert set(graph["dependsOn"]) == set(components)
    assert "/home/me" not in json.dumps(document)


@pytest.mark.parametrize("licence", ["Apache-2.0 AND BSD-3-Clause", "LicenseRef-NVIDIA", "some words of our own", ""])
def test_any_licence_can_stand_in_it(tmp_path: Path, licence: str) -> None:
    _, document = make(tmp_path, [], index={"license": licence})
    assert licence in json.dumps(document["metadata"]["component"].get("licenses", ""))


@pytest.mark.parametrize("sources", [None, "nothing", [{"path": "windows"}], [{"git": "https://host/x"}], [3]])
def test_a_recipe_without_hashed_sources_gives_none(tmp_path: Path, sources: object) -> None:
    _, document = make(tmp_path, sources)
    assert document.get("components", []) == []


def test_a_source_by_its_url_is_named_by_its_file(tmp_path: Path) -> None:
    urls = ["https://host/packages/abc/deepspeed-0.19.8.tar.gz", "https://mirror/deepspeed-0.19.8.tar.gz"]
    _, document = make(tmp_path, [{"url": urls, "sha256": SDIST}, {"url": "https://host/data.bin", "sha256": SDIST}])
    assert [one["name"] for one in document["components"]] == ["data.bin", "deepspeed"]
