"""Tensor stores and reductions run from PTX, and the bulk groups that they complete by."""

import numpy as np
import pytest

from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.run.asynchronous import Eager, Lazy
from pytest_nvfp4.sim.run.grid import Grid
from tests.sim.tma.kernels import DATA, copy_in, first, noise, prologue, run_tensor
from tests.sim.tma.maps import Geometry
from tests.sim.tma.store_case import COMMIT, F16, WAIT, WAIT_READ, bf16, expected, integers, reduced, simple, store


@pytest.mark.parametrize("schedule", [Eager, Lazy])
@pytest.mark.parametrize("at", [(0, 0), (32, 7), (64, 30), (8, 39), (200, 0)])
def test_a_store_writes_the_box(at, schedule):
    ran = simple(F16, at, asynchronous=schedule())
    before = noise(F16.extent + 64)
    assert (ran["x"] == expected(F16, before, ran["in"], at)).all()
    assert ran.grid.counters["tma.store.requests"] == 1
    assert ran.grid.findings == []
    if at == (64, 30):
        assert ran.grid.counters["tma.store.bytes"] == 32 * 2 * 10


def test_a_box_wholly_outside_is_reported_on_request():
    def request(grid):
        grid.machine.reports_outside = True

    for at, kinds in (((64, 30), []), ((96, 0), ["outside-box"])):
        assert [finding.kind for finding in simple(F16, at, prepare=request).grid.findings] == kinds


def test_cache_hints_and_scatter4():
    ran = simple(F16, (8, 2), issue=store(F16, (8, 2), tail=".L2::cache_hint", operands=", %rd99"))
    assert (ran["x"] == expected(F16, noise(F16.extent + 64), ran["in"], (8, 2))).all()
    rows = (3, 39, 77, 0)
    geometry = Geometry(ElementType.F16, (96, 40), (208,), (64, 1), (), 3)
    body = "\n".join(
        [prologue(), copy_in(512), first(store(geometry, (8, *rows), mode="tile::scatter4") + COMMIT + WAIT)]
    )
    ran = run_tensor(body, geometry, extra={"in": noise(512, 3)})
    assert (ran["x"] == expected(geometry, noise(geometry.extent + 64), ran["in"], (8, 0), rows)).all()


def test_packed_fp4_and_rank_4():
    geometry = Geometry(ElementType.FP4_PACKED, (64, 5, 3, 2), (48, 240, 720), (64, 4, 2, 2), (), 1)
    ran = simple(geometry, (32, 2, 1, 0))
    assert (ran["x"] == expected(geometry, noise(geometry.extent + 64), ran["in"], (32, 2, 1, 0))).all()


def test_only_bytes_inside_the_tensor_must_have_been_written():
    geometry = Geometry(ElementType.U8, (128, 4), (128,), (128, 8))
    body = "\n".join([prologue(), copy_in(512), first(store(geometry, (0, 0)) + COMMIT + WAIT)])
    ran = run_tensor(body, geometry, extra={"in": noise(512, 3)})
    assert (ran["x"][:512] == ran["in"]).all()
    body = "\n".join([prologue(), copy_in(496), first(store(geometry, (0, 0)) + COMMIT + WAIT)])
    with pytest.raises(Fault, match=rf"byte {DATA + 496} of shared memory") as caught:
        run_tensor(body, geometry, extra={"in": noise(512, 3)})
    assert caught.value.kind == "uninitialised"


def test_outputs_that_are_watched_know_who_wrote_them():
    geometry = Geometry(ElementType.F16, (64, 6, 2), (128, 768), (64, 4, 2))

    def watch(grid):
        next(r for r in grid.machine.memory if r.name == "x").watch(2)

    body = "\n".join(
        [
            prologue(),
            copy_in(1024),
            "mov.u32 %r30, %ctaid.x;\nshl.b32 %r30, %r30, 2;",
            first(store(geometry, (0, "%r30", 0)) + COMMIT + WAIT),
        ]
    )
    ran = run_tensor(body, geometry, extra={"in": noise(1024, 3)}, prepare=watch, grid=(2, 1, 1))
    region = next(r for r in ran.grid.machine.memory if r.name == "x")
    owner = region.owner[: 2 * 6 * 64].reshape(2, 6, 64)
    assert (owner[:, :4] == 0).all()
    assert (owner[:, 4:] == 1).all()
    assert not region.coverage.counts


def test_what_is_stored_counts_as_written():
    def track(grid):
        region = next(r for r in grid.machine.memory if r.name == "x")
        region.initialised = np.zeros(region.size, np.bool_)

    ran = simple(F16, (64, 30), prepare=track)
    region = next(r for r in ran.grid.machine.memory if r.name == "x")
    expected = np.zeros(40 * 208, np.bool_)
    expected.reshape(40, 208)[30:, 128:192] = True
    assert (region.initialised[: 39 * 208 + 192] == expected[: 39 * 208 + 192]).all()


def test_a_group_that_is_not_committed_or_not_waited_for_is_found():
    ran = simple(F16, (0, 0), after=())
    assert [f.kind for f in ran.grid.findings] == ["exit-before-read"]
    assert "without cp.async.bulk.commit_group" in ran.grid.findings[0].message
    assert ran.grid.findings[0].where.text.startswith("cp.async.bulk.tensor")
    ran = simple(F16, (0, 0), after=(COMMIT,))
    assert [f.kind for f in ran.grid.findings] == ["exit-before-read"]
    assert "without waiting" in ran.grid.findings[0].message
    assert ran.grid.findings[0].where.text.startswith("cp.async.bulk.tensor")
    ran = simple(F16, (0, 0), after=(COMMIT, "cp.async.bulk.wait_group.read 1;"))
    assert "without waiting" in ran.grid.findings[0].message
    assert simple(F16, (0, 0), after=(COMMIT, WAIT_READ)).grid.findings == []


@pytest.mark.parametrize("schedule", [Eager, Lazy])
def test_wait_group_waits_for_all_but_the_newest(schedule):
    """Two stores in two groups; the second half of the source is overwritten after the first group was read."""
    geometry = Geometry(ElementType.U8, (512,), (), (256,))
    overwrite = "mov.u32 %r40, 0;\n" + "\n".join(f"st.shared.b32 [%r1+{DATA + i}], %r40;" for i in range(0, 256, 4))
    body = "\n".join(
        [
            prologue(),
            copy_in(512),
            first(
                "\n".join(
                    [
                        store(geometry, (0,)),
                        COMMIT,
                        store(geometry, (256,), address=f"%r1+{DATA + 256}"),
                        COMMIT,
                        "cp.async.bulk.wait_group.read 1;",
                        overwrite,
                        WAIT,
                    ]
                )
            ),
        ]
    )
    ran = run_tensor(body, geometry, extra={"in": noise(512, 3)}, asynchronous=schedule())
    assert (ran["x"][:512] == ran["in"]).all()


def test_without_the_wait_the_lazy_schedule_writes_what_was_written_over():
    geometry = Geometry(ElementType.U8, (256,), (), (256,))
    body = "\n".join(
        [
            prologue(),
            copy_in(256),
            first("\n".join([store(geometry, (0,)), COMMIT, "mov.u32 %r40, 0;", f"st.shared.b32 [%r1+{DATA}], %r40;"])),
            first(WAIT, "LATER"),
        ]
    )
    eager = run_tensor(body, geometry, extra={"in": noise(256, 3)})
    lazy = run_tensor(body, geometry, extra={"in": noise(256, 3)}, asynchronous=Lazy())
    assert eager["x"][:4].any()
    assert not lazy["x"][:4].any()


def test_groups_belong_to_threads():
    """A wait in another thread covers nothing."""
    body = "\n".join(
        [prologue(), copy_in(F16.bytes), first(store(F16, (0, 0)) + COMMIT), "@!%p0 bra END;", WAIT, "END:"]
    )
    ran = run_tensor(body, F16, extra={"in": noise(F16.bytes, 3)})
    assert [f.kind for f in ran.grid.findings] == ["exit-before-read"]


def test_lanes_that_store_the_same_box_make_one_store():
    body = "\n".join([prologue(), copy_in(F16.bytes), store(F16, (0, 0)), COMMIT, WAIT])
    ran = run_tensor(body, F16, extra={"in": noise(F16.bytes, 3)})
    assert ran.grid.findings == []
    assert ran.grid.counters["tma.store.requests"] == 1
    assert (ran["x"] == expected(F16, noise(F16.extent + 64), ran["in"], (0, 0))).all()


def test_lanes_that_reduce_into_the_same_box():
    body = "\n".join([prologue(), copy_in(F16.bytes), store(F16, (0, 0), what="cp.reduce.async", op=".add")])
    with pytest.raises(Fault, match="32 lanes are active") as caught:
        run_tensor(body, F16, extra={"in": noise(F16.bytes, 3)})
    assert caught.value.kind == "multi-lane"


# ---- reductions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "before", "found"), [(False, (), 1), (True, (), 0), (False, (store(F16, (0, 0)), COMMIT, WAIT), 0)]
)
def test_a_reduction_into_what_nothing_wrote(written, before, found):
    """C of split-K that nobody has filled with zeros; a store before the reduction fills it."""

    def prepare(grid: Grid) -> None:
        x = next(region for region in grid.machine.memory if region.name == "x")
        x.track_writes()
        x.initialised[:] = written

    issue = "\n".join([*before, store(F16, (0, 0), what="cp.reduce.async", op=".add")])
    ran = simple(F16, (0, 0), issue=issue, prepare=prepare)
    assert [finding.kind for finding in ran.grid.findings] == ["uninitialised"] * found
    assert all("x at byte 0, which was never written" in finding.message for finding in ran.grid.findings)


@pytest.mark.parametrize("times", [1, 2])
def test_a_reduction_writes_what_it_reduces_into(times):
    """The second reduction into the same box is no finding of its own."""

    def prepare(grid: Grid) -> None:
        next(region for region in grid.machine.memory if region.name == "x").track_writes()

    issue = "\n".join([store(F16, (0, 0), what="cp.reduce.async", op=".add"), COMMIT, WAIT] * times)
    assert len(simple(F16, (0, 0), issue=issue, prepare=prepare).grid.findings) == 1


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (ElementType.U32, np.uint32),
        (ElementType.S32, np.int32),
        (ElementType.U64, np.uint64),
        (ElementType.S64, np.int64),
    ],
)
def test_integer_reductions(element, dtype):
    old, new = integers(dtype, 1), integers(dtype, 2)
    bits = np.dtype(dtype).itemsize * 8
    low = np.iinfo(dtype).min

    def wrap(value):
        return (value - low) % 2**bits + low

    python = {
        "add": lambda a, b: wrap(a + b),
        "min": min,
        "max": max,
        "and": lambda a, b: wrap(a & b),
        "or": lambda a, b: wrap(a | b),
        "xor": lambda a, b: wrap(a ^ b),
    }
    for op, function in python.items():
        if op == "add" and element is ElementType.S64:
            continue
        got = reduced(op, element, old, new)
        wanted = [[function(int(a), int(b)) for a, b in zip(x, y, strict=True)] for x, y in zip(old, new, strict=True)]
        assert got.tolist() == [row[:40] for row in wanted], op


def test_inc_and_dec_wrap_at_the_source():
    old = np.tile(np.array([0, 1, 4, 5, 6, 2**32 - 1], np.uint32), 22)[:128].reshape(2, 64)
    new = np.full((2, 64), 5, np.uint32)
    up = reduced("inc", ElementType.U32, old, new)
    down = reduced("dec", ElementType.U32, old, new)
    assert up[0, :6].tolist() == [1, 2, 5, 0, 0, 0]
    assert down[0, :6].tolist() == [5, 0, 3, 4, 5, 5]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_add(dtype):
    generator = np.random.default_rng(4)
    old, new = (generator.standard_normal((2, 64)).astype(dtype) * 100 for _ in range(2))
    element = {2: ElementType.F16, 4: ElementType.F32, 8: ElementType.F64}[np.dtype(dtype).itemsize]
    got = reduced("add", element, old, new)
    wide = old.astype(np.longdouble) + new.astype(np.longdouble)
    assert (got == wide.astype(dtype)[:, :40]).all()


def test_float_add_of_subnormals():
    old = np.full((2, 64), 0x7F_FFFF, np.uint32).view(np.float32)
    zeros = np.full((2, 64), -0.0, np.float32)
    kept = reduced("add", ElementType.F32, old, zeros)
    assert (kept == old[:, : kept.shape[1]]).all(), "an H200 does not flush them"
    half = np.full((2, 64), 2.0**-24, np.float16)
    assert (reduced("add", ElementType.F16, half, half) == np.float16(2.0**-23)).all()


def test_bf16_add_min_and_max():
    generator = np.random.default_rng(5)
    old, new = (bf16(generator.standard_normal((2, 64)) * 8) for _ in range(2))
    a, b = ((x.astype(np.uint32) << 16).view(np.float32) for x in (old, new))
    assert (reduced("add", ElementType.BF16, old, new) == bf16(a + b)[:, :40]).all()
    assert (reduced("min", ElementType.BF16, old, new) == np.where(a < b, old, new)[:, :40]).all()
    assert (reduced("max", ElementType.BF16, old, new) == np.where(a > b, old, new)[:, :40]).all()


def test_min_orders_the_zeros_and_refuses_nan():
    plus, minus = np.zeros((2, 64), np.float16), np.full((2, 64), -0.0, np.float16)
    assert (reduced("min", ElementType.F16, plus, minus).view(np.uint16) == 0x8000).all()
    assert (reduced("max", ElementType.F16, minus, plus).view(np.uint16) == 0).all()
    with pytest.raises(Unsupported, match="NaN"):
        reduced("min", ElementType.F16, plus, np.full((2, 64), np.nan, np.float16))


@pytest.mark.parametrize(
    ("op", "element", "dtype"),
    [("min", ElementType.F32, np.uint32), ("inc", ElementType.S32, np.uint32), ("add", ElementType.S64, np.uint64)],
)
def test_types_that_the_operation_does_not_take(op, element, dtype):
    zeros = np.zeros((2, 64), dtype)
    with pytest.raises(Fault, match="it takes") as caught:
        reduced(op, element, zeros, zeros)
    assert caught.value.kind == "tensor map"


@pytest.mark.parametrize(
    ("issue", "words"),
    [
        (store(F16, (0, 0), mode="im2col"), "im2col"),
        (store(F16, (0, 0)).replace(".bulk_group", ""), "bulk_group is missing"),
        (store(F16, (0, 0), tail=".cta_group::2"), "cta_group::2"),
        (store(F16, (0, 0)).replace("shared::cta", "shared::cluster"), "from .shared::cta"),
        (store(F16, (0, 0), what="cp.reduce.async"), "none of"),
        ("cp.async.bulk.wait_group 0, 1;", "operands"),
        ("cp.async.bulk.wait_group %r3;", "immediate"),
    ],
)
def test_what_is_not_modelled_is_unsupported_by_name(issue, words):
    with pytest.raises(Unsupported, match=words):
        simple(F16, (0, 0), issue=issue)


def test_negative_coordinates_and_padded_elements():
    with pytest.raises(Fault, match="must not be negative") as caught:
        simple(F16, (-8, 0))
    assert caught.value.kind == "tensor map"
    with pytest.raises(Unsupported, match="padded elements"):
        simple(Geometry(ElementType.FP6_PADDED, (128, 4), (96,), (128, 4)), (0, 0))


@pytest.mark.parametrize("element", [(ElementType.F32, 1), (ElementType.F32_FTZ, 0)])
def test_a_store_through_a_tf32_or_ftz_map_changes_nothing(element):
    simple(Geometry(element[0], (64,), (), (64,), tf32=element[1]), (0,))


@pytest.mark.parametrize("what", ["store", "reduction"])
def test_what_a_first_coordinate_must_be_a_multiple_of(what):
    geometry = Geometry(ElementType.U32, (96, 8), (400,), (16, 4))

    def issue(at):
        return store(geometry, at, what="cp.reduce.async", op=".add") if what == "reduction" else store(geometry, at)

    for at in ((0, 1), (4, 1), (92, 1)):
        assert simple(geometry, at, issue=issue(at), arch="sm_90a").grid.findings == []
    for at in ((1, 1), (2, 1), (94, 1)):
        with pytest.raises(Fault, match=f"first coordinate {at[0]} of elements of type U32") as caught:
            simple(geometry, at, issue=issue(at), arch="sm_90a")
        assert caught.value.kind == "tensor map"
        assert "measured on an H200" in caught.value.message
        assert f"a multiple of 4 ({at[0] // 4 * 4} or {at[0] // 4 * 4 + 4})" in caught.value.hint
        assert caught.value.where is not None
        ran = simple(geometry, at, issue=issue(at), arch="sm_100a")
        assert [f.kind for f in ran.grid.findings] == ["unaligned-box"]
