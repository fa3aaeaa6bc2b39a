"""The recorder's phases of groups of copies, of barriers of clusters, and of warps that end, in small kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.model.recorder import Recorder
from pytest_nvfp4.model.recording import Does, Program, Recording, Unit
from pytest_nvfp4.sim.run.machine import Machine
from tests.model.recorded_kernels import events, executed, record
from tests.model.untimed import Stuck, execute, without_event
from tests.sim.tcgen05.gemm_ptx import gemm
from tests.sim.wgmma import case
from tests.sim.wgmma.rules_case import COUNT, N, mma, operands


def checked(body: str, **options: Any) -> tuple[Recording, Program]:
    recording, counters = record(body, {"data": np.zeros(256, np.uint32)}, shared=1024, **options)
    assert recording.refused == ()
    assert executed(recording) == counters["instructions"]
    (program,) = recording.programs
    execute(program)
    return recording, program


def test_a_wait_for_cp_async_covers_the_groups_that_are_older() -> None:
    _, program = checked("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    shl.b32 %r2, %r0, 2;
    add.u32 %r1, %r1, %r2;
    cvt.u64.u32 %rd1, %r2;
    add.u64 %rd1, %rd1, %rd100;
    cp.async.ca.shared.global [%r1], [%rd1], 4;
    cp.async.ca.shared.global [%r1+128], [%rd1+128], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r1+256], [%rd1+256], 4;
    cp.async.commit_group;
    cp.async.wait_group 1;
    cp.async.wait_group 0;
    cp.async.wait_all;
    """)
    said = events(program, program.warps[0])
    assert [name for name, _ in said] == ["GLOBAL_LOAD"] * 3 + ["WAIT"] * 2
    assert program.phases[[said[3][1], said[4][1]]].tolist() == [2, 1]
    waits = program.warps[0].events["site"][program.warps[0].events["does"] == Does.WAIT]
    assert waits[0] < waits[1]  # the second group is the second wait's
    assert [program.shapes[operation["shape"]].bytes for operation in program.operations] == [128] * 3


def test_a_bulk_store_has_a_phase_for_its_read_and_one_for_its_end() -> None:
    _, program = checked("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    st.shared.b32 [%r3], %r0;
    fence.proxy.async.shared::cta;
    bar.warp.sync 0xFFFFFFFF;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra done;
    cp.async.bulk.global.shared::cta.bulk_group [%rd100], [%r1], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    cp.async.bulk.wait_group 0;
    done:
    """)
    said = events(program, program.warps[0])
    assert [name for name, _ in said] == ["FENCE", "WAIT", "TMA_STORE", "WAIT", "WAIT"]
    store = next(operation for operation in program.operations if operation["unit"] == Unit.TMA_STORE)
    assert program.signals[store["read"]] == (said[3][1],)
    assert program.signals[store["done"]] == (said[4][1],)


def test_an_arrive_at_another_cta_is_an_operation_that_completes_its_phase() -> None:
    recording, program = checked(
        """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    mov.u32 %r2, %cluster_ctarank;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra made;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    made:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.eq.u32 %p1, %r2, 1;
    @%p1 bra second;
    @%p0 bra done;
    mapa.shared::cluster.u32 %r3, %r1, 1;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
    bra done;
    second:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra second;
    done:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """,
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    )
    assert recording.cluster == (2, 1, 1)
    first, second = program.warps
    assert [name for name, _ in events(program, first)] == ["SIGNAL", "WAIT", "SHARED_REMOTE", "SIGNAL", "WAIT"]
    awaited = events(program, second)[2]
    arrive = next(operation for operation in program.operations if operation["unit"] == Unit.SHARED_REMOTE)
    assert awaited == ("WAIT", program.signals[arrive["done"]][0])
    place = next(n for n, event in enumerate(first.events) if event["does"] == Does.ISSUE)
    with pytest.raises(Stuck):
        execute(without_event(program, 0, place))


def test_a_barrier_waits_for_the_end_of_a_warp_that_never_arrives() -> None:
    _, program = checked(
        """
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 64;
    @%p0 bra done;
    bar.sync 0;
    done:
    """,
        block=(96, 1, 1),
    )
    phase = events(program, program.warps[0])[0][1]
    assert program.phases[phase] == 3
    assert events(program, program.warps[2]) == [("SIGNAL", phase)]


def test_a_wait_before_the_first_phase_waits_for_nothing() -> None:
    _, program = checked("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra made;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    made:
    bar.sync 0;
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 1;
    selp.u32 %r2, 1, 0, %p1;
    """)
    assert [name for name, _ in events(program, program.warps[0])] == ["SIGNAL", "WAIT"]


def test_a_commit_completes_what_the_tensor_core_was_given() -> None:
    machine = Machine()
    machine.monitor = recorder = Recorder()
    _, _, ran = gemm(machine=machine, prepare=recorder.launched)
    (recording,) = recorder.recordings()
    (program,) = recording.programs
    execute(program)
    assert executed(recording) == ran.grid.counters["instructions"]
    said = [name for name, _ in events(program, program.warps[0])]
    asked = said[said.index("TMEM_COPY") :]
    assert asked[:7] == ["TMEM_COPY", "TMEM_COPY", "TENSOR", "TENSOR", "COMMIT", "WAIT", "TMEM_LOAD"]
    assert asked[7] == "WAIT"
    tensor, commit = (
        next(each for each in program.operations if each["unit"] == unit) for unit in (Unit.TENSOR, Unit.COMMIT)
    )
    shape = program.shapes[tensor["shape"]]
    assert (shape.m, shape.n, shape.k, shape.kind, shape.ctas) == (128, 32, 64, "mxf4nvf4", (0,))
    assert shape.shared_bytes == (128 + 32) * 32
    assert tensor["pipe"] == commit["pipe"]
    assert tensor["done"] == -1


def test_a_warpgroup_waits_for_the_last_operation_that_a_wait_covers() -> None:
    machine = Machine(model=for_arch("sm_90a"))
    machine.monitor = recorder = Recorder()
    image, *_ = operands()
    body = [case.FENCE, mma(scale="0"), case.COMMIT, mma(), case.COMMIT, case.wait(1), case.wait(0)]
    case.run("\n".join(body), image, (128, COUNT), machine=machine, prepare=recorder.launched)
    (recording,) = recorder.recordings()
    (program,) = recording.programs
    execute(program)
    tensor = [each for each in program.operations if each["unit"] == Unit.TENSOR]
    done = [program.signals[each["done"]][0] for each in tensor]
    assert len(set(done)) == 2
    for warp in program.warps:
        waits = [item for name, item in events(program, warp) if name == "WAIT"]
        assert waits[-2:] == done
    shape = program.shapes[tensor[0]["shape"]]
    assert (shape.m, shape.n, shape.k, shape.kind, shape.a_tmem) == (64, N, 16, "f16", False)
