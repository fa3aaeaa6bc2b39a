"""Vector loads of which some elements are never used: LLVM's, where it fills gaps between loads that it joins."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import Ran, run_ptx

# Words 0 and 2 of 16 bytes are written, 1 and 3 are not.
WRITE = (
    "mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mov.b32 %r2, 7; mov.b32 %r3, 9; ADDRESS"
    "st.shared.b32 [%r4], %r2; st.shared.b32 [%r4+8], %r3; bar.sync 0;"
)
SAME = "mov.u32 %r4, %r1;"
EACH = "shl.b32 %r5, %r0, 4; add.u32 %r4, %r1, %r5;"
LOAD = "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r4];"
KEEP = "shl.b32 %r6, %r0, 3; cvt.u64.u32 %rd1, %r6; add.u64 %rd2, %rd100, %rd1; st.global.v2.b32 [%rd2], {%r10, %r12};"
USE = "add.u32 %r14, %r11, %r13; st.shared.b32 [%r4+4096], %r14;"


def ran(body: str, *, races: bool = False, threads: int = 32) -> Ran:
    machine = Machine()
    if races:
        machine.monitor = Detector()
    return run_ptx(
        body, buffers={"out": np.zeros(2 * threads, np.uint32)}, shared=8192, block=(threads, 1, 1), machine=machine
    )


@pytest.mark.parametrize("address", [SAME, EACH])
def test_elements_that_nothing_uses_need_not_be_written(address):
    case = ran(WRITE.replace("ADDRESS", address) + LOAD + KEEP)
    assert case.grid.findings == []
    assert case["out"].tolist() == [7, 9] * 32


@pytest.mark.parametrize("address", [SAME, EACH])
def test_elements_that_something_uses_must_be(address):
    case = ran(WRITE.replace("ADDRESS", address) + LOAD + KEEP + USE)
    assert [finding.kind for finding in case.grid.findings] == ["uninitialised"]


@pytest.mark.parametrize("address", [SAME, EACH])
def test_the_cost_is_that_of_the_whole_vector(address):
    one, other = (ran(WRITE.replace("ADDRESS", address) + LOAD + KEEP + more).grid.counters for more in ("", USE))
    for name in ("requests", "bytes", "wavefronts", "conflicts"):
        assert one[f"shared.load.{name}"] == other[f"shared.load.{name}"]
    assert one["shared.load.requests"] == 1


@pytest.mark.parametrize(("more", "kinds"), [("", []), (USE, ["race"])])
def test_another_warp_may_write_what_nothing_uses(more, kinds):
    body = (
        "mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mov.b32 %r2, 7; mov.u32 %r4, %r1; shr.u32 %r7, %r0, 5;"
        "setp.ne.u32 %p1, %r0, 0; @%p1 bra MADE; st.shared.v4.b32 [%r4], {%r2, %r2, %r2, %r2}; MADE: bar.sync 0;"
        "setp.ne.u32 %p2, %r7, 1; @%p2 bra READ; setp.ne.u32 %p3, %r0, 32; @%p3 bra DONE;"
        f"st.shared.b32 [%r4+4], %r0; bra DONE; READ: {LOAD} {KEEP} {more} DONE: bar.sync 0;"
    )
    case = ran(body, races=True, threads=64)
    assert [finding.kind for finding in case.grid.findings] == kinds
    assert case["out"][:64].tolist() == [7] * 64


def test_loads_of_global_memory_are_split_too():
    source = np.arange(128, dtype=np.uint32)
    body = (
        "mov.u32 %r0, %tid.x; shl.b32 %r5, %r0, 4; cvt.u64.u32 %rd3, %r5; add.u64 %rd4, %rd101, %rd3;"
        "ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd4];" + KEEP
    )
    buffers = {"out": np.zeros(64, np.uint32), "x": source}
    case = run_ptx(body, buffers=buffers, block=(32, 1, 1))
    assert case["out"].reshape(-1, 2).tolist() == source.reshape(-1, 4)[:, ::2].tolist()
    assert case.grid.counters["global.load.requests"] == 1
    assert case.grid.counters["global.load.bytes"] == 512


@pytest.mark.parametrize("shift", ["4", "%r0"])
def test_the_whole_vector_must_be_aligned(shift):
    body = WRITE.replace("ADDRESS", SAME) + f"add.u32 %r4, %r4, {shift};" + LOAD + KEEP
    with pytest.raises(Fault) as caught:
        ran(body)
    assert caught.value.kind == "misaligned"
