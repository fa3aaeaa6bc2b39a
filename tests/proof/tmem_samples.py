"""Types of kernels that use TMEM, and a pipeline of accumulators, column by column."""

from __future__ import annotations

import random

from pytest_nvfp4.tmem.phases import Placement, best_order

ACC = '!cute.memref<f32, tmem, align<16>, "((128,{n}),1,1,{stages}):((65536,1),0,0,{step})">'
SF = '!cute.memref<f8E4M3FN, tmem, align<16>, "((((32,{q}),4),(16,4)),1,4):((((262144,4),8388608),(0,1)),0,{step})">'
SFA, SFB_WIDE = SF.format(q=4, step=16), SF.format(q=8, step=32)
SMEM = '!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "(({rows},64),1,4,3):((256,1),0,64,{stage})">'
MMA = (
    "!cute.tiled_mma<!cute_nvgpu.sm100.mma_bs<{m}x{n}x64, num_cta = {ctas}, ab_major = (k, k), "
    "elem_type = (f4E2M1FN, f4E2M1FN, f32), sf_type = f8E4M3FN, frag_kind = ss, vec_size = 16>, "
    'atom_layout_MNK = <"(1,1,1):(0,0,0)">>'
)


def values(
    *, n: int = 128, stages: int = 1, step: int = 0, sfb: str = SFA, mma_n: int | None = None
) -> list[tuple[str, str]]:
    return [
        ("k.tiled_mma", MMA.format(m=128, n=mma_n or n, ctas=1)),
        ("k.sA", SMEM.format(rows=128, stage=32768)),
        ("k.sB", SMEM.format(rows=mma_n or n, stage=256 * (mma_n or n))),
        ("k.tCtAcc", ACC.format(n=n, stages=stages, step=step)),
        ("k.tCtSFA", SFA),
        ("k.tCtSFB", sfb),
        ("k.tDtAcc", '!cute.memref<f32, tmem, align<16>, "(((128,32),1),1,1,1):(((1,65536),0),0,0,0)">'),
    ]


def placement(
    starts: tuple[int, ...], *, width: int, subtile: int, others: tuple[tuple[str, tuple[int, int]], ...] = ()
) -> Placement:
    return Placement(starts, width, subtile, best_order(starts, width=width, subtile=subtile), others)


def pipeline_breaks(where: Placement, leads: tuple[int, ...], *, steps: int, seed: int) -> bool:
    """The pipeline by itself, column by column: an MMA writes into its columns while some hold what nobody has read."""
    draw = random.Random(seed)
    owner: dict[int, tuple[int, int]] = {}
    to_read: list[tuple[int, int]] = []
    started = finished = 0
    for _ in range(steps):
        moves = ["finish"] if finished < started else []
        if finished == started and len(to_read) <= leads[started % len(leads)]:
            moves.append("start")
        if to_read:
            moves.append("read")
        move = draw.choice(moves)
        if move == "start":
            first, end = where.stage(started)
            if any(column in owner for column in range(first, end)):
                return True
            for column in range(first, end):
                owner[column] = (started, (column - first) // where.subtile)
            started += 1
        elif move == "finish":
            to_read += [(finished, at) for at in where.order[finished % len(leads)]]
            finished += 1
        else:
            piece = to_read.pop(0)
            owner = {column: held for column, held in owner.items() if held != piece}
    return False
