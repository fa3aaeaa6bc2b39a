"""How a worker process multiplies matrices: what OpenBLAS must be told before numpy is imported.

One thread: the CTAs of a large launch are shared between processes instead, and several kernels are compiled at once.
And its AVX-512 kernels, where the CPU is AMD's and has them: OpenBLAS knows only the processors of its own time, and
the one in numpy 2.4 takes newer AMD families for a Haswell. ``SKYLAKEX`` needs AVX512F, CD, BW, DQ and VL (OpenBLAS,
``dynamic.c``). Measured on an EPYC of family 26: 165 instead of 108 GFLOP/s on a product of 128 x 128 x 7,168.
Simulated results do not depend on it, as no product that is provably exact does on the order of its sums
(``sim.tcgen05.accumulate``). A worker that only compiles is told the same, so that both come from one nursery.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["kernels", "variables"]

_CPU = Path("/proc/cpuinfo")
_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
_CHOICE = "OPENBLAS_CORETYPE"


def kernels(cpu: str) -> str | None:
    """The OpenBLAS core whose kernels to take on a CPU, None to let it choose.

    Args:
        cpu: The text of ``/proc/cpuinfo``.
    """
    fields: dict[str, str] = {}
    for line in cpu.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if fields.get("vendor_id") == "AuthenticAMD" and _NEEDED.issubset(fields.get("flags", "").split()):
        return "SKYLAKEX"
    return None


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for the process; a choice of kernels that ``environ`` makes stands."""
    found = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    chosen = environ.get(_CHOICE)
    if chosen is None:
        try:
            chosen = kernels(_CPU.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            chosen = None
    if chosen:
        found[_CHOICE] = chosen
    return found
