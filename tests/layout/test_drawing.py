"""Drawings: valid XML, honest about what they leave out, and with the offsets that the layout function has."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.layout.drawing import draw_pair_svg, draw_svg
from pytest_nvfp4.layout.grammar import parse_layout, parse_type
from pytest_nvfp4.layout.grid import UndrawableLayout, grid_of, text_of, why_not
from pytest_nvfp4.layout.notation import Layout

NS = {"s": "http://www.w3.org/2000/svg"}


def cells(svg: str) -> list[list[str]]:
    """The texts of the cells, row by row; of a pair, the old panel's and then the new panel's."""
    root = ET.fromstring(svg)
    return [[span.text or "" for span in row] for row in root.iterfind(".//s:text[@class='cell']", NS)]


def whole_text(svg: str) -> str:
    return " ".join(ET.fromstring(svg).itertext())


def test_offsets_of_a_matrix():
    svg = draw_svg(parse_layout("(2,3):(3,1)"), title="row major")
    assert cells(svg) == [["0", "1", "2"], ["3", "4", "5"]]


def test_accessible_name_and_description():
    root = ET.fromstring(draw_svg(parse_layout("(2,3):(3,1)"), title="a <b> & c"))
    title, desc = root.find("s:title", NS), root.find("s:desc", NS)
    assert root.get("role") == "img"
    assert title.text == "a <b> & c"
    assert "2 rows" in desc.text
    assert root.get("aria-labelledby").split() == [title.get("id"), desc.get("id")]


def test_both_colour_schemes_are_styled():
    assert "prefers-color-scheme:dark" in draw_svg(parse_layout("4:1"), title="t")


@pytest.mark.parametrize("title", ["<script>alert(1)</script>", "]]>", "a\nb", "\x00\x1b[31m", "\ud800", "x" * 5000])
def test_hostile_titles_leave_the_xml_valid(title):
    root = ET.fromstring(draw_svg(parse_layout("(2,2):(1,2)"), title=title))
    assert not root.findall(".//{*}script")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=4))
def test_every_cell_is_the_layouts_own_value(modes):
    layout = Layout(tuple(shape for shape, _ in modes), tuple(stride for _, stride in modes))
    grid = grid_of(layout)
    # Columns hold all modes but the first, or the index is wrapped: either way each value is drawn exactly once.
    drawn = [grid.at(row, col) for row in range(grid.rows) for col in range(grid.cols)]
    size = grid.size
    assert sorted(offset for offset in drawn if offset is not None) == sorted(layout(index) for index in range(size))


def test_swizzle_of_a_pointer_acts_on_bytes():
    text = '!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "(8,64):(256,1)">'
    rows = cells(draw_svg(parse_type(text), title="t", colour="bank"))
    # Row 1 begins at byte 128; S<3,4,3> XORs bit 7 into bit 4: byte 144 is element 288.
    assert rows[1][0] == "288"
    # Control: elements taken as bytes would give 256 ^ (256 >> 3) = 288 only by swizzling bit 8 into bit 5.
    unswizzled = cells(draw_svg(parse_type(text.replace("S<3,4,3>, ", "")), title="t"))
    assert unswizzled[1][0] == "256"


def test_two_fp4_in_one_byte_stay_neighbours():
    text = '!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "(8,64):(256,1)">'
    grid = grid_of(parse_type(text))
    for row in range(8):
        for col in range(0, 64, 2):
            assert grid.at(row, col + 1) == grid.at(row, col) + 1


def test_coordinates_are_drawn_as_coordinates():
    text = '!cute.coord_tensor<"(0,0)", "(2,3):(1@1,1@0)">'
    assert cells(draw_svg(parse_type(text), title="t")) == [["(0,0)", "(1,0)", "(2,0)"], ["(0,1)", "(1,1)", "(2,1)"]]


def test_changed_cells_are_marked_in_both_panels():
    svg = draw_pair_svg(parse_layout("(2,2):(1,2)"), parse_layout("(2,2):(2,1)"), title="t")
    root = ET.fromstring(svg)
    bold = [span.text for span in root.iterfind(".//s:tspan[@class='b']", NS)]
    assert bold == ["2", "1", "1", "2"]  # two cells in each panel, row by row
    outlines = root.findall(".//s:path[@class='x']", NS)
    assert [outline.get("d").count("M") for outline in outlines] == [2, 2]
    assert "2 of the 4 cells shown of both" in whole_text(svg)


def test_equal_layouts_have_no_marked_cell():
    svg = draw_pair_svg(parse_layout("(2,2):(1,2)"), parse_layout("(2,2):(1,2)"), title="t")
    assert not ET.fromstring(svg).findall(".//s:path[@class='x']", NS)


def test_grids_of_other_size_are_compared_where_both_have_cells():
    svg = draw_pair_svg(parse_layout("(2,2):(1,2)"), parse_layout("(2,4):(1,2)"), title="t")
    assert not ET.fromstring(svg).findall(".//s:path[@class='x']", NS)
    assert "The grids are 2 x 2 and 2 x 4" in whole_text(svg)
    svg = draw_pair_svg(parse_layout("(2,2):(1,2)"), parse_layout("(2,4):(1,3)"), title="t")
    assert "2 of the 4 cells shown of both" in whole_text(svg)
    assert len(ET.fromstring(svg).findall(".//s:path[@class='x']", NS)) == 2


SF = "((((32,4),1),(16,4)),1,4,1):((((16,4),0),(0,1)),0,512,2048)"


def test_a_broadcast_is_drawn_once_and_says_so():
    svg = draw_svg(parse_layout(SF), title="t")
    # 128 rows; of 16 x 4 x 4 columns the 16 that share one scale factor are one.
    assert cells(svg)[1][:6] == ["16", "17", "18", "19", "528", "529"]
    assert len(cells(svg)[0]) == 16
    assert "stride 0 have one cell" in whole_text(svg)


def test_a_broadcast_of_one_side_only_keeps_its_cells():
    svg = draw_pair_svg(parse_layout("(2,4):(1,0)"), parse_layout("(2,4):(1,2)"), title="t")
    assert cells(svg)[0] == ["0", "0", "0", "0"]
    assert "6 of the 8 cells shown of both" in whole_text(svg)
    assert "one cell" not in whole_text(svg)


def test_truncation_is_stated_with_numbers():
    svg = draw_svg(parse_layout("(128,256):(256,1)"), title="t")
    assert len(cells(svg)) == 64
    assert len(cells(svg)[0]) == 64
    assert "rows 0-63 of 128, columns 0-63 of 256: 28672 of 32768 cells are not shown" in whole_text(svg)


def test_nothing_is_said_when_nothing_is_left_out():
    assert "not shown" not in whole_text(draw_svg(parse_layout("(64,64):(64,1)"), title="t"))


def test_the_window_moves_to_the_first_changed_cell():
    old, new = parse_layout("(128,4):(4,1)"), parse_layout("((64,2),4):((4,512),1)")
    # The halves of the rows are further apart in the new layout, so rows differ from 64 on.
    svg = draw_pair_svg(old, new, title="t", max_rows=8)
    assert "rows 64-71 of 128" in whole_text(svg)
    assert ET.fromstring(svg).findall(".//s:path[@class='x']", NS)


def test_a_long_vector_is_wrapped_and_its_end_is_not_invented():
    grid = grid_of(parse_layout("40:3"))
    assert (grid.rows, grid.cols, grid.size) == (2, 32, 40)
    assert grid.at(1, 7) == 117
    assert grid.at(1, 8) is None
    assert text_of(grid.at(1, 8)) == ""


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (parse_layout("(4,?):(1,4)"), "run time"),
        (parse_layout("(4,8):(1,?{div=4})"), "run time"),
        (parse_type("!cute.ptr<f32, tmem, align<16>>"), "no layout"),
    ],
)
def test_what_cannot_be_drawn_says_why(target, why):
    assert why in why_not(target)
    with pytest.raises(UndrawableLayout, match=why):
        draw_svg(target, title="t")


def test_a_large_drawing_stays_within_a_megabyte():
    svg = draw_pair_svg(parse_layout("(64,64):(64,1)"), parse_layout("(64,64):(1,64)"), title="t")
    assert len(svg) < 1_000_000
