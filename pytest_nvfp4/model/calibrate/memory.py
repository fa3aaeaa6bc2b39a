"""Kernels that load and store tensor memory, shared memory and single lines of global memory.

Sources: PTX ISA, "tcgen05.ld", "tcgen05.st", "tcgen05.cp", "stmatrix", "ld".
"""

from __future__ import annotations

from pytest_nvfp4.model.calibrate.kernel import RECORD_BYTES, Body, fill_shared, first_thread, loop, wait
from pytest_nvfp4.model.calibrate.products import allocate, registers, release

UNROLLED = 8
"""Instructions of a warp in one execution of a loop's body."""
_DATA = 1024
VECTOR_BYTES = 512
"""Bytes of a warp's 128-bit accesses: four passes of the shared-memory port."""


def tmem_access(columns: int, *, store: bool) -> Body:
    """Return ``n`` loads or stores of ``columns`` columns by each of four warps, each of which is waited for."""
    shape = f"32x32b.x{columns}.b32"
    values = registers(40, columns)
    write = f"tcgen05.st.sync.aligned.{shape} [%r30], {values};\ntcgen05.wait::st.sync.aligned;"
    read = f"tcgen05.ld.sync.aligned.{shape} {values}, [%r30];\ntcgen05.wait::ld.sync.aligned;"
    before = [
        *allocate(),
        "shl.b32 %r30, %warp, 21;",
        "add.u32 %r30, %tmem, %r30;",
        *(f"mad.lo.u32 %r{40 + number}, %thread, {2654435761 + number}, {number};" for number in range(columns)),
        write,
    ]
    kept = ["xor.b32 %r31, %r40, %r41;", "setp.eq.u32 %p2, %r31, 0x5A5A5A5A;", "@%p2 st.global.u32 [%out+48], %r31;"]
    return Body(
        loop(write if store else read),
        before="\n".join(before),
        after="\n".join([*([] if store else kept), *release()]),
    )


COPY_BYTES = 512
"""Bytes of a copy of 32 x 128 bits."""


def tmem_copy(unrolled: int) -> Body:
    """Return ``n`` commits of ``a`` copies of 512 bytes of scale factors each; a commit is waited for (as products).

    ``a`` is a multiple of ``unrolled``, the copies in one execution of the loop's body.
    """
    descriptor = 1 << 14 << 32 | (128 >> 4) << 32 | 1 << 16
    before = [
        fill_shared(_DATA, COPY_BYTES, threads=128),
        *allocate(),
        f"add.u32 %r12, %smem, {_DATA};",
        "shr.u32 %r12, %r12, 4;",
        "cvt.u64.u32 %rd2, %r12;",
        f"or.b64 %rd2, %rd2, {descriptor:#x};",
    ]
    timed = [
        "ISSUE:",
        "mov.b32 %r33, %a;",
        "COPY:",
        *["tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem], %rd2;"] * unrolled,
        f"add.u32 %count, %count, {unrolled};",
        f"sub.u32 %r33, %r33, {unrolled};",
        "setp.ne.u32 %p1, %r33, 0;",
        "@%p1 bra COPY;",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%smem];",
        wait("%smem", "%parity", "COMMITTED"),
        "xor.b32 %parity, %parity, 1;",
        "add.u32 %i, %i, 1;",
        "setp.lt.u32 %p1, %i, %n;",
        "@%p1 bra ISSUE;",
    ]
    return Body(first_thread("\n".join(timed), "IDLE"), before="\n".join(before), after="\n".join(release()))


def tmem_loop() -> Body:
    """Return the loop of `tmem_access` without an access."""
    return Body(loop(""))


def tmem_allocation() -> Body:
    """Return ``n`` allocations and releases of 32 columns by one warp."""
    body = [
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%smem], 32;",
        "ld.shared.b32 %r10, [%smem];",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;",
    ]
    return Body(loop("\n".join(body)))


def shared_loads(warps: int) -> Body:
    """Return ``n`` times eight 128-bit loads without bank conflicts by each warp."""
    lines = []
    for number in range(UNROLLED):
        into = registers(40 + 4 * number, 4)
        lines.append(f"ld.volatile.shared.v4.u32 {into}, [%r10+{_DATA + 16 * 32 * number}];")
    lines += [f"xor.b32 %r20, %r20, %r{40 + 4 * number};" for number in range(UNROLLED)]
    before = [fill_shared(_DATA, VECTOR_BYTES * UNROLLED, threads=32 * warps), *_lane_place(), "mov.b32 %r20, 0;"]
    kept = ["setp.eq.u32 %p2, %r20, 0x5A5A5A5A;", "@%p2 st.global.u32 [%out+48], %r20;"]
    return Body(loop("\n".join(lines), counted=UNROLLED), before="\n".join(before), after="\n".join(kept))


def matrix_stores() -> Body:
    """Return ``n`` times eight ``stmatrix.x4`` without bank conflicts by each warp, each to its own memory."""
    lines = [
        f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r11+{_DATA + VECTOR_BYTES * number}], {registers(40, 4)};"
        for number in range(UNROLLED)
    ]
    before = [
        *_lane_place(),
        f"mad.lo.u32 %r11, %warp, {VECTOR_BYTES * UNROLLED}, %r10;",
        *(f"mad.lo.u32 %r{40 + number}, %thread, {2654435761 + number}, {number};" for number in range(4)),
    ]
    return Body(loop("\n".join(lines), counted=UNROLLED), before="\n".join(before))


def matrix_store_shared(warps: int) -> int:
    """Return the dynamic shared memory of `matrix_stores` in bytes."""
    return _DATA + warps * UNROLLED * VECTOR_BYTES


def _lane_place() -> list[str]:
    return ["and.b32 %r10, %thread, 31;", "mad.lo.u32 %r10, %r10, 16, %smem;"]


def shared_chase() -> Body:
    """Return ``n`` dependent loads of a shared word by thread 0."""
    before = [first_thread(f"add.u32 %r10, %smem, {_DATA};\nst.shared.u32 [%r10], %r10;", "PLACED"), "bar.sync 0;"]
    timed = [first_thread(loop("ld.volatile.shared.u32 %r10, [%r10];"), "IDLE")]
    kept = ["setp.eq.u32 %p2, %r10, 1;", "@%p2 st.global.u32 [%out+48], %r10;"]
    return Body("\n".join(timed), before="\n".join([f"add.u32 %r10, %smem, {_DATA};", *before]), after="\n".join(kept))


def line_chase() -> Body:
    """Return dependent loads of ``n`` lines of global memory, ``a`` bytes apart, by thread 0 of one CTA.

    The lines are loaded twice if ``b`` is 1, and the second time counts, which then finds them in L2. The cycles of
    each load are samples of 32 bits behind the record. The next address depends on the loaded word (`_chased`).
    """
    timed = [
        "mov.b32 %r15, %b;",
        "PASS:",
        "mov.b32 %i, 0;",
        "mov.b32 %count, 0;",
        "mov.u64 %rd2, %data;",
        f"add.u64 %rd3, %out, {RECORD_BYTES};",
        "LINE:",
        "mov.u32 %r11, %clock;",
        "ld.relaxed.gpu.global.u32 %r12, [%rd2];",
        f"st.volatile.shared.u32 [%smem+{_DATA}], %r12;",  # the store waits for the loaded word, and the clock for it
        "mov.u32 %r13, %clock;",
        "sub.u32 %r13, %r13, %r11;",
        "st.global.u32 [%rd3], %r13;",
        "add.u64 %rd3, %rd3, 4;",
        *_chased("%r12"),
        "cvt.u64.u32 %rd4, %a;",
        "add.u64 %rd2, %rd2, %rd4;",
        "add.u32 %count, %count, 1;",
        "add.u32 %i, %i, 1;",
        "setp.lt.u32 %p1, %i, %n;",
        "@%p1 bra LINE;",
        "setp.eq.u32 %p1, %r15, 0;",
        "@%p1 bra MEASURED;",
        "mov.b32 %r15, 0;",
        "bra PASS;",
        "MEASURED:",
    ]
    return Body(first_thread("\n".join(timed), "IDLE"))


def _chased(word: str) -> list[str]:
    """Return an address in ``%rd2`` that depends on a loaded word: every word but one leaves it as it is.

    Benchmarks that store to ``data`` run before those that chase, so its words may be any; the address stays aligned.
    """
    return [
        f"setp.eq.u32 %p2, {word}, 0x5A5A5A5A;",
        "selp.b64 %rd5, 128, 0, %p2;",
        "add.u64 %rd2, %rd2, %rd5;",
    ]


def atomic_chase() -> Body:
    """Return ``n`` dependent atomic additions of 0 to a word of global memory by thread 0."""
    body = ["atom.relaxed.gpu.global.add.u32 %r12, [%rd2], 0;", *_chased("%r12")]
    return Body(f"mov.u64 %rd2, %data;\n{first_thread(loop(chr(10).join(body)), 'IDLE')}")


def global_loads(warps: int) -> Body:
    """Return ``n`` times eight 128-bit loads by each warp, of lines that its SM does not keep.

    ``a`` and ``b`` are as in `copies.store_ring`.
    """
    step = VECTOR_BYTES * warps
    lines = ["and.b32 %r11, %r12, %b;", "cvt.u64.u32 %rd2, %r11;", "add.u64 %rd2, %data, %rd2;"]
    for number in range(UNROLLED):
        into = registers(40 + 4 * number, 4)
        lines.append(f"ld.global.L1::no_allocate.v4.u32 {into}, [%rd2+{step * number}];")
    # Of each word: ptxas narrows a load whose words nothing uses.
    lines += [f"xor.b32 %r20, %r20, %r{40 + number};" for number in range(4 * UNROLLED)]
    lines += [f"add.u32 %r12, %r12, {step * UNROLLED};"]
    before = ["mov.b32 %r20, 0;", "mul.lo.u32 %r12, %cta, %a;", "mad.lo.u32 %r12, %thread, 16, %r12;"]
    kept = ["setp.eq.u32 %p2, %r20, 0x5A5A5A5A;", "@%p2 st.global.u32 [%out+48], %r20;"]
    return Body(loop("\n".join(lines), counted=UNROLLED), before="\n".join(before), after="\n".join(kept))


def shared_stores() -> Body:
    """Return ``n`` times eight stores of a word without bank conflicts by one warp."""
    lines = [f"st.volatile.shared.u32 [%r10+{_DATA + 128 * number}], %i;" for number in range(UNROLLED)]
    before = ["mad.lo.u32 %r10, %thread, 4, %smem;"]
    return Body(loop("\n".join(lines), counted=UNROLLED), before="\n".join(before))
