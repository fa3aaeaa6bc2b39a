import pytest
import report_samples as reports
from html_pages import X, parse, text_of

from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.report.html import render_html
from pytest_nvfp4.report.model import Report


@pytest.mark.parametrize("report", [reports.ordinary(), Report([]), reports.large(3)], ids=["ordinary", "none", "3"])
def test_a_page_is_well_formed_and_loads_nothing(report):
    _, tags = parse(render_html(report))
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "base", "form"}
    for tag, name, value in tags.attributes:
        assert not name.startswith("on")
        if name in {"href", "src", "action", "data"}:
            assert value.startswith("#"), (tag, name, value)
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in tags.attributes


def test_links_lead_to_their_check():
    root, _ = parse(render_html(reports.ordinary()))
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    links = [link.get("href") for link in root.iter(f"{X}a")]
    assert len(links) == 3
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_a_change_is_explained():
    root, _ = parse(render_html(reports.ordinary()))
    shown = text_of(root)
    for part in (
        "1 failed, 1 passed, 1 skipped",
        "MMA.M (mode 0.0): 128:256 -> 128:512",
        "first difference at ((1,0),0,0,0) [index 1]: offset 256 -> 512",
        "(MMA, MMA_M, MMA_K, STAGE), from grouped_blockscaled_gemm.py",
        "dsl 4.4.0 → 4.8.1",
        "registers 128 -> 168 (+40, +31.2 %) (costs more)",
        reports.OLD,
        reports.NEW,
    ):
        assert part in shown
    rows = [[text_of(cell) for cell in row] for row in root.iter(f"{X}tr")]
    (failed,) = (row[-1] for row in rows if row and row[0] == "failed")
    assert "registers 128 -> 168 (+40, +31.2 %)" in failed, "a row says what changed"
    assert ["align", "1024 B", "128 B", "S<3,4,3> repeats every 1024 bytes"] in rows
    assert [text_of(part) for part in root.iter(f"{X}del")][:2] == ["1024", "256"]
    assert [text_of(part) for part in root.iter(f"{X}ins")][:2] == ["128", "512"]


def test_gated_changes_are_open_and_others_closed():
    root, _ = parse(render_html(Report([reports.check(*reports.every_severity())])))
    changes = [item for item in root.iter(f"{X}details") if "change" in item.get("class").split()]
    is_open = {item.get("class").split()[1]: item.get("open") for item in changes}
    assert is_open == {
        "is-different": "open",
        "is-permuted": "open",
        "is-same-function": None,
        "is-renested": None,
        "is-cosmetic": None,
    }


def test_each_severity_on_the_page_has_its_filter():
    page = render_html(Report([reports.check(*reports.every_severity())]))
    root, _ = parse(page)
    boxes = {box.get("id") for box in root.iter(f"{X}input")}
    for severity in Severity:
        css = severity.name.lower().replace("_", "-")
        rule = f"body:has(#show-{css}:not(:checked)) .change.is-{css}{{display:none}}"
        assert (f"show-{css}" in boxes) == (rule in page) == (severity is not Severity.IDENTICAL)


@pytest.mark.parametrize("text", reports.HOSTILE)
def test_hostile_text_is_only_text(text):
    calm, _ = parse(render_html(reports.hostile("calm")))
    wild, tags = parse(render_html(reports.hostile(text)))
    assert not tags.seen & {"script"}
    names = {(tag, name) for tag, name, _ in tags.attributes}
    assert not [name for _, name in names if name.startswith("on")]
    # Whatever the text, the page has the same structure.
    outline = [[item.tag for item in root.iter() if not item.tag.endswith(("del", "ins"))] for root in (calm, wild)]
    assert outline[0] == outline[1]
    assert "49" not in text_of(wild) or "7*7" not in text  # no template of the reader's is expanded


def test_drawings_are_made_worst_first_and_the_rest_is_counted():
    root, tags = parse(render_html(reports.large(5), max_drawings=2))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}svg"))) == 2
    assert "3 further layouts could be drawn" in text_of(root)
    assert "svg" in tags.seen


def test_a_dynamic_layout_says_why_it_is_not_drawn():
    dynamic = '!cute.memref<f16, gmem, align<16>, "(?,4):(1,?)">'
    report = Report([reports.check(reports.change(new=dynamic))])
    root, _ = parse(render_html(report))
    assert "Not drawn: (?,4) is known only at run time." in text_of(root)


@pytest.mark.slow
def test_a_page_of_many_changes_stays_small():
    page = render_html(reports.large(500))
    assert len(page.encode()) < 5_000_000
    parse(page)
