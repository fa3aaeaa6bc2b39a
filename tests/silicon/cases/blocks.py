"""Kernels whose threads keep registers: what most families are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.silicon.model import Case, Part, Reported, Rule, case

__all__ = ["SEED", "by_thread", "flag"]

PREAMBLE = """
mov.u32 %r0, %tid.x;
mov.u32 %r99, smem;
mov.u32 %r98, %laneid;
setp.eq.u32 %p0, %r0, 0;
mov.u32 %r97, %ctaid.x;
mov.u32 %r96, %ntid.x;
mad.lo.u32 %r97, %r97, %r96, %r0;
mul.wide.u32 %rd98, %r97, 4;
add.u64 %rd99, %rd100, %rd98;
"""
"""%r0 the thread, %r98 its lane, %r97 its number in the grid, %p0 thread 0, %r99 shared memory; %rd98 4 * %r97."""

SEED = "mul.lo.u32 %r1, %r97, 2654435761; xor.b32 %r1, %r1, 0x5bd1e995;\n"
"""%r1: bits that tell threads apart."""


def flag(register: str, predicate: str) -> str:
    """A predicate as a number."""
    return f"selp.u32 {register}, 1, 0, {predicate};\n"


def by_thread(
    name: str,
    body: str,
    registers: Sequence[str] | Mapping[str, str],
    *,
    threads: int = 32,
    ctas: int = 1,
    shared: int = 1024,
    buffers: Mapping[str, NDArray[Any]] | None = None,
    outputs: tuple[str, ...] = (),
    rules: Mapping[str, Rule] | None = None,
    open_: Mapping[str, str] | None = None,
    **more: Any,
) -> Case:
    """A case whose output ``out`` has the 32-bit registers at the end, by thread of the grid.

    The buffers are in ``%rd101`` onwards; ``outputs`` names those of them that are kept as well. ``registers`` may give
    names to what they hold; ``rules`` (by name) and ``open_`` (by name, with the reason) say how it compares.
    """
    named = dict(registers) if isinstance(registers, Mapping) else {register: register for register in registers}
    total = threads * ctas
    stores = "\n".join(
        f"st.global.b32 [%rd99+{4 * total * i}], {register};" for i, register in enumerate(named.values())
    )
    stated: dict[str, Rule] = {**(rules or {}), **{n: Reported(reason) for n, reason in (open_ or {}).items()}}
    parts = tuple(
        Part(label, "out", i * total, (i + 1) * total, **({"rule": stated[label]} if label in stated else {}))
        for i, label in enumerate(named)
    )
    out = {"out": np.zeros(total * len(named), np.uint32)} if named else {"out": np.zeros(1, np.uint32)}
    return case(
        name,
        PREAMBLE + body + "\n" + stores,
        {**out, **(buffers or {})},
        ("out", *outputs),
        grid=(ctas, 1, 1),
        block=(threads, 1, 1),
        shared=shared,
        parts=parts,
        **more,
    )
