"""Bulk copies and reductions of plain bytes, and prefetches, run from PTX."""

import numpy as np
import pytest

from pytest_nvfp4.device.worker.sim_findings import worker_finding
from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.run.asynchronous import Eager, Lazy
from pytest_nvfp4.sim.tma.bulk import PREFETCH
from tests.sim.ptx_case import run_ptx
from tests.sim.tma.bulk import CLUSTER, SHARED, exchange, load, run_load, run_store, to_peer
from tests.sim.tma.kernels import DATA, copy_out, expect, first, noise, prologue, run_tensor, wait
from tests.sim.tma.maps import Geometry


@pytest.mark.parametrize("schedule", [Eager, Lazy])
@pytest.mark.parametrize(
    ("dst", "tail", "operands"),
    [
        ("shared::cta", "", ""),
        ("shared::cluster", "", ""),
        ("shared::cluster", ".L2::cache_hint", ", %rd99"),
        ("shared::cluster", ".multicast::cluster", ", 1"),
        ("shared::cluster", ".multicast::cluster.L2::cache_hint", ", 1, %rd99"),
    ],
)
def test_loads(dst, tail, operands, schedule):
    issue = load(dst=dst, tail=tail, operands=operands, src="%rd100+48")
    ran = run_load("mov.b64 %rd99, 0;" + issue, asynchronous=schedule())
    assert (ran["out"][:1024] == ran["in"][48:1072]).all()
    assert ran.grid.counters["bulk.load.bytes"] == 1024
    assert ran.grid.findings == []


def test_every_lane_may_issue_a_copy_of_its_own():
    rows = (
        "shl.b32 %r6, %r0, 5;\nadd.u32 %r7, %r1, %r6;\ncvt.u64.u32 %rd2, %r6;\nadd.u64 %rd2, %rd100, %rd2;\n"
        f"cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r7+{DATA}], [%rd2], 32, [%r1];"
    )
    body = "\n".join([prologue(), first(expect(1024)), rows, wait(), copy_out(1024, to="%rd101")])
    ran = run_ptx(body, buffers={"in": noise(1024), "out": np.zeros(1024, np.uint8)}, shared=SHARED)
    assert (ran["out"] == ran["in"]).all()
    assert ran.grid.counters["bulk.load.requests"] == 32


def test_multicast():
    issue = load(dst="shared::cluster", tail=".multicast::cluster", operands=", 3")
    body = "\n".join(
        [
            prologue(),
            CLUSTER,
            first(expect(1024) + "\nsetp.ne.u32 %p4, %r2, 1;\n@%p4 bra ISSUED;\n" + issue + "\nISSUED:"),
            wait(),
            copy_out(1024, to="%rd101"),
            CLUSTER,
        ]
    )
    buffers = {"in": noise(1024), "out": np.zeros(2048, np.uint8)}

    def count(grid):
        grid.counting = True

    ran = run_ptx(body, buffers=buffers, shared=SHARED, grid=(2, 1, 1), cluster=(2, 1, 1), prepare=count)
    assert (ran["out"].reshape(2, -1) == ran["in"]).all()
    assert ran.grid.counters["bulk.load.multicast.bytes"] == 2048
    start = next(region.start for region in ran.grid.machine.memory if region.name == "in")
    assert ran.grid.counters["bulk.load.delivered_sectors"] == 2 * ((start + 1023) // 32 - start // 32 + 1)


@pytest.mark.parametrize("schedule", [Eager, Lazy])
def test_to_the_shared_memory_of_another_cta(schedule):
    ran = exchange(to_peer(), asynchronous=schedule())
    assert (ran["out"].reshape(2, 512) == ran["in"].reshape(2, 512)[::-1]).all()
    assert ran.grid.counters["bulk.cluster.bytes"] == 1024
    with pytest.raises(Fault, match="must be another CTA's") as caught:
        exchange(to_peer(rank="mov.u32 %r21, %r2;"))
    assert caught.value.kind == "cluster"


@pytest.mark.parametrize("schedule", [Eager, Lazy])
@pytest.mark.parametrize(
    ("op", "dtype", "python"),
    [
        ("add.u32", np.uint32, lambda a, b: a + b),
        ("add.u64", np.uint64, lambda a, b: a + b),
        ("min.s32", np.int32, np.minimum),
        ("max.u32", np.uint32, np.maximum),
        ("xor.b32", np.uint32, lambda a, b: a ^ b),
        ("inc.u32", np.uint32, lambda a, b: np.where(a >= b, 0, a + 1)),
        ("dec.u32", np.uint32, lambda a, b: np.where((a == 0) | (a > b), b, a - 1)),
    ],
)
def test_reductions_in_the_shared_memory_of_another_cta(op, dtype, python, schedule):
    opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}"
    ran = exchange(to_peer(opcode), before="old", asynchronous=schedule())
    got = ran["out"].view(dtype).reshape(2, -1)
    sent = ran["in"].view(dtype).reshape(2, -1)[::-1]
    assert (got == python(ran["old"].view(dtype).reshape(2, -1), sent)).all()


STORE = f"cp.async.bulk.global.shared::cta.bulk_group [%rd101+16], [%r1+{DATA}], 1024;"


@pytest.mark.parametrize("schedule", [Eager, Lazy])
def test_stores(schedule):
    ran = run_store(STORE, asynchronous=schedule())
    assert (ran["out"][16:1040] == ran["in"]).all()
    assert not ran["out"][:16].any()
    assert not ran["out"][1040:].any()
    assert ran.grid.counters["bulk.store.bytes"] == 1024
    assert ran.grid.findings == []
    hinted = f"cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd101], [%r1+{DATA}], 1024, %rd99;"
    assert (run_store("mov.b64 %rd99, 0;" + hinted)["out"][:1024] == ran["in"]).all()


def test_a_byte_mask():
    issue = f"cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd101+32], [%r1+{DATA}], 1024, 0x8003;"
    ran = run_store(issue)
    kept = np.tile([True, True] + [False] * 13 + [True], 64)
    assert (ran["out"][32:1056] == np.where(kept, ran["in"], 0)).all()
    assert not ran["out"][:32].any()
    assert ran.grid.counters["bulk.store.bytes"] == 3 * 64


def test_a_watched_output_knows_its_writer():
    def watch(grid):
        next(r for r in grid.machine.memory if r.name == "out").watch(4)

    ran = run_store(STORE, prepare=watch)
    owner = next(r for r in ran.grid.machine.memory if r.name == "out").owner
    assert (np.flatnonzero(owner == 0) == np.arange(4, 260)).all()


@pytest.mark.parametrize(
    ("op", "dtype"), [("add.f32", np.float32), ("add.noftz.f16", np.float16), ("add.f64", np.float64)]
)
def test_float_reductions(op, dtype):
    generator = np.random.default_rng(0)
    size = 1024 // np.dtype(dtype).itemsize
    old, new = (generator.standard_normal(size).astype(dtype) for _ in range(2))
    issue = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%rd101], [%r1+{DATA}], 1024;"
    ran = run_store(issue, data=new.view(np.uint8), out=old.view(np.uint8))
    wide = old.astype(np.longdouble) + new.astype(np.longdouble)
    assert (ran["out"].view(dtype) == wide.astype(dtype)).all()


def test_integer_reductions_of_several_ctas_add_up():
    issue = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%rd101], [%r1+{DATA}], 1024;"
    data = np.arange(-128, 128, dtype=np.int32).view(np.uint8)
    ran = run_store(issue, data=data, out=np.zeros(1024, np.uint8), grid=(5, 1, 1))
    assert (ran["out"].view(np.int32) == 5 * np.arange(-128, 128)).all()


# ---- prefetches ------------------------------------------------------------------------------------------------------


def test_prefetches_are_checked_and_move_nothing():
    geometry = Geometry(ElementType.F16, (96, 40), (208,), (64, 16), (), 3)
    body = "\n".join(
        [
            "mov.b64 %rd99, 0;",
            "cp.async.bulk.prefetch.L2.global [%rd100], 1024;",
            "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%rd100], 1024, %rd99;",
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd101, {0, 30}];",
            "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%rd101, {0, 30}], %rd99;",
            "prefetch.tensormap [%rd101];",
        ]
    )
    ran = run_tensor(body, geometry)
    assert ran.grid.findings == []
    assert not any(key.startswith(("tma", "bulk")) for key in ran.grid.counters)


def test_a_prefetch_beyond_the_end_of_a_tensor_lets_the_run_go_on():
    grid = run_load("cp.async.bulk.prefetch.L2.global [%rd100], 8192;" + load()).grid
    (found,) = grid.findings
    assert found.kind == PREFETCH
    assert "of 8192 bytes beyond the end of in" in found.message
    assert worker_finding(found).severity == "warning"
    assert grid.counters["bulk.load.requests"] == 1


@pytest.mark.parametrize(
    ("issue", "kind"),
    [
        ("cp.async.bulk.prefetch.L2.global [%rd100+1048576], 1024;", "out-of-bounds"),
        ("cp.async.bulk.prefetch.L2.global [%rd100], 8;", "bulk-copy"),
        ("cp.async.bulk.prefetch.L2.global [%rd100+8], 16;", "misaligned"),
        (load(src="%rd100+8"), "misaligned"),
        (load(to=DATA + 8), "misaligned"),
        (load(size=1000), "bulk-copy"),
        (load(src="%rd100+3088"), "out-of-bounds"),
        (load(to=SHARED - 512), "out-of-bounds"),
        (load(to=0), "mbarrier"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd101], [%r1+8192], 1024;", "uninitialised"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd101+3088], [%r1+8192], 1024;", "out-of-bounds"),
    ],
)
def test_mistakes(issue, kind):
    with pytest.raises(Fault) as caught:
        run_load(issue)
    assert caught.value.kind == kind


def test_lanes_that_load_the_same():
    body = "\n".join([prologue(), first(expect(1024)), load(), wait()])
    with pytest.raises(Fault, match="32 lanes") as caught:
        run_ptx(body, buffers={"in": noise(1024)}, shared=SHARED)
    assert caught.value.kind == "multi-lane"


@pytest.mark.parametrize(
    ("issue", "words"),
    [
        (load(tail=".ignore_oob"), "ignore_oob"),
        (load(tail=".multicast::cluster", operands=", 1"), "multicast"),
        (
            "cp.async.bulk.shared::cta.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r1], 16, [%r1];",
            "from .shared::cta",
        ),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%rd101], [%r1], 16;", "noftz"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd101], [%r1], 16;", "min takes"),
        ("cp.async.bulk.global.shared::cta [%rd101], [%r1], 16;", "bulk_group is missing"),
        ("cp.async.bulk.prefetch.L2.global.evict_first [%rd100], 16;", "evict_first"),
    ],
)
def test_what_is_not_modelled_is_unsupported_by_name(issue, words):
    with pytest.raises(Unsupported, match=words):
        run_load(issue)
