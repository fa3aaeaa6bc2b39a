"""Mutants of ``kernels/nvfp4_group_gemm/steps/map_updates.py``."""

from __future__ import annotations

from tests.sim.mutants.map_updates import address, arithmetic, count, descriptor, predicate, synchronisation

MUTANTS = tuple(
    one for part in (synchronisation, address, descriptor, predicate, count, arithmetic) for one in part.mutant.made
)
