"""Defects of which our analysis says nothing, and correct programs of which a tool says something; and why.

A test fails for one that is not here.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FALSE", "SILENT"]

_SCOPE = (
    "A wait without .cluster acquires from the own CTA only, says the ISA; NVIDIA's own kernels wait for what other "
    "CTAs write with the default scope (CUTLASS's ClusterBarrier), so an error would be told of all."
)

SILENT: Mapping[str, str] = {
    "bulk stores of a buffer that is written again: the fence comes behind the barrier, in the thread that stores": (
        "The fence is between the writes, which the barrier has ordered, and the store: it makes all of them visible."
    ),
    "wgmma of operands that are written twice: no barrier before the overwrite": (
        "wgmma.wait_group completes the whole warpgroup's operation: CUTLASS frees a stage after one warp's wait."
    ),
    "a CTA writes to its peer and arrives at its mbarrier: a wait that acquires from the own CTA only": _SCOPE,
}

FALSE: Mapping[tuple[str, str], str] = {
    ("a producer arrives at a named barrier that a consumer waits at", "racecheck"): (
        "A false finding, of the consumer's read before its bar.arrive 2 and the producer's write behind its "
        "bar.sync 2. When a barrier completes, says the ISA, the accesses before a bar.arrive are performed for all "
        "threads of the barrier, as those before a bar.sync are; and what follows a bar.sync is not requested before "
        "that. The same is told of the defect with a barrier that does not exist, and of that defect nothing else."
    ),
}
"""By program and tool."""
