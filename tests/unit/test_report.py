"""The page of `dswin verify`, made from what was measured on a machine with two cores, and of what a hostile one could say."""

from __future__ import annotations

import copy
import http.server
import itertools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from building import ROOT
from dswin import charts, report
from dswin.errors import MachineLacks

DATA = ROOT / "scripts" / "dswin" / "data"
VOID = {"meta", "link", "br", "img", "hr", "input"}
#: Elements of SVG that the page writes as empty ones.
EMPTY = {"line", "rect", "polyline"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What `dswin verify --ranks 2 --json` printed."""
    return json.loads((ROOT / "tests" / "data" / "verify-cpu.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def failed(measured: dict[str, Any]) -> dict[str, Any]:
    """The same with failures, made up GPUs, and texts that would be markup."""
    document = copy.deepcopy(measured)
    document["exit_code"] = 1
    about = document["environment"]
    about |= {"device": "cuda", "driver": "580.1", "executable": f"/opt/{EVIL}/python"}
    about["gpus"] = [{"name": EVIL, "memory_bytes": 24 * 2**30, "capability": "8.9"}] * 2
    for number, check in enumerate(document["checks"]):
        if "losses" in check["details"]:
            check["details"] |= {"device": "cuda", "peak_memory_bytes": (number + 1) * 2**30}
    bad = next(check for check in document["checks"] if check["title"] == "ZeRO 3, fp32")
    bad |= {
        "result": "failed",
        "what": f"It crashed {EVIL}",
        "fix": "Do this.",
        "log": "long " * 200 + EVIL,
        "details": {},
    }
    document["messages"].append({"text": "x" * 300, "count": 1, "why": None})
    document["checks"][1]["details"]["ops"][0] |= {"loads": False, "problem": EVIL}
    return document


class Page(HTMLParser):
    """Reads a page strictly: every element is closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.parents: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.parents.append(tuple(self.open))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    def find(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def test_what_was_measured_is_as_the_schema_says(measured: dict[str, Any]) -> None:
    jsonschema.validate(measured, json.loads((DATA / "verify.schema.json").read_text(encoding="utf-8")))


def test_the_figures_are_on_the_page(measured: dict[str, Any]) -> None:
    page = Page(report.render(measured))
    text = " ".join(" ".join(page.texts).split())
    assert "Everything that ran passed." in text
    about = measured["environment"]
    for value in (about["package"], about["torch"]["version"], about["deepspeed"]["version"], about["processor"]):
        assert value in text
    assert "8 = 4 × 2 × 1" in text
    assert "8 = 4 × 1 × 2" in text
    for check in measured["checks"]:
        if "losses" in check["details"]:
            assert f"{check['details']['losses'][-1]:.3g}" in text
            assert report.show_ms(check["details"]["steady_step_s"]) in text
    for op in measured["checks"][1]["details"]["ops"]:
        assert (op["file"] or op["reason"]) in text
    assert "One machine needs no list of hosts." in text


def test_the_plots_are_there_and_named(measured: dict[str, Any]) -> None:
    page = Page(report.render(measured))
    # Losses and steps for two precisions and for ranks, and each optimizer.
    assert len(page.find("svg")) == 2 * 2 + 2 + 2
    ids = [attributes["id"] for attributes in page.find("title", "desc") if "id" in attributes]
    assert len(set(ids)) == len(ids) == 2 * 8
    for svg in page.find("svg"):
        assert svg["role"] == "img"
        assert str(svg["aria-labelledby"]).split() == [one for one in ids if one in str(svg["aria-labelledby"]).split()]
    assert len(page.find("polyline")) == 6 + 6 + 2


def test_a_stage_has_one_colour_wherever_it_is_drawn(failed: dict[str, Any]) -> None:
    page = Page(report.render(failed))
    # ZeRO 3 failed in fp32, so that plot has one colour less.
    found = [str(attributes["class"]).split()[-1] for attributes in page.find("polyline")]
    assert found == ["c0", "c1", "c2", "c4", "c5", "c0", "c1", "c2", "c3", "c4", "c5", "c2", "c3"]


def test_tables_have_headings_and_captions(failed: dict[str, Any]) -> None:
    page = Page(report.render(failed))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.find("th"))
    assert len(page.find("caption")) == len(page.find("table")) == len(page.find("tbody"))
    [html] = page.find("html")
    assert html["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_nothing_that_is_said_becomes_markup_and_nothing_is_loaded(failed: dict[str, Any]) -> None:
    page = Page(report.render(failed))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form", "base"}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        assert set(attributes) & {"src", "href"} == ({"href"} if attributes.get("rel") == "icon" else set())
    text = "".join(page.texts)
    # Device, path, what (twice), log, an op's problem: each as it was said.
    assert text.count(EVIL) == 6
    style = report.render(failed).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_a_failure_comes_first_with_its_fix_and_log(failed: dict[str, Any]) -> None:
    text = "".join(Page(report.render(failed)).texts)
    assert text.index("Something did not pass.") < text.index("What did not pass") < text.index("Ops of this DeepSpeed")
    assert text.index("It crashed") < text.index("Do this.") < text.index("long long")
    assert "2 × <script>" in text
    assert "Peak memory of a GPU, in fp32" in text


def test_an_environment_that_does_not_import_has_a_page(measured: dict[str, Any]) -> None:
    document = {**measured, "exit_code": 1, "environment": {"executable": "/opt/python"}, "messages": []}
    first = {**measured["checks"][0], "result": "failed", "what": "ImportError: no", "fix": "Do this.", "log": "end"}
    page = Page(report.render({**document, "checks": [first]}))
    assert "ImportError: no" in "".join(page.texts)
    assert page.find("svg") == []


def test_a_page_is_written_whole_or_not_at_all(measured: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a page é.html"
    report.write(measured, file)
    assert file.read_text(encoding="utf-8") == report.render(measured)
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(MachineLacks, match="cannot be written"):
        report.write(measured, tmp_path / "no" / "x.html")


# Colours


def read_colours(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w]+): (#[0-9a-f]{6});", text))


def measure_contrast(one: str, other: str) -> float:
    """Return the contrast of two colours: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""

    def measure(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((measure(one), measure(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_measured_right() -> None:
    assert measure_contrast("#000000", "#ffffff") == pytest.approx(21)
    # The lightest grey on white that may be read, a known pair.
    assert measure_contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_from_their_background(scheme: str) -> None:
    light, dark = (DATA / "report.css").read_text(encoding="utf-8").split("@media (prefers-color-scheme: dark)")
    colours = read_colours(light if scheme == "light" else dark.split("* {")[0])
    assert len(colours) == 15
    for text, page in itertools.product(("text", "soft", "passed", "failed", "lacks", "skipped"), ("page", "fill")):
        assert measure_contrast(colours[text], colours[page]) >= 4.5, text
    for number in range(6):
        assert measure_contrast(colours[f"c{number}"], colours["page"]) >= 3, number


# Geometry


@pytest.mark.parametrize("most", [1e-9, 0.003, 0.07, 0.99, 1, 2.31, 4, 5, 99, 12345.0])
def test_ticks_are_few_and_reach_the_largest_value(most: float) -> None:
    ticks = charts.choose_ticks(most)
    assert ticks[0] == 0
    assert ticks[-2] < most <= ticks[-1] * 1.001
    assert 3 <= len(ticks) <= 6


def test_a_curve_lies_between_its_axes() -> None:
    drawn = charts.draw_lines("Loss", {"a": [4.0, 2.0, 0.0], "b": [1.0]}, (0, 5))
    a, b = drawn.lines
    # The largest value is at the top, 0 at the bottom; the first step left, the last one right.
    assert a.points == "40.0,8.0 186.0,88.0 332.0,168.0"
    assert b.points == "40.0,128.0"
    assert [tick.text for tick in drawn.x_ticks] == ["1", "2", "3"]
    assert [tick.text for tick in drawn.y_ticks] == ["0", "1", "2", "3", "4"]
    assert (a.dashes, a.offset, b.offset) == ("6 6", 0, -6)


def test_bars_are_as_long_as_their_values() -> None:
    long, short, none = charts.draw_bars(
        "Time", {"a": 2.0, "b": 1.0, "c": 0.0}, dict.fromkeys("abc", "x"), (0, 1, 2)
    ).bars
    assert long.width == 2 * short.width == charts.WIDTH - charts.NUMBER
    assert none.width == 1


# In a browser

WRAPPER = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><body style="margin:0">
<iframe src="report.html" style="border:0;width:{width}px;height:{height}px"></iframe><script>
onload = () => {{
  const view = document.querySelector("iframe").contentWindow, page = view.document, root = page.documentElement;
  const plots = [...page.querySelectorAll("svg")].map(one => one.getBoundingClientRect());
  const beyond = [...page.querySelectorAll("body *")].filter(one => !one.closest(".scroll, pre, svg")
    && one.getBoundingClientRect().right > root.clientWidth + 1).map(one => one.tagName);
  document.body.append(Object.assign(document.createElement("output"), {{textContent: JSON.stringify({{
    width: view.innerWidth, scroll: root.scrollWidth, plots: plots.filter(one => one.width > 100 && one.height > 20).length,
    background: view.getComputedStyle(page.body).backgroundColor, beyond,
    small: [...page.querySelectorAll("svg text")].filter(one => one.getBoundingClientRect().height < 9).length
  }})}}));
}};
</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("Chromium is not installed")
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the url by which the browser reads it: pages from files may not look into each other."""
    folder = tmp_path_factory.mktemp("served")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def browse(chromium: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium without a window and without talking to anyone but the page."""
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={profile}",
         "--enable-logging=stderr", "--hide-scrollbars", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # What a page's own console says.
    assert not re.findall(r"CONSOLE.*", done.stderr)
    return done


#: Chromium's blink setting preferredColorScheme.
SCHEMES = {"dark": 0, "light": 1}
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}


def look(chromium: str, folder: Path, url: str, width: int, height: int, scheme: str, scratch: Path) -> dict[str, Any]:
    """Return what WRAPPER measures of report.html in ``folder``, in a frame of a size."""
    (folder / "index.html").write_text(WRAPPER.format(width=width, height=height), encoding="utf-8")
    # A window is never narrower than 500; the frame in it is.
    size = f"--window-size={max(width, 500)},{height}"
    blink = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    done = browse(chromium, scratch, blink, size, "--dump-dom", url)
    return json.loads(re.findall(r"<output>(.*)</output>", done.stdout)[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 900)])
def test_the_page_in_a_browser(
    chromium: str,
    served: tuple[Path, str],
    failed: dict[str, Any],
    width: int,
    height: int,
    scheme: str,
    tmp_path: Path,
) -> None:
    folder, url = served
    report.write(failed, folder / "report.html")
    found = look(chromium, folder, url, width, height, scheme, tmp_path)
    assert found["width"] == width
    assert found["scroll"] <= width
    assert found["beyond"] == []
    assert found["plots"] == report.render(failed).count("<svg")
    assert found["small"] == 0
    assert found["background"] == BACKGROUNDS[scheme]


def test_a_bad_page_is_seen(chromium: str, served: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = served
    page = folder / "report.html"
    page.write_text("<!doctype html><body><p style='width:50rem'>x</p><svg width=300 height=5></svg>", encoding="utf-8")
    found = look(chromium, folder, url, 360, 740, "light", tmp_path)
    assert found["scroll"] > 360
    assert found["beyond"] == ["P"]
    assert found["plots"] == 0
    page.write_text("<!doctype html><script>nothing.here()</script>", encoding="utf-8")
    with pytest.raises(AssertionError, match="nothing is not defined"):
        look(chromium, folder, url, 360, 740, "light", tmp_path)


def test_the_page_on_paper(chromium: str, served: tuple[Path, str], failed: dict[str, Any], tmp_path: Path) -> None:
    folder, url = served
    report.write(failed, folder / "report.html")
    browse(chromium, tmp_path, f"--print-to-pdf={tmp_path / 'page.pdf'}", f"{url}/report.html")
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 2 <= pages <= 12
