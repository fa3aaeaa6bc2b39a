"""Kernels of asynchronous copies: a ring of tensor loads, multicast included, and bulk stores.

Sources: PTX ISA, "cp.async.bulk.tensor", "cp.async.bulk", "mbarrier".
"""

from __future__ import annotations

from pytest_nvfp4.model.calibrate.kernel import CLUSTER_MEET, Body, fill_shared, first_thread, wait

DATA = 1024
"""First byte of the data in shared memory; mbarriers lie before it."""
ROW_BYTES = 128


def _slot_bytes(rows: int, boxes: int) -> int:
    """Return the bytes from one slot of the ring to the next: a multiple of the period of the 128-byte swizzle."""
    return max(1024, -(-rows * boxes * ROW_BYTES // 1024) * 1024)


def load_ring(*, rows: int, boxes: int = 1, slots: int, cluster: int = 1) -> Body:
    """Return ``n`` slots of data that one thread of each CTA loads, ``slots`` of them in flight.

    A slot is ``boxes`` tensor loads of ``rows`` rows of 128 bytes, and one phase of an mbarrier; without boxes only the
    loop remains. ``a`` is the distance of two clusters' first rows, ``b`` the number of rows of a cluster less one,
    all ones, through which it goes over and over. In a cluster, each CTA loads an equal part of each box and sends it
    to all of them; a slot is loaded again when every CTA has received it.
    """
    part = rows // cluster
    barriers = [f"mbarrier.init.shared::cta.b64 [%smem+{8 * slot}], 1;" for slot in range(slots)]
    if cluster > 1:
        barriers += [f"mbarrier.init.shared::cta.b64 [%smem+{8 * (slots + slot)}], {cluster};" for slot in range(slots)]
    before = [
        "fence.proxy.tensormap::generic.acquire.gpu [%maps], 128;",
        first_thread("\n".join([*barriers, "fence.mbarrier_init.release.cluster;"]), "INITIALISED"),
    ]
    if cluster > 1:
        before += ["bar.sync 0;", CLUSTER_MEET]
    issue = ["shl.b32 %r10, %r4, 3;\nadd.u32 %r10, %smem, %r10;"]  # the slot's barrier
    if cluster > 1:
        issue += [f"add.u32 %r13, %r10, {8 * slots};", "xor.b32 %r14, %r5, 1;", wait("%r13", "%r14", "EMPTY")]
    multicast = (".multicast::cluster", ", %mask") if cluster > 1 else ("", "")
    issue += [
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {boxes * rows * ROW_BYTES};",
        f"mad.lo.u32 %r11, %r4, {_slot_bytes(rows, boxes)}, %smem;",
        f"mad.lo.u32 %r11, %rank, {part * ROW_BYTES}, %r11;",
        "and.b32 %r12, %r3, %b;",
        "mad.lo.u32 %r12, %r0, %a, %r12;",
        f"mad.lo.u32 %r12, %rank, {part}, %r12;",
    ]
    for box in range(boxes):
        # Boxes of one row are all the same one: their issue is measured, and not the sums of their coordinates.
        issue += [f"add.u32 %r12, %r12, {rows};"] if box and rows > 1 else []
        issue += [
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            f"{multicast[0]} [%r11+{DATA + box * rows * ROW_BYTES}], [%maps, {{0, %r12}}], [%r10]{multicast[1]};",
        ]
    issue += [
        f"add.u32 %r3, %r3, {boxes * rows};",
        "add.u32 %i, %i, 1;",
        "add.u32 %r4, %r4, 1;",
        f"setp.ne.u32 %p3, %r4, {slots};",
        "@%p3 bra NEXT;",
        "mov.b32 %r4, 0;",
        "xor.b32 %r5, %r5, 1;",
        "bra NEXT;",
    ]
    consume = ["shl.b32 %r10, %r6, 3;\nadd.u32 %r10, %smem, %r10;", wait("%r10", "%r7", "FULL")]
    if cluster > 1:
        consume += [f"add.u32 %r13, %r10, {8 * slots};"]
        for rank in range(cluster):
            consume += [
                f"mapa.shared::cluster.u32 %r15, %r13, {rank};",
                "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r15];",
            ]
    consume += [
        "add.u32 %count, %count, 1;",
        "add.u32 %r6, %r6, 1;",
        f"setp.ne.u32 %p4, %r6, {slots};",
        "@%p4 bra CONSUMED;",
        "mov.b32 %r6, 0;",
        "xor.b32 %r7, %r7, 1;",
        "CONSUMED:",
        "setp.lt.u32 %p5, %count, %n;",
        "@%p5 bra NEXT;",
    ]
    timed = [
        f"div.u32 %r0, %cta, {cluster};",
        f"mov.b16 %mask, {(1 << cluster) - 1};",
        *(f"mov.b32 %r{register}, 0;" for register in (3, 4, 5, 6, 7)),
        "NEXT:",
        "sub.u32 %r8, %i, %count;",
        f"setp.ge.u32 %p1, %r8, {slots};",
        "setp.ge.u32 %p2, %i, %n;",
        "or.pred %p1, %p1, %p2;",
        "@%p1 bra CONSUME;",
        *issue,
        "CONSUME:",
        *consume,
    ]
    after = CLUSTER_MEET if cluster > 1 else ""
    return Body(first_thread("\n".join(timed), "IDLE"), before="\n".join(before), after=after)


def ring_shared(rows: int, boxes: int, slots: int) -> int:
    """Return the dynamic shared memory of `load_ring` in bytes."""
    return DATA + slots * _slot_bytes(rows, boxes)


STORE_AREA = 1 << 17
"""Bytes of global memory that each CTA of `store_ring` writes over and over, all ones below."""


def store_ring(*, size: int, waited: bool = False, area: int = STORE_AREA) -> Body:
    """Return ``n`` bulk stores of ``size`` bytes by one thread of each CTA, each CTA to an area of its own.

    As many are in flight as its area has room for besides the next one, at most eight; with ``waited`` one, which
    measures its latency.
    """
    flying = 0 if waited else min(8, area // size - 1)
    timed = [
        f"mul.wide.u32 %rd3, %cta, {area};",
        "add.u64 %rd3, %data, %rd3;",
        "mov.b32 %r3, 0;",
        "STORE:",
        f"and.b32 %r10, %r3, {area - 1};",
        "cvt.u64.u32 %rd2, %r10;",
        "add.u64 %rd2, %rd3, %rd2;",
        f"cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%smem+{DATA}], {size};",
        "cp.async.bulk.commit_group;",
        f"cp.async.bulk.wait_group {flying};",
        f"add.u32 %r3, %r3, {size};",
        "add.u32 %count, %count, 1;",
        "setp.lt.u32 %p1, %count, %n;",
        "@%p1 bra STORE;",
        "cp.async.bulk.wait_group 0;",
    ]
    return Body(first_thread("\n".join(timed), "IDLE"), before=fill_shared(DATA, size, threads=32))
