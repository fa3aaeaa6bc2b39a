"""Runs one warpgroup's ``wgmma`` on an image of shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.sim.ptx_case import Ran, run_ptx

PROLOGUE = """
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd1, %r1, 16;
add.s64 %rd2, %rd100, %rd1;
mov.u32 %r2, smem;
mad.lo.u32 %r3, %r1, 16, %r2;
"""


def load_image(size: int, *, threads: int = 128) -> str:
    """Copy ``size`` bytes from the first buffer to shared memory."""
    lines = [PROLOGUE]
    for at in range(0, size, 16 * threads):
        guard = ""
        if at + 16 * threads > size:
            lines.append(f"setp.lt.u32 %p9, %r1, {(size - at) // 16};")
            guard = "@%p9 "
        lines.append(f"{guard}ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2+{at}];")
        lines.append(f"{guard}st.shared.v4.b32 [%r3+{at}], {{%r4, %r5, %r6, %r7}};")
    lines.append("fence.proxy.async.shared::cta;")
    lines.append("bar.sync 0;")
    return "\n".join(lines)


def registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def store(first: int, count: int, buffer: int = 1, offset: int = 0) -> str:
    """Store ``count`` registers of a thread to its row of a buffer ``(threads, count)`` of 32 bits."""
    lines = [f"mul.wide.u32 %rd3, %r1, {4 * count};", f"add.s64 %rd4, %rd{100 + buffer}, %rd3;"]
    lines += [f"st.global.b32 [%rd4+{offset + 4 * i}], %r{first + i};" for i in range(count)]
    return "\n".join(lines)


def load(first: int, count: int, buffer: int) -> str:
    """The inverse."""
    lines = [f"mul.wide.u32 %rd5, %r1, {4 * count};", f"add.s64 %rd6, %rd{100 + buffer}, %rd5;"]
    lines += [f"ld.global.b32 %r{first + i}, [%rd6+{4 * i}];" for i in range(count)]
    return "\n".join(lines)


def wgmma(
    opcode: str, count: int, a: int | str, b: int, *, flags: str = "1, 1", scale: str = "1", first: int = 20
) -> str:
    """One instruction; ``a`` is a descriptor or a register list."""
    lines = [f"setp.ne.b32 %p1, {scale}, 0;", f"mov.b64 %rd10, {b};"]
    if isinstance(a, int):
        lines.append(f"mov.b64 %rd9, {a};")
        a = "%rd9"
    tail = f", {flags}" if flags else ""
    lines.append(f"wgmma.mma_async.sync.aligned.{opcode} {registers(first, count)}, {a}, %rd10, %p1{tail};")
    return "\n".join(lines)


FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"


def wait(pending: int = 0) -> str:
    return f"wgmma.wait_group.sync.aligned {pending};"


def run(body: str, image: NDArray[np.uint8], out: tuple[int, int], *, threads: int = 128, **more: Any) -> Ran:
    """Run ``body`` after the image is in shared memory. Buffers: image, out, then those of ``extra``."""
    extra = more.pop("extra", {})
    text = load_image(image.size, threads=threads) + "\n" + body
    return run_ptx(
        text,
        buffers={"image": image, "out": np.zeros(out, np.uint32), **extra},
        block=(threads, 1, 1),
        shared=more.pop("shared", image.size),
        arch="sm_90a",
        **more,
    )
