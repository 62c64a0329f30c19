"""What a package is made of, as CycloneDX JSON: the package, its sources and patches, and what it requires."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from . import channel as channels

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

#: The recipe as the builder rendered it, rattler-build's and conda-build's.
_RECIPES = ("info/recipe/rendered_recipe.yaml", "info/recipe/meta.yaml")
_SDIST = re.compile(r"(?P<name>[\w.-]+?)-(?P<version>\d[\w.]*)\.tar\.gz")
_SPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562's for urls


def make(archive: Path, record: Mapping[str, Any]) -> bytes:
    """The SBOM of a package, CycloneDX 1.6; always the same bytes for one archive.

    Versions of dependencies are what the package allows, as a property: which ones are installed is for a lock to say.

    :param record: its record in repodata.json, with sha256, md5 and timestamp.
    :raises BadInput: the archive cannot be read.
    """
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.dependency import Dependency
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    about = channels.read_documents(archive, ["info/about.json"]).get("info/about.json", {})
    name, version = record["name"], record["version"]
    qualifiers = {"build": record["build"], "subdir": record["subdir"], "type": archive.name[len(stem(archive)) + 1 :]}
    purl = PackageURL("conda", None, name, version, qualifiers)
    package = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        description=about.get("summary") or None,
        hashes=list(_list_hashes(record)),
        licenses=_read_licence(record.get("license")),
        external_references=[*_list_references(about)],
    )
    requirements = [
        Component(
            name=required,
            type=ComponentType.LIBRARY,
            bom_ref=f"requires:{required}",
            purl=PackageURL("conda", None, required),
            properties=[Property(name="conda:requirement", value=text) for text in texts],
        )
        for required, texts in sorted(_group(record.get("depends") or ()).items())
    ]
    sources = list(_read_sources(archive))
    made = to_time(record.get("timestamp"))
    bom = Bom(
        serial_number=uuid.uuid5(_SPACE, f"{purl.to_string()}#{record['sha256']}"),
        metadata=BomMetaData(component=package, timestamp=made),
        components=[*sources, *requirements],
        dependencies=[Dependency(package.bom_ref, [Dependency(one.bom_ref) for one in (*sources, *requirements)])],
    )
    return (JsonV1Dot6(bom).output_as_string(indent=1) + "\n").encode()


def stem(archive: Path) -> str:
    """An archive's name without its ending."""
    return next(archive.name.removesuffix(ending) for ending in channels.ENDINGS if archive.name.endswith(ending))


def to_time(timestamp: float | None) -> datetime:
    """A record's timestamp as a time, UTC; 1970 where there is none, so that nothing depends on the clock."""
    from .channel_data import to_seconds

    return datetime.fromtimestamp(to_seconds(timestamp) or 0, timezone.utc)


def _list_hashes(fields: Mapping[str, Any]) -> Iterator[Any]:
    from cyclonedx.model import HashAlgorithm, HashType

    for kind, algorithm in (("sha256", HashAlgorithm.SHA_256), ("md5", HashAlgorithm.MD5)):
        if value := fields.get(kind):
            yield HashType(alg=algorithm, content=value)


def _read_licence(text: str | None) -> list[Any]:
    """A licence as an SPDX expression; as a name where it is none."""
    from cyclonedx.contrib.license.factories import LicenseFactory

    return [LicenseFactory().make_from_string(text)] if text else []


def _list_references(about: Mapping[str, Any]) -> Iterator[Any]:
    from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri

    kinds = {
        "home": ExternalReferenceType.WEBSITE,
        "dev_url": ExternalReferenceType.VCS,
        "doc_url": ExternalReferenceType.DOCUMENTATION,
    }
    for name, kind in kinds.items():
        values = about.get(name) or []
        for url in [values] if isinstance(values, str) else values:
            yield ExternalReference(type=kind, url=XsUri(url))


def _group(depends: Iterable[str]) -> dict[str, list[str]]:
    """{package: its requirements}; a machine's own, as __cuda, are no packages."""
    groups: dict[str, list[str]] = {}
    for text in depends:
        if not (name := channels.read_name(text)).startswith("__"):
            groups.setdefault(name, []).append(text)
    return groups


def _read_sources(archive: Path) -> Iterator[Component]:
    """What the package was built from, as its own recipe in it says: each source with a hash, patched by all patches."""
    import yaml
    from cyclonedx.model.component import Component, ComponentType, Pedigree
    from packageurl import PackageURL

    info = channels.read_info(archive, _RECIPES)
    try:
        recipe = next(yaml.safe_load(info[name]) for name in _RECIPES if name in info)
        sources = recipe.get("finalized_sources") or recipe.get("source") or []
        sources = [sources] if isinstance(sources, dict) else list(sources)
        places = [str(patch) for source in sources for patch in source.get("patches") or ()]
    except (StopIteration, yaml.YAMLError, AttributeError, TypeError):
        return  # there is no recipe in it, or one that was not rendered
    patches = [*_read_patches(archive, places)]
    for source in sources:
        where = source.get("url") or source.get("path") or ""
        urls = [str(one) for one in (where if isinstance(where, list) else [where])]
        if not source.get("sha256") or not urls[0]:
            continue
        # Not the path, which is one of the builder's machine.
        fn = PurePosixPath(urls[0].replace("\\", "/")).name
        sdist = _SDIST.fullmatch(fn)
        yield Component(
            name=sdist["name"] if sdist else fn,
            version=sdist["version"] if sdist else None,
            type=ComponentType.LIBRARY,
            bom_ref=f"source:{fn}",
            purl=PackageURL("pypi", None, sdist["name"].lower(), sdist["version"], {"file_name": fn})
            if sdist
            else None,
            hashes=list(_list_hashes(source)),
            pedigree=Pedigree(patches=patches) if patches else None,
        )


def _read_patches(archive: Path, places: list[str]) -> Iterator[Any]:
    from cyclonedx.model import AttachedText
    from cyclonedx.model.component import Diff, Patch, PatchClassification

    names = [f"info/recipe/{place}" for place in places]
    found = channels.read_info(archive, names) if names else {}
    for name in names:
        if name in found:
            text = AttachedText(content=found[name].decode("utf-8", "replace"), content_type="text/x-patch")
            yield Patch(type=PatchClassification.UNOFFICIAL, diff=Diff(text=text))
