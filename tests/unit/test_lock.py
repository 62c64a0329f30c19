"""A lock is read whole or refused with one error that names the place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dswin import lock, lock_check, lock_diff
from dswin.errors import BadInput
from locking import FORGE, make_document, make_entry, on_metadata, on_package, write

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a folder")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return make_document(folder)


def test_a_lock_is_read(tmp_path: Path) -> None:
    found = lock.read(write(tmp_path))
    assert [str(one) for one in found.on("win-64")] == [
        "numpy 2.4.6 py311_0",
        "python 3.11.9 h1_0_cpython",
        "tzdata 2026c pyh_0",
    ]
    numpy, _, tzdata = found.packages
    assert (numpy.subdir, numpy.channel, numpy.fn) == ("win-64", FORGE, "numpy-2.4.6-py311_0.conda")
    assert numpy.depends == {"python": ">=3.11,<3.12.0a0", "tzdata": "", "__cuda": ">=12"}
    assert (numpy.md5, numpy.sha256, numpy.category) == (f"{5:032x}", f"{5:064x}", "main")
    assert tzdata.subdir == "noarch"
    assert (found.platforms, found.channels, found.sources) == (("win-64",), ("conda-forge",), ("environment.yaml",))
    assert list(lock_check.find_gaps(lock_check.Case(found, None, None, {}))) == []
    with pytest.raises(BadInput, match="is not for linux-64"):
        found.on("linux-64")


@pytest.mark.parametrize(
    ("name", "version", "file"),
    [
        ("epoch", "1!2.0", "epoch-1!2.0-py_0.conda"),
        ("epoch", "1!2.0", "epoch-1%212.0-py_0.conda"),
        ("_u.v_w-x", "1.0_1", "_u.v_w-x-1.0_1-a.b_0.tar.bz2"),
        ("rc", "1.0RC1", "rc-1.0RC1-0.conda"),
        ("local", "2.5.1+cu121", "local-2.5.1+cu121-0.conda"),
    ],
)
def test_odd_names_and_versions_are_read(tmp_path: Path, name: str, version: str, file: str) -> None:
    url = f"file:///a%20b/100%25/noarch/{file}"
    packages = lock.read(write(tmp_path, on_package(0, name=name, version=version, url=url))).packages
    [found] = [one for one in packages if one.name == name]
    assert (found.version, found.channel) == (version, "file:///a%20b/100%25")
    assert found.fn == file.replace("%21", "!")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "conda-forge/win-64/numpy-2.4.6-py311_0.conda",
        "ftp://host/c/win-64/numpy-2.4.6-py311_0.conda",
        "https:///win-64/numpy-2.4.6-py311_0.conda",
        "https://host:http/c/win-64/numpy-2.4.6-py311_0.conda",
        "https://[host/c/win-64/numpy-2.4.6-py311_0.conda",
        "https://host/c/linux-64/numpy-2.4.6-py311_0.conda",
        "https://host/c/win-64/numpy-2.4.6-py311_0.whl",
        "https://host/c/win-64/numpy-2.4.5-py311_0.conda",
        "https://host/c/win-64/scipy-2.4.6-py311_0.conda",
        "https://host/c/win-64/numpy-2.4.6-py311_0.conda#md5",
        "https://host/c/win-64/numpy-2.4.6-py311_0.conda?to=/win-64/numpy-2.4.6-py311_0.conda",
        "https://host/c/win-64/numpy-2.4.6-py311_0.conda\n",
        "https://host/c/win-64/ numpy-2.4.6-py311_0.conda",
        "https://host/c/win-64\\numpy-2.4.6-py311_0.conda",
        "https://host/c%2Fwin-64%2Fnumpy-2.4.6-py311_0.conda",
        "https://host/c/win-64/..%2Fnumpy-2.4.6-py311_0.conda",
        "https://host/c/win-64/numpy-2.4.6-py311%5C_0.conda",
        f"https://host/c/win-64/numpy-2.4.6-{'a' * 240}.conda",
    ],
)
def test_a_url_that_clients_may_read_in_two_ways_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInput, match=r"numpy.* url"):
        lock.read(write(tmp_path, on_package(0, url=url)))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("..\\..\\evil", "..%5C..%5Cevil-2.4.6-0.conda"),
        ("../evil", "..%2Fevil-2.4.6-0.conda"),
        (".evil", ".evil-2.4.6-0.conda"),
    ],
)
def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str, file: str) -> None:
    with pytest.raises(BadInput, match="does not end in SUBDIR/NAME-VERSION-BUILD"):
        lock.read(write(tmp_path, on_package(0, name=name, url=f"{FORGE}/win-64/{file}")))


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (lambda d: d.update(version=2), "its version is"),
        (lambda d: d.update(version=True), "its version is True"),
        (lambda d: d.update(version=None), "its version is None"),
        (lambda d: d.update(version=[[1] * 5] * 5), "refers to another place"),
        (lambda d: d.update(package={}), "no list of packages"),
        (lambda d: d.pop("metadata"), "no metadata"),
        (lambda d: d["package"].append("numpy"), "package 4 is not a table"),
        (lambda d: d["package"].append(make_entry("numpy", "2.4.6")), "numpy is in it twice for win-64"),
        (on_metadata(platforms=[]), "name no platforms"),
        (on_metadata(platforms="win-64"), "name no platforms"),
        (on_metadata(platforms=["../.."]), "name no platforms"),
        (on_metadata(platforms=["linux-64"]), "not among the lock's platforms"),
        (on_metadata(channels=None), "name no channels"),
        (on_metadata(channels=[1]), "a channel of its metadata"),
        (on_metadata(channels=[{"url": "https://[x"}]), "a channel of its metadata"),
        (on_metadata(sources=7), "its sources are not"),
        (on_metadata(sources="environment.yaml"), "its sources are not"),
        (on_metadata(content_hash=None), "content_hash"),
        (on_metadata(custom_metadata={"a": 1}), "custom_metadata"),
        (on_metadata(custom_metadata=[]), "custom_metadata"),
        (on_package(1, name=...), r"package 2 \(None\) has no name"),
        (on_package(1, name=["python"]), r"package 2 \(a list\) has no name"),
        (on_package(1, version=3.11), r"package 2 \('python'\) has no version"),
        (on_package(1, manager="pip"), r"python \(package 2\) is for 'pip'"),
        (on_package(1, dependencies=["x"]), "the dependencies of python"),
        (on_package(1, dependencies={"x": 1}), "the dependencies of python"),
        (on_package(1, category=None), "its category is no text"),
        (on_package(1, hash=...), "has no hash"),
        (on_package(1, hash={}), "has no hash"),
        (on_package(1, hash={"md5": "0" * 31}), "the md5 of python"),
        (on_package(1, hash={"md5": "A" * 32}), "the md5 of python"),
        (on_package(1, hash={"sha256": "g" * 64}), "the sha256 of python"),
        (on_package(1, hash={"sha256": 12}), "the sha256 of python"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, alter: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        lock.read(write(tmp_path, alter))
    assert "small.conda-lock.yml" in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it is not a table"),
        (b"[]", "it is not a table"),
        (b"\xff\xfe", "not UTF-8"),
        (b"version: 1\n\tx: 1", "line 2, is not YAML"),
        (b"a: \x00", "is not YAML"),
        (b"a: 1\n---\nb: 2", "is not YAML"),
        (b"a: *b", "refers to another place"),
        (b"version: 1\nversion: 1", "line 2 has the key 'version' for the second time"),
        (b"version: 1\nmetadata: {x: [{a: 1, a: 2}]}", "line 2 has the key 'a' for the second time"),
        (b"[" * 100_000, "is not YAML"),
        (b"- " * 100_000, "is not YAML"),
        (b"a: !!bool maybe", "is not YAML"),
        (b"a: !!timestamp now", "is not YAML"),
        (b"a: !!int ''", "is not YAML"),
        (b"a: !!python/object/apply:os.getcwd []", "is not YAML"),
        (b"version: " + b"9" * 5000, "is not YAML"),
        (b"version: 0x" + b"f" * 5000, "its version is a int"),
        (b"version: .nan", "its version is a float"),
    ],
)
def test_what_is_not_the_yaml_of_a_lock_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "x.conda-lock.yml"
    path.write_bytes(text)
    with pytest.raises(BadInput, match=said):
        lock.read(path)


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "not-there.yml", Path("nul\0byte")):
        with pytest.raises(BadInput, match="cannot be read"):
            lock.read(path)


@pytest.mark.parametrize("merge", ["", "<<: "])
def test_a_bomb_of_aliases_does_not_unfold(tmp_path: Path, merge: str) -> None:
    levels = [f"a{n}: &a{n} {{{merge or 'k: '}[{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 40)]
    path = tmp_path / "bomb.conda-lock.yml"
    path.write_text("\n".join(["a0: &a0 {x: y}", *levels, "version: *a39", ""]), encoding="utf-8")
    # Unfolded, it would have 9 to the power of 39 parts, and this would not end.
    with pytest.raises(BadInput, match="refers to another place"):
        lock.read(path)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("conda-forge", False),
        ("https://host/channel", False),
        ("https://me@host/channel", True),
        ("https://me:pass@host/channel", True),
        ("https://${ME}:pass@host/channel", True),
        ("https://${ME}:${PASS}@host/channel", False),
        ("https://$ME:$PASS@host/channel", False),
        ("https://host/t/tk-1-2/channel", True),
        ("https://host/t/${TOKEN}/channel", False),
        ("https://host/channel?token=1", True),
        ("file:///t/folder/channel", False),
    ],
)
def test_secrets_in_urls_are_seen(url: str, secret: bool) -> None:
    assert lock.holds_secret(url) is secret


@pytest.mark.parametrize("path", sorted((ROOT / "locks").glob(f"*{lock.SUFFIX}")), ids=lambda path: path.name)
def test_our_locks_are_read(path: Path) -> None:
    found = lock.read(path)
    assert len(found.packages) > 50
    assert list(lock_check.find_gaps(lock_check.Case(found, None, None, {}))) == []


# Broken locks, made up


DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
ODD_TEXTS = (
    *(
        "\x1b[31m",
        "..",
        "1!2.0",
        "https://[",
        "https://h/t/x/c/win-64/a-1-0.conda",
        "file:///",
        "${X}",
        "~",
        "NaN",
        "1..2",
    ),
    *("=", ">=", "|", "(", "[build=", "*.*", "win-64", "noarch", "__win"),
)
SMALL = st.none() | st.text(max_size=3)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=8),
    st.dates(),
    st.just("a" * 5000),
    st.sampled_from(ODD_TEXTS),
    st.recursive(
        SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SMALL, inner, max_size=3), max_leaves=8
    ),
)
SNIPPETS = (
    *(
        "\t",
        "\0",
        "&a ",
        "*a",
        "&a [*a]",
        "[",
        "]]]",
        "{",
        "}",
        "- ",
        ": ",
        "? ",
        "!!bool ",
        "!!binary ",
        "!!set ",
        "!x ",
        "<<: ",
    ),
    *(
        "%YAML 9.9\n",
        "---\n",
        "...\n",
        "'",
        '"',
        "|\n",
        ">\n",
        "# ",
        "\n\n",
        "  ",
        "\u2028",
        "\ufeff",
        "@",
        "`",
        "version: 1\n",
    ),
    *("[" * 900, "{a: " * 500, "9" * 5000, "0x" + "f" * 5000, ".nan", "1:1:1:1:1.5", "2026-99-99"),
)


def list_places(value: object, place: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The path to every value in a document."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from list_places(inner, (*place, key))


def mutate_table(data: st.DataObject, document: dict[str, Any]) -> bytes:
    """One to three changes of values and keys."""
    document = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        places = [place for place in list_places(document) if place]
        if not places:
            break
        *path, last = data.draw(st.sampled_from(places))
        parent: Any = document
        for key in path:
            parent = parent[key]
        match data.draw(st.sampled_from(["set", "delete", "wrap", "double", "rename", "move"])):
            case "set":
                parent[last] = data.draw(JUNK)
            case "delete":
                del parent[last]
            case "wrap":
                parent[last] = data.draw(st.sampled_from([[parent[last]], {"a": parent[last]}, [[[parent[last]]]]]))
            case "double" if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[last]))
            case "rename" if isinstance(parent, dict):
                parent[
                    data.draw(st.text(max_size=5) | st.none() | st.integers() | st.sampled_from(["url", "hash"]))
                ] = parent.pop(last)
            case _:
                *other, end = data.draw(st.sampled_from(places))
                parent[last] = copy.deepcopy(document.get(end) if not other and isinstance(end, str) else end)
    return yaml.dump(document, Dumper=DUMPER, sort_keys=False, allow_unicode=data.draw(st.booleans())).encode()


#: Below these a lock may have any text; what it means is looked at after the reading.
FREE = {"custom_metadata", "sources", "channels", "content_hash", "dependencies", "category"}


def mutate_words(data: st.DataObject, document: dict[str, Any]) -> bytes:
    """One to four other texts, or other keys, where the format allows any."""
    document = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 4))):
        places = [place for place in list_places(document) if FREE & set(place[:-1])]
        *path, last = data.draw(st.sampled_from(places))
        parent: Any = document
        for key in path:
            parent = parent[key]
        text = data.draw(st.sampled_from(ODD_TEXTS) | st.text(max_size=20))
        if isinstance(parent, dict) and data.draw(st.booleans()) and last != "url":
            parent[text] = parent.pop(last)
        elif isinstance(parent[last], str):
            parent[last] = text
    return yaml.dump(document, Dumper=DUMPER, sort_keys=False).encode()


def mutate_text(data: st.DataObject, document: dict[str, Any]) -> bytes:
    """One to three changes of the text itself."""
    text = yaml.dump(document, Dumper=DUMPER, sort_keys=False).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        match data.draw(st.sampled_from(["byte", "cut", "drop", "insert", "line"])):
            case "byte":
                text = text[:at] + data.draw(st.binary(min_size=1, max_size=2)) + text[at + 1 :]
            case "cut":
                text = text[:at]
            case "drop":
                text = text[:at] + text[at + data.draw(st.integers(1, 40)) :]
            case "insert":
                text = text[:at] + data.draw(st.sampled_from(SNIPPETS)).encode() + text[at:]
            case "line":
                lines = text.splitlines(keepends=True)
                text = b"".join(data.draw(st.permutations(lines[:6]))) + b"".join(lines[6:] + lines[-3:])
    return text


def test_a_thousand_broken_locks_raise_nothing_but_our_errors(folder: Path, document: dict[str, Any]) -> None:
    good = lock.read(write(folder, document=document, name="good"))
    path = folder / "broken.conda-lock.yml"
    seen: list[str] = []

    # Without the search for a smaller example, which takes minutes here.
    @settings(
        max_examples=1100,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        mutate = data.draw(st.sampled_from([mutate_table, mutate_text, mutate_words]))
        path.write_bytes(mutate(data, document))
        findings = lock_check.check(path)
        assert all(finding.text and finding.fix for finding in findings)
        assert all(finding.text.isprintable() for finding in findings)
        if [finding.rule for finding in findings] == ["readable"]:
            with pytest.raises(BadInput) as caught:
                lock.read(path)
            assert caught.value.fix
            seen.append("refused")
            return
        broken = lock.read(path)
        changes = lock_diff.compare(good, broken)
        for policy in lock_diff.POLICIES:
            forbidden = lock_diff.find_forbidden(changes, policy)
            lock_diff.to_json(changes, forbidden)
        lock_diff.to_markdown(changes, forbidden)
        lock_diff.to_table(changes, forbidden)
        seen.append("found" if findings else "changed" if changes else "same")

    run()
    assert len(seen) >= 1000
    # They reach the reading, the rules and the comparison.
    assert seen.count("refused") > 300
    assert seen.count("found") > 200
