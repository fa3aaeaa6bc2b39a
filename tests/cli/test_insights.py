"""``nvfp4 insights``: each signal against counts made by hand or by looking at every lane."""

import json

import pytest

from pytest_nvfp4.insights import copies, structure
from pytest_nvfp4.insights.model import Level
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.listing import Record
from pytest_nvfp4.layout.roles import roles_of
from tests.cli.insight_samples import (
    COLUMN_COPY,
    COLUMN_PART,
    GMEM,
    PLAIN,
    ROW_COPY,
    ROW_PART,
    SWIZZLED,
    T2R,
    TMEM,
    signal_of,
    traced_records,
    walked,
)


def test_lanes_that_run_along_a_row_ask_for_what_is_moved() -> None:
    # A request: 32 lanes of 16 bytes, eight of them a row of 128 bytes: 4 rows, 16 sectors, 512 of 512 bytes.
    found = walked(copy=ROW_COPY, mC=GMEM, tCgC=ROW_PART.format("gmem", "?{div=1024}"))
    insight = signal_of(found["k.tCgC"], "sectors of a warp")
    assert insight.value.startswith("16 sectors and 4 lines for 512 B: 100%")
    assert (
        "(1 request of 16 B a lane by the first warp in the first tile, as the layout allows; k.copy over k.mC"
        in insight.value
    )
    assert "64 in place of ?{div=64}" in insight.value
    assert insight.level is Level.FINE


def test_lanes_that_run_down_a_column_move_twice_what_they_ask_for() -> None:
    found = walked(copy=COLUMN_COPY, mC=GMEM, tCgC=COLUMN_PART.format("gmem", ""))
    insight = signal_of(found["k.tCgC"], "sectors of a warp")
    assert insight.value.startswith("32 sectors and 32 lines for 512 B: 50%")
    assert insight.level is Level.LOOK


def test_the_same_tile_with_and_without_a_swizzle() -> None:
    # Rows of 128 bytes: without a swizzle all lanes of a quarter warp are in the same four banks.
    plain = walked(copy=COLUMN_COPY, sC=PLAIN, tCsC=COLUMN_PART.format("smem", ""))
    insight = signal_of(plain["k.tCsC"], "bank conflicts of a warp")
    assert insight.value.startswith("8 ways; 32 wavefronts, 4 at least (1 request of 16 B")
    assert insight.level is Level.LOOK
    swizzled = walked(copy=COLUMN_COPY, sC=SWIZZLED, tCsC=COLUMN_PART.format("smem", ", S<3,4,3>"))
    assert signal_of(swizzled["k.tCsC"], "bank conflicts of a warp").value.startswith("1 way; 4 wavefronts, 4 at least")


def test_nothing_is_said_without_a_partition_that_confirms_it() -> None:
    assert walked(copy=ROW_COPY, mC=GMEM) == {}
    assert walked(copy=COLUMN_COPY, mC=GMEM, tCgC=ROW_PART.format("gmem", "?{div=1024}")) == {}
    assert walked(copy=ROW_COPY, mC=GMEM, tCgC=COLUMN_PART.format("gmem", "")) == {}
    other_space = ROW_PART.format("smem", "1024")
    assert walked(copy=ROW_COPY, mC=GMEM, tCgC=other_space) == {}


def test_a_stride_of_which_nothing_is_known_says_nothing() -> None:
    gmem = GMEM.replace("?{div=64}", "?")
    assert walked(copy=ROW_COPY, mC=gmem, tCgC=ROW_PART.format("gmem", "?")) == {}


def test_the_offsets_of_each_thread_are_those_of_cutes_definition() -> None:
    # make_tiled_copy_tv with 16 x 8 threads, the second mode fastest, and 1 x 8 values.
    copy = copies.copy_of(Record("k.copy", ROW_COPY))
    assert copy is not None
    for thread in range(128):
        row, column = divmod(thread, 8)
        expected = [(row, column * 8 + value) for value in range(8)]
        assert copies.coordinates_of(copy, parse_type(PLAIN), thread=thread) == expected


def test_a_tmem_load_gives_each_lane_a_row() -> None:
    # PTX ISA, tcgen05.ld .32x32b: lane i of warp w holds row 32 w + i, register j column j.
    copy = copies.copy_of(Record("k.t2r", T2R))
    assert copy is not None
    tile = parse_type('!cute.memref<f16, gmem, align<16>, "((128,128),1,1):((128,1),0,0)">')
    for thread in (0, 1, 31, 32, 127):
        coords = copies.coordinates_of(copy, tile, thread=thread)
        assert coords == [(thread + 128 * column, 0, 0) for column in range(128)]


def test_the_epilogue_of_one_row_a_lane() -> None:
    tile = '!cute.memref<f16, gmem, align<16>, "((128,128),1,1):((?{i64 div=128},1),0,0)">'
    part = '!cute.memref<f16, gmem, align<16>, "((128,1),1,1,1):((1,0),0,0,0)">'
    found = walked(t2r=T2R, tCgC=tile, tDgC=part)
    insight = signal_of(found["k.tDgC"], "sectors of a warp")
    assert insight.value.startswith("32 sectors and 32 lines for 512 B: 50%")
    narrow = walked(t2r=T2R, tCgC=tile.replace("<16>", "<2>"), tDgC=part.replace("<16>", "<2>"))
    # 16-bit stores: 64 of 1024 bytes.
    assert signal_of(narrow["k.tDgC"], "sectors of a warp").value.startswith("32 sectors and 32 lines for 64 B: 6%")


def test_other_tmem_shapes_are_left_alone() -> None:
    assert copies.copy_of(Record("k.t2r", T2R.replace("32 DP", "16 DP"))) is None
    assert copies.copy_of(Record("k.x", PLAIN)) is None


def test_a_partition_that_several_copies_fit_is_only_a_note() -> None:
    # The same values, other lanes: thread 0 gets the same from both.
    other = ROW_COPY.replace("((8,16),8):((128,1),16)", "((16,8),8):((1,128),16)")
    kernel = traced_records(one=ROW_COPY, two=other, mC=GMEM, tCgC=ROW_PART.format("gmem", "?{div=1024}"))
    finding = next(one for one in kernel if one.places[0].name == "k.tCgC")
    sectors = [insight for insight in finding.insights if insight.signal == "sectors of a warp"]
    assert len(sectors) == 2
    assert all("other copies match as well" in insight.value for insight in sectors)
    assert finding.level <= Level.NOTE


@pytest.mark.parametrize(
    ("name", "text", "signal", "value", "level"),
    [
        ("x", '!cute.layout<"(8,4):(1,8)">', "tractable", "yes", Level.FINE),
        ("x", '!cute.layout<"(4,4):(1,3)">', "tractable", "no", Level.NOTE),
        ("x", '!cute.layout<"(8,4):(1,8)">', "compact", "yes", Level.FINE),
        ("x", '!cute.layout<"(8,4):(1,9)">', "compact", "no", Level.FINE),
        ("x", '!cute.layout<"(8,4):(1,8)">', "injective", "yes", Level.FINE),
        ("x", '!cute.layout<"(8,4):(1,4)">', "injective", "no", Level.LOOK),
        ("x", '!cute.layout<"(8,?):(1,?)">', "injective", "unknown", Level.FINE),
        ("x", '!cute.layout<"(8,(4,2)):(1,(0,8))">', "broadcast", "mode 1.0", Level.NOTE),
        ("sSFA", '!cute.layout<"(8,(4,2)):(1,(0,8))">', "broadcast", "mode 1.0", Level.FINE),
        ("x", '!cute.ptr<f16, gmem, align<16>>', "alignment", "16 B", Level.FINE),
        ("x", '!cute.memref<f16, gmem, "(8,64):(64,1)">', "alignment", "2 B", Level.FINE),
        ("x", '!cute.memref<f16, gmem, "(8,64):(64,1)">', "vector width", "16 bits", Level.LOOK),
        ("x", '!cute.memref<f16, gmem, align<16>, "(8,64):(64,1)">', "vector width", "128 bits", Level.FINE),
        ("x", '!cute.memref<f16, gmem, align<16>, "(8,64):(?,1)">', "vector width", "16 bits", Level.LOOK),
        ("x", TMEM.format(4), "TMEM columns", "512 of 512", Level.FINE),
        ("x", TMEM.format(5), "TMEM columns", "640 of 512", Level.WRONG),
        ("x", PLAIN, "shared memory", "16384 B", Level.FINE),
        ("sC", PLAIN, "bank conflicts", "8 ways", Level.LOOK),
        ("sC", SWIZZLED, "bank conflicts", "1 way ", Level.FINE),
        ("sC", PLAIN.replace("(64,1)", "(72,1)"), "bank conflicts", "1 way ", Level.FINE),  # padded by 16 bytes
        ("sC", SWIZZLED.replace("1024", "128"), "swizzle placement", "S<3,4,3> repeats every 1024 B", Level.LOOK),
    ],
)  # fmt: skip
def test_signals_of_a_layout_by_itself(name, text, signal, value, level) -> None:
    info = parse_type(text)
    insight = signal_of(list(structure.of_layout(f"k.{name}", info, roles_of(f"k.{name}", info))), signal)
    assert insight.value.startswith(value)
    assert insight.level is level
    assert insight.meaning
    assert bool(insight.look_at) == (level > Level.FINE)


def test_a_threads_part_is_not_taken_for_a_tile() -> None:
    info = parse_type(SWIZZLED.replace("1024", "16"))
    found = {insight.signal for insight in structure.of_layout("k.tAsA", info, None)}
    assert not found & {"bank conflicts", "swizzle placement"}


def test_equal_types_are_folded_and_the_worst_come_first() -> None:
    findings = traced_records(fine='!cute.layout<"8:1">', also='!cute.layout<"8:1">', bad='!cute.layout<"(8,4):(1,4)">',
                              poisoned='!cute.layout<"x">')  # fmt: skip
    assert [finding.places[0].name for finding in findings] == ["k.poisoned", "k.bad", "k.also"]
    assert findings[0].level is Level.WRONG
    assert [place.name for place in findings[2].places] == ["k.also", "k.fine"]


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_a_compiled_kernel(cli) -> None:
    good, bad = (json.loads(cli("insights", f"{name}_major.py", "--json").out) for name in ("row", "column"))

    def sectors(data):
        found = (
            finding for finding in data["insights"] for place in finding["layouts"] if place["name"] == "kernel.tCgC"
        )
        return next(one for one in next(found)["insights"] if one["signal"] == "sectors of a warp")

    assert sectors(good)["level"] == "fine"
    assert sectors(bad)["level"] == "look"
    assert sectors(bad)["method"] == "enumerated"
    levels = [finding["level"] for finding in bad["insights"]]
    assert levels == sorted(levels, key=["wrong", "look", "note", "fine"].index)


@pytest.mark.usefixtures("in_project")
def test_the_report_for_people(cli) -> None:
    shown = cli("insights", "column_major.py")
    assert shown.code == 0
    assert shown.out.startswith("LOOK")
    assert "look at: " in shown.out
    assert "nothing here was measured on a device" in shown.out
    assert "FINE  " not in shown.out.split("layouts:")[0]
    everything = cli("insights", "column_major.py", "--all")
    assert "tractable: yes  [canonical]" in everything.out
    chosen = cli("insights", "column_major.py", "--filter", "kernel.sC", "--all")
    assert "kernel.mC" not in chosen.out
    assert cli("insights", "column_major.py", "--filter", "zzz").code == 2
