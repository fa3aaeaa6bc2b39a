"""The rules of warpgroups, fences, groups and registers in flight, each broken once beside code that keeps it."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.run.machine import Machine
from tests.sim.wgmma import case, oracle
from tests.sim.wgmma.rules_case import COUNT, OPCODE, Monitor, N, half_mma, mma, operands, result, said


def test_a_read_before_the_wait_is_a_finding_and_gives_the_value():
    image, a, b = operands()
    body = [case.FENCE, mma(scale="0"), case.COMMIT, "bar.sync 1;", case.store(20, COUNT), case.wait()]
    ran = case.run("\n".join(body), image, (128, COUNT))
    assert np.array_equal(result(ran), a @ b.T)
    assert any(
        "touched before wgmma.wait_group" in message and "0 of 1 are waited for" in message for message in said(ran)
    )


def test_a_group_that_was_not_committed_is_not_waited_for():
    image, *_ = operands()
    body = [case.FENCE, mma(scale="0"), case.wait(), "bar.sync 1;", case.store(20, COUNT)]
    assert any("were not committed" in message for message in said(case.run("\n".join(body), image, (128, COUNT))))


def test_a_read_before_all_warps_have_come_stops():
    image, *_ = operands()
    body = [case.FENCE, mma(scale="0"), case.COMMIT, case.store(20, COUNT), case.wait()]
    with pytest.raises(Fault, match=r"touched before wgmma.wait_group"):
        case.run("\n".join(body), image, (128, COUNT))


@pytest.mark.parametrize("pending", [0, 1, 2])
def test_wait_group_leaves_the_youngest_groups(pending):
    image, a, b = operands(steps=3)
    body = ["mov.b32 %r20, 0;", case.FENCE]
    for step in range(3):
        body += [mma(step, scale="0", first=20 + COUNT * step), case.COMMIT]
    body += [case.wait(pending), "bar.sync 1;"]
    # The first group's accumulator is free for every number of pending groups that is tried.
    ran = case.run("\n".join([*body, case.store(20, COUNT), case.wait()]), image, (128, COUNT))
    assert np.array_equal(result(ran), a[:, :16] @ b[:, :16].T)
    assert said(ran) == []
    ran = case.run("\n".join([*body, case.store(20 + 2 * COUNT, COUNT), case.wait()]), image, (128, COUNT))
    assert np.array_equal(result(ran), a[:, 32:] @ b[:, 32:].T)
    assert bool(said(ran)) == (pending > 0)


def test_operations_run_late_give_the_same():
    image, a, b = operands(steps=4)
    body = [case.FENCE]
    for step in range(4):
        body += [mma(step, scale=str(int(step > 0))), case.COMMIT, case.wait(1)]
    body += [case.wait(), case.store(20, COUNT)]
    ran = case.run("\n".join(body), image, (128, COUNT), asynchronous=Lazy())
    assert np.array_equal(result(ran), a @ b.T)
    assert said(ran) == []


def test_a_late_operation_reads_what_shared_memory_holds_then():
    image, a, b = operands()
    # The warps wait for the MMA only after they have overwritten its operand: with a late MMA the result is 0.
    spoil = "mov.b32 %r8, 0;\nst.shared.v4.b32 [%r3], {%r8, %r8, %r8, %r8};\n" + "\n".join(
        f"st.shared.v4.b32 [%r3+{at}], {{%r8, %r8, %r8, %r8}};" for at in range(2048, 8192, 2048)
    )
    body = "\n".join(
        [case.FENCE, mma(scale="0"), case.COMMIT, spoil, "bar.sync 1;", case.wait(), case.store(20, COUNT)]
    )
    assert np.array_equal(result(case.run(body, image, (128, COUNT), asynchronous=Lazy())), np.zeros((64, N)))
    kept = "\n".join([case.FENCE, mma(scale="0"), case.COMMIT, case.wait(), spoil, case.store(20, COUNT)])
    assert np.array_equal(result(case.run(kept, image, (128, COUNT), asynchronous=Lazy())), a @ b.T)


def test_no_fence_at_all():
    image, a, b = operands()
    body = [mma(scale="0"), case.COMMIT, case.wait(), case.store(20, COUNT)]
    ran = case.run("\n".join(body), image, (128, COUNT))
    assert any("before any wgmma.fence" in message for message in said(ran))
    assert np.array_equal(result(ran), a @ b.T)


@pytest.mark.parametrize("fence", ["", case.FENCE])
def test_a_register_written_between_fence_and_use(fence):
    image, *_ = operands()
    start = "\n".join(f"add.s32 %r{20 + i}, %r0, 0;" for i in range(COUNT))
    body = [case.FENCE, start, fence, mma(), case.COMMIT, case.wait(), case.store(20, COUNT)]
    messages = said(case.run("\n".join(body), image, (128, COUNT)))
    assert any("is written with no wgmma.fence in between" in message for message in messages) == (not fence)
    zeros = "\n".join(f"mov.b32 %r{20 + i}, 0;" for i in range(COUNT))  # as LLVM writes them, below the fence
    body = [case.FENCE, zeros, mma(), case.COMMIT, case.wait(), case.store(20, COUNT)]
    assert said(case.run("\n".join(body), image, (128, COUNT))) == []


@pytest.mark.parametrize("fence", ["", case.FENCE])
def test_an_accumulator_read_between_fence_and_use(fence):
    image, a, b = operands(steps=2)
    body = [case.FENCE, mma(0, scale="0"), case.COMMIT, case.wait(), case.store(20, COUNT), fence]
    body += [mma(1), case.COMMIT, case.wait(), case.store(20, COUNT)]
    ran = case.run("\n".join(body), image, (128, COUNT))
    assert any("was read after the last wgmma.fence" in message for message in said(ran)) == (not fence)
    assert np.array_equal(result(ran), a @ b.T)


def test_copies_keep_the_value_of_their_time_and_are_no_reads():
    image, a, b = operands(steps=2)
    copy = "\n".join(f"mov.b32 %r{60 + i}, %r{20 + i};" for i in range(COUNT))
    body = [case.FENCE, mma(0, scale="0"), copy, mma(1), case.COMMIT, case.wait()]
    for first, steps in ((60, 1), (20, 2)):
        ran = case.run("\n".join([*body, case.store(first, COUNT)]), image, (128, COUNT))
        assert np.array_equal(result(ran), a[:, : 16 * steps] @ b[:, : 16 * steps].T)
        assert said(ran) == []


def test_an_accumulator_that_starts_anew_forgets_the_old_one():
    image, a, b = operands(steps=2)
    body = [case.FENCE, mma(0, scale="0"), mma(1, scale="0"), case.COMMIT, case.wait(), case.store(20, COUNT)]
    ran = case.run("\n".join(body), image, (128, COUNT))
    assert np.array_equal(result(ran), a[:, 16:] @ b[:, 16:].T)


def test_two_accumulators_and_a_permuted_one():
    image, a, b = operands(steps=2)
    swapped = [20, 21, 22, 23, 25, 24, 26, 27]
    pair = [oracle.descriptor(oracle.SMEM + at + 32, width=128, stride=1024) for at in (0, 8192)]
    text = case.wgmma(OPCODE, COUNT, *pair, flags="1, 1, 0, 0")
    text = text.replace(case.registers(20, COUNT), "{" + ", ".join(f"%r{i}" for i in swapped) + "}")
    body = [case.FENCE, mma(0, scale="0"), case.COMMIT, case.wait(), case.FENCE, text, case.COMMIT, case.wait()]
    ran = case.run("\n".join([*body, case.store(20, COUNT)]), image, (128, COUNT))
    first = a[:, :16] @ b[:, :16].T
    second = a[:, 16:] @ b[:, 16:].T
    registers = oracle.to_registers(first.astype(np.float32)).view(np.float32)
    added = oracle.to_registers(second.astype(np.float32)).view(np.float32)
    for place, register in enumerate(swapped):
        registers[:, register - 20] += added[:, place]
    assert np.array_equal(ran["out"].view(np.float32), registers)


def test_two_warpgroups_do_not_wait_for_each_other():
    image, a, b = operands()
    body = [case.FENCE, mma(scale="0"), case.COMMIT, case.wait(), case.store(20, COUNT)]
    ran = case.run("\n".join(body), image, (256, COUNT), threads=256)
    got = ran["out"]
    for half in (got[:128], got[128:]):
        assert np.array_equal(oracle.from_registers(half, np.float32), a @ b.T)
    assert ran.grid.counters["wgmma.instructions"] == 2


def test_a_warp_that_stays_away_is_a_deadlock_that_names_the_warps():
    image, *_ = operands()
    skip = "setp.ge.u32 %p5, %r1, 96;\n@%p5 bra SKIP;"
    body = [skip, case.FENCE, mma(scale="0"), case.COMMIT, case.wait(), "SKIP:"]
    with pytest.raises(Fault) as raised:
        case.run("\n".join(body), image, (128, COUNT))
    said = f"{raised.value} {raised.value.notes}"
    assert "wgmma" in said
    assert "1, 1, 1, 0" in said


def test_an_operation_that_some_warps_never_issued_is_found_at_exit():
    image, *_ = operands()
    skip = "setp.ge.u32 %p5, %r1, 96;\n@%p5 bra SKIP;"
    with pytest.raises(Fault, match="issued by warps 0, 1, 2 only"):
        case.run("\n".join([skip, case.FENCE, mma(scale="0"), "SKIP:"]), image, (128, COUNT))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("@%p5 add.s64 %rd9, %rd9, 2;", "descriptor of A"),
        ("@%p5 add.s64 %rd10, %rd10, 2;", "descriptor of B"),
        ("@%p5 setp.ne.b32 %p1, 0, 0;", "scale-d"),
    ],
)
def test_warps_that_disagree(change, message):
    image, *_ = operands()
    text = mma()
    at = text.index("wgmma.mma_async")
    body = [case.FENCE, "setp.ge.u32 %p5, %r1, 96;", text[:at] + change + "\n" + text[at:], case.COMMIT, case.wait()]
    with pytest.raises(Fault, match=f"do not execute the same wgmma number 0: {message}"):
        case.run("\n".join(body), image, (128, COUNT))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cvt.u64.u32 %rd11, %r1;\nadd.s64 %rd9, %rd9, %rd11;", "descriptor of matrix A differs"),
        ("setp.ne.b32 %p1, %r1, 5;", "scale-d differs"),
    ],
)
def test_lanes_that_disagree(change, message):
    image, *_ = operands()
    text = mma()
    at = text.index("wgmma.mma_async")
    with pytest.raises(Fault, match=message):
        case.run("\n".join([case.FENCE, text[:at] + change + "\n" + text[at:]]), image, (128, COUNT))


def test_the_monitor_hears_of_fences_issues_and_waits():
    image, *_ = operands()
    monitor = Monitor()

    def prepare(grid):
        grid.machine.monitor = monitor

    body = [case.FENCE, mma(scale="0"), case.COMMIT, case.wait(), case.store(20, COUNT)]
    case.run("\n".join(body), image, (128, COUNT), prepare=prepare)
    assert sorted(item for item in monitor.heard if item[0] != "issue") == sorted(
        [("fence", warp) for warp in range(4)] + [("wait", warp, 1) for warp in range(4)]
    )
    issues = [item for item in monitor.heard if item[0] == "issue"]
    assert [bin(item[3]).count("1") for item in issues] == [1, 2, 3, 4]

    def units(start, rows):
        addresses = [oracle.SMEM + start + 128 * row + 16 * chunk for row in range(rows) for chunk in range(2)]
        return sorted((oracle.swizzled(address, 128) - oracle.SMEM) // 16 for address in addresses)

    assert all(item[4] == [units(0, 64), units(8192, N)] for item in issues)


def test_three_warps_are_no_warpgroup():
    image, *_ = operands()
    with pytest.raises(Fault, match="not in a whole warpgroup"):
        case.run("\n".join([case.FENCE]), image[: 96 * 16], (96, COUNT), threads=96)


def test_halves_of_an_accumulator_in_flight_are_renamed_and_joined_again():
    image, a, b = operands(steps=2)
    count = COUNT // 2
    split = [f"mov.b32 {{%rs{2 * i}, %rs{2 * i + 1}}}, %r{20 + i};" for i in range(count)]
    join = [f"mov.b32 %r{20 + i}, {{%rs{2 * i}, %rs{2 * i + 1}}};" for i in range(count)]
    head = [case.FENCE, half_mma(0, scale="0"), *split]
    tail = [*join, half_mma(1, scale="1"), case.COMMIT, case.wait(), case.store(20, count)]
    ran = case.run("\n".join([*head, *tail]), image, (128, count))
    assert np.array_equal(oracle.from_registers(ran["out"], np.float16), a @ b.T)
    assert said(ran) == []
    # Joined the other way round they are other numbers, and so a read.
    swapped = [f"mov.b32 %r{20 + i}, {{%rs{2 * i + 1}, %rs{2 * i}}};" for i in range(count)]
    body = [*head, case.COMMIT, case.wait(), *swapped, case.store(20, count)]
    ran = case.run("\n".join(body), image, (128, count))
    first = (a[:, :16] @ b[:, :16].T).reshape(64, -1, 2)[:, :, ::-1].reshape(64, -1)
    assert np.array_equal(oracle.from_registers(ran["out"], np.float16), first)
    assert said(ran) == []
    early = [case.FENCE, half_mma(0, scale="0"), "bar.sync 1;", *split, *swapped, case.COMMIT, case.wait()]
    assert any("touched before" in message for message in said(case.run("\n".join(early), image, (128, count))))


@pytest.mark.parametrize("target", ["{_, %rs9}", "{%rs9, _}"])
def test_one_half_of_an_accumulator(target):
    image, a, b = operands()
    body = [case.FENCE, half_mma(0, scale="0"), f"mov.b32 {target}, %r20;", case.COMMIT, case.wait()]
    body += ["mov.b32 %r20, {%rs9, %rs9};", case.store(20, 1)]
    ran = case.run("\n".join(body), image, (128, 1))
    first = (a @ b.T).astype(np.float16)
    want = [first[oracle.accumulator_place(thread, int(target[1] == "_"))] for thread in range(128)]
    assert np.array_equal(ran["out"].view(np.float16)[:, 0], want)
    assert np.array_equal(ran["out"].view(np.float16)[:, 1], want)


@pytest.mark.parametrize("barrier", ["", "bar.sync 1;"])
@pytest.mark.parametrize("warp", range(4))
def test_a_race_with_what_one_warp_has_stored_names_the_warpgroup(warp: int, barrier: str) -> None:
    """Each warp multiplies with all of B, also with what another warp has stored."""
    image, *_ = operands()
    put = f"""
        mov.u32 %r90, %tid.x; shr.u32 %r91, %r90, 5; setp.ne.u32 %p9, %r91, {warp}; @%p9 bra NEXT;
        st.shared.b32 [{oracle.SMEM + 8192}], 0; NEXT: fence.proxy.async.shared::cta;
    """
    machine = Machine(model=for_arch("sm_90a"))
    machine.monitor = Detector()
    body = [put, barrier, case.FENCE, mma(scale="0"), case.COMMIT, case.wait(), case.store(20, COUNT)]
    found = said(case.run("\n".join(body), image, (128, COUNT), machine=machine))
    assert len(found) == (not barrier)
    for message in found:
        assert f"(st.shared) in warp {warp} of CTA (0, 0, 0) may still write" in message
        assert "(wgmma.mma_async) in warpgroup 0 of CTA (0, 0, 0) reads" in message
