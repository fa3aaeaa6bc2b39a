"""TMA's loads of scale factors: followed by their coordinates, and refuted when a layout of them is wrong.

The layouts are those of the repository's kernel, from its reviewed snapshot: no DSL is needed.
"""

from dataclasses import replace
from fractions import Fraction

import pytest

from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.proof import scale_traced
from pytest_nvfp4.proof.scale_loads import check_load, load_claim
from pytest_nvfp4.proof.statement import Status, judge
from tests.proof.scale_loads import load_of

from .shipped import SCOPE, edited


@pytest.mark.parametrize("vector", [16, 32])
@pytest.mark.parametrize("rows", [64, 128, 192, 256])
def test_a_load_by_blocks_is_proved(rows, vector):
    load = load_of(rows=rows, vector=vector)
    assert check_load(load) == (None, rows * 256 // vector)
    assert (
        "TMA writes its coordinate (0, 0, 0, 0) to byte 512, and shared memory has it at byte 0"
        in check_load(load, late=512)[0]
    )


def test_by_another_way_each_byte_of_memory_comes_where_the_layout_has_it():
    """Fill a small global memory with its own addresses, move it by the pairs of indices, and read it by (row, k)."""
    load = load_of(rows=256)
    ktiles = 4
    shared = {}
    for index in range(4096):
        word, ktile, block = (*load.source(index), 0, 0)[:3]
        shared[load.target(index)] = (block * ktiles + ktile) * 512 + int(word * 2)
    for row in range(256):
        for factor in range(16):
            byte = load.operand.smem(((row, factor % 4 * 16), 0, factor // 4, 0))
            block = row // 128 * ktiles + factor // 4
            assert shared[byte] == block * 512 + row % 32 * 16 + row % 128 // 32 * 4 + factor % 4


WRONG = [
    ("source", "(512,2,4):(1/2@0,1@2,1@1)", "tiles of rows before tiles of k"),
    ("source", "(512,4,2):(1/2@0,2@1,1@2)", "every other tile of k"),
    ("target", "(512,4,2):(1,1024,512)", "blocks exchanged in shared memory"),
    ("target", "(4096):(2)", "every other byte"),
    ("factors", "((((32,4),2),(16,4)),1,4):((((2@0,64@0),1@2),(0,1/2@0)),0,1@1)", "rows one after another"),
    ("factors", "((((32,4),2),(16,4)),1,4):((((8@0,2@0),1@1),(0,1/2@0)),0,1@2)", "rows and k exchanged"),
]


@pytest.mark.parametrize(("part", "text", "what"), WRONG, ids=[what for *_, what in WRONG])
def test_a_wrong_load_is_refuted_with_its_place(part, text, what):
    wrong, _ = check_load(replace(load_of(rows=256), **{part: parse_layout(text)}))
    assert wrong is not None, what
    assert "row" in wrong


def test_one_coordinate_for_two_bytes_is_refuted():
    wrong, _ = check_load(replace(load_of(rows=128), source=parse_layout("(512,4):(1/2@0,0)")))
    assert "to bytes 0 and 512" in wrong


def test_what_is_no_byte_or_no_number_is_unknown():
    load = load_of(rows=128)
    with pytest.raises(LayoutError, match="1/2@0"):
        check_load(replace(load, target=load.source))
    with pytest.raises(LayoutError, match="not coordinates"):
        check_load(replace(load, source=load.target))
    with pytest.raises(LayoutError, match="not a whole number of bytes"):
        check_load(replace(load, source=parse_layout("(512,4):(1/4@0,1@1)")))
    assert judge(load_claim([replace(load, target=load.source)], topic="t")).status is Status.UNKNOWN


def test_the_kernels_own_layouts_are_found_by_their_form(records):
    found = scale_traced.find_scale_factors(records)
    assert [load.names for load in found.loads] == [
        tuple(f"{SCOPE}.{name}" for name in ("tAgSFA", "tAsSFA", "tCgSFA")),
        tuple(f"{SCOPE}.{name}" for name in ("tBgSFB", "tBsSFB", "tCgSFB")),
    ]
    assert found.loads[0].source(3) == (Fraction(3, 2), 0)
    claim = load_claim(found.loads, topic="t")
    statement = judge(claim)
    assert statement.status is Status.PROVED
    assert statement.checked == "4096 factors"
    assert statement.controls[0].status is Status.REFUTED


def test_a_wrong_layout_of_a_kernel_is_refuted(records):
    found = scale_traced.find_scale_factors(edited(records, "tCgSFA", "((8@0,2@0)", "((2@0,64@0)"))
    (claim,) = [claim for claim in scale_traced.claims_of(found) if claim.name.endswith(".load")]
    statement = judge(claim)
    assert statement.status is Status.REFUTED
    assert statement.counterexample.startswith("SFA, row 1, k 0: TMA writes its coordinate (2, 0, 0, 0) to byte 4")


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("tBsSFB", ":((1,0),2048)", ":((1,0),4096)", "TMA's stages are 3:4096, and shared memory's 3:2048"),
        ("tBgSFB", "1@2,4@1", "1@2,8@1", "TMA steps from tile to tile by 1@2, 8@1, and the tiles are 1@2, 4@1 apart"),
        ("tBgSFB", "1@2,4@1", "2@2,4@1", "TMA steps from tile to tile by 2@2, 4@1, and the tiles are 1@2, 4@1 apart"),
        ("tBgSFB", '"(0,0,0)"', '"(1,0,0)"', "TMA begins at word 1 of a block, and the tile at word 0"),
    ],
)
def test_tiles_and_stages_that_lie_elsewhere_are_refuted(records, name, old, new, says):
    _, load = scale_traced.find_scale_factors(edited(records, name, old, new)).loads
    assert check_load(load)[0] == f"SFB: {says}"


def test_a_step_along_k_that_is_not_the_tiles_is_refuted(records):
    changed = edited(edited(records, "tBgSFB", "1@2,4@1", "1@2,8@1"), "tCgSFB", "1@2,4@1", "1@2,8@1")
    _, load = scale_traced.find_scale_factors(changed).loads
    assert check_load(load)[0] == "SFB: TMA steps along k by 8@1, and a tile has 4 blocks of k"


def test_a_slice_of_the_tiles_is_no_other_tile(records):
    _, load = scale_traced.find_scale_factors(records).loads
    assert load.tiles[0] == load.tiles[1]
    assert check_load(replace(load, tiles=(load.tiles[0][1:], load.tiles[1])))[0] is None
    assert check_load(replace(load, tiles=(load.tiles[0][::-1], load.tiles[1])))[0] is not None


def test_of_layouts_that_differ_none_is_taken(records):
    found = scale_traced.find_scale_factors(edited(records, "tBgSFB", "((1/2@0,1@1),0)", "((1/2@0,2@1),0)"))
    assert [load.operand.name for load in found.loads] == ["SFA"]
    (said,) = found.missing
    assert said.startswith(f"SFB: {SCOPE}.tBgSFB and {SCOPE}.tBgSFB#2")
    assert said.endswith("are different layouts; which of them its load uses is not known")
