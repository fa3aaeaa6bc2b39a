"""One load instruction that runs twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_nvfp4.driver.tensormap import ElementType
from tests.sim.ptx_case import Ran
from tests.sim.tma.kernels import DATA, copy_out, expect, first, prologue, run_tensor
from tests.sim.tma.maps import Geometry

BOX = Geometry(ElementType.F16, (96, 40), (208,), (64, 16), (), 3)
LOAD = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
    f"[%r1+{DATA}], [%rd101, {{%r20, %r21}}], [%r1];"
)
WAIT = """
W{i}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], {parity}; @!%p1 bra W{i};
"""


def twice(between: str = "", *, parity: str = "%r22", waits: bool = True, **options: Any) -> Ran:
    """One load instruction, run for the boxes at (0, 0) and (32, 7); ``between`` runs before the second."""
    wait = WAIT.format(i=0, parity=parity) if waits else ""
    body = f"""
{prologue(count=1 if waits else 2)}
mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0;
LOOP:
{first(expect(BOX.bytes) + between_second(between) + LOAD)}
{wait}
bar.sync 0;
add.u32 %r20, %r20, 32; add.u32 %r21, %r21, 7; add.u32 %r22, %r22, 1;
setp.lt.u32 %p3, %r22, 2;
@%p3 bra LOOP;
{"" if waits else WAIT.format(i=9, parity="0")}
{copy_out(BOX.bytes)}
"""
    return run_tensor(body, BOX, extra={"out": np.zeros(BOX.bytes, np.uint8)}, **options)


def between_second(body: str) -> str:
    return f"setp.eq.u32 %p4, %r22, 0;\n@%p4 bra SECOND;\n{body}\nSECOND:\n"
