"""The published site in a browser, from disk, with no network: every page shows its content and logs nothing."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import chromium
import pytest
from site_toys import Site

from roofgap.tracking.site import offline
from roofgap.tracking.site.history import history_data
from roofgap.tracking.site.pages import write_page
from roofgap.tracking.site.roofline import roofline_data
from roofgap.tracking.site.tuning import tuning_data

pytestmark = pytest.mark.skipif(
    chromium.PATH is None, reason="no chromium, chromium-browser or google-chrome"
)

COUNT = "document.querySelectorAll({!r}).length"
PAGES = {
    "grid": ("index.html", COUNT.format("#summarygrid-display .benchmark-container canvas") + " >= 4"),
    "list": ("index.html#/summarylist", COUNT.format("#summarylist-body tbody tr") + " >= 18"),
    "regressions": ("index.html#/regressions", COUNT.format("#regressions-body tbody tr") + " >= 4"),
    "graph": ("index.html#static.Registers.track_registers", COUNT.format("#main-graph canvas") + " >= 2"),
    "history": ("history.html", COUNT.format("#steps tbody tr") + " >= 9"),
    "roofline": ("roofline.html", COUNT.format(".dots path") + " >= 9"),
    "tuning": ("tuning.html", COUNT.format("#winners tbody tr") + " === 2"),
}
OWN = ("history", "roofline", "tuning")
PIXELS = """[...document.querySelectorAll('#main-graph canvas')].some((canvas) =>
  new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)
    .reduce((seen, pixel) => seen.add(pixel), new Set()).size > 8)"""
SHIFT = """new Promise((done) => { let sum = 0;
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) sum += entry.value; })
    .observe({ type: 'layout-shift', buffered: true });
  setTimeout(() => done(sum), 200); })"""
UNLABELLED = """[
  ...[...document.querySelectorAll('table')].filter((table) => !table.caption),
  ...[...document.querySelectorAll('th')].filter((th) => !th.scope),
  ...[...document.querySelectorAll('input, select')].filter((input) => !input.labels.length),
  ...[...document.querySelectorAll('button, a')].filter((one) => !(one.textContent || one.ariaLabel).trim()),
].map((node) => node.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    started = chromium.Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def quiet(browser: chromium.Chromium) -> None:
    """Nothing was logged, nothing was asked of a network, and the page did not give up."""
    assert browser.console == []
    assert [url for url in browser.requests if not url.startswith(("file:", "about:", "data:"))] == []
    assert "error.html" not in browser.evaluate("location.href")


@pytest.mark.parametrize("page", PAGES)
def test_page_shows_its_content(browser: chromium.Chromium, site: Site, page: str) -> None:
    address, shown = PAGES[page]
    browser.open(f"{site.html.as_uri()}/{address}")
    browser.wait_for(shown)
    if page == "graph":
        browser.wait_for(PIXELS)
    quiet(browser)


@pytest.mark.parametrize("page", PAGES)
def test_page_fits_a_phone(browser: chromium.Chromium, site: Site, page: str) -> None:
    address, shown = PAGES[page]
    browser.open(f"{site.html.as_uri()}/{address}", width=390, height=844)
    browser.wait_for(shown)
    browser.evaluate("document.querySelectorAll('button[aria-expanded]').forEach((button) => button.click())")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    quiet(browser)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("page", OWN)
def test_layout_does_not_shift(browser: chromium.Chromium, site: Site, page: str, width: int) -> None:
    browser.open(f"{site.html.as_uri()}/{PAGES[page][0]}", width=width)
    assert browser.evaluate(SHIFT) == 0


@pytest.mark.parametrize(
    ("page", "content"), [("list", "#summarylist-body table"), ("graph", "#main-graph canvas")]
)
def test_settings_leave_room_on_a_phone(
    browser: chromium.Chromium, site: Site, page: str, content: str
) -> None:
    address, shown = PAGES[page]
    browser.open(f"{site.html.as_uri()}/{address}", width=390, height=844)
    browser.wait_for(shown)
    top = "getBoundingClientRect().top"
    assert 0 < browser.evaluate(f"document.querySelector({content!r}).{top}") < 844 / 2
    panels = "[...document.querySelectorAll('.asv-navigation .panel')].filter((panel) => panel.offsetParent)"
    tops = browser.evaluate(f"{panels}.map((panel) => panel.{top})")
    assert len(tops) >= 2 and len(set(tops)) == 1, "they stand side by side"


def test_a_curve_is_told_by_what_sets_it_apart(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/{PAGES['graph'][0]}")
    browser.wait_for(PAGES["graph"][1])
    plot = """((labels) => $.plot($('<div style="width: 600px; height: 200px">').appendTo('body'),
      labels.map((label, index) => ({ label, data: [[0, index], [1, index]] })), { legend: { show: true } })
      .getData().map((series) => series.label))"""
    common = "gpu-NVIDIA H200; m-1"
    for labels, expected in (
        ([f"{common}; variant-v1", f"{common}; variant-v2"], ["v1", "v2"]),
        (
            ["gpu-A; machine-a; m-1; triton-3.6.0", "gpu-B; machine-b; m-1; triton-3.7.1"],
            ["a", "b"],  # all else follows from the machine
        ),
        (
            ["gpu-A; machine-a; triton-3.6.0", "gpu-A; machine-a; triton-3.7.1", "gpu-B; machine-b; triton-3.7.1"],
            ["machine-a; triton-3.6.0", "machine-a; triton-3.7.1", "b"],
        ),
        (["m-1", "m-1"], ["m-1", "m-1"]),
    ):  # fmt: skip
        assert browser.evaluate(f"{plot}({labels})") == expected
    empty = plot.replace("[[0, index], [1, index]]", "[[0, index ? index : null]]")
    shown = browser.evaluate(f"{empty}(['machine-a; m-1', 'machine-b; m-1', 'machine-b; m-4'])")
    assert shown == [None, "1", "4"], "a curve without a value needs no name"
    quiet(browser)


def test_a_rise_from_zero_is_no_factor(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/{PAGES['regressions'][0]}")
    browser.wait_for(PAGES["regressions"][1])
    script = (site.html / "regressions.js").read_text()
    assert offline.FACTOR not in script
    assert script.count(offline.FACTOR_OR_ZERO) == 2
    cell = f"((factor) => $('<td/>'){offline.FACTOR_OR_ZERO})"
    for factor, shown in (("2 / 0", ["from 0", "Infinityx"]), ("3 / 2", ["1.50x", "1.5x"])):
        read = f"((td) => [td.text(), td.data('sort-value')])({cell}({factor}))"
        assert browser.evaluate(read) == shown


@pytest.mark.parametrize("page", PAGES)
def test_dark_mode_is_dark(browser: chromium.Chromium, site: Site, page: str) -> None:
    browser.open(f"{site.html.as_uri()}/{PAGES[page][0]}", dark=True)
    if page in OWN:
        background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        assert max(browser.evaluate(background)) < 64
    else:
        assert "invert" in browser.evaluate("getComputedStyle(document.documentElement).filter")


@pytest.mark.parametrize("page", OWN)
def test_everything_is_labelled(browser: chromium.Chromium, site: Site, page: str) -> None:
    browser.open(f"{site.html.as_uri()}/{PAGES[page][0]}")
    browser.evaluate("document.querySelectorAll('button[aria-expanded]').forEach((button) => button.click())")
    assert browser.evaluate(UNLABELLED) == []


def test_history_by_keyboard(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/history.html")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "skip"
    for _ in range(60):
        browser.press("Tab")
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if browser.evaluate("document.activeElement.hasAttribute('aria-expanded')"):
            break
    before = browser.evaluate(COUNT.format("#steps tbody tr:not([hidden])"))
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert browser.evaluate(COUNT.format("#steps tbody tr:not([hidden])")) == before + 9
    browser.press("Enter")
    assert browser.evaluate(COUNT.format("#steps tbody tr:not([hidden])")) == before


@pytest.mark.parametrize(
    ("page", "wanted", "state"),
    [
        ("graph", "id === 'log-scale'", "classList.contains('active')"),
        ("list", "dataset.sort", "classList.contains('desc')"),
    ],
)
def test_asv_pages_by_keyboard(
    browser: chromium.Chromium, site: Site, page: str, wanted: str, state: str
) -> None:
    browser.open(f"{site.html.as_uri()}/{PAGES[page][0]}")
    browser.wait_for(PAGES[page][1])
    for _ in range(60):
        browser.press("Tab")
        if browser.evaluate(f"Boolean(document.activeElement.{wanted})"):
            break
    before = browser.evaluate(f"document.activeElement.{state}")
    browser.press("Enter")
    browser.wait_for(f"document.activeElement.{state} !== {str(before).lower()}")
    quiet(browser)


def choose(browser: chromium.Chromium, name: str, value: str) -> None:
    """Chooses an entry of a select."""
    browser.evaluate(f"byId({name!r}).value = {value!r}; byId({name!r}).dispatchEvent(new Event('change'))")


def test_history_filters_and_sorts(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/history.html")
    choose(browser, "p-variant", "v3")
    choose(browser, "outcome", "fixed")
    assert browser.evaluate("byId('count').textContent") == "6 steps: 6 up, 0 down"
    browser.evaluate("byId('grouped').click()")
    assert browser.evaluate(COUNT.format("#steps tbody tr")) == 6
    choose(browser, "p-target", "sm_90")
    assert browser.evaluate(COUNT.format("#steps tbody tr")) == 3
    choose(browser, "outcome", "lost")
    assert browser.evaluate("byId('count').textContent") == "No step matches."
    choose(browser, "outcome", "")
    choose(browser, "p-variant", "")
    browser.evaluate("document.querySelectorAll('#steps thead button')[3].click()")
    assert browser.evaluate("document.querySelector('#steps [aria-sort]').textContent") == "Change"
    assert "+40\u00a0%" in browser.evaluate("document.querySelector('#steps tbody tr').textContent")


def test_history_gives_the_commands_to_measure_again(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/history.html")
    choose(browser, "p-variant", "v3")
    choose(browser, "p-shape", "1536x1536")
    choose(browser, "p-target", "sm_90")
    browser.evaluate("document.querySelectorAll('#steps tbody button').forEach((button) => button.click())")
    shown = browser.evaluate(
        "[...document.querySelectorAll('.command code')].map((code) => code.textContent)"
    )
    before_fix, fix, before_rise, rise = (site.hashes[index] for index in (6, 7, 2, 4))
    cell = r"'^static\.Registers\.track_registers\(.v3., .1536x1536., .sm_90.\)$'"
    only = "--lanes static --only static/v3/1536x1536/sm_90"
    assert shown == [
        f"asv continuous -f 1.0 -b {cell} {before_fix} {fix}",
        f"roofgap gate {before_fix} {fix} {only}",
        f"asv find {before_rise}..{rise} {cell}",
        f"asv continuous -f 1.0 -b {cell} {before_rise} {rise}",
        f"roofgap gate {before_rise} {rise} {only}",
    ]


def test_commit_link_of_asv_reaches_the_commit(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/index.html#/regressions")
    browser.wait_for(PAGES["regressions"][1])
    link = browser.evaluate(
        "document.querySelector('#regressions-body tbody td:nth-child(3) a').getAttribute('href')"
    )
    assert link == f"history.html#c-{site.hashes[6][:10]}"
    browser.open(f"{site.html.as_uri()}/history.html#c-{site.hashes[6]}")
    assert site.hashes[6][:10] in browser.evaluate("document.querySelector('tr.target').textContent")


def test_roofline_changes_gpu_and_hides_a_variant(browser: chromium.Chromium, site: Site) -> None:
    browser.open(f"{site.html.as_uri()}/roofline.html")
    choose(browser, "gpu", "rtx-3060")
    assert browser.evaluate(COUNT.format("#kernels tbody tr")) == 5 * 7 + 1
    marks = browser.evaluate(COUNT.format(".dots path"))
    browser.evaluate("document.querySelector('[data-variant=torch]').click()")
    assert browser.evaluate(COUNT.format(".dots path")) == marks - 5
    assert browser.evaluate("document.activeElement.dataset.variant") == "torch", "focus stays where it was"
    assert browser.evaluate(COUNT.format("#decode tbody tr")) == 2
    quiet(browser)


def test_pages_without_results_say_what_to_do(browser: chromium.Chromium, tmp_path: Path) -> None:
    offline.copy_assets(tmp_path / offline.FOLDER)
    (tmp_path / "swallow.ico").touch()
    write_page(
        tmp_path, "history", history_data([], {}, suspects=lambda a, b: [], describe=lambda hashes: {})
    )
    write_page(tmp_path, "roofline", roofline_data(tmp_path / "results", [], {}))
    write_page(tmp_path, "tuning", tuning_data([]))
    for page, words in (("history", "asv run"), ("roofline", "results/compare"), ("tuning", "roofgap tune")):
        browser.open(f"{tmp_path.as_uri()}/{page}.html")
        assert words in browser.evaluate("byId('main').innerText")
        quiet(browser)


def test_site_works_when_served(browser: chromium.Chromium, site: Site) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site.html))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        for page in ("grid", "graph", "history"):
            address, shown = PAGES[page]
            browser.open(f"{base}/{address}")
            browser.wait_for(shown)
            assert browser.console == []
            assert all(url.startswith((base, "about:")) for url in browser.requests)
        server.shutdown()
