"""Lanes of one warp against each other in global memory: with ``bar.warp.sync`` between them, and without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.memory.pattern import Pattern, pattern_of
from pytest_nvfp4.sim.races import warp_lanes
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.races.warp_lanes import GlobalLaneAccess
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import run_ptx
from tests.sim.races.global_lanes import BYTES, LANES, PLACES, by_definition, lanes
from tests.sim.races.programs import SMEM, finding_kinds

STORE, OTHER, MEET = "st.global.b32 [%rd2], %r0;", "ld.global.b32 %r20, [%rd3];", "bar.warp.sync 0xffffffff;"
ONE, ALL = "@%p3 st.global.b32 [%rd100], 7;", "ld.global.b32 %r20, [%rd100];"
UNIFORM = "st.global.b32 [%rd100], 7;"


@pytest.mark.parametrize(
    "meet",
    [MEET, "bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;", "membar.gl;", "fence.acq_rel.cta;",
     "ld.acquire.gpu.global.b32 %r30, [%rd101];"],
)  # fmt: skip
def test_lanes_that_meet_are_ordered(meet):
    assert lanes(STORE + meet + OTHER + meet + STORE) == []


@pytest.mark.parametrize(
    "nothing",
    ["", "shfl.sync.idx.b32 %r30, %r0, 0, 31, 0xffffffff;", "vote.sync.all.pred %p4, %p3, 0xffffffff;",
     "ld.relaxed.gpu.global.b32 %r30, [%rd101];", "st.global.b32 [%rd5], 1;"],
)  # fmt: skip
def test_lanes_that_nothing_orders(nothing):
    assert lanes(STORE + nothing + OTHER) == ["race"]
    assert lanes(OTHER + nothing + STORE) == ["race"]
    assert lanes(STORE + MEET + OTHER + nothing + STORE) == ["race"]
    assert lanes(STORE + nothing + "st.global.b32 [%rd3], %r0;") == ["race"]


@pytest.mark.parametrize(
    ("body", "races"),
    [(STORE + "ld.global.b32 %r20, [%rd2];" + STORE, 0), (UNIFORM + ALL, 0), (UNIFORM + UNIFORM, 0),
     (UNIFORM + ALL + UNIFORM, 1), (ONE + ALL, 1), (ONE + MEET + ALL, 0), (ONE + "@%p3 " + ALL, 0), (ALL + ONE, 1),
     (ALL + MEET + ONE, 0)],
)  # fmt: skip
def test_what_a_lane_wrote_itself_is_its_own(body, races):
    assert lanes(body) == ["race"] * races


def test_bytes_are_lanes_of_their_own():
    put = "st.global.b8 [%rd4+1], %r0;"
    assert lanes(put + "ld.global.b8 %r20, [%rd4+1];") == []
    assert lanes(put + "ld.global.b8 %r20, [%rd4+2];") == ["race"]
    assert lanes(put + "ld.global.b8 %r20, [%rd4+64];") == []
    wide = "mul.wide.u32 %rd6, %r2, 16; add.u64 %rd6, %rd100, %rd6; st.global.v4.b32 [%rd6], {%r0, %r0, %r0, %r0};"
    assert lanes(wide + "@%p3 ld.global.b32 %r20, [%rd6+12];") == []
    assert lanes(wide + "@%p3 ld.global.b32 %r20, [%rd6+16];") == ["race"]


def test_strong_accesses_of_lanes_do_not_race():
    add, far = "red.global.add.u32 [%rd2], 1;", "red.global.add.u32 [%rd3], 1;"
    assert lanes(STORE + MEET + add + far) == []
    assert lanes(add + OTHER) == ["race"]
    assert lanes("st.volatile.global.b32 [%rd2], %r0; ld.volatile.global.b32 %r20, [%rd3];") == []


def test_rows_that_lie_far_apart():
    row = "st.global.v4.b32 [%rd5], {%r0, %r0, %r0, %r0};"
    rows = "".join(row.replace("%rd5", f"%rd5+{16 * i}") for i in range(8))
    assert lanes(rows + rows) == []
    assert lanes(rows + "ld.global.b32 %r20, [%rd5+64];") == []
    assert lanes(rows + "@%p3 ld.global.b32 %r20, [%rd5+64+512];") == ["race"]
    assert lanes(rows + MEET + "@%p3 ld.global.b32 %r20, [%rd5+64+512];") == []


def test_warps_are_told_apart():
    assert lanes(STORE.replace("%rd2", "%rd2+128") + MEET + OTHER, warps=1) == []
    assert lanes("setp.gt.u32 %p5, %r0, 31; @%p5 bra END;" + STORE + MEET + OTHER + "END:", warps=2) == []


def test_a_warp_that_touches_very_much_forgets(monkeypatch):
    monkeypatch.setattr(warp_lanes, "_CAPACITY", 3)
    far = "".join(f"st.global.b32 [%rd101+{4 * i}], 1;" for i in range(4))
    assert lanes(UNIFORM + ALL + far + UNIFORM) == []
    assert lanes(UNIFORM + ALL + far[: far.index(";") + 1] + UNIFORM) == ["race"]


def test_lanes_are_told_with_what_they_touch():
    machine = Machine(model=for_arch("sm_100a"))
    machine.monitor = Detector()
    buffers = {"x": np.zeros(32, np.uint32), "y": np.zeros(32, np.uint32)}
    (finding,) = run_ptx(SMEM + PLACES + STORE + OTHER, machine=machine, buffers=buffers).grid.findings
    assert "reads global memory at x at byte 0 while" in finding.message
    assert "different lanes of the warp, and no bar.warp.sync orders them" in finding.message
    assert "bar.warp.sync" in finding.hint


def test_one_store_of_two_values_to_one_address_is_found_where_it_is_made():
    assert lanes("st.global.b32 [%rd100], %r0;") == ["lanes-race"]
    assert lanes(UNIFORM) == []


# ---- against the definition --------------------------------------------------------------------------------------


@st.composite
def accesses_to_rows(draw: st.DrawFn) -> list[GlobalLaneAccess]:
    """Accesses of a few patterns: rows of some items at a pitch, lanes in any order, all of them or some."""
    patterns = []
    for _ in range(draw(st.integers(1, 2))):
        size, items = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([1, 2, 4, 8, 3]))
        pitch = draw(st.sampled_from([size * items, 128, 384, 512, 520]))
        lane = draw(st.permutations(range(32)))
        mask = draw(st.sampled_from([0xFFFF_FFFF, 0x0F0F_0F0F, 0xFFFF]))
        offsets = np.array([(at // items) * pitch + at % items * size for at in lane], np.uint64)
        patterns.append(pattern_of(offsets, mask, size)[1])
    made = []
    for at in range(draw(st.integers(2, 14))):
        where, low = draw(st.sampled_from(patterns)), 4096 + draw(st.integers(0, 40)) * draw(st.sampled_from([4, 128]))
        made.append(GlobalLaneAccess(low, low + where.span, where, 0, 0, at, draw(st.booleans())))
    return made


@settings(max_examples=300, deadline=None)
@given(accesses_to_rows())
def test_an_access_to_rows_races_with_the_first_one_by_other_lanes(accesses: list[GlobalLaneAccess]):
    found, before = warp_lanes.WarpLanes(), []
    for new in accesses:
        race = found.global_access(new, again=True)
        lane_at = lanes_by_byte(new)
        expected = next((old for old in before if races_by_definition(old, lanes_by_byte(old), new, lane_at)), None)
        assert (None if race is None else race.access) is expected
        before = [new] if expected is not None else [*before, new]


def lanes_by_byte(access: GlobalLaneAccess) -> dict[int, set[int]]:
    where = access.where
    assert isinstance(where, Pattern)
    found: dict[int, set[int]] = {}
    for lane, offset in zip(where.active.tolist(), where.offsets.tolist(), strict=True):
        for byte in range(where.size):
            found.setdefault(access.low + offset + byte, set()).add(lane)
    return found


def races_by_definition(
    old: GlobalLaneAccess, old_lanes: dict[int, set[int]], new: GlobalLaneAccess, new_lanes: dict[int, set[int]]
) -> bool:
    """Whether two lanes touch one byte, one of them to write it, and it is not uniform code of the same lanes."""
    for byte in old_lanes.keys() & new_lanes.keys():
        a, b = old_lanes[byte], new_lanes[byte]
        uniform = old.writes and (a == b if new.writes else b <= a)
        if (old.writes or new.writes) and len(a | b) > 1 and not uniform:
            return True
    return False


STEP = st.one_of(
    st.tuples(st.sampled_from(["ld", "st"]), st.permutations(range(BYTES)), st.sampled_from([0xFF, 0x0F, 0x11, 0x7E])),
    st.just(("meet", (), 0)),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=2, max_size=7))
def test_lanes_race_where_the_definition_says(program):
    table = np.full((len(program), 32), BYTES, np.uint32)
    lines = ["cvt.u64.u32 %rd1, %r2; shl.b64 %rd1, %rd1, 2; add.u64 %rd6, %rd101, %rd1;"]
    for number, (kind, places, mask) in enumerate(program):
        if kind == "meet":
            lines.append(MEET)
            continue
        table[number, :LANES] = places[:LANES]
        does = "st.global.b8 [%rd7], %r0;" if kind == "st" else "ld.global.b8 %r20, [%rd7];"
        lines.append(
            f"ld.global.nc.b32 %r8, [%rd6+{128 * number}]; cvt.u64.u32 %rd7, %r8; add.u64 %rd7, %rd100, %rd7;"
            f"mov.u32 %r9, {mask}; shr.u32 %r9, %r9, %r2; and.b32 %r9, %r9, 1; setp.eq.u32 %p5, %r9, 1; @%p5 {does}"
        )
    buffers = {"x": np.zeros(16, np.uint8), "table": table}
    kinds = finding_kinds("\n".join(lines), block=(32, 1, 1), buffers=buffers, read_only=["table"])
    assert bool(kinds) == by_definition(program)
