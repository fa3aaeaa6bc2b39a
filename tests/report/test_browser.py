"""The HTML report in a real browser: nothing in the console, no horizontal scroll, drawings with content, the keyboard.

A Chromium of the machine is driven (``browser``); ``.ci/run`` installs one where it can.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import kernel_samples as samples
import pytest
import report_samples as reports
from browser import NAMES, Browser, browser, browser_path

from pytest_nvfp4.report.html import render_html
from pytest_nvfp4.report.model import Report

pytestmark = pytest.mark.slow

_EMPTY = """[...document.querySelectorAll('svg')].filter(svg => {
    const box = svg.getBoundingClientRect();
    const shown = [...svg.querySelectorAll('rect, path, circle')].filter(each => {
        const one = each.getBoundingClientRect(), paint = getComputedStyle(each);
        const seen = paint.fill !== 'none' || paint.stroke !== 'none';
        return seen && one.width + one.height > 0;
    });
    return svg.checkVisibility() && (box.width < 60 || box.height < 15 || !shown.length);
}).length"""
_HIDDEN = """(() => {
    document.getElementById('kernel-0').scrollIntoView();
    const bar = document.querySelector('.bar').getBoundingClientRect();
    return document.querySelector('#kernel-0 h2').getBoundingClientRect().top < bar.bottom;
})()"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = browser_path()
    if path is None:
        pytest.skip(f"no Chromium was found ({', '.join(NAMES)}); apt-get install chromium-headless-shell brings one")
    with browser(path) as running:
        yield running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every part: layout changes of all kinds, and two kernels with all that is drawn."""
    folder = tmp_path_factory.mktemp("page")
    checks = [*reports.ordinary().checks, *samples.report(folder, kernels=2).checks]
    file = folder / "report.html"
    file.write_text(render_html(Report(checks)), encoding="utf-8")
    return file


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_fits_and_draws(chromium: Browser, page: Path, width: int, dark: bool) -> None:
    chromium.console.clear()
    chromium.requested.clear()
    chromium.open(page, width=width, dark=dark)
    assert chromium.value("document.documentElement.scrollWidth") == width
    assert chromium.value("document.querySelectorAll('svg').length") > 10
    assert chromium.value(_EMPTY) == 0
    assert not chromium.value(_HIDDEN), "an anchor leads below the bar"
    background = chromium.value("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background))) > 3 * 128
    assert light is not dark
    assert chromium.console == []
    assert chromium.requested == [page.as_uri()]


def test_what_is_wrong_is_noticed(chromium: Browser, tmp_path: Path) -> None:
    """The negative control of the test above."""
    file = tmp_path / "bad.html"
    script = "<script>console.error('bad')</script><img src='absent.png'/>"
    drawing = "<svg width='100' height='100'><rect width='0' height='0'/></svg>"
    file.write_text(f"<!DOCTYPE html><body><div style='width:2000px'>wide</div>{drawing}{script}</body>")
    chromium.console.clear()
    chromium.open(file, width=390)
    assert chromium.value("document.documentElement.scrollWidth") > 390
    assert chromium.value(_EMPTY) == 1
    assert any("bad" in line for line in chromium.console)
    assert chromium.requested[-1].endswith("absent.png")


def test_the_keyboard_opens_and_reaches_everything(chromium: Browser, page: Path) -> None:
    chromium.open(page, width=1280)
    folds = "document.querySelectorAll('.source details')"
    assert chromium.value(f"{folds}[0].open") is False
    chromium.value(f"{folds}[0].querySelector('summary').focus()")
    chromium.press("Enter", 13)
    assert chromium.value(f"{folds}[0].open") is True
    scrolling = (
        "[...document.querySelectorAll('.kernel .scroll')].every("
        "each => each.scrollWidth <= each.clientWidth || each.tabIndex >= 0)"
    )
    chromium.open(page, width=390)
    assert chromium.value(scrolling) is True


def test_a_page_prints(chromium: Browser, page: Path) -> None:
    chromium.open(page, width=740)  # an A4 sheet
    assert chromium.printed().startswith(b"%PDF")
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.value("getComputedStyle(document.querySelector('.bar')).display") == "none"
    assert chromium.value("document.documentElement.scrollWidth") == 740
    chromium.call("Emulation.setEmulatedMedia", media="")
