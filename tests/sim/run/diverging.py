"""Runs of bodies that leave one answer a lane."""

from __future__ import annotations

import numpy as np

from tests.sim.ptx_case import run_ptx


def out(body: str, **options: object) -> np.ndarray:
    """Run a body that leaves its answer in %r2, one a lane."""
    threads = 64
    ran = run_ptx(
        "mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd1, %r1, 4;\nadd.s64 %rd2, %rd100, %rd1;\n"
        + body
        + "\nDONE:\nst.global.b32 [%rd2], %r2;\n",
        buffers={"out": np.zeros(threads, np.uint32)},
        block=(threads, 1, 1),
        **options,  # type: ignore[arg-type]
    )
    return ran["out"]
