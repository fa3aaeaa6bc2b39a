"""Warps that poll memory: they run again when what they read has changed, and for nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run import scheduler
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.programs import Programs
from tests.sim.ptx_case import kernel_text, run_ptx

CTAS, ROUNDS = 8, 6
BARRIER = f"""
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %rd101, %rd1; mov.b32 %r5, 0;
ROUND:
setp.ne.s32 %p1, %r2, 0; @%p1 bra JOIN;
mov.b32 %r3, 0;
WORK: add.s32 %r3, %r3, 1; st.global.b32 [%rd2], %r3; setp.lt.u32 %p2, %r3, 40; @%p2 bra WORK;
atom.add.release.gpu.global.u32 %r4, [%rd100], 1;
add.s32 %r5, %r5, {CTAS};
POLL: ld.acquire.gpu.global.u32 %r6, [%rd100]; setp.lt.u32 %p3, %r6, %r5; @%p3 bra POLL;
JOIN: bar.sync 0;
setp.lt.u32 %p4, %r5, {CTAS * ROUNDS}; @%p1 bra NEXT; bra.uni ALL; NEXT: add.s32 %r5, %r5, {CTAS};
setp.lt.u32 %p4, %r5, {CTAS * ROUNDS};
ALL: bar.sync 0; @%p4 bra ROUND;
"""


@pytest.mark.parametrize("detector", [None, Detector])
def test_a_barrier_of_a_grid_takes_few_loads(detector: type[Detector] | None) -> None:
    machine = Machine()
    if detector is not None:
        machine.monitor = detector()
    buffers = {"count": np.zeros(1, np.uint32), "work": np.zeros(CTAS, np.uint32)}
    ran = run_ptx(BARRIER, buffers=buffers, grid=(CTAS, 1, 1), block=(64, 1, 1), machine=machine)
    assert ran["count"][0] == CTAS * ROUNDS
    assert (ran["work"] == 40).all()
    # A poll is three instructions, one iteration of the work four.
    polls = (ran.grid.counters["instructions"] - CTAS * ROUNDS * (40 * 4 + 25)) / 3
    assert polls < CTAS * ROUNDS * 30


FLAGS = """
mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; and.b32 %r3, %r1, 31; setp.ne.s32 %p1, %r2, 0; @%p1 bra WRITE;
mul.wide.u32 %rd1, %r3, 4; add.s64 %rd2, %rd100, %rd1;
POLL: ld.relaxed.gpu.global.u32 %r4, [%rd2+{offset}]; ld.volatile.global.u32 %r5, [%rd2]; or.b32 %r6, %r4, %r5;
setp.eq.s32 %p2, %r6, 0; @%p2 bra POLL;
st.global.b32 [%rd2+256], %r6; bra END;
WRITE: mov.b32 %r7, 0;
WAIT: add.s32 %r7, %r7, 1; st.global.b32 [%rd100+512], %r7; setp.lt.u32 %p3, %r7, 300; @%p3 bra WAIT;
mul.wide.u32 %rd1, %r3, 4; add.s64 %rd2, %rd100, %rd1; add.s32 %r8, %r3, 1;
st.relaxed.gpu.global.b32 [%rd2+{stored}], %r8;
END:
"""


@pytest.mark.parametrize("stored", [0, 128])
def test_a_flag_of_each_lane_by_either_of_two_loads(stored: int) -> None:
    text = FLAGS.format(offset=128, stored=stored)
    ran = run_ptx(text, buffers={"p": np.zeros(160, np.uint32)}, block=(64, 1, 1))
    assert ran["p"][64:96].tolist() == list(range(1, 33))


def test_a_warp_that_watches_the_wrong_place_is_never_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    right = scheduler.polled

    def wrong(*arguments: object) -> object:
        found = right(*arguments)  # type: ignore[arg-type]
        return found and [(memoryview(b"\0"), b"\0")]

    monkeypatch.setattr(scheduler, "polled", wrong)
    with pytest.raises(Fault, match="spins on memory that no other warp changes"):
        run_ptx(FLAGS.format(offset=128, stored=0), buffers={"p": np.zeros(160, np.uint32)}, block=(64, 1, 1))


LOOPS = {
    "ld.acquire.gpu.global.u32 %r1, [%rd100+8]; setp.eq.s32 %p1, %r1, 0;": 4,
    "ld.volatile.global.v2.b64 {%rd1, %rd2}, [%rd100]; nanosleep.u32 20; setp.eq.s64 %p1, %rd1, 0;": 16,
    "ld.relaxed.gpu.u8 %rs1, [%rd100]; fence.acq_rel.gpu; setp.eq.s16 %p1, %rs1, 0;": 1,
    # What the loop does besides may let it end, or the address is another one each time.
    "ld.acquire.gpu.global.u32 %r1, [%rd100]; ld.global.u32 %r2, [%rd100+4]; setp.eq.s32 %p1, %r2, 0;": None,
    "ld.acquire.gpu.global.u64 %rd100, [%rd100]; setp.eq.s64 %p1, %rd100, 0;": None,
    "ld.acquire.gpu.global.u32 %r1, [%rd100]; st.global.u32 [%rd100], %r1; setp.eq.s32 %p1, %r1, 0;": None,
    "ld.volatile.shared.u32 %r1, [smem]; setp.eq.s32 %p1, %r1, 0;": None,
}


@pytest.mark.parametrize(("text", "size"), LOOPS.items())
def test_what_a_loop_reads(text: str, size: int | None) -> None:
    program = Programs().get(kernel_text(f"POLL: {text} @%p1 bra POLL;", buffers=1), "kernel")
    found = set(program.polling.values())
    assert len(found) == 1
    loads = found.pop()
    assert size == (None if loads is None else sum(load.size for load in loads))


def test_a_loop_without_a_strong_load_does_not_poll() -> None:
    text = "LOOP: ld.global.u32 %r1, [%rd100]; setp.eq.s32 %p1, %r1, 0; @%p1 bra LOOP;"
    assert not Programs().get(kernel_text(text, buffers=1), "kernel").polling


@pytest.mark.parametrize("blocks", range(6))
def test_lanes_that_meet_nobody_are_told_at_once(blocks: int) -> None:
    """However many blocks the warp has run: a kernel with a loop that polls is looked at after four."""
    text = "mov.u32 %r1, %tid.x; " + "".join(f"bra.uni B{number}; B{number}: " for number in range(blocks))
    text += "setp.lt.u32 %p1, %r1, 16; @%p1 bra SKIP; bar.sync 0; SKIP: bar.sync 0;"
    text += "POLL: ld.acquire.gpu.global.u32 %r2, [%rd100]; setp.ne.s32 %p2, %r2, 0; @%p2 bra POLL;"
    with pytest.raises(Fault, match="lanes of one warp wait for each other at different instructions"):
        run_ptx(text, buffers={"p": np.zeros(1, np.uint32)})
