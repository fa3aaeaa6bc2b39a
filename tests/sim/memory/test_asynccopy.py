"""cp.async: what is copied, when it arrives, and who waits for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import FULL
from pytest_nvfp4.sim.memory.asynccopy import CopyGroups
from pytest_nvfp4.sim.run.asynchronous import Lazy
from pytest_nvfp4.sim.sync.mbarrier import MbarrierFile
from tests.sim.memory.harness import Case

LANE = np.arange(32, dtype=np.uint64)
BYTES = np.random.default_rng(8).integers(1, 256, 4096).astype(np.uint8)


def drain(case: Case) -> None:
    while case.machine.asynchronous.step():
        pass


@pytest.mark.parametrize("opcode", ["cp.async.ca.shared.global", "cp.async.cg.shared::cta.global.L2::128B"])
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("mask", [FULL, 0xF00F_0F01])
def test_whole_items(opcode, size, mask):
    case = Case()
    region = case.tensor(BYTES)
    base = case.cluster.ctas[0].shared.base
    body = f"{opcode} [%r1], [%d1], {size};"
    registers = {"r1": (base + 3 * size * LANE).astype(np.uint32), "d1": region.start + size * (31 - LANE)}
    if ".cg" in opcode and size < 16:
        with pytest.raises(Unsupported, match="size"):
            case.run(body, mask=mask, **registers)
        return
    case.run(body, mask=mask, **registers)
    wanted, written = np.full(4096, 0xA5, np.uint8), np.zeros(4096, bool)
    for lane in range(32):
        if mask >> lane & 1:
            here = slice(3 * size * lane, 3 * size * lane + size)
            wanted[here] = BYTES[size * (31 - lane) : size * (32 - lane)]
            written[here] = True
    shared = case.cluster.ctas[0].shared
    assert (shared.data == wanted).all()
    assert (shared.written == written).all()
    counters = case.launch.counters
    assert counters["cp_async.bytes"] == size * mask.bit_count()


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 16), min_size=32, max_size=32), mask=st.integers(1, FULL))
def test_a_short_source_is_filled_with_zeros(sizes, mask):
    case = Case()
    region = case.tensor(BYTES[:512])
    base = case.cluster.ctas[0].shared.base
    case.run(
        "cp.async.cg.shared.global [%r1], [%d1], 16, %r2;",
        mask=mask,
        r1=(base + 16 * LANE).astype(np.uint32),
        d1=region.start + 16 * LANE,
        r2=np.array(sizes, np.uint32),
    )
    shared = case.cluster.ctas[0].shared
    for lane in range(32):
        row = shared.data[16 * lane : 16 * lane + 16]
        if mask >> lane & 1:
            assert (row[: sizes[lane]] == BYTES[16 * lane : 16 * lane + sizes[lane]]).all()
            assert not row[sizes[lane] :].any()
        else:
            assert (row == 0xA5).all()


def test_nothing_is_read_where_the_source_is_ignored_or_empty():
    case = Case()
    region = case.tensor(BYTES[:256])
    base = case.cluster.ctas[0].shared.base
    registers = {"r1": (base + 16 * LANE).astype(np.uint32), "d1": region.start + 16 * LANE}
    with pytest.raises(Fault, match="outside every tensor"):
        case.run("cp.async.cg.shared.global [%r1], [%d1], 16;", **registers)
    case.run("cp.async.cg.shared.global [%r1], [%d1], 16, %p1;", p1=LANE >= 16, **registers)
    assert (case.cluster.ctas[0].shared.data[:256] == BYTES[:256]).all()
    assert not case.cluster.ctas[0].shared.data[256:512].any()
    case.run("cp.async.ca.shared.global [%r1], [%d1], 4, 0;", mask=1, r1=base, d1=0)
    assert not case.cluster.ctas[0].shared.data[:4].any()
    case.run("cp.async.ca.shared.global.L2::cache_hint [%r1], [%d1], 4, %d2;", mask=1, r1=base, d1=region.start, d2=0)
    assert (case.cluster.ctas[0].shared.data[:4] == BYTES[:4]).all()


def test_faults():
    case = Case()
    region = case.tensor(BYTES[:256], "A")
    shared = case.cluster.ctas[0].shared
    body = "cp.async.cg.shared.global [%r1], [%d1], 16;"
    case.run(body, mask=1, r1=shared.base, d1=region.start)
    for message, where, source in (
        ("multiple of 16", shared.base + 8, region.start),
        ("multiple of 16", shared.base, region.start + 8),
        ("after the end of A", shared.base, region.end),
        ("launched with 4096", shared.base + 4096, region.start),
    ):
        with pytest.raises(Fault, match=message):
            case.run(body, mask=1, r1=where, d1=source)
    with pytest.raises(Fault, match="above 16"):
        case.run("cp.async.cg.shared.global [%r1], [%d1], 16, 17;", mask=1, r1=shared.base, d1=region.start)
    shared.opaque[64] = (8, "the mbarrier")
    with pytest.raises(Fault, match="mbarrier at byte 64"):
        case.run(body, mask=1, r1=shared.base + 64, d1=region.start)


@pytest.mark.parametrize("size", ["4", "4, %r2"])
def test_lanes_may_copy_the_same_bytes_to_one_place_and_no_others(size):
    case = Case()
    region = case.tensor(BYTES)
    base = case.cluster.ctas[0].shared.base
    place = (base + 4 * (LANE % 8)).astype(np.uint32)
    body = f"cp.async.ca.shared.global [%r1], [%d1], {size}; cp.async.wait_all;"
    case.run(body, r1=place, d1=region.start + 4 * (LANE % 8), r2=(4 * (LANE % 8 != 3)).astype(np.uint32))
    assert case.launch.findings == []
    case.run(body, r1=place, d1=region.start + 4 * (LANE % 16), r2=0)
    assert [f.kind for f in case.launch.findings] == ["lanes-race"] * (size == "4")
    case.run(body, r1=place, d1=region.start + 4 * (LANE % 8), r2=(4 * (LANE != 9)).astype(np.uint32))
    assert [f.kind for f in case.launch.findings] == ["lanes-race"]
    assert "lanes 1 and 9" in case.launch.findings[-1].message or size == "4"


def test_bytes_are_late_without_a_wait_and_there_after_it():
    case = Case(asynchronous=Lazy())
    region = case.tensor(BYTES)
    base = case.cluster.ctas[0].shared.base
    body = "cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.commit_group;"
    registers = {"r1": (base + 4 * LANE).astype(np.uint32), "d1": region.start + 4 * LANE}
    case.smem(BYTES[::-1])  # old bytes do not hide a missing wait
    case.cluster.ctas[0].shared.written[128:] = False
    case.run(body, **registers)
    with pytest.raises(Fault, match="has not arrived"):
        case.run("ld.shared.b32 %r2, [%r1];", **registers)
    assert case.launch.findings == []
    case.run("ld.shared.b32 %r2, [%r3];", r3=base + 128)
    assert "was never written" in case.launch.findings.pop().message
    wait = "cp.async.wait_group 0; ld.shared.b32 %r2, [%r1];"
    assert case.run(wait, **registers)["parked"] is not None
    group = case.warps[0].current
    unit = case.warps[0].unit(CopyGroups)
    assert group.waiting is unit
    assert "[1] outstanding" in unit.waiting_for()
    assert not case.ready
    drain(case)
    assert group.waiting is None
    assert list(case.ready) == [case.warps[0]]
    result = case.run(wait, **registers)
    assert result["parked"] is None
    assert (result["r2"] == BYTES.view(np.uint32)[:32]).all()


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["copy", "commit", "step"]), st.integers(1, 15)), min_size=1, max_size=25),
    allowed=st.integers(0, 3),
    mask=st.integers(1, 15),
)
def test_groups_are_each_threads_own(steps, allowed, mask):
    """Against the ISA's words, lane by lane: a list of groups for each, the last one still open."""
    case = Case(asynchronous=Lazy())
    region = case.tensor(BYTES)
    base = case.cluster.ctas[0].shared.base
    unit = case.warps[0].unit(CopyGroups)
    lanes: list[list[set[int]]] = [[set()] for _ in range(4)]
    queue: list[int] = []
    for number, (what, members) in enumerate(steps):
        if what == "copy":
            case.run(
                "cp.async.ca.shared.global [%r1], [%d1], 4;",
                mask=members,
                r1=(base + 4 * LANE).astype(np.uint32),
                d1=region.start + 4 * LANE,
            )
            queue.append(number)
            for lane in range(4):
                if members >> lane & 1:
                    lanes[lane][-1].add(number)
        elif what == "commit":
            case.run("cp.async.commit_group;", mask=members)
            for lane in range(4):
                if members >> lane & 1:
                    lanes[lane].append(set())
        elif case.machine.asynchronous.step():
            done = queue.pop(0)
            for groups in lanes:
                for group in groups:
                    group.discard(done)
    mine = [lanes[lane] for lane in range(4) if mask >> lane & 1]
    committed = [groups[:-1][: max(0, len(groups) - 1 - allowed)] for groups in mine]
    assert unit.waits(mask, allowed) == any(bool(group) for groups in committed for group in groups)
    assert unit.waits(mask, None) == any(bool(group) for groups in mine for group in groups)


def test_an_mbarrier_hears_of_the_copies_before():
    case = Case(asynchronous=Lazy())
    region = case.tensor(BYTES)
    cta = case.cluster.ctas[0]
    barrier = cta.unit(MbarrierFile).init(1024, 32, what="test")
    base = cta.shared.base
    registers = {"r1": (base + 4 * LANE).astype(np.uint32), "d1": region.start + 4 * LANE, "r2": base + 1024}
    case.run(
        "cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];", **registers
    )
    assert barrier.pending == 32
    drain(case)
    assert barrier.phase == 1
    assert (cta.shared.data[:128] == BYTES[:128]).all()
    case.run("cp.async.mbarrier.arrive.shared.b64 [%r2];", mask=3, **registers)
    assert barrier.pending == 34
    drain(case)
    assert barrier.pending == 32
    with pytest.raises(Fault, match="no mbarrier"):
        case.run("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];", mask=1, **registers)


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.cs.shared.global [%r1], [%d1], 4;",
        "cp.async.ca.global.shared [%r1], [%d1], 4;",
        "cp.async.ca.shared.global [%r1], [%d1], 12;",
        "cp.async.ca.shared::cluster.global [%r1], [%d1], 4;",
        "cp.async.wait_group %r1;",
        "cp.async.mbarrier.arrive.noinc.shared.b32 [%r1];",
    ],
)
def test_what_does_not_exist(text):
    with pytest.raises(Unsupported):
        Case().run(text)
