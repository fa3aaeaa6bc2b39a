"""The sections of kernels on a page: what they draw, what they escape, which files they may show."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import kernel_samples as samples
import pytest
import report_samples as reports
from html_pages import X, parse, text_of

from pytest_nvfp4.report.counter_rows import counter_rows
from pytest_nvfp4.report.html import render_html
from pytest_nvfp4.report.model import CheckReport, Report
from pytest_nvfp4.report.source_view import source_view


def test_a_section_draws_all_that_is_known(tmp_path: Path) -> None:
    page = render_html(samples.report(tmp_path))
    root, _ = parse(page)
    shown = text_of(root)
    for part in (
        "One call on gpumode-0, simulated on a model of NVIDIA B200 with 148 SMs.",
        "modelled 9 us",
        "measured 11 us",
        "nvfp4 model k0/k.py --problem gpumode-0 --timeline timeline.pftrace",
        "3 waves on 148 SMs",
        "CTA 299, wave 2: rows 3712 to 3839, columns 1152 to 1279",
        "accumulator (MMA)",
        "sA: f16",
        "A cell is 8 elements of a row, 16 bytes",
        "-25.0 %",
        "1 counter as in the snapshot",
    ):
        assert part in shown, part
    headings = [text_of(item) for item in root.iter(f"{X}h3")]
    assert len(headings) == len(set(headings)) == 8
    assert len(page) < 200_000


def test_lines_have_their_counters_and_the_rest_is_folded(tmp_path: Path) -> None:
    root, _ = parse(render_html(samples.report(tmp_path)))
    table = next(item for item in root.iter(f"{X}table") if item.get("class") == "source")
    rows = [[text_of(cell) for cell in row] for row in table.iter(f"{X}tr")]
    assert rows[0] == ["Line", "Source", "Instructions", "TMA bytes", "MMA FLOP", "Waits", "us, modelled"]
    assert ["2", "load()", "40", "4,096", "", "", ""] in rows
    assert ["12", "multiply()", "10", "", "16.8 M", "3", "7.5"] in rows
    assert any("5 lines without device code, from 5" in row[0] for row in rows)


def test_what_is_missing_says_why(tmp_path: Path) -> None:
    """No page advises an option that was given, or a check that ran."""
    (check,) = samples.report(tmp_path).checks
    assert check.evidence is not None
    assert "No time was modelled: --nvfp4-model" not in text_of(parse(render_html(Report([check])))[0])
    assert ">barrier: mma at k.py:12<" in render_html(samples.report(tmp_path, text="/tmp/a b"))
    none = check.evidence.modelled.model_copy(update={"launches": (), "timeline": (), "refused": ("no TMA",)})
    changes = {"modelled": none, "measured": None, "flops": 0}
    shown = text_of(parse(render_html(Report([replace(check, evidence=check.evidence.model_copy(update=changes))])))[0])
    assert "No time is modelled: no TMA." in shown
    assert "--nvfp4-model," not in shown
    assert "The contract states no operations of a call" in shown
    assert "No call was simulated" not in shown


@pytest.mark.parametrize("text", [text for text in reports.HOSTILE if text != "\ud800"])  # which no model lets in
def test_hostile_text_is_only_text(tmp_path: Path, text: str) -> None:
    calm, _ = parse(render_html(samples.report(tmp_path, text="calm")))
    wild, tags = parse(render_html(samples.report(tmp_path, text=text)))
    assert not tags.seen & {"script", "a:href", "image", "use", "foreignObject"}
    assert not [name for _, name, _ in tags.attributes if name.startswith("on")]
    outline = [[item.tag for item in root.iter()] for root in (calm, wild)]
    assert outline[0] == outline[1]


def test_only_the_kernels_own_files_are_shown(tmp_path: Path) -> None:
    kernel, secret = tmp_path / "k.py", tmp_path / "secret.py"
    for file in (kernel, secret):
        file.write_text(samples.SOURCE)
    for source, shown in (("k.py", 1), ("/other/place/k.py", 1), (str(secret), 0), ("../secret.py", 0)):
        view = source_view(samples.call(source), None, own={"k.py": kernel})
        assert len(view.files) == shown, source
        assert bool(view.elsewhere) is not bool(shown)


def test_a_large_launch_stays_small(tmp_path: Path) -> None:
    assert len(render_html(samples.report(tmp_path, ctas=8000)).encode()) < 2_000_000


def test_many_kernels_are_closed_and_linked(tmp_path: Path) -> None:
    root, _ = parse(render_html(samples.report(tmp_path, kernels=3)))
    sections = [item for item in root.iter(f"{X}details") if (item.get("id") or "").startswith("kernel-")]
    assert [item.get("open") for item in sections] == [None] * 3
    links = {link.get("href") for link in root.iter(f"{X}a")}
    assert {f"#{item.get('id')}" for item in sections} <= links


def test_checks_alike_share_a_row() -> None:
    def page(last: str) -> str:
        checks = [
            CheckReport("k.py", f"verify[p-{at}]", "passed", established=(f"p-{at}: right",), seconds=1.0)
            for at in range(9)
        ]
        other = CheckReport("k.py", "verify[p-9]", "passed", established=(last,), seconds=1.0)
        return render_html(Report([*checks, other]))

    rows = re.findall(r'<tr class="is-passed">.*?</tr>', page("p-9: right"), re.DOTALL)
    assert len(rows) == 1
    assert "and 9 alike" in rows[0]
    assert ">10.0<" in rows[0]
    assert len(re.findall(r'<tr class="is-passed">', page("something else"))) == 2


def test_counters_that_differ_come_first_and_have_a_course() -> None:
    history = [("one", {"a": 1.0, "b": 4.0}), ("two", {"b": 3.0})]
    rows = counter_rows({"a": "5", "b": "2", "c": "x"}, {"a": "5", "b": "1", "d": "7"}, history)
    assert [(row.name, row.change) for row in rows] == [
        ("b", "-50.0 %"),
        ("d", "new"),
        ("c", "gone"),
        ("a", ""),
    ]
    courses = {row.name: row.course for row in rows}
    assert courses["b"] is not None
    assert "one: 4, two: 3, this run: 1" in courses["b"]
    assert courses["c"] is None
    assert courses["d"] is None, "one point has no course"
