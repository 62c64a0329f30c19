"""Mirrors: which address is asked first, and what goes into a .condarc."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dswin import mirrors
from dswin.errors import BadInput
from dswin.mirrors import Mirrors

FORGE = "https://conda.anaconda.org/conda-forge"
URL = f"{FORGE}/noarch/p-1-0.conda"


def test_longest_beginning_wins() -> None:
    table = Mirrors({"https://conda.anaconda.org": ("https://a",), FORGE: ("https://b/cf", "file:///m/cf")})
    assert table.list_addresses(URL) == ["https://b/cf/noarch/p-1-0.conda", "file:///m/cf/noarch/p-1-0.conda", URL]
    other = "https://conda.anaconda.org/conda-forge-dev/noarch/p-1-0.conda"
    assert table.list_addresses(other) == ["https://a/conda-forge-dev/noarch/p-1-0.conda", other]


def test_no_mirror() -> None:
    assert mirrors.NONE.list_addresses(URL) == [URL]


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "mirrors.toml"
    path.write_text(f'[[mirror]]\nfrom = "{FORGE}/"\nto = ["https://one/cf/", "https://two/cf"]\n', encoding="utf-8")
    assert mirrors.read(path).table == {FORGE: ("https://one/cf", "https://two/cf")}


def test_command_line_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "mirrors.toml").write_text(f'[[mirror]]\nfrom = "{FORGE}"\nto = ["https://two/cf"]\n', encoding="utf-8")
    found = mirrors.gather([f"{FORGE}=https://one/cf", "Tsinghua"], tmp_path)
    assert found.table[FORGE] == (
        "https://one/cf",
        "https://mirrors.tuna.tsinghua.edu.cn/anaconda/cloud/conda-forge",
        "https://two/cf",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mirror = 1",
        "[[mirror]]\n",
        '[[mirror]]\nfrom = "https://a"\nto = "https://b"',
        '[[mirror]]\nfrom = "https://a"\nto = []',
        '[[mirror]]\nfrom = "https://a"\nto = [1]',
        '[[mirror]]\nfrom = "conda-forge"\nto = ["https://b"]',
        '[[mirror]]\nfrom = "https://[a"\nto = ["https://b"]',
        "[[mirror",
        "\udcff",
    ],
)
def test_malformed_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mirrors.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=r"mirrors\.toml"):
        mirrors.read(path)


@pytest.mark.parametrize("text", ["nowhere", "a=b", "https://a=", "missing.toml", ""])
def test_malformed_option(text: str) -> None:
    with pytest.raises(BadInput):
        mirrors.parse(text)


def test_secret_is_not_in_the_message() -> None:
    with pytest.raises(BadInput) as caught:
        mirrors.parse("https://conda.anaconda.org/x=ftp://me:secret@host")
    assert "secret" not in caught.value.what + caught.value.fix


def test_condarc() -> None:
    document = yaml.safe_load(mirrors.write_condarc(["tuna", "sustech"]))
    assert document["channels"] == ["conda-forge", "pytorch", "nvidia"]
    assert document["custom_channels"]["pytorch"] == "https://mirrors.tuna.tsinghua.edu.cn/anaconda/cloud"
    assert document["custom_channels"]["nvidia"] == "https://mirrors.sustech.edu.cn/anaconda-extra/cloud"


@pytest.mark.parametrize("names", [[], [f"{FORGE}=https://one/other-name"], ["https://elsewhere/x=https://one/x"]])
def test_no_condarc(names: list[str]) -> None:
    with pytest.raises(BadInput):
        mirrors.write_condarc(names)


_URLS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(lambda parts: "https://" + "/".join(parts))


@given(st.dictionaries(_URLS, st.lists(_URLS, min_size=1, max_size=3).map(tuple)), _URLS)
def test_the_lock_s_own_url_is_always_asked_last(table: dict[str, tuple[str, ...]], start: str) -> None:
    url = start + "/noarch/p-1-0.conda"
    found = Mirrors(table).list_addresses(url)
    assert found.count(url) == 1
    assert len(set(found)) == len(found)
    assert all(address.endswith("/p-1-0.conda") for address in found)
