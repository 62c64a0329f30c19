from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browsing import browse, look
from channels import make_variant
from dswin import channel as channels
from dswin import channel_page, publish
from dswin.cli import main
from dswin.errors import BadInput
from making import make_package, serve

PLACEHOLDER = channel_page.PLACEHOLDER
EVIL = "<script>alert(1)</script>\"'&"


class Page(HTMLParser):
    """The texts of a page's lines, its links, and its tags; the parser undoes escapes as a browser does."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [str(value) for name, value in attributes if tag == "a" and name == "href"]
        if tag == "pre":
            self.lines.append("")
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "pre" in self.open:
            self.lines[-1] += data
        if not {"script", "style"} & set(self.open):
            self.text = " ".join([*self.text.split(), *data.split()])


def read_page(channel: Path, path: str = "index.html") -> Page:
    return Page((channel / path).read_text(encoding="utf-8"))


def make_channel(folder: Path) -> Path:
    for version in ("0.19.7", "0.19.8"):
        for subdir in ("win-64", "linux-64"):
            for variant in ("cuda121", "cuda130", "cpu"):
                make_variant(folder, variant, version, subdir=subdir)
    long = "a-package-with-a-name-that-goes-on-and-on-and-on-and-on"
    make_package(folder, long, "2026.11.30.1", "py311h0123456789abcdef_0", subdir="win-64", index={"license": EVIL})
    return folder


def test_without_a_script_each_client_has_its_lines(tmp_path: Path) -> None:
    channel = make_channel(tmp_path / "channel")
    assert main(["channel", "index", str(channel), "--url", "https://intranet.example/my%20channel/"]) == 0
    lines = read_page(channel).lines
    own = "-c https://intranet.example/my%20channel -c pytorch -c nvidia -c conda-forge"
    for client in ("conda", "mamba", "micromamba"):
        assert f"{client} create -n deepspeed --override-channels {own} deepspeed-win" in lines
    # pixi and conda-lock take no driver, or an old one, for granted: each has to be told.
    cuda = "pixi workspace system-requirements add cuda 12.1"
    assert f"pixi init deepspeed {own}\ncd deepspeed\n{cuda}\npixi add deepspeed-win" in lines
    lock = "conda-lock lock -f environment.yml -p linux-64 -p win-64 --with-cuda 12.1"
    assert f"{lock}\nconda-lock install -n deepspeed conda-lock.yml" in lines
    assert any("dswin env create --lock locks/gpu-py311.conda-lock.yml" in line for line in lines)
    # conda-forge alone for the variant that takes torch from there.
    assert (
        "conda install --override-channels -c https://intranet.example/my%20channel -c conda-forge "
        '"deepspeed-win=0.19.8=cuda130_py311_0"' in lines
    )
    assert PLACEHOLDER not in " ".join(lines)


def test_without_a_url_the_lines_say_what_to_put_in(tmp_path: Path) -> None:
    channel = make_channel(tmp_path / "channel")
    channels.reindex(channel)
    page = read_page(channel)
    assert f"conda create -n deepspeed --override-channels -c {PLACEHOLDER} -c pytorch" in page.lines[0]
    assert f"put this page's address in place of {PLACEHOLDER}" in page.text


def test_a_channel_with_torch_in_it_needs_no_other(tmp_path: Path) -> None:
    make_variant(tmp_path, "cuda121")
    make_package(tmp_path, "pytorch", "2.5.1", "py3.11_cuda12.1_cudnn9_0", subdir="win-64")
    channels.reindex(tmp_path)
    assert f"conda create -n deepspeed --override-channels -c {PLACEHOLDER} deepspeed-win" in read_page(tmp_path).lines


def test_the_environment_file_is_one(tmp_path: Path) -> None:
    import yaml

    make_variant(tmp_path)
    channels.reindex(tmp_path)
    [text] = [line for line in read_page(tmp_path).lines if line.startswith("channels:")]
    assert yaml.safe_load(text) == {
        "channels": [PLACEHOLDER, "conda-forge", "nodefaults"],
        "dependencies": ["deepspeed-win"],
    }


def test_each_build_says_what_is_in_it(tmp_path: Path) -> None:
    made = make_variant(tmp_path, "cuda121", subdir="win-64")
    channels.reindex(tmp_path)
    text = read_page(tmp_path).text
    for part in ("CUDA 12.1 · Python 3.11", "Variant cuda121", "CUDA 12.1 torch 2.5.1 Python 3.11", "CPU code AVX2",
                 "GPU architectures 7.5, 8.0, 8.6, 8.9, 9.0+PTX", "Driver for CUDA 12.1+", "Built 2023-11-14",
                 f"Size {channel_page.show_size(made.path.stat().st_size)}", made.sha256):  # fmt: skip
        assert part in text
    assert read_page(tmp_path, "win-64/index.html").text.count(made.sha256) == 1


def test_a_channel_for_the_cpu_asks_for_no_driver(tmp_path: Path) -> None:
    make_variant(tmp_path, subdir="linux-64")
    channels.reindex(tmp_path)
    page = read_page(tmp_path)
    assert "cuda" not in " ".join(page.lines).lower()
    assert "conda-lock lock -f environment.yml -p linux-64\n" in "\n".join(page.lines)
    assert "driver," not in page.text


def test_a_subdir_has_its_own_lines_and_builds(tmp_path: Path) -> None:
    channel = make_channel(tmp_path / "channel")
    channels.reindex(channel, "https://host/c")
    page, whole = read_page(channel, "win-64/index.html"), read_page(channel)
    assert page.lines[0] == whole.lines[0]
    assert any("-p win-64 --with-cuda" in line for line in page.lines)
    assert "linux-64 · " not in page.text
    assert page.text.count("Variant cuda121") == 1
    assert whole.text.count("Variant cuda121") == 2
    older = "win-64 · cpu · torch 2.5 · Python 3.11 · CPU code AVX2"
    assert older in page.text
    assert older in whole.text
    assert (
        "cuda121 · CUDA 12.1 · torch 2.5.1 · Python 3.11 · CPU code AVX2 · GPU 7.5, 8.0, 8.6, 8.9, 9.0+PTX" in page.text
    )
    assert read_page(channel, "noarch/index.html").lines == []


def test_every_link_leads_to_a_file(tmp_path: Path) -> None:
    from urllib.parse import unquote

    target = tmp_path / "ours"
    source = make_channel(tmp_path / "channel")
    channels.reindex(source)
    publish.publish(source, str(target))
    count = 0
    for page in ("index.html", "win-64/index.html", "linux-64/index.html", "noarch/index.html"):
        for link in read_page(target, page).links:
            assert (target / page).parent.joinpath(unquote(link)).is_file(), link
            count += 1
    assert any(link.endswith(".cdx.json") for link in read_page(target).links)
    assert count > 50


def test_nothing_of_a_package_becomes_html(tmp_path: Path) -> None:
    channel = make_channel(tmp_path / "channel")
    channels.reindex(channel)
    for path in ("index.html", "win-64/index.html"):
        page = read_page(channel, path)
        assert EVIL in page.text
        assert page.scripts == 1
        assert page.open == []


def test_a_channel_without_packages_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "noarch").mkdir()
    channels.reindex(tmp_path)
    assert "There is no package in this channel yet" in read_page(tmp_path).text


@pytest.mark.parametrize(
    "url",
    [
        "https://host/a channel",
        "intranet",
        "javascript://x",
        'https://host/"',
        "https://me:secret@host/c",
        "https://host/t/secret/c",
    ],
)
def test_a_url_that_cannot_stand_in_a_page_is_refused(url: str) -> None:
    with pytest.raises(BadInput) as error:
        channel_page.check_url(url)
    assert "secret" not in error.value.what


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "unknown"), (0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3_925_211, "3.7 MiB")],
)
def test_sizes_for_people(size: int | None, text: str) -> None:
    assert channel_page.show_size(size) == text


# In a browser

MEASURE = """return {
  scroll: root.scrollWidth, view: view.innerWidth,
  beyond: [...page.querySelectorAll("body *")].filter(
    one => one.getBoundingClientRect().right > root.clientWidth + 1).map(one => one.tagName),
  lines: [...page.querySelectorAll("pre")].map(one => one.innerText),
  buttons: page.querySelectorAll("button").length,
  small: [...page.querySelectorAll("button")].filter(one => one.getBoundingClientRect().height < 44).length,
  note: Boolean(page.getElementById("where")),
  background: view.getComputedStyle(page.body).backgroundColor,
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a channel in it, and its url."""
    channel = make_channel(tmp_path_factory.mktemp("a site") / "my channel")
    channels.reindex(channel)
    with serve(channel.parent) as server:
        yield channel.parent, server.url


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "light")])
def test_in_a_browser(served: tuple[Path, str], tmp_path: Path, width: int, scheme: str, scripts: bool) -> None:
    site, url = served
    found = look(site, url, "my channel/index.html", tmp_path, MEASURE, width=width, scheme=scheme, scripts=scripts)
    assert (found["view"], found["scroll"], found["beyond"]) == (width, width, [])
    own = f"{url}/my%20channel" if scripts else PLACEHOLDER
    assert found["lines"][0] == (
        f"conda create -n deepspeed --override-channels -c {own} -c pytorch -c nvidia -c conda-forge deepspeed-win"
    )
    assert [line for line in found["lines"] if (PLACEHOLDER in line) is scripts and "-c " in line] == []
    assert found["buttons"] == (len(found["lines"]) if scripts else 0)
    assert found["small"] == 0 or width > 500
    assert found["note"] is not scripts
    assert found["background"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]


def test_a_subdir_in_a_browser(served: tuple[Path, str], tmp_path: Path) -> None:
    site, url = served
    found = look(site, url, "my channel/win-64/index.html", tmp_path, MEASURE)
    assert (found["view"], found["scroll"], found["beyond"]) == (360, 360, [])


@pytest.mark.parametrize("works", [True, False])
def test_the_copy_button(served: tuple[Path, str], tmp_path: Path, works: bool) -> None:
    # A clipboard that a page may not use is what browsers have for pages of http.
    clipboard = "text => { copied = text; }" if works else "() => { throw new Error(); }"
    script = f"""
      let copied = "";
      Object.defineProperty(view.navigator, "clipboard", {{value: {{writeText: async {clipboard}}}}});
      const button = page.querySelector("button");
      button.click();
      await new Promise(done => setTimeout(done, 100));
      return [copied, view.getSelection().toString(), button.textContent];
    """
    site, url = served
    copied, selected, label = look(site, url, "my channel/index.html", tmp_path, script)
    own = f"{url}/my%20channel"
    line = f"conda create -n deepspeed --override-channels -c {own} -c pytorch -c nvidia -c conda-forge deepspeed-win"
    if works:
        assert (copied, label) == (line, "Copied")
    else:
        assert (selected, copied) == (line, "")
        assert label in ("Copied", "Press Ctrl+C")


def test_a_page_that_is_too_wide_or_in_error_is_seen(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!doctype html><body><p style='width:50rem'>x</p>", encoding="utf-8")
    (tmp_path / "error.html").write_text("<!doctype html><script>nothing.here()</script>", encoding="utf-8")
    with serve(tmp_path) as server:
        found = look(tmp_path, server.url, "page.html", tmp_path, MEASURE)
        assert (found["scroll"] > 360, found["beyond"]) == (True, ["P"])
        with pytest.raises(AssertionError, match="nothing is not defined"):
            look(tmp_path, server.url, "error.html", tmp_path, MEASURE)


def test_on_paper(served: tuple[Path, str], tmp_path: Path) -> None:
    _, url = served
    browse(tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", f"{url}/my%20channel/index.html")
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 2 <= pages <= 6
