"""Bulk copies of one dimension: to shared memory, to a peer, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from tests.sim.ptx_case import Ran, run_ptx
from tests.sim.tma.kernels import DATA, copy_in, copy_out, expect, first, noise, prologue, wait

LOAD = "cp.async.bulk.{dst}.global.mbarrier::complete_tx::bytes{tail} [%r1+{to}], [{src}], {size}, [%r1]{operands};"
CLUSTER = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
DONE = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
SHARED = 1 << 14


def load(
    *,
    dst: str = "shared::cta",
    tail: str = "",
    to: int = DATA,
    src: str = "%rd100",
    size: int = 1024,
    operands: str = "",
) -> str:
    return LOAD.format(dst=dst, tail=tail, to=to, src=src, size=size, operands=operands)


def run_load(issue: str, *, size: int = 1024, **kwargs: Any) -> Ran:
    body = "\n".join([prologue(), first(expect(size) + "\n" + issue), wait(), copy_out(size, to="%rd101")])
    buffers = {"in": noise(4096), "out": np.zeros(4096, np.uint8)}
    return run_ptx(body, buffers=buffers, shared=SHARED, **kwargs)


def to_peer(
    opcode: str = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    rank: str = "xor.b32 %r21, %r2, 1;",
) -> str:
    return "\n".join(
        [
            rank,
            f"add.u32 %r24, %r1, {DATA + 1024};",
            "mapa.shared::cluster.u32 %r20, %r24, %r21;",
            "mapa.shared::cluster.u32 %r22, %r1, %r21;",
            first(expect(512) + f"\n{opcode} [%r20], [%r1+{DATA}], 512, [%r22];", "SENT"),
        ]
    )


def exchange(send: str, *, before: str = "", asynchronous: Asynchronous | None = None) -> Ran:
    """Each CTA of a pair sends 512 bytes of its own to the other, and copies out what it got."""
    own = "mov.u32 %r30, %ctaid.x;\nmul.wide.u32 %rd50, %r30, 512;\nadd.u64 %rd50, %rd50, %rd100;"
    other = "mul.wide.u32 %rd51, %r30, 512;\nadd.u64 %rd51, %rd51, %rd102;" if before else ""
    body = "\n".join(
        [
            prologue(),
            own,
            copy_in(512, source="%rd50"),
            other,
            copy_in(512, source="%rd51", start=DATA + 1024) if before else "",
            CLUSTER,
            send,
            wait(),
            copy_out(512, start=DATA + 1024, to="%rd101"),
            CLUSTER,
        ]
    )
    buffers = {"in": noise(1024, 1), "out": np.zeros(1024, np.uint8), "old": noise(1024, 2)}
    return run_ptx(body, buffers=buffers, shared=SHARED, grid=(2, 1, 1), cluster=(2, 1, 1), asynchronous=asynchronous)


def run_store(
    issue: str,
    *,
    size: int = 1024,
    data: NDArray[Any] | None = None,
    out: NDArray[Any] | None = None,
    after: str = DONE,
    **kwargs: Any,
) -> Ran:
    body = "\n".join([prologue(), copy_in(size, source="%rd100"), first(issue + "\n" + after)])
    data = noise(size, 3) if data is None else data
    buffers = {"in": data, "out": np.zeros(2 * size, np.uint8) if out is None else out}
    return run_ptx(body, buffers=buffers, shared=SHARED, **kwargs)
