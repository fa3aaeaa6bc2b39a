"""All tcgen05 instructions: opcode prefixes to lowerings, and those that may have to wait."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.lower.emitter import Lowering
from pytest_nvfp4.sim.tcgen05 import allocate, commit, copy, fence, loadstore, mma_forms, shift

__all__ = ["BLOCKING", "LOWERINGS"]

LOWERINGS: Mapping[str, Lowering] = {
    **allocate.LOWERINGS,
    **commit.LOWERINGS,
    **copy.LOWERINGS,
    **fence.LOWERINGS,
    **loadstore.LOWERINGS,
    **mma_forms.LOWERINGS,
    **shift.LOWERINGS,
}
BLOCKING: frozenset[str] = allocate.BLOCKING
