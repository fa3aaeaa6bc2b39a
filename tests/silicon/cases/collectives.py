"""Warp collectives: shuffles of every mode, also out of range and by segments; votes, matches, redux, elect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.silicon.cases.blocks import SEED, by_thread, flag
from tests.silicon.model import Case

__all__ = ["cases"]

MODES = ("up", "down", "bfly", "idx")
MASKS = "and.b32 %r3, %r98, 1; setp.eq.u32 %p3, %r3, 0; selp.b32 %r4, 0x55555555, 0xaaaaaaaa, %p3;\n"
"""Even and odd lanes, each with the mask of its own half."""


def cases() -> Iterator[Case]:
    yield from _shuffles()
    yield _votes()
    yield _matches()
    yield _reductions()
    yield _elections()
    yield _activemask()


def _shuffles() -> Iterator[Case]:
    for mode in MODES:
        body, names, at = SEED, {}, 10
        for width in (1, 2, 4, 8, 16, 32):
            for b in (0, 1, 3, 7, 16, 31, 33, 40):
                c = (32 - width) << 8 | (0 if mode == "up" else 31)
                body += f"shfl.sync.{mode}.b32 %r{at}|%p1, %r1, {b}, {c}, -1;\n" + flag(f"%r{at + 1}", "%p1")
                names |= {f"width {width} by {b}": f"%r{at}", f"width {width} by {b}: in range": f"%r{at + 1}"}
                at += 2
                at += 10 if 90 <= at < 100 else 0
        yield by_thread(f"collectives.shfl.{mode}.constants", body, names)
        random = np.random.default_rng(len(mode))
        body, names, at = SEED, {}, 10
        for number in range(24):
            factor, c = int(random.integers(0, 64)), int(random.integers(0, 0x2000))
            body += f"mul.lo.u32 %r2, %r98, {factor}; shr.u32 %r5, %r1, 13;\n" + (
                f"xor.b32 %r2, %r2, %r5;\nmov.u32 %r6, {c};\n"
                f"shfl.sync.{mode}.b32 %r{at}|%p1, %r1, %r2, %r6, -1;\n" + flag(f"%r{at + 1}", "%p1")
            )
            names |= {f"{number}: factor {factor}, c {c:#x}": f"%r{at}", f"{number}: in range": f"%r{at + 1}"}
            at += 2
        yield by_thread(f"collectives.shfl.{mode}.registers", body, names)
    body = SEED + MASKS + "xor.b32 %r5, %r98, 2; shfl.sync.idx.b32 %r6, %r1, %r5, 31, %r4;"
    yield by_thread("collectives.shfl.masks", body, ["%r6"])


def _votes() -> Case:
    body = SEED + MASKS + "and.b32 %r5, %r1, 0x10000; setp.ne.u32 %p1, %r5, 0; setp.lt.u32 %p4, %r98, 32;\n"
    names, at = {}, 10
    for value in ("%p1", "!%p1", "%p3", "%p4", "!%p4"):
        for mask in ("-1", "%r4"):
            body += f"vote.sync.ballot.b32 %r{at}, {value}, {mask};\n"
            names[f"ballot {value} {mask}"] = f"%r{at}"
            at += 1
            for mode in ("any", "all", "uni"):
                body += f"vote.sync.{mode}.pred %p5, {value}, {mask};\n" + flag(f"%r{at}", "%p5")
                names[f"{mode} {value} {mask}"] = f"%r{at}"
                at += 1
    return by_thread("collectives.vote", body, names)


def _matches() -> Case:
    body = SEED + MASKS + "and.b32 %r5, %r98, 3; and.b32 %r6, %r98, 0x30;\n"
    body += "cvt.u64.u32 %rd1, %r5; shl.b64 %rd1, %rd1, 33; cvt.u64.u32 %rd2, %r6;\n"
    names, at = {}, 10
    for mask in ("-1", "%r4"):
        for kind, values in (("b32", ("%r1", "%r5", "%r6", "%r3")), ("b64", ("%rd1", "%rd2"))):
            for value in values:
                body += f"match.any.sync.{kind} %r{at}, {value}, {mask};\n"
                body += f"match.all.sync.{kind} %r{at + 1}|%p1, {value}, {mask};\n" + flag(f"%r{at + 2}", "%p1")
                names |= {f"any {value} {mask}": f"%r{at}", f"all {value} {mask}": f"%r{at + 1}"}
                names[f"all {value} {mask}: so"] = f"%r{at + 2}"
                at += 3
    return by_thread("collectives.match", body, names)


def _reductions() -> Case:
    body, names, at = SEED + MASKS, {}, 10
    for mask in ("-1", "%r4"):
        for op, kinds in (
            *((op, ("u32", "s32")) for op in ("add", "min", "max")),
            *((op, ("b32",)) for op in ("and", "or", "xor")),
        ):
            for kind in kinds:
                for value in ("%r1", "%r98"):
                    body += f"redux.sync.{op}.{kind} %r{at}, {value}, {mask};\n"
                    names[f"{op}.{kind} {value} {mask}"] = f"%r{at}"
                    at += 1
    return by_thread("collectives.redux", body, names)


def _elections() -> Case:
    body = MASKS
    for at, mask in ((10, "-1"), (20, "%r4")):
        body += f"elect.sync %r{at}|%p1, {mask};\n" + flag(f"%r{at + 1}", "%p1")
        # One is elected, it is in the mask, and it is who the others are told of: that much the ISA defines.
        body += f"vote.sync.ballot.b32 %r{at + 2}, %p1, {mask}; popc.b32 %r{at + 3}, %r{at + 2};\n"
        body += f"shl.b32 %r{at + 4}, 1, %r{at}; xor.b32 %r{at + 4}, %r{at + 4}, %r{at + 2};\n"
    which = "which lane is elected is open"
    names = {"elected": "%r10", "is": "%r11", "how many": "%r13", "told": "%r14"}
    names |= {"half: elected": "%r20", "half: is": "%r21", "half: how many": "%r23", "half: told": "%r24"}
    left_open = dict.fromkeys(("elected", "is", "half: elected", "half: is"), which)
    return by_thread("collectives.elect", body, names, open_=left_open)


def _activemask() -> Case:
    body = "activemask.b32 %r10;\nmov.u32 %r11, %lanemask_lt; mov.u32 %r12, %lanemask_le; mov.u32 %r13, %lanemask_gt;\n"
    body += "mov.u32 %r14, %lanemask_ge; mov.u32 %r15, %lanemask_eq; mov.u32 %r16, %laneid;\n"
    body += "mov.u32 %r17, %tid.x; mov.u32 %r18, %ntid.x; mov.u32 %r19, %ctaid.x; mov.u32 %r20, %nctaid.x;\n"
    body += "setp.lt.u32 %p1, %r98, 11;\nmov.u32 %r21, 0;\n@%p1 activemask.b32 %r21;\n"
    registers = {f"special {i}": f"%r{i}" for i in range(10, 21)}
    reason = "which lanes run together where a predicate holds them back is open"
    return by_thread(
        "collectives.special", body, {**registers, "guarded": "%r21", "smem": "%r99"}, threads=64, ctas=2,
        open_={"guarded": reason, "smem": "where shared memory starts is a machine's own"},
    )  # fmt: skip
