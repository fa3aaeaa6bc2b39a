"""Mutants of ``kernels/nvfp4_group_gemm/sm100.py``."""

from __future__ import annotations

from tests.sim.mutants.sm100 import address, arithmetic, count, descriptor, predicate, synchronisation

MUTANTS = tuple(
    one for part in (synchronisation, address, descriptor, predicate, count, arithmetic) for one in part.mutant.made
)
