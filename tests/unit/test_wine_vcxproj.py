from __future__ import annotations

from pathlib import Path

import pytest

from dswin.wine import vcxproj
from dswin.wine.toolchain import quote

PROPERTIES = {"Configuration": "Release", "Platform": "x64", "Root": "/src/", "Nested": "$(Root)zlib", "On": "true"}

PROJECT = r"""<?xml version="1.0" encoding="utf-8"?>
<Project xmlns="http://schemas.microsoft.com/developer/msbuild/2003">
  <ItemDefinitionGroup>
    <ClCompile>
      <PreprocessorDefinitions>A=1;B;%(PreprocessorDefinitions)</PreprocessorDefinitions>
      <PreprocessorDefinitions Condition="'$(Configuration)'=='Debug'">_DEBUG</PreprocessorDefinitions>
      <AdditionalIncludeDirectories>$(Root)Include;..\Modules</AdditionalIncludeDirectories>
      <RuntimeLibrary>MultiThreaded</RuntimeLibrary>
      <BufferSecurityCheck>false</BufferSecurityCheck>
    </ClCompile>
    <ResourceCompile><PreprocessorDefinitions>NAME=$(ProjectName)</PreprocessorDefinitions></ResourceCompile>
    <Link>
      <AdditionalDependencies>ws2_32.lib;%(AdditionalDependencies)</AdditionalDependencies>
      <AdditionalOptions>/OPT:REF %(AdditionalOptions)</AdditionalOptions>
      <StackReserveSize>2000000</StackReserveSize>
      <SubSystem>Console</SubSystem>
      <NoEntryPoint>true</NoEntryPoint>
    </Link>
  </ItemDefinitionGroup>
  <ItemGroup>
    <ClCompile Include="..\Modules\one.c" />
    <ClCompile Include="$(Nested)\two.c">
      <PreprocessorDefinitions>Z;%(PreprocessorDefinitions)</PreprocessorDefinitions>
    </ClCompile>
    <ClCompile Include="never.c"><ExcludedFromBuild>true</ExcludedFromBuild></ClCompile>
    <ClCompile Include="win32.c" Condition="'$(Platform)' == 'Win32'" />
    <ClCompile Include="@(Others)" />
    <ResourceCompile Include="..\PC\python.rc" />
    <CustomBuild Include="fast.asm" />
  </ItemGroup>
  <ItemGroup Condition="'$(Configuration)'=='Debug'"><ClCompile Include="debug.c" /></ItemGroup>
</Project>
"""


@pytest.fixture
def project(tmp_path: Path) -> vcxproj.Project:
    (tmp_path / "PCbuild").mkdir()
    file = tmp_path / "PCbuild" / "thing.vcxproj"
    file.write_text(PROJECT, encoding="utf-8")
    return vcxproj.read(file, PROPERTIES)


def test_files_that_are_built(project: vcxproj.Project, tmp_path: Path) -> None:
    assert project.sources == [(tmp_path / "Modules/one.c", ()), (Path("/src/zlib/two.c"), ("Z",))]
    assert project.resources == [tmp_path / "PC/python.rc"]
    assert project.assembly == [tmp_path / "PCbuild/fast.asm"]


def test_settings(project: vcxproj.Project, tmp_path: Path) -> None:
    assert project.defines == ["A=1", "B"]
    assert project.resource_defines == ["NAME=thing"]
    assert project.includes == [Path("/src/Include"), tmp_path / "Modules"]
    assert project.libraries == ["ws2_32.lib"]
    assert project.link_options == ["/OPT:REF", "/STACK:2000000", "/NOENTRY"]
    assert (project.subsystem, project.static_runtime, project.security_check) == ("Console", True, False)


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        (None, True),
        ("", True),
        ("$(On)", True),
        ("$(Off)", False),
        ("'$(Configuration)' == 'release'", True),
        ("'$(Configuration)' != 'Release'", False),
        ("'$(Off)' == ''", True),
        ("'$(Configuration)'=='Debug' or '$(Platform)'=='x64'", True),
        ("'$(Configuration)'=='Release' and '$(Platform)'=='ARM'", False),
        ("Exists('/')", True),
        ("Exists('/nowhere/at/all')", False),
    ],
)
def test_conditions(condition: str | None, truth: bool) -> None:
    assert vcxproj.holds(condition, PROPERTIES) is truth


def test_options_are_quoted_for_a_response_file() -> None:
    assert quote("/O2") == "/O2"
    assert quote('/DNAME=L"python3"') == '/DNAME=L\\"python3\\"'
    assert quote("/IC:\\a b") == '"/IC:\\a b"'
