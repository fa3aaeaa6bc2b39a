"""A launch shared between processes equals the same launch in one."""

from __future__ import annotations

import os
import signal

import pytest

from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.run import parallel
from tests.sim.run.parallel_runs import CTAS, parsed, run, tracked, watched


@pytest.fixture(autouse=True)
def always_worth_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_WORTH_S", 0.0)


@pytest.mark.parametrize("processes", [2, 3])
def test_outputs_and_counters_are_the_same(processes: int) -> None:
    alone, shared = run(1), run(processes)
    assert (alone["out"] == shared["out"]).all()
    assert (shared["out"] != 0).all()
    assert alone.grid.counters == shared.grid.counters
    assert alone.grid.products == shared.grid.products > CTAS * 32 * 300
    for ran in (alone, shared):
        touched = ran.grid.machine.memory.touched
        assert not touched.reads, "parameters are no allocation"
        assert {region.name for region in touched.writes} == {"out"}


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_ctas_of_other_processes_wrote_is_known(processes: int) -> None:
    assert watched(processes, CTAS) == []
    assert watched(processes, CTAS, skip=9) == ["never-written"]
    assert watched(processes, CTAS, twice=9) == ["never-written", "written-by-two"]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_bytes_that_other_processes_wrote_count_as_written(processes: int) -> None:
    (region,) = (each for each in tracked(processes).grid.machine.memory if each.name == "out")
    assert region.initialised is not None
    assert [bool(row.all()) for row in region.initialised.reshape(CTAS, 128)] == [cta != 9 for cta in range(CTAS)]
    assert region.initialised.sum() == (CTAS - 1) * 128


def test_the_fault_of_the_earliest_cta_is_told() -> None:
    extra = "setp.ge.u32 %p2, %r1, {first}; @%p2 trap;"
    for first in (5, 6):
        with pytest.raises(Fault) as caught:
            run(2, extra.format(first=first))
        where = caught.value.where
        assert caught.value.kind == "trap"
        assert where is not None
        assert where.cta == (first, 0, 0)


def test_processes_that_have_ended_are_reaped_at_the_next_launch() -> None:
    run(3)
    ended = list(parallel._ended)
    assert len(ended) == 2
    run(3)
    assert not set(ended) & set(parallel._ended)
    for pid in ended:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)
    os.waitpid(parallel._ended[0], 0)  # another part of the program has reaped one
    assert (run(3)["out"] == run(1)["out"]).all()


def test_ctas_that_speak_with_each_other_stay_together() -> None:
    assert not parallel.communicates(parsed("st.global.b32 [%rd1], %r4;"))
    assert not parallel.communicates(parsed("atom.shared.add.u32 %r4, [%r5], 1;"))
    assert parallel.communicates(parsed("atom.global.add.u32 %r4, [%rd1], 1;"))
    assert parallel.communicates(parsed("ld.acquire.gpu.global.b32 %r4, [%rd1];"))
    assert parallel.communicates(parsed("st.release.gpu.global.b32 [%rd1], %r4;"))


def test_a_cta_that_does_not_end_in_another_process_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """CTA 2 runs there, however fast CTA 0 was. Its loop writes, so that it is no deadlock."""
    monkeypatch.setattr(parallel, "_WORTH_S", 0.0)
    loop = "setp.ne.u32 %p2, %r1, 2; @%p2 bra NEXT; AGAIN: st.global.b32 [%rd1], %r3; add.s32 %r3, %r3, 1; bra AGAIN;"
    left = iter(range(600))

    def expired(*_: object) -> None:
        if next(left, None) is None:  # a minute behind the deadline
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, expired)
    try:
        signal.setitimer(signal.ITIMER_REAL, 2.0, 0.1)
        with pytest.raises(Fault) as caught:
            run(2, f"{loop} NEXT:")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    where = caught.value.where
    assert caught.value.kind == "timeout"
    assert where is not None
    assert where.cta == (2, 0, 0)
    assert where.text  # of the loop, unless a slow machine has not reached it
