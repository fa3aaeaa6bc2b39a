"""Tensor loads run from PTX: data, barriers, spellings, multicast, and what goes wrong."""

import numpy as np
import pytest

from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.run.asynchronous import Eager, Lazy
from pytest_nvfp4.sim.tma.traffic import TouchedSectors
from tests.sim.tma.kernels import DATA, copy_out, expect, first, prologue, run_tensor, wait
from tests.sim.tma.load_case import F16, expected, fails, load, multicast, simple
from tests.sim.tma.maps import Geometry, loaded


def count(grid):
    grid.counting = True


@pytest.mark.parametrize("schedule", [Eager, Lazy])
@pytest.mark.parametrize("at", [(0, 0), (32, 7), (64, 30), (-8, -3), (200, 0)])
def test_a_load_delivers_the_box(at, schedule):
    ran = simple(F16, at, asynchronous=schedule())
    assert (ran["out"] == expected(F16, ran["x"], at)).all()
    assert ran.grid.counters["tma.load.requests"] == 1
    assert ran.grid.counters["tma.load.bytes"] == F16.bytes
    assert ran.grid.findings == []


@pytest.mark.parametrize(("at", "outside"), [((64, 30), False), ((-8, -3), False), ((200, 0), True), ((0, -16), True)])
def test_a_box_wholly_outside_is_reported_on_request(at, outside):
    def request(grid):
        grid.machine.reports_outside = True

    found = simple(F16, at, prepare=request).grid.findings
    assert [finding.kind for finding in found] == ["outside-box"] * outside
    if outside:
        assert f"the box at coordinates {at} lies wholly outside its tensor (x, 96 x 40 in" in found[0].message


@pytest.mark.parametrize(
    ("dst", "tail", "operands"),
    [
        ("shared::cta", "", ""),
        ("shared::cluster", "", ""),
        ("shared::cta", ".L2::cache_hint", ", %rd99"),
        ("shared::cluster", ".L2::cache_hint", ", %rd99"),
        ("shared::cluster", ".cta_group::1", ""),
        ("shared::cluster", ".L2::cache_hint.cta_group::1", ", %rd99"),
        ("shared::cluster", ".cta_group::1.L2::cache_hint", ", %rd99"),
        ("shared::cluster", ".multicast::cluster", ", 1"),
        ("shared::cluster", ".multicast::cluster.L2::cache_hint", ", 1, %rd99"),
        ("shared::cluster", ".multicast::cluster.L2::cache_hint.cta_group::1", ", 1, %rd99"),
    ],
)
def test_every_spelling(dst, tail, operands):
    ran = simple(F16, (8, 2), issue=load(F16, (8, 2), dst=dst, tail=tail, operands=operands))
    assert (ran["out"] == expected(F16, ran["x"], (8, 2))).all()


def test_the_order_of_cutlass():
    issue = (
        "cp.async.bulk.tensor.2d.cta_group::1.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        f".L2::cache_hint [%r1+{DATA}], [%rd101, {{8, 2}}], [%r1], %rs1, %rd99;"
    )
    ran = simple(F16, (8, 2), issue="mov.b16 %rs1, 1;\n" + issue)
    assert (ran["out"] == expected(F16, ran["x"], (8, 2))).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_rank_with_strides_of_elements(rank):
    geometry = Geometry(
        ElementType.U32, (24, 5, 4, 3, 2)[:rank], (112, 576, 2304, 6912)[: rank - 1], (16, 4, 3, 2, 2)[:rank],
        (1, 2, 1, 1, 1)[:rank],
    )  # fmt: skip
    at = (4, 1, 2, -1, 1)[:rank]
    ran = simple(geometry, at)
    assert (ran["out"] == expected(geometry, ran["x"], at)).all()


def test_packed_fp4():
    geometry = Geometry(ElementType.FP4_PACKED, (512, 40), (256,), (256, 16), (), 3)
    ran = simple(geometry, (256, 30))
    assert (ran["out"] == expected(geometry, ran["x"], (256, 30))).all()


def test_gather4():
    geometry = Geometry(ElementType.F16, (96, 40), (208,), (64, 1), (), 3)
    rows = (7, 39, -1, 0)
    issue = (
        "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
        f"[%r1+{DATA}], [%rd101, {{40, 7, 39, -1, 0}}], [%r1];"
    )
    body = "\n".join([prologue(), first(expect(512) + "\n" + issue), wait(), copy_out(512)])
    ran = run_tensor(body, geometry, extra={"out": np.zeros(512, np.uint8)})
    found = loaded(geometry, ran["x"], (40, 0), 1024 + DATA, rows)
    assert ran["out"].tolist() == [found[1024 + DATA + i] for i in range(512)]
    many = Geometry(ElementType.F16, (96, 40), (208,), (64, 2), (), 3)
    with pytest.raises(Fault, match="needs a box of one") as caught:
        run_tensor(body, many, extra={"out": np.zeros(512, np.uint8)})
    assert caught.value.kind == "tensor map"


@pytest.mark.parametrize("schedule", [Eager, Lazy])
def test_multicast_delivers_to_every_cta_of_the_mask_and_signals_its_barrier(schedule):
    issue, clustered, shape = multicast(0b1011)
    body = "\n".join(
        [
            prologue(),
            clustered,
            "setp.eq.u32 %p3, %r2, 2;",
            "@%p3 bra END;",
            first(
                expect(F16.bytes) + "\nsetp.ne.u32 %p4, %r2, 0;\n@%p4 bra ISSUED;\n" + issue + "\nISSUED:",
            ),
            wait(),
            copy_out(F16.bytes),
            "END:",
            clustered,
        ]
    )
    out = {"out": np.zeros(4 * F16.bytes, np.uint8)}
    ran = run_tensor(body, F16, extra=out, asynchronous=schedule(), prepare=count, **shape)
    got = ran["out"].reshape(4, -1)
    one = expected(F16, ran["x"], (8, 2))
    for rank in (0, 1, 3):
        assert (got[rank] == one).all(), rank
    assert not got[2].any()
    assert ran.grid.counters["tma.load.bytes"] == F16.bytes
    assert ran.grid.counters["tma.load.multicast.bytes"] == 3 * F16.bytes
    once = simple(F16, (8, 2), prepare=count).grid.counters["tma.load.delivered_sectors"]
    assert ran.grid.counters["tma.load.delivered_sectors"] == 3 * once > 0


@pytest.mark.parametrize("parity", [0, 1])
def test_a_pair_of_ctas_is_signalled_at_the_barrier_of_one_parity(parity):
    """``.cta_group::2``: the bytes of both CTAs of a pair complete at the barrier of the operand's parity."""
    bar = "%r20"
    issue, clustered, shape = multicast(0b1111, group=2, bar=bar)
    body = "\n".join(
        [
            prologue(),
            clustered,
            f"mov.u32 %r21, {parity};\nmapa.shared::cluster.u32 %r20, %r1, %r21;",
            "and.b32 %r22, %r2, 1;",
            f"setp.ne.u32 %p3, %r22, {parity};",
            "@%p3 bra EXPECTED;",
            first(expect(2 * F16.bytes), "ONE"),
            "EXPECTED:",
            first("setp.ne.u32 %p4, %r2, 0;\n@%p4 bra ISSUED;\n" + issue + "\nISSUED:", "TWO"),
            "@%p3 bra WAITED;",
            wait(),
            "WAITED:",
            clustered,
            copy_out(F16.bytes),
        ]
    )
    ran = run_tensor(body, F16, extra={"out": np.zeros(4 * F16.bytes, np.uint8)}, **shape)
    one = expected(F16, ran["x"], (8, 2))
    assert all((part == one).all() for part in ran["out"].reshape(4, -1))
    assert ran.grid.findings == []


def test_unique_bytes_are_counted_once_by_sector():
    body = "\n".join(
        [
            prologue(),
            first("\n".join([expect(4 * F16.bytes), *[load(F16, at) for at in ((0, 0), (0, 0), (16, 0), (64, 2))]])),
            wait(),
        ]
    )

    ran = run_tensor(body, F16, prepare=count)
    assert ran.grid.counters["tma.load.bytes"] == 4 * F16.bytes
    start = next(r.start for r in ran.grid.machine.memory if r.name == "x")
    rows = [
        {(start + row * 208 + byte) // 32 for byte in range(low, high)}
        for low, high, top in ((0, 128, 0), (0, 128, 0), (32, 160, 0), (128, 192, 2))
        for row in range(top, top + 16)
    ]
    assert ran.grid.counters["tma.load.unique_bytes"] == 32 * len(set().union(*rows))


@pytest.mark.parametrize(
    ("pitch", "at", "unaligned"), [(208, (0, 0), 1), (224, (0, 0), 0), (224, (16, 0), 0), (224, (8, 0), 1)]
)
def test_sectors_of_whole_boxes_are_delivered(pitch, at, unaligned):
    """An H200 counts what lies outside the tensor as read, and reads more of rows that do not begin at sectors."""
    geometry = Geometry(F16.element, F16.dims, (pitch,), F16.box, (), F16.swizzle)
    for place in (at, (at[0], 30)):
        counters = simple(geometry, place, prepare=count).grid.counters
        assert counters["tma.load.delivered_sectors"] == geometry.bytes // 32
        assert counters["tma.load.unaligned_requests"] == unaligned


def test_processes_that_share_a_launch_count_a_sector_once():
    def run(at):
        body = "\n".join([prologue(), first(expect(F16.bytes) + "\n" + load(F16, at)), wait()])
        return run_tensor(body, F16, prepare=count).grid

    one, same, other = run((0, 0)), run((0, 0)), run((0, 8))
    sectors = one.unit(TouchedSectors)
    before = sectors.total()
    for grid, total in ((same, before), (other, before * 24 // 16)):
        told = dict(zip(sectors.maps, grid.unit(TouchedSectors).part().values(), strict=True))
        sectors.absorb(told)
        # Each row of 208 bytes has its own sectors but for the few that two rows share.
        assert abs(sectors.total() - total) <= 24 * 32
        assert (sectors.total() == before) == (grid is same)
    sectors.at_exit()
    assert one.counters["tma.load.unique_bytes"] == sectors.total()


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_all_lanes_issue_the_same_load():
    body = "\n".join([prologue(), first(expect(F16.bytes)), load(F16, (0, 0)), wait()])
    with pytest.raises(Fault, match="32 lanes are active, and all of them issue the same copy") as caught:
        run_tensor(body, F16)
    assert caught.value.kind == "multi-lane"
    assert caught.value.where.ptx_line is not None


def test_lanes_with_loads_of_their_own_may_issue_them():
    geometry = Geometry(ElementType.U8, (128, 32), (128,), (128, 1))
    issue = "shl.b32 %r6, %r0, 7;\nadd.u32 %r7, %r1, %r6;\n" + load(geometry, (0, "%r0"), address=f"%r7+{DATA}")
    body = "\n".join([prologue(), first(expect(4096)), issue, wait(), copy_out(4096)])
    ran = run_tensor(body, geometry, extra={"out": np.zeros(4096, np.uint8)})
    assert (ran["out"] == ran["x"][:4096]).all()


def test_a_misaligned_destination():
    found = fails(F16, (0, 0), issue=load(F16, (0, 0), address=f"%r1+{DATA + 64}"))
    assert found.kind == "misaligned"
    assert "128" in found.message


def test_a_destination_out_of_bounds():
    assert fails(F16, (0, 0), issue=load(F16, (0, 0), address=f"%r1+{(1 << 15) - 128}")).kind == "out-of-bounds"


def test_a_destination_over_a_barrier():
    assert fails(F16, (0, 0), issue=load(F16, (0, 0), address="%r1")).kind == "mbarrier"


def test_no_barrier_there():
    assert fails(F16, (0, 0), issue=load(F16, (0, 0), bar="%r1+8")).kind == "uninitialised"


def test_a_map_of_another_rank():
    found = fails(F16, (0, 0), issue=load(F16, (0, 0, 0), dim=3))
    assert found.kind == "tensor map"
    assert "rank 2 and the instruction 3" in found.message


def test_no_map_there():
    found = fails(F16, (0, 0), issue=load(F16, (0, 0)).replace("%rd101", "%rd100"))
    assert found.kind == "tensor map"
    assert "not a valid tensor map" in found.message
    found = fails(F16, (0, 0), issue="mov.u64 %rd98, 64;\n" + load(F16, (0, 0)).replace("%rd101", "%rd98"))
    assert "there is no tensor map" in found.message


def test_a_map_that_is_misaligned():
    found = fails(F16, (0, 0), issue="add.u64 %rd98, %rd101, 8;\n" + load(F16, (0, 0)).replace("%rd101", "%rd98"))
    assert "not a multiple of 64" in found.message


def test_too_many_bytes_expected_is_a_deadlock_that_says_so():
    found = fails(F16, (0, 0), size=F16.bytes + 16)
    assert found.kind == "deadlock"


def test_a_read_before_the_data_arrive_is_found_in_the_lazy_schedule():
    body = "\n".join([prologue(), first(expect(F16.bytes) + "\n" + load(F16, (0, 0))), copy_out(F16.bytes), wait()])
    out = {"out": np.zeros(F16.bytes, np.uint8)}
    with pytest.raises(Fault) as caught:
        run_tensor(body, F16, extra=out, asynchronous=Lazy())
    assert caught.value.kind == "in-flight"
    assert "cp.async.bulk.tensor.2d" in caught.value.message


def test_a_second_load_to_data_on_their_way_is_found_in_the_lazy_schedule():
    for at, kinds in ((0, ["in-flight"]), (F16.bytes - 128, ["in-flight"]), (F16.bytes, [])):
        loads = load(F16, (0, 0)) + "\n" + load(F16, (0, 0), address=f"%r1+{DATA + at}")
        body = "\n".join([prologue(), first(expect(2 * F16.bytes) + "\n" + loads), wait()])
        ran = run_tensor(body, F16, asynchronous=Lazy())
        assert [f.kind for f in ran.grid.findings] == kinds


@pytest.mark.parametrize("waited", [True, False])
def test_a_cta_that_ends_before_its_data_arrive(waited):
    """Seen in the lazy schedule, which delivers after the end, and in the eager one, because nothing waits."""
    lines = [prologue(), first(expect(F16.bytes) + "\n" + load(F16, (0, 0)))]
    ran = run_tensor("\n".join([*lines, wait()] if waited else lines), F16, asynchronous=Lazy())
    kinds = {f.kind for f in ran.grid.findings}
    assert ("in-flight" in kinds) is not waited
    eager = run_tensor("\n".join([*lines, wait()] if waited else lines), F16)
    assert [f.kind for f in eager.grid.findings] == ([] if waited else ["in-flight"])
    assert waited or eager.grid.findings[0].where.text.startswith("cp.async.bulk.tensor")


def test_data_and_barrier_in_different_ctas():
    issue = "mov.u32 %r21, 1;\nmapa.shared::cluster.u32 %r20, %r1, %r21;\n" + load(
        F16, (0, 0), dst="shared::cluster", bar="%r20"
    )
    found = fails(F16, (0, 0), issue=issue, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert found.kind == "mbarrier"
    assert "the mbarrier lies in rank 1" in found.message


def test_multicast_to_nobody_and_to_a_cta_that_is_not_there():
    issue = load(F16, (0, 0), dst="shared::cluster", tail=".multicast::cluster", operands=", 0")
    assert fails(F16, (0, 0), issue=issue).kind == "multicast"
    issue = load(F16, (0, 0), dst="shared::cluster", tail=".multicast::cluster", operands=", 3")
    assert fails(F16, (0, 0), issue=issue).kind == "cluster"


@pytest.mark.parametrize(
    ("issue", "words"),
    [
        (load(F16, (0, 0)).replace(".tile.", ".im2col."), "im2col"),
        (load(F16, (0, 0)).replace(".tile.", ".im2col::w."), "im2col::w"),
        (load(F16, (0, 0), tail=".report"), "report"),
        (load(F16, (0, 0, 0), dim=2), "3 coordinates; 2"),
        (load(F16, (0, 0), tail=".multicast::cluster", operands=", 1"), "multicast"),
        (load(F16, (0, 0), tail=".L2::cache_hint"), "operands"),
    ],
)
def test_what_is_not_modelled_is_unsupported_by_name(issue, words):
    with pytest.raises(Unsupported, match=words):
        simple(F16, (0, 0), issue=issue)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("element", [ElementType.U8, ElementType.F16, ElementType.U32, ElementType.U64])
@pytest.mark.parametrize("inner", [16, 64])
def test_what_a_first_coordinate_must_be_a_multiple_of(element, inner, arch):
    width = Geometry(element).bits // 8
    geometry = Geometry(element, (96, 8), (96 * width + 16,), (inner // width, 4))
    step = 16 // width
    for first_ in (0, step, 5 * step, -step, 96):
        at = (first_, 1)
        ran = simple(geometry, at, arch=arch)
        assert (ran["out"] == expected(geometry, ran["x"], at)).all()
        assert ran.grid.findings == []
    for first_ in (1, step - 1, step + 1, 95, -1):
        at = (first_, 1)
        if arch == "sm_90a":
            found = fails(geometry, at, arch=arch)
            assert found.kind == "tensor map"
            assert "the device stops with an illegal instruction (measured on an H200" in found.message
        else:
            ran = simple(geometry, at, arch=arch)
            assert (ran["out"] == expected(geometry, ran["x"], at)).all()
            (found,) = ran.grid.findings
            assert found.kind == "unaligned-box"
            assert "an H200 stops there with an illegal instruction (measured)" in found.message
        assert f"first coordinate {first_} of elements of type {element.name} is {first_ * width} b" in found.message
        below = first_ // step * step
        assert f"a multiple of {step} ({below} or {below + step})" in found.hint
        assert found.where is not None
        assert found.where.ptx_line is not None


def test_an_unaligned_first_coordinate_is_told_once_an_instruction():
    body = ["mov.u32 %r40, 1;", "AGAIN:", load(F16, ("%r40", 0), address=f"%r1+{DATA}"), "add.u32 %r40, %r40, 1;",
            "setp.lt.u32 %p5, %r40, 4;", "@%p5 bra AGAIN;", load(F16, (9, 0))]  # fmt: skip
    issue = first(expect(4 * F16.bytes) + "\n" + "\n".join(body))
    ran = run_tensor("\n".join([prologue(), issue, wait()]), F16)
    assert [f.kind for f in ran.grid.findings] == ["unaligned-box"] * 2
    assert ["first coordinate 1 " in f.message for f in ran.grid.findings] == [True, False]
