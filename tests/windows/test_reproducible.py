"""The same inputs give the same bytes on Windows too."""

from __future__ import annotations

from pathlib import Path

import pytest

from building import Build, build_for_windows
from dswin.digests import hash_file
from dswin.wine import Msvc


@pytest.mark.long  # ten minutes; tests/build does the same for Linux
def test_a_second_build_is_the_same_files(windows_build: Build, msvc: Msvc, tmp_path: Path) -> None:
    again = build_for_windows(tmp_path / "another channel", msvc.root)
    for one, other in ((windows_build.package, again.package), (windows_build.wheel, again.wheel)):
        assert one != other
        assert hash_file(one) == hash_file(other), one.name
