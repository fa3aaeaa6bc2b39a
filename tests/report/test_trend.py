from xml.etree import ElementTree

import pytest
import report_samples as reports

from pytest_nvfp4.report.trend import change_text, names_of, sparkline, trend_svg, values_of

POINTS = [("a", {"x": 1.0, "gone": 7.0}), ("b", {"x": 3.0}), ("c", {"y": 2.0}), ("d", {"x": 2.0, "y": 4.0})]


def test_values_have_gaps():
    assert names_of(POINTS) == ["x", "y", "gone"]
    assert values_of(POINTS, "x") == [1.0, 3.0, None, 2.0]
    assert values_of([("a", {"x": float("nan")})], "x") == [None]
    assert sparkline(values_of(POINTS, "x")) == "▁█·▅"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [([1.0, None, 2.0], "+100.0 %"), ([2.0, 2.0], ""), ([0.0, 3.0], "from zero to 3"), ([None, 1.0], ""), ([], "")],
)
def test_changes(values, text):
    assert change_text(values) == text


def test_a_picture_has_a_row_for_each_counter_and_a_part_for_each_run_of_values():
    picture = ElementTree.fromstring(trend_svg(POINTS, ["x", "y"]))
    lines = [line.get("points").count(",") for line in picture.iter("{http://www.w3.org/2000/svg}polyline")]
    assert lines == [2, 1, 2]
    tips = [tip.text for tip in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "b: x 3" in tips
    assert ElementTree.fromstring(trend_svg([])).tag.endswith("svg")


@pytest.mark.parametrize("text", reports.HOSTILE)
def test_hostile_names_are_text(text):
    picture = trend_svg([(text, {text: 1.0}), (text, {text: 2.0})], title=text)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}
    assert tags == {"svg", "title", "style", "text", "line", "polyline", "circle"}
