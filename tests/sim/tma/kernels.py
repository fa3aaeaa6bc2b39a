"""PTX of the copies' tests: one thread issues, all wait, all copy shared memory out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.run.grid import Grid
from tests.sim.ptx_case import Ran, run_ptx
from tests.sim.tma.maps import Geometry

DATA = 1024
"""Where the data lie in dynamic shared memory, which starts at a multiple of 1,024; barriers lie before."""


def prologue(*, barriers: int = 1, count: int = 1) -> str:
    """%r0 the thread, %p0 true in all but the first, %r1 shared memory, %r2 the CTA's rank; barriers initialised."""
    lines = [
        "mov.u32 %r0, %tid.x;",
        "setp.ne.u32 %p0, %r0, 0;",
        "mov.u32 %r1, smem;",
        "mov.u32 %r2, %cluster_ctarank;",
        "@%p0 bra INITIALISED;",
    ]
    lines += [f"mbarrier.init.shared::cta.b64 [%r1+{8 * i}], {count};" for i in range(barriers)]
    return "\n".join([*lines, "fence.mbarrier_init.release.cluster;", "INITIALISED:", "bar.sync 0;"])


def first(body: str, label: str = "FIRST") -> str:
    """The body in the first thread only."""
    return f"@%p0 bra {label};\n{body}\n{label}:"


def expect(size: int, barrier: int = 0) -> str:
    return f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{8 * barrier}], {size};"


def wait(barrier: int = 0, parity: int = 0, label: str = "WAIT") -> str:
    return f"{label}:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1+{8 * barrier}], {parity};\n@!%p1 bra {label};"


def copy_out(size: int, *, start: int = DATA, to: str = "%rd102") -> str:
    """Shared memory from ``start`` to global memory, 16 bytes a thread; CTA after CTA."""
    lines = [
        "mov.u32 %r3, %ctaid.x;",
        f"mul.lo.u32 %r3, %r3, {size};",
        "shl.b32 %r4, %r0, 4;",
        "add.u32 %r3, %r3, %r4;",
        "cvt.u64.u32 %rd0, %r3;",
        f"add.u64 %rd0, %rd0, {to};",
        "add.u32 %r5, %r1, %r4;",
    ]
    for done in range(0, size, 512):
        if size - done < 512:
            lines.append(f"setp.lt.u32 %p2, %r0, {(size - done) // 16};")
        guard = "@%p2 " if size - done < 512 else ""
        lines.append(f"{guard}ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r5+{start + done}];")
        lines.append(f"{guard}st.global.v4.b32 [%rd0+{done}], {{%r10, %r11, %r12, %r13}};")
    return "\n".join(lines)


def copy_in(size: int, *, start: int = DATA, source: str = "%rd102") -> str:
    """Global memory to shared memory from ``start``."""
    lines = ["shl.b32 %r4, %r0, 4;", "cvt.u64.u32 %rd0, %r4;"]
    lines += [f"add.u64 %rd0, %rd0, {source};", "add.u32 %r5, %r1, %r4;"]
    for done in range(0, size, 512):
        if size - done < 512:
            lines.append(f"setp.lt.u32 %p2, %r0, {(size - done) // 16};")
        guard = "@%p2 " if size - done < 512 else ""
        lines.append(f"{guard}ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd0+{done}];")
        lines.append(f"{guard}st.shared.v4.b32 [%r5+{start + done}], {{%r10, %r11, %r12, %r13}};")
    return "\n".join([*lines, "fence.proxy.async.shared::cta;", "bar.sync 0;"])


def noise(size: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8)


def run_tensor(
    body: str,
    geometry: Geometry,
    *,
    extra: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    tensor: NDArray[Any] | None = None,
    prepare: Callable[[Grid], None] | None = None,
    **kwargs: Any,
) -> Ran:
    """Run with the buffers ``x`` (%rd100: a tensor of the geometry), ``map`` (%rd101) and those of ``extra``."""
    x = noise(geometry.extent + 64, seed) if tensor is None else tensor
    buffers = {"x": x, "map": np.zeros(128, np.uint8), **(extra or {})}

    def patch(grid: Grid) -> None:
        regions = {region.name: region for region in grid.machine.memory}
        regions["map"].data[:] = np.frombuffer(geometry.encode(regions["x"].start), np.uint8)
        if prepare is not None:
            prepare(grid)

    kwargs.setdefault("shared", 1 << 15)
    return run_ptx(body, buffers=buffers, prepare=patch, **kwargs)
