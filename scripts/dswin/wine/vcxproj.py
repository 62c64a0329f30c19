"""What CPython's PCbuild/*.vcxproj files say of a program: its sources, definitions, folders and libraries.

No MSBuild: only what those files use is understood, which is $(Property), simple conditions, item lists, and the settings
of compiler, resource compiler and linker.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SPACE = "{http://schemas.microsoft.com/developer/msbuild/2003}"


@dataclass
class Project:
    """One .vcxproj, for one configuration.

    :param sources: each file with the definitions that it alone has.
    """

    sources: list[tuple[Path, tuple[str, ...]]] = field(default_factory=list)
    resources: list[Path] = field(default_factory=list)
    assembly: list[Path] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    resource_defines: list[str] = field(default_factory=list)
    includes: list[Path] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    link_options: list[str] = field(default_factory=list)
    subsystem: str = "Windows"
    static_runtime: bool = False
    security_check: bool = True


def read(path: Path, properties: Mapping[str, str]) -> Project:
    """Read a project file.

    :param properties: the values of MSBuild's properties; one that is not there is empty, as in MSBuild.
    """
    return _Reader(path, properties).read()


def expand(text: str, properties: Mapping[str, str]) -> str:
    """Replace each ``$(Name)``, also in what it stands for."""
    before = None
    while before != text:
        before = text
        text = re.sub(r"\$\((\w+)\)", lambda found: properties.get(found[1], ""), text)
    return text


def holds(condition: str | None, properties: Mapping[str, str]) -> bool:
    """Evaluate a condition of ``==``, ``!=``, ``Exists()``, ``and``, ``or`` and plain values; none at all holds."""
    if not condition:
        return True
    return any(
        all(_holds_term(term, properties) for term in re.split(r"\s+and\s+", one))
        for one in re.split(r"\s+or\s+", condition)
    )


def _holds_term(term: str, properties: Mapping[str, str]) -> bool:
    text = expand(term.strip(), properties).strip()
    if found := re.match(r"(.*?)(==|!=)(.*)$", text):
        left, right = (found[side].strip().strip("'").lower() for side in (1, 3))
        return (left == right) == (found[2] == "==")
    if found := re.match(r"Exists\('?(.*?)'?\)$", text, re.IGNORECASE):
        return Path(found[1].replace("\\", "/")).exists()
    return text.strip("'").lower() == "true"


def _split(text: str) -> list[str]:
    """Return the parts of a list; ``%(Name)``, the value from above, is not one of them."""
    return [part.strip() for part in text.split(";") if part.strip() and "%(" not in part]


class _Reader:
    def __init__(self, path: Path, properties: Mapping[str, str]) -> None:
        self.file = path
        self.properties = {**properties, "ProjectName": path.stem}
        self.project = Project()

    def read(self) -> Project:
        for group in ET.parse(self.file).getroot():
            if self._holds(group):
                for node in filter(self._holds, group):
                    if group.tag == f"{_SPACE}ItemDefinitionGroup":
                        self._add_settings(node)
                    elif group.tag == f"{_SPACE}ItemGroup":
                        self._add_item(node)
        return self.project

    def _holds(self, node: ET.Element) -> bool:
        return holds(node.get("Condition"), self.properties)

    def _locate(self, text: str) -> Path:
        name = expand(text, self.properties).replace("\\", "/")
        return Path(os.path.normpath(self.file.parent / name))

    def _values(self, node: ET.Element, name: str) -> Iterator[str]:
        for child in node.findall(_SPACE + name):
            if self._holds(child):
                yield expand(child.text or "", self.properties)

    def _lists(self, node: ET.Element, name: str) -> Iterator[str]:
        for value in self._values(node, name):
            yield from _split(value)

    def _add_settings(self, node: ET.Element) -> None:
        project = self.project
        if node.tag == f"{_SPACE}ClCompile":
            project.defines += self._lists(node, "PreprocessorDefinitions")
            project.includes += map(self._locate, self._lists(node, "AdditionalIncludeDirectories"))
            for value in self._values(node, "RuntimeLibrary"):
                project.static_runtime = value == "MultiThreaded"
            for value in self._values(node, "BufferSecurityCheck"):
                project.security_check = value != "false"
        elif node.tag == f"{_SPACE}ResourceCompile":
            project.resource_defines += self._lists(node, "PreprocessorDefinitions")
        elif node.tag == f"{_SPACE}Link":
            project.libraries += self._lists(node, "AdditionalDependencies")
            for value in self._values(node, "AdditionalOptions"):
                project.link_options += [word for word in value.split() if word.startswith("/")]
            project.link_options += [f"/STACK:{value}" for value in self._values(node, "StackReserveSize")]
            project.link_options += ["/NOENTRY" for value in self._values(node, "NoEntryPoint") if value == "true"]
            for value in self._values(node, "SubSystem"):
                project.subsystem = value

    def _add_item(self, node: ET.Element) -> None:
        name = node.get("Include")
        if not name or "@(" in name or "true" in self._values(node, "ExcludedFromBuild"):
            return
        if node.tag == f"{_SPACE}ClCompile":
            self.project.sources.append((self._locate(name), tuple(self._lists(node, "PreprocessorDefinitions"))))
        elif node.tag == f"{_SPACE}ResourceCompile":
            self.project.resources.append(self._locate(name))
        elif node.tag == f"{_SPACE}CustomBuild" and name.lower().endswith(".asm"):
            self.project.assembly.append(self._locate(name))
