"""Which registers can hold a value that is not computed yet."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim import lanes
from pytest_nvfp4.sim.deferred import Pending, deferred_slots, joined, renaming, split
from pytest_nvfp4.sim.wgmma.registers import accumulators, unfenced
from tests.sim.deferred_case import RecordingSource, kernel

MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1, 1, 1, 0, 0;"
FENCE = "wgmma.fence.sync.aligned;"


def names(body: str) -> tuple[set[str], bool]:
    found = kernel(body)
    deferred = deferred_slots(found, accumulators)
    return {found.registers[slot].name for slot in deferred.slots}, deferred.copied


FOUR = {"%r1", "%r2", "%r3", "%r4"}


@pytest.mark.parametrize(
    ("body", "more", "copied"),
    [
        (MMA, set(), False),
        (f"{MMA}\nadd.s32 %r5, %r1, %r2;", set(), False),
        (f"{MMA}\nmov.b32 %r5, %r1;", {"%r5"}, True),
        (f"mov.b32 %r6, %r5;\n{MMA}\nmov.b32 %r5, %r1;", {"%r5", "%r6"}, True),
        (f"{MMA}\nmov.b32 {{%rs1, %rs2}}, %r3;\nmov.b32 %r7, {{%rs1, %rs2}};", {"%rs1", "%rs2", "%r7"}, True),
        (f"{MMA}\nmov.b32 {{%rs1, _}}, %r3;", {"%rs1"}, True),
        (f"{MMA}\nmov.b64 %rd3, {{%r1, %r2}};", set(), False),
        # An accumulator that is cleared by clearing one register and copying it is no copy of a pending value ...
        (f"mov.b32 %r1, 0;\nmov.b32 %r2, %r1;\nmov.b32 %r3, %r2;\n{MMA}", set(), False),
        # ... unless one may come from elsewhere, or the clearing is conditional.
        (f"mov.b32 %r1, 0;\nLOOP:\nmov.b32 %r5, %r1;\n{MMA}\n@%p1 bra LOOP;", {"%r5"}, True),
        (f"@%p1 mov.b32 %r1, 0;\nmov.b32 %r5, %r1;\n{MMA}", {"%r5"}, True),
    ],
)
def test_slots(body, more, copied):
    assert names(body) == (FOUR | more, copied)


def test_no_accumulators_no_slots():
    assert names("mov.b32 %r1, %r2;") == (set(), False)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("mov.b32 %r1, %r2;", (1, 1)),
        ("mov.b32 {%rs1, %rs2}, %r2;", (2, 1)),
        ("mov.b32 %r2, {%rs1, %rs2};", (1, 2)),
        ("mov.b32 %r1, 5;", None),
        ("mov.b64 %rd1, {%r1, %r2};", None),
        ("mov.u32 %r1, %tid.x;", None),
        ("add.s32 %r1, %r2, %r3;", None),
    ],
)
def test_renaming(text, sizes):
    found = renaming(kernel(text).instructions[0])
    assert (found and tuple(map(len, found))) == sizes


@pytest.mark.parametrize(
    ("body", "register"),
    [
        (f"mov.b32 %r2, 0;\n{FENCE}\n{MMA}", None),
        (f"{FENCE}\nadd.s32 %r2, %r2, 1;\n{MMA}", "%r2"),
        (f"{FENCE}\nmov.b32 %r2, 0;\n{MMA}", None),
        (f"{FENCE}\nmov.b32 %r2, %r9;\n{MMA}", None),
        (f"{FENCE}\n{MMA}\n{MMA}", None),
        (f"{FENCE}\nadd.s32 %r2, %r2, 1;\nbra.uni NEXT;\nNEXT:\n{MMA}", None),
        (f"{FENCE}\nadd.s32 %r2, %r2, 1;\n@%p1 bra NEXT;\n{MMA}\nNEXT:", "%r2"),
    ],
)
def test_unfenced(body, register):
    assert next(iter(unfenced(kernel(body)).values()), None) == register


def test_halves_are_computed_when_looked_at_and_joined_without():
    lane = np.arange(32, dtype=np.uint32)
    source = RecordingSource([lane << np.uint32(16) | np.uint32(7), 0x1234_5678])
    low, high = split(Pending(source, 0))
    assert joined(low, high) is not None
    assert joined(high, low) is None
    assert joined(low, 5) is None
    assert joined(low, split(Pending(source, 0))[1]) is None
    assert source.asked == []
    assert (low.settle() == 7).all()
    assert np.array_equal(high.settle(), lane)
    assert high.settle().dtype == np.uint16
    assert [part.settle() for part in split(Pending(source, 1))] == [0x5678, 0x1234]


def test_a_merge_of_lanes_settles():
    source = RecordingSource([np.arange(32, dtype=np.uint32)])
    merged = lanes.merge(0xFFFF, Pending(source, 0), 99, 32)
    assert merged[:16].tolist() == list(range(16))
    assert set(merged[16:].tolist()) == {99}
