"""Twins of bugs that others reported: each is found at the lines that the table names, and mended it is clean."""

from __future__ import annotations

import pytest

from tests.reported.page import PAGE, Found, link, run, table, table_of
from tests.reported.reports import REPORTS, Report

pytest.importorskip("cutlass")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return run(tmp_path_factory.mktemp("reported"))


@pytest.mark.slow
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_the_defect_is_found_and_the_mended_kernel_is_clean(found: Found, report: Report) -> None:
    assert found[report.name, True] == []
    if report.why_not:
        assert found[report.name, False] == []
        return
    first = found[report.name, False][0]
    assert first["kind"] == report.kind
    named = [*first["lines"], *first["at"]]
    assert any(report.later in line for line in named), named
    assert any(report.earlier in line for line in named), named
    assert first["hint"]


@pytest.mark.slow
def test_the_page_shows_what_is_found(found: Found) -> None:
    """``python -m tests.reported.page`` writes it again."""
    assert table_of(PAGE.read_text()) == table(found)


def test_the_page_lists_the_reports() -> None:
    rows = table_of(PAGE.read_text()).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows] == [link(report) for report in REPORTS]
    assert len({report.name for report in REPORTS}) == len(REPORTS)
