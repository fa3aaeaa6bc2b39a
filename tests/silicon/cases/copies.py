"""Bulk copies of plain bytes: loads, multicast, stores, to another CTA, and reductions of every operation and type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tests.silicon.cases.spelled import integers, patterns
from tests.silicon.model import Case, case, noise
from tests.sim.tma.kernels import DATA, copy_in, copy_out, expect, first, prologue, wait

__all__ = ["DONE", "cases", "values"]

DONE = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
MEET = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
SHARED = 1 << 14
SIZE = 1024
TO_GLOBAL = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
TO_SHARED = {
    "add": ("u32", "s32", "u64"),
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
}


def values(kind: str, size: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that hold patterns worth trying of a type, and no NaN or infinity."""
    half = kind if kind in ("f16", "bf16", "f32", "f64") else ""
    width = 2 if kind in ("f16", "bf16") else int(kind[1:]) // 8
    raw = patterns(size // width, half, seed) if half else integers(size // width, 8 * width, seed)
    if half:
        infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F80_0000, "f64": 0x7FF << 52}[half]
        finite = (raw & np.uint64((1 << 8 * width - 1) - 1)) < np.uint64(infinity)
        raw = np.where(finite, raw, np.uint64(infinity // 2 + 77))
    return raw.astype(f"u{width}").view(np.uint8)


def cases() -> Iterator[Case]:
    yield from _loads()
    yield _multicast()
    yield _by_lane()
    yield from _stores()
    yield _to_peer("copies.to-peer", "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "b32")
    for op, kinds in TO_SHARED.items():
        for kind in kinds:
            opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{kind}"
            yield _to_peer(f"copies.reduce.peer.{op}.{kind}", opcode, kind)
    for op, kinds in TO_GLOBAL.items():
        for kind in kinds:
            flag = ".noftz" if op == "add" and kind in ("f16", "bf16") else ""
            yield _reduction(f"copies.reduce.global.{op}.{kind}", f"{op}{flag}.{kind}", kind)
    yield _of_subnormals()


def _loads() -> Iterator[Case]:
    for dst, tail, operands in (
        ("shared::cta", "", ""),
        ("shared::cluster", "", ""),
        ("shared::cluster", ".L2::cache_hint", ", %rd99"),
    ):
        issue = "createpolicy.fractional.L2::evict_last.b64 %rd99, 1.0;\n" if operands else ""
        total, at = 0, DATA
        copies = ((0, 16), (48, 1024), (16, 336), (2032, 2064))
        for start, size in copies:
            issue += (
                f"cp.async.bulk.{dst}.global.mbarrier::complete_tx::bytes{tail} "
                f"[%r1+{at}], [%rd100+{start}], {size}, [%r1]{operands};\n"
            )
            total, at = total + size, at + size
        body = [prologue(), first(expect(total) + "\n" + issue), wait(), copy_out(total, to="%rd101")]
        buffers = {"in": noise(4096, 1), "out": np.zeros(total, np.uint8)}
        name = f"copies.load.{dst.split('::')[1]}" + (".hint" if tail else "")
        yield case(name, "\n".join(body), buffers, ("out",), shared=SHARED)


def _multicast() -> Case:
    issue = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        f"[%r1+{DATA}], [%rd100], {SIZE}, [%r1], %rs1;"
    )
    body = [
        prologue(), MEET,
        first(f"{expect(SIZE)}\nsetp.ne.u32 %p4, %r2, 1;\n@%p4 bra ISSUED;\nmov.b16 %rs1, 3;\n{issue}\nISSUED:"),
        wait(), copy_out(SIZE, to="%rd101"), MEET,
    ]  # fmt: skip
    buffers = {"in": noise(SIZE, 2), "out": np.zeros(2 * SIZE, np.uint8)}
    return case(
        "copies.multicast", "\n".join(body), buffers, ("out",), shared=SHARED, grid=(2, 1, 1), cluster=(2, 1, 1)
    )


def _by_lane() -> Case:
    rows = (
        "shl.b32 %r6, %r0, 5;\nadd.u32 %r7, %r1, %r6;\ncvt.u64.u32 %rd2, %r6;\nadd.u64 %rd2, %rd100, %rd2;\n"
        f"cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r7+{DATA}], [%rd2], 32, [%r1];"
    )
    body = "\n".join([prologue(), first(expect(SIZE)), "bar.warp.sync -1;", rows, wait(), copy_out(SIZE, to="%rd101")])
    buffers = {"in": noise(SIZE, 3), "out": np.zeros(SIZE, np.uint8)}
    return case("copies.load.by-lane", body, buffers, ("out",), shared=SHARED)


def _stores() -> Iterator[Case]:
    plain = f"cp.async.bulk.global.shared::cta.bulk_group [%rd101+16], [%r1+{DATA}], {SIZE};"
    part = f"cp.async.bulk.global.shared::cta.bulk_group [%rd101+1040], [%r1+{DATA + 16}], 48;"
    yield _store("copies.store", f"{plain}\n{part}", noise(SIZE, 4), np.zeros(2 * SIZE, np.uint8))


def _store(name: str, issue: str, data: NDArray[np.uint8], out: NDArray[np.uint8]) -> Case:
    body = "\n".join([prologue(), copy_in(data.size, source="%rd100"), first(f"{issue}\n{DONE}")])
    return case(name, body, {"in": data, "out": out}, ("out",), shared=SHARED)


def _reduction(name: str, spelling: str, kind: str) -> Case:
    issue = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{spelling} [%rd101], [%r1+{DATA}], {SIZE};"
    return _store(name, issue, values(kind, SIZE, 5), values(kind, SIZE, 6))


def _of_subnormals() -> Case:
    """Each of 16 small numbers added to each, as f32: an H200 flushes none, though the ISA says that it does."""
    codes = np.array([0, 1, 2, 0x1234, 0x40_0000, 0x7F_FFFF, 0x80_0000, 0x80_0001], np.uint32)
    codes = np.concatenate([codes, codes | np.uint32(1 << 31)])
    issue = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd101], [%r1+{DATA}], {SIZE};"
    return _store("copies.reduce.global.subnormals", issue, np.repeat(codes, 16).view(np.uint8),
                  np.tile(codes, 16).view(np.uint8))  # fmt: skip


def _to_peer(name: str, opcode: str, kind: str) -> Case:
    """Each CTA of a pair sends 512 bytes to the other, where 512 bytes lie, and copies out what came of them."""
    body = [
        prologue(),
        "mov.u32 %r30, %ctaid.x;\nmul.wide.u32 %rd50, %r30, 512;\nadd.u64 %rd51, %rd50, %rd102;",
        "add.u64 %rd50, %rd50, %rd100;",
        copy_in(512, source="%rd50"),
        copy_in(512, source="%rd51", start=DATA + 1024),
        MEET,
        f"xor.b32 %r21, %r2, 1;\nadd.u32 %r24, %r1, {DATA + 1024};\nmapa.shared::cluster.u32 %r20, %r24, %r21;",
        "mapa.shared::cluster.u32 %r22, %r1, %r21;",
        first(expect(512) + f"\n{opcode} [%r20], [%r1+{DATA}], 512, [%r22];", "SENT"),
        wait(),
        copy_out(512, start=DATA + 1024, to="%rd101"),
        MEET,
    ]
    buffers = {"in": values(kind, SIZE, 7), "out": np.zeros(SIZE, np.uint8), "old": values(kind, SIZE, 8)}
    return case(name, "\n".join(body), buffers, ("out",), shared=SHARED, grid=(2, 1, 1), cluster=(2, 1, 1))
