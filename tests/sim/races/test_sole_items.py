"""Items that one warp alone touches, again and again, against the definition and against the arrays alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.races import global_shadow, region_shadow
from pytest_nvfp4.sim.races.access_sets import AccessSets
from pytest_nvfp4.sim.races.sole_items import SoleItems
from tests.sim.races.global_lanes import lanes
from tests.sim.races.programs import by_warp, findings_of

PLACES = (
    "mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd100, %rd1; xor.b64 %rd3, %rd1, 4; add.u64 %rd3, %rd100, %rd3;"
    "xor.b64 %rd4, %rd1, 128; add.u64 %rd4, %rd100, %rd4; and.b32 %r5, %r0, 31; setp.eq.u32 %p3, %r5, 0;"
    "and.b64 %rd5, %rd1, 128; mul.wide.u32 %rd6, %r5, 16; add.u64 %rd5, %rd5, %rd6; add.u64 %rd5, %rd100, %rd5;"
    "setp.lt.u32 %p4, %r5, 8; setp.eq.u32 %p5, %r5, 1;"
)
"""Words of x: %rd2 the lane's own, %rd3 its neighbour's, %rd4 that of the same lane of the other warp; %p3 of lane 0,
%p5 of lane 1; %rd5 four words of the own warp for each lane of %p4."""
WAYS = {
    "own": ("", "b32", "%rd2"),
    "next": ("", "b32", "%rd3"),
    "peer": ("", "b32", "%rd4"),
    "one": ("@%p3", "b32", "%rd2"),
    "two": ("@%p5", "b32", "%rd3"),
    "byte": ("", "b8", "%rd2"),
    "wide": ("@%p4", "v4.b32", "%rd5"),
}
"""By way of access, the guard, the type and the address."""
Step = tuple[str, str]
Program = Sequence[tuple[Sequence[Step], Sequence[Step]]]
"""By interval between barriers, the accesses of both warps: ``ld`` or ``st``, and the way; and ``meet``."""


def line(step: Step) -> str:
    kind, way = step
    if kind == "meet":
        return "bar.warp.sync 0xffffffff;"
    guard, form, address = WAYS[way]
    if kind == "ld":
        return f"{guard} ld.global.{form} {'{%r20, %r21, %r22, %r23}' if form == 'v4.b32' else '%r20'}, [{address}];"
    return f"{guard} st.global.{form} [{address}], {'{%r0, %r0, %r0, %r0}' if form == 'v4.b32' else '%r0'};"


def text(program: Program) -> str:
    warps = ["bar.sync 0;".join("".join(map(line, both[warp])) for both in program) for warp in range(2)]
    return PLACES + by_warp(*warps)


def touched(way: str, warp: int) -> dict[int, set[int]]:
    """The bytes of each lane."""
    words = {
        "own": lambda lane: range(4 * lane, 4 * lane + 4),
        "next": lambda lane: range(4 * (lane ^ 1), 4 * (lane ^ 1) + 4),
        "peer": lambda lane: range(4 * lane, 4 * lane + 4),
        "one": lambda lane: range(0, 4) if lane == 0 else (),
        "two": lambda lane: range(0, 4) if lane == 1 else (),
        "byte": lambda lane: range(4 * lane, 4 * lane + 1),
        "wide": lambda lane: range(16 * lane, 16 * lane + 16) if lane < 8 else (),
    }[way]
    first = 128 * (1 - warp if way == "peer" else warp)
    return {lane: {first + byte for byte in words(lane)} for lane in range(32)}


def races(program: Program) -> bool:
    """Whether two threads touch one byte, one of them to write it, and no barrier and no meeting lies between."""
    for both in program:
        before: list[tuple[int, int, int, set[int], bool]] = []
        for warp, steps in enumerate(both):
            meetings = 0
            for kind, way in steps:
                meetings += kind == "meet"
                if kind == "meet":
                    continue
                for lane, here in touched(way, warp).items():
                    for other, other_lane, met, there, wrote in before:
                        if other == warp and (other_lane == lane or met != meetings):
                            continue
                        if (wrote or kind == "st") and here & there:
                            return True
                    before.append((warp, lane, meetings, here, kind == "st"))
    return False


def reported(program: Program) -> list[str]:
    findings, faults = findings_of(text(program))
    assert faults == []
    assert {finding.kind for finding in findings} <= {"race"}
    return [finding.message for finding in findings]


OWN = [("st", "own"), ("ld", "own"), ("st", "own")]
ALONE: Program = [(OWN, [])] * 3
steps = st.lists(
    st.one_of(
        st.sampled_from([("ld", "own"), ("st", "own"), ("meet", "")]),
        st.tuples(st.sampled_from(["ld", "st"]), st.sampled_from([*WAYS])),
    ),
    max_size=4,
)  # fmt: skip
intervals = st.one_of(st.just((OWN, OWN)), st.just((OWN, [])), st.tuples(steps, steps))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The instructions whose accesses ``SoleItems`` record."""
    ats: list[int] = []
    touch = SoleItems.touch

    def counted(self: SoleItems, tick: int, at: int, *, writes: bool) -> None:
        ats.append(at)
        touch(self, tick, at, writes=writes)

    monkeypatch.setattr(SoleItems, "touch", counted)
    return ats


def test_first_accesses_are_recorded_there_and_those_after_others_from_the_third_interval(recorded):
    assert reported(ALONE) == []
    assert len(recorded) == 9
    recorded.clear()
    after: Program = [([], [("st", "peer")]), *[(OWN, [])] * 4]
    assert reported(after) == []
    assert len(recorded) == 1 + 2 + 3


def test_a_read_before_the_first_write_is_recorded_there(recorded):
    changed: Program = [([("ld", "own"), ("st", "own")], [])]
    assert reported(changed) == []
    assert len(recorded) == 1
    assert reported([([("ld", "own"), ("st", "next")], [])]) != []
    assert reported([([("ld", "own")], [("st", "peer")])]) != []


@pytest.mark.parametrize(
    ("last", "racy"),
    [(("ld", "own"), False), (("ld", "next"), True), (("st", "next"), True), (("st", "byte"), False),
     (("ld", "wide"), True), (("ld", "one"), False)],
)  # fmt: skip
def test_lanes_race_with_what_is_recorded_there(last, racy, recorded):
    same, later, met = ([([*OWN, *between, last], [])] for between in ((), (), [("meet", "")]))
    assert bool(reported([*ALONE, *same])) is racy
    assert recorded
    assert reported([*ALONE, *met]) == []
    assert bool(reported([*ALONE, *later])) is racy


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("read", [True, False])
def test_another_warp_races_with_what_is_recorded_there(write, read, recorded):
    mine, theirs = [("st" if write else "ld", "own")], [("ld" if read else "st", "peer")]
    assert bool(reported([*ALONE, (mine, theirs)])) is (write or not read)
    assert recorded
    assert reported([*ALONE, (mine, []), ([], theirs)]) == []


def test_one_item_of_several_lanes_is_theirs(recorded):
    one = [("st", "one")]
    for last, racy in ((("st", "one"), False), (("st", "two"), True), (("ld", "two"), True)):
        assert bool(reported([*[(one, [])] * 4, ([*one, last], [])])) is racy
    assert recorded
    put, get, meet = "st.global.b32 [%rd100], 7;", "ld.global.b32 %r20, [%rd100];", "bar.warp.sync 0xffffffff;"
    assert lanes((put + meet + get + meet) * 4) == []
    assert lanes((put + meet + get + meet) * 4 + get + put) == ["race"]
    first, second = f"setp.eq.u32 %p5, %r2, 1; @%p3 {put}", f"@%p5 {put}"
    assert lanes((first + meet) * 4 + first + meet + second) == []
    assert lanes((first + meet) * 4 + first + second) == ["race"]


def test_smaller_units_and_more_items_lose_nothing(monkeypatch):
    split = [("st", "byte"), ("ld", "own"), ("st", "own")]
    assert reported([*ALONE, (split, []), (OWN, [])]) == []
    monkeypatch.setattr(region_shadow, "_MOST_SOLE", 1)
    both: Program = [(OWN, OWN)] * 4
    assert reported(both) == []
    assert reported([*both, (OWN, [*OWN, ("st", "peer")])]) != []


def test_items_that_are_touched_twice_and_no_more_are_forgotten(monkeypatch):
    monkeypatch.setattr(region_shadow, "_MOST_SOLE", 2)
    shadow = region_shadow.RegionShadow(Region("x", 0, 4096), AccessSets())
    assert [shadow.repeated((at, 4)) for at in (0, 0, 4, 4, 8, 0)] == [False, True, False, True, False, False]
    assert len(shadow.sole) == 2


@settings(max_examples=120, deadline=None)
@given(st.lists(intervals, min_size=1, max_size=6))
@example([*ALONE, ([("st", "own"), ("ld", "next")], [])])
def test_findings_are_those_of_the_definition_and_of_the_arrays_alone(program: Program):
    found = reported(program)
    assert bool(found) is races(program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(global_shadow, "by_single_lanes", lambda _where, _mask: False)
        # Of the earlier accesses of its own to the same bytes, ``SoleItems`` have the last ones.
        assert [message.split(" while ")[0] for message in reported(program)] == [
            message.split(" while ")[0] for message in found
        ]
