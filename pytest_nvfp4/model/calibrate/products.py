"""Kernels of matrix instructions: ``wgmma`` for sm_90a, ``tcgen05.mma`` for sm_100a.

Operands are K-major tiles with the 128-byte swizzle, of 128 bytes a row: four instructions of 32 bytes each. Sources:
PTX ISA, "wgmma.mma_async", "Matrix Descriptor Format", "tcgen05.mma", "Instruction descriptor", "Shared memory
descriptor".
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.model.calibrate.kernel import CLUSTER_MEET, Body, fill_shared, first_thread, wait

ROW_BYTES = 128
STEPS = 4
"""Instructions along a tile of K."""
_OPERANDS = 1024
"""First byte of A in shared memory."""
_SCALES = 0x38383838
"""Four UE4M3 scale factors of 1."""
_COLUMNS = 512


@dataclass(frozen=True, slots=True)
class Kind:
    """Operands of a matrix instruction.

    Attributes:
        name: Name of the kind, as in ``recording.Shape.kind``.
        k: Elements of K in 32 bytes of a row.
        mask, base: See `kernel.fill_shared`: finite numbers of different magnitude.
        wgmma: Types of ``wgmma``, A and B; empty if it has none.
        bits: Types in the instruction descriptor of ``tcgen05.mma``.
    """

    name: str
    k: int
    mask: int
    base: int
    wgmma: str
    bits: int


KINDS = {
    "f16": Kind("f16", 16, 0x83FF83FF, 0x3C003C00, "bf16.bf16", 1 << 4 | 1 << 7 | 1 << 10),
    "f8f6f4": Kind("f8f6f4", 32, 0xBFBFBFBF, 0, "e4m3.e4m3", 1 << 4),
    "mxf4nvf4": Kind("mxf4nvf4", 64, 0xFFFFFFFF, 0, "", 1 << 7 | 1 << 10),
}


def wgmma_shared(n: int, groups: int) -> int:
    """Return the dynamic shared memory of `wgmma_chain` in bytes."""
    return _OPERANDS + (64 * groups + n) * ROW_BYTES


def wgmma_chain(kind: str, *, n: int, a_shared: bool = True, groups: int = 1, each_waited: bool = False) -> Body:
    """Return ``n`` groups of four ``wgmma`` on one accumulator by each warpgroup, or single ones that are waited for.

    Args:
        n: Columns of the product.
        a_shared: Whether A is in shared memory; else in registers.
        groups: Warpgroups of the CTA.
        each_waited: Whether each instruction is waited for before the next is issued, which measures its latency.
    """
    of = KINDS[kind]
    accumulator = "{" + ", ".join(f"%f{number}" for number in range(n // 2)) + "}"
    transposed = ", 0, 0" if of.k == 16 and a_shared else ", 0" if of.k == 16 else ""
    lines = ["wgmma.fence.sync.aligned;"]
    steps = 1 if each_waited else STEPS
    for step in range(steps):
        lines += [f"add.u64 %rd4, %rd2, {2 * step};", f"add.u64 %rd5, %rd3, {2 * step};"]
        a = "%rd4" if a_shared else "{%r20, %r21, %r22, %r23}"
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{of.k}.f32.{of.wgmma} {accumulator}, {a}, %rd5, 1, 1, 1{transposed};"
        )
    lines += ["wgmma.commit_group.sync.aligned;", f"wgmma.wait_group.sync.aligned {0 if each_waited else 1};"]
    lines += [f"add.u32 %count, %count, {steps};"]
    size = wgmma_shared(n, groups) - _OPERANDS
    before = [
        fill_shared(_OPERANDS, size, threads=128 * groups, mask=of.mask, base=of.base),
        *(f"mov.b32 %f{number}, 0f00000000;" for number in range(n // 2)),
        "shr.u32 %r10, %thread, 7;",
        f"mad.lo.u32 %r10, %r10, {64 * ROW_BYTES}, %smem;",
        f"add.u32 %r10, %r10, {_OPERANDS};",
        f"add.u32 %r11, %smem, {_OPERANDS + 64 * groups * ROW_BYTES};",
        *_wgmma_descriptor("%r10", "%rd2"),
        *_wgmma_descriptor("%r11", "%rd3"),
        *(f"mov.b32 %r{20 + number}, {of.base | 0x01000100 * number:#x};" for number in range(4)),
    ]
    timed = [
        "PRODUCT:",
        *lines,
        "add.u32 %i, %i, 1;",
        "setp.lt.u32 %p1, %i, %n;",
        "@%p1 bra PRODUCT;",
        "wgmma.wait_group.sync.aligned 0;",
    ]
    # An accumulator that nothing reads could be removed, and its registers with it.
    kept = ["add.f32 %f198, %f0, %f1;", "setp.eq.f32 %p2, %f198, 0f7F7FFFFF;", "@%p2 st.global.f32 [%out+48], %f198;"]
    return Body("\n".join(timed), before="\n".join(before), after="\n".join(kept))


def _wgmma_descriptor(address: str, to: str) -> list[str]:
    """Return the descriptor of a tile at a shared address: rows of 128 bytes, 1,024 from 8 rows to the next."""
    bits = 1 << 16 | (1024 >> 4) << 32 | 1 << 62
    return [f"shr.u32 %r12, {address}, 4;", f"cvt.u64.u32 {to}, %r12;", f"or.b64 {to}, {to}, {bits:#x};"]


def tcgen05_shared(m: int, n: int, group: int) -> int:
    """Return the dynamic shared memory of `tcgen05_chain` in bytes, for each CTA."""
    return _OPERANDS + (m + n) // group * ROW_BYTES


def tcgen05_chain(kind: str, *, m: int, n: int, group: int) -> Body:
    """Return ``n`` commits of ``a`` instructions each (at least 1); the next ones are issued when a commit is complete.

    With ``a`` 1 a commit measures the latency of an instruction, with many the interval between them. ``m``, ``n``:
    the shape of the product over ``group`` CTAs. 128 threads a CTA; the first of the leading CTA issues.
    """
    of = KINDS[kind]
    scaled = kind == "mxf4nvf4"
    bits = of.bits | (n >> 3) << 17 | ((m >> 7) << 27 if scaled else (m >> 4) << 24)
    descriptor = 1 << 14 << 32 | (1024 >> 4) << 32 | 1 << 16 | 2 << 61
    rows = m // group
    suffix = ".block_scale.scale_vec::4X" if scaled else ""
    factors = ", [%r31], [%r32]" if scaled else ""

    def product(step: int) -> list[str]:
        return [
            "setp.ne.u32 %p2, %count, 0;",
            f"add.u64 %rd4, %rd2, {2 * step};",
            f"add.u64 %rd5, %rd3, {2 * step};",
            f"tcgen05.mma.cta_group::{group}.kind::{kind}{suffix} [%tmem], %rd4, %rd5, %r30{factors}, %p2;",
            "add.u32 %count, %count, 1;",
        ]

    issue = [
        "mov.b32 %r33, %a;",
        "FOURS:",
        f"setp.lt.u32 %p1, %r33, {STEPS};",
        "@%p1 bra SINGLES;",
        *(line for step in range(STEPS) for line in product(step)),
        f"sub.u32 %r33, %r33, {STEPS};",
        "bra FOURS;",
        "SINGLES:",
        "setp.eq.u32 %p1, %r33, 0;",
        "@%p1 bra COMMIT;",
        *product(0),
        "sub.u32 %r33, %r33, 1;",
        "bra SINGLES;",
        "COMMIT:",
        f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster.b64 [%smem];",
        wait("%smem", "%parity", "COMMITTED"),
        "xor.b32 %parity, %parity, 1;",
        "add.u32 %i, %i, 1;",
        "setp.lt.u32 %p1, %i, %n;",
        "@%p1 bra ISSUE;",
    ]
    before = [
        fill_shared(_OPERANDS, (m + n) // group * ROW_BYTES, threads=128, mask=of.mask, base=of.base),
        *allocate(group),
    ]
    if scaled:
        before += [
            *(f"mov.b32 %r{40 + number}, {_SCALES:#x};" for number in range(32)),
            f"add.u32 %r31, %tmem, {n};",
            f"add.u32 %r32, %tmem, {n + 16};",
            "shl.b32 %r34, %warp, 21;",
            "add.u32 %r34, %r31, %r34;",
            f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r34], {registers(40, 32)};",
            "tcgen05.wait::st.sync.aligned;",
        ]
    before += [
        "tcgen05.fence::before_thread_sync;",
        "bar.sync 0;",
        *([CLUSTER_MEET] if group == 2 else []),
        "tcgen05.fence::after_thread_sync;",
        f"mov.b32 %r30, {bits:#x};",
        *_tcgen05_descriptor(_OPERANDS, "%rd2", descriptor),
        *_tcgen05_descriptor(_OPERANDS + rows * ROW_BYTES, "%rd3", descriptor),
    ]
    leading = ["setp.ne.u32 %p3, %rank, 0;", "@%p3 bra IDLE;"] if group == 2 else []
    timed = [*leading, first_thread("\n".join(["ISSUE:", *issue]), "IDLE")]
    return Body("\n".join(timed), before="\n".join(before), after="\n".join(release(group)))


def _tcgen05_descriptor(offset: int, to: str, bits: int) -> list[str]:
    return [
        f"add.u32 %r12, %smem, {offset};",
        "shr.u32 %r12, %r12, 4;",
        f"cvt.u64.u32 {to}, %r12;",
        f"or.b64 {to}, {to}, {bits:#x};",
    ]


def registers(start: int, count: int) -> str:
    """Return a list of registers of 32 bits."""
    return "{" + ", ".join(f"%r{start + number}" for number in range(count)) + "}"


def allocate(group: int = 1) -> list[str]:
    """Return the allocation of all columns of tensor memory into ``%tmem``, and one mbarrier at ``%smem``.

    Every thread of a CTA of 128 executes it. A pair meets first: its allocation needs both CTAs to be there.
    """
    return [
        *([CLUSTER_MEET] if group == 2 else []),
        "setp.ne.u32 %p0, %warp, 0;",
        "@%p0 bra ALLOCATED;",
        f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%smem+16], {_COLUMNS};",
        f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;",
        "ALLOCATED:",
        first_thread("mbarrier.init.shared::cta.b64 [%smem], 1;\nfence.mbarrier_init.release.cluster;", "INITIALISED"),
        "tcgen05.fence::before_thread_sync;",
        "bar.sync 0;",
        "tcgen05.fence::after_thread_sync;",
        "ld.shared.b32 %tmem, [%smem+16];",
    ]


def release(group: int = 1) -> list[str]:
    """Return the release of tensor memory, after everything that used it."""
    return [
        "tcgen05.fence::before_thread_sync;",
        "bar.sync 0;",
        *([CLUSTER_MEET] if group == 2 else []),
        "tcgen05.fence::after_thread_sync;",
        "setp.ne.u32 %p0, %warp, 0;",
        "@%p0 bra RELEASED;",
        f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %tmem, {_COLUMNS};",
        "RELEASED:",
    ]
