"""Environment variables that configure OpenBLAS in worker processes; they must be set before numpy is imported.

Matrix products use one thread, because the CTAs of a large launch are shared between processes and several kernels are
compiled at once. On an AMD CPU with AVX-512 they use the kernels of core type ``SKYLAKEX``: OpenBLAS recognises only
processors older than itself, and the one in numpy 2.4 treats newer AMD families as Haswell. ``SKYLAKEX`` requires
AVX512F, CD, BW, DQ and VL (OpenBLAS, ``dynamic.c``). Measured on an EPYC of family 26: 165 instead of 108 GFLOP/s for
a product of 128 x 128 x 7,168. Simulated results do not depend on the choice, because every product that is provably
exact is independent of the order of its sums (``sim.tcgen05.accumulate``). Workers that only compile get the same
variables, so that they share a fork server with those that simulate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_REQUIRED_FLAGS = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
_CORE_TYPE_VARIABLE = "OPENBLAS_CORETYPE"


def core_type(cpu_info: str) -> str | None:
    """Return the OpenBLAS core type for a CPU (text of ``/proc/cpuinfo``), or None to let OpenBLAS choose."""
    fields: dict[str, str] = {}
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if fields.get("vendor_id") == "AuthenticAMD" and _REQUIRED_FLAGS.issubset(fields.get("flags", "").split()):
        return "SKYLAKEX"
    return None


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for a worker; a core type chosen in ``environ`` takes precedence."""
    result = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    chosen = environ.get(_CORE_TYPE_VARIABLE)
    if chosen is None:
        try:
            chosen = core_type(_CPU_INFO.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            chosen = None
    if chosen:
        result[_CORE_TYPE_VARIABLE] = chosen
    return result
