"""CTAs whose warps poll memory together, with a barrier in each round: they are neither starved nor run forever."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import schedule
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.ptx_case import Ran, run_ptx

CTAS = 3
# CTA 0 waits for the others; thread 0 reads the counter and passes it on through shared memory, as Triton does.
POLL = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.ne.s32 %p1, %r1, 0; setp.ne.s32 %p2, %r2, 0; mov.b32 %r7, 0;
@%p1 bra OTHER;
ROUND: @%p2 bra MEET;
{atom}
st.shared.b32 [smem], %r3;
MEET: bar.sync 0; ld.shared.b32 %r4, [smem]; bar.sync 0; {inside}
setp.ne.s32 %p3, %r4, {wanted}; @%p3 bra ROUND;
@!%p2 st.global.b32 [%rd101], %r4; bra END;
OTHER: {work}
@!%p2 red.release.gpu.global.add.u32 [%rd100], 1;
END:
"""
READ = "atom.acquire.gpu.global.add.u32 %r3, [%rd100], 0;"
WORK = """mov.b32 %f1, 0f3F800000;
WORK: fma.rn.f32 %f1, %f1, %f1, %f1; fma.rn.f32 %f2, %f1, %f1, %f1; add.s32 %r7, %r7, 1;
setp.lt.u32 %p4, %r7, 40; @%p4 bra WORK;"""


def polled(
    wanted: int, *, order: str = "eager", atom: str = READ, inside: str = "", work: str = "", detector: bool = False
) -> Ran:
    machine = Machine(asynchronous=schedule(order))
    machine.monitor = Detector() if detector else None
    return run_ptx(
        POLL.format(wanted=wanted, atom=atom, inside=inside, work=work),
        buffers={"count": np.zeros(1, np.uint32), "seen": np.zeros(1, np.uint32)},
        grid=(CTAS, 1, 1),
        block=(64, 1, 1),
        shared=16,
        machine=machine,
    )


@pytest.mark.parametrize("order", ["eager", "lazy", "7"])
@pytest.mark.parametrize("work", ["", WORK], ids=["", "in a gang"])
def test_what_is_waited_for_may_come_from_ctas_that_start_later(work: str, order: str) -> None:
    ran = polled(CTAS - 1, order=order, work=work)
    assert ran["seen"][0] == CTAS - 1


def test_so_it_may_under_the_race_detector() -> None:
    assert polled(CTAS - 1, detector=True)["seen"][0] == CTAS - 1


SIGNAL = """add.s32 %r7, %r7, 1; min.u32 %r7, %r7, 3001; setp.eq.s32 %p4, %r7, 3000;
@%p4 st.release.gpu.global.b32 [%rd101], %r7;"""
SPIN = "SPIN: ld.acquire.gpu.global.b32 %r6, [%rd101]; setp.eq.s32 %p5, %r6, 0; @%p5 bra SPIN;"


@pytest.mark.parametrize("order", ["eager", "lazy", "7"])
def test_so_it_may_from_warps_that_have_been_spinning(order: str) -> None:
    assert polled(CTAS - 1, order=order, inside=SIGNAL, work=SPIN)["seen"][0] == CTAS - 1


@pytest.mark.parametrize("atom", [READ, "ld.acquire.gpu.global.u32 %r3, [%rd100];"])
@pytest.mark.parametrize("order", ["eager", "lazy"])
def test_a_count_that_never_comes_is_a_deadlock_of_the_poll(order: str, atom: str) -> None:
    with pytest.raises(Fault, match="1 CTA, where all warps together poll memory that no warp changes") as caught:
        polled(CTAS, order=order, atom=atom)
    assert caught.value.kind == "deadlock"
    assert caught.value.where is not None
    assert caught.value.where.text == atom.rstrip(";")


@pytest.mark.parametrize(
    ("inside", "atom"),
    [
        ("add.s32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 6000; selp.u32 %r4, 0, 7, %p4;", READ),
        ("", "atom.relaxed.gpu.global.add.u32 %r3, [%rd101], 1; mov.b32 %r3, %r3; shr.u32 %r3, %r3, 9;"),
    ],
    ids=["rounds are counted in a register", "rounds are counted in memory"],
)
def test_rounds_that_are_counted_are_none(inside: str, atom: str) -> None:
    assert polled(7, inside=inside, atom=atom)["seen"][0] == 7
