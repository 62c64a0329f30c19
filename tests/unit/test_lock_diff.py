"""What changed between two locks, and what each policy says to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from dswin import lock, lock_diff
from dswin.lock_diff import Change
from locking import FORGE, Alter, add, make_entry, on_package, write


def compare(tmp_path: Path, *alter: Alter) -> list[Change]:
    return lock_diff.compare(lock.read(write(tmp_path, name="a")), lock.read(write(tmp_path, *alter, name="b")))


def hashes(md5: str | None, sha256: str | None) -> dict[str, str]:
    pairs = {"md5": md5 and md5 * 32, "sha256": sha256 and sha256 * 64}
    return {kind: value for kind, value in pairs.items() if value}


SAME = hashes("0", "0")


@pytest.mark.parametrize(
    ("alter", "name", "kinds", "forbidding"),
    [
        (add(make_entry("pip", "26.0")), "pip", ("added",), ["any"]),
        (lambda d: d["package"].pop(2), "tzdata", ("removed",), ["any"]),
        (
            on_package(1, version="3.11.10", url=f"{FORGE}/win-64/python-3.11.10-h1_0_cpython.conda"),
            "python",
            ("version",),
            ["any"],
        ),
        (
            on_package(1, version="4.0", url=f"{FORGE}/win-64/python-4.0-0.conda"),
            "python",
            ("version",),
            ["major", "any"],
        ),
        (
            on_package(1, version="1!3.12", url=f"{FORGE}/win-64/python-1!3.12-0.conda"),
            "python",
            ("version",),
            ["major", "any"],
        ),
        (on_package(1, url=f"{FORGE}/win-64/python-3.11.9-h2_1_cpython.conda"), "python", ("build",), ["any"]),
        (on_package(1, url=f"{FORGE}/win-64/python-3.11.9-h1_0_cpython.tar.bz2"), "python", ("build",), ["any"]),
        (on_package(2, url=f"{FORGE}/win-64/tzdata-2026c-pyh_0.conda"), "tzdata", ("build",), ["any"]),
        (on_package(1, hash=hashes("1", "1")), "python", ("hash",), ["hash", "major", "any"]),
        (on_package(1, hash=hashes(None, "1")), "python", ("hash",), ["hash", "major", "any"]),
        (on_package(1, hash={"md5": f"{6:032x}"}), "python", ("hash",), ["hash", "major", "any"]),
        (
            on_package(1, url="https://other.example/c/win-64/python-3.11.9-h1_0_cpython.conda"),
            "python",
            ("channel",),
            ["major", "any"],
        ),
        (
            on_package(1, url="https://other.example/c/win-64/python-3.11.9-h1_0_cpython.conda", hash=SAME),
            "python",
            ("channel", "hash"),
            ["hash", "major", "any"],
        ),
        (
            on_package(1, version="3.11.8", url="https://other.example/c/win-64/python-3.11.8-0.conda"),
            "python",
            ("version", "channel"),
            ["major", "any"],
        ),
    ],
)
def test_each_kind_of_change_and_who_forbids_it(
    tmp_path: Path, alter: Alter, name: str, kinds: tuple[str, ...], forbidding: list[str]
) -> None:
    [change] = compare(tmp_path, alter)
    assert (change.platform, change.name, change.kinds) == ("win-64", name, kinds)
    assert [policy for policy in lock_diff.POLICIES if lock_diff.find_forbidden([change], policy)] == forbidding
    assert lock_diff.count([change]) == dict.fromkeys(kinds, 1)


def test_what_vouches_for_more_is_no_change(tmp_path: Path) -> None:
    bare = lock.read(write(tmp_path, on_package(1, hash={"md5": f"{6:032x}"}), name="bare"))
    full = lock.read(write(tmp_path, name="full"))
    assert lock_diff.compare(bare, full) == []
    assert [change.kinds for change in lock_diff.compare(full, bare)] == [("hash",)]


def test_the_same_lock_has_no_changes(tmp_path: Path) -> None:
    assert compare(tmp_path) == []
    assert compare(tmp_path, lambda document: document["package"].reverse()) == []


def test_a_platform_more_is_packages_more(tmp_path: Path) -> None:
    def alter(document: dict) -> None:
        document["metadata"]["platforms"].append("linux-64")
        document["package"].append({**make_entry("tzdata", "2026c", "pyh_0", "noarch"), "platform": "linux-64"})

    [change] = compare(tmp_path, alter)
    assert (change.platform, change.name, change.kinds) == ("linux-64", "tzdata", ("added",))


def test_every_form_shows_what_differs_and_no_secret(tmp_path: Path) -> None:
    url = "https://me:s3cret@host.example/t/tk-s3cret/c/win-64/python-3.11.9-h1_0_cpython.conda"
    changes = compare(tmp_path, on_package(1, url=url, hash=SAME), lambda d: d["package"].pop(0))
    forbidden = lock_diff.find_forbidden(changes, "hash")
    assert [change.name for change in forbidden] == ["python"]

    document = lock_diff.to_json(changes, forbidden)
    assert [(one["name"], one["kinds"], one["forbidden"]) for one in document] == [
        ("numpy", ["removed"], False),
        ("python", ["channel", "hash"], True),
    ]
    assert document[0]["after"] is None
    assert document[1]["after"]["sha256"] == "0" * 64
    assert document[1]["before"]["channel"] == FORGE

    markdown = lock_diff.to_markdown(changes, forbidden)
    rows = markdown.splitlines()
    assert len(rows) == 4
    assert rows[0] == "| platform | package | change | before | after |"
    assert rows[2] == r"| win-64 | numpy | removed | 2.4.6 py311\_0 |  |"
    assert rows[3].startswith(
        "| **win-64** | **python** | **channel, hash** | **3.11.9 h1\\_0\\_cpython, https://conda"
    )
    assert f"sha256 {'0' * 64}" in rows[3]

    console = Console(width=400, record=True, quiet=False, file=(tmp_path / "out").open("w"))
    console.print(lock_diff.to_table(changes, forbidden))
    text = console.export_text()
    assert "channel, hash" in text
    assert f"sha256 {'0' * 64}" in text
    for shown in (json.dumps(document), markdown, text):
        assert "s3cret" not in shown
        assert "host.example" in shown


def test_the_policies_go_from_the_laxest_to_the_strictest(tmp_path: Path) -> None:
    changes = compare(
        tmp_path,
        on_package(0, hash=SAME),
        on_package(1, version="4.0", url=f"{FORGE}/win-64/python-4.0-0.conda"),
        add(make_entry("pip", "26.0")),
    )
    forbidden = [{one.name for one in lock_diff.find_forbidden(changes, policy)} for policy in lock_diff.POLICIES]
    assert forbidden == [set(), {"numpy"}, {"numpy", "python"}, {"numpy", "python", "pip"}]
