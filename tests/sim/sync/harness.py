"""PTX for the tests of synchronisation: results by thread, faults and findings by kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_nvfp4.sim.fault import Fault
from tests.sim.ptx_case import Ran, run_ptx

PREAMBLE = """
mov.u32 %r0, %tid.x;
mov.u32 %r99, smem;
setp.eq.u32 %p0, %r0, 0;
"""
"""%r0 is the thread, %r99 the shared memory, %p0 thread 0."""


def run(body: str, *, threads: int = 32, shared: int = 1024, **options: Any) -> Ran:
    """Run a body after the preamble, in one CTA unless the options say otherwise."""
    return run_ptx(PREAMBLE + body, block=(threads, 1, 1), shared=shared, **options)


def results(body: str, *registers: str, threads: int = 32, **options: Any) -> list[NDArray[np.uint32]]:
    """The 32-bit registers at the end, by thread."""
    stores = "\n".join(f"st.global.b32 [%rd99+{4 * threads * i}], {register};" for i, register in enumerate(registers))
    text = f"""
{body}
mul.wide.u32 %rd98, %r0, 4;
add.u64 %rd99, %rd100, %rd98;
{stores}
"""
    out = {"out": np.zeros(threads * len(registers), np.uint32)}
    return list(run(text, threads=threads, buffers=out, **options)["out"].reshape(len(registers), threads))


def faults(kind: str, words: str, body: str, **options: Any) -> Fault:
    """The fault that the body must raise."""
    with pytest.raises(Fault, match=words) as raised:
        run(body, **options)
    assert raised.value.kind == kind, raised.value.message
    assert raised.value.where is not None
    return raised.value


def findings(body: str, **options: Any) -> list[tuple[str, str]]:
    """Kind and message of what was found without stopping."""
    return [(finding.kind, finding.message) for finding in run(body, **options).grid.findings]


def clean(body: str, **options: Any) -> Ran:
    """Run a body that nothing may be found in: the negative control."""
    ran = run(body, **options)
    assert ran.grid.findings == []
    return ran
