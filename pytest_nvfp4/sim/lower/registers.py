"""Special registers as Python expressions (PTX ISA, "Special Registers").

``%clock``, ``%clock64`` and ``%globaltimer`` count the simulator's steps: they grow, and mean no time. Of the registers
that a driver defines, ``%envreg1`` and ``%envreg2`` are the halves of the address of a cooperative launch's workspace,
which is 0 in other launches (CUDA's ``cooperative_groups/details/driver_abi.h``).
"""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.sim.fault import Unsupported
from pytest_nvfp4.sim.lanes import Bits

_LANE = np.arange(32, dtype=np.uint32)
_LANE.flags.writeable = False
_ONE = np.uint32(1)

LANES: dict[str, Bits] = {
    "laneid": _LANE,
    "lanemask_eq": _ONE << _LANE,
    "lanemask_lt": (_ONE << _LANE) - _ONE,
    "lanemask_le": ((np.uint64(2) << _LANE.astype(np.uint64)) - np.uint64(1)).astype(np.uint32),
    "lanemask_gt": ~((np.uint64(2) << _LANE.astype(np.uint64)) - np.uint64(1)).astype(np.uint32),
    "lanemask_ge": ~((_ONE << _LANE) - _ONE),
}
"""The special registers that differ by lane."""

WORKSPACE = {"envreg1": "w.cta.launch.workspace >> 32", "envreg2": "w.cta.launch.workspace & 0xFFFFFFFF"}
"""The halves of the address of a cooperative launch's workspace."""
_SCALARS = {
    "warpid": "w.index",
    "nwarpid": "len(w.cta.warps)",
    "smid": "w.cta.launch.sm_of(w.cta)",
    "nsmid": "w.cta.launch.machine.model.sm_count",
    "cluster_ctarank": "w.cta.rank",
    "cluster_nctarank": "len(w.cta.cluster.ctas)",
    "is_explicit_cluster": "w.cta.launch.has_cluster",
    "dynamic_smem_size": "w.cta.launch.dynamic_shared",
    "total_smem_size": "w.cta.launch.shared_bytes",
    "clock": "w.cta.launch.machine.tick() & 0xFFFFFFFF",
    "clock_hi": "0",
    "globaltimer_lo": "w.cta.launch.machine.tick() & 0xFFFFFFFF",
    "globaltimer_hi": "0",
    **WORKSPACE,
}
_WIDE = {
    "clock64": "w.cta.launch.machine.tick()",
    "globaltimer": "w.cta.launch.machine.tick()",
    "gridid": "w.cta.launch.ordinal",
}
_VECTORS = {
    "tid": "w.tid[{}]",
    "ntid": "w.cta.launch.block[{}]",
    "ctaid": "w.cta.index[{}]",
    "nctaid": "w.cta.launch.shape[{}]",
    "clusterid": "w.cta.cluster.index[{}]",
    "nclusterid": "w.cta.launch.clusters[{}]",
    "cluster_ctaid": "w.cta.place[{}]",
    "cluster_nctaid": "w.cta.cluster.shape[{}]",
}


def special(name: str) -> tuple[str, int]:
    """Return the expression of a special register and its width in bits; those of ``LANES`` are ``lane_<name>``.

    Raises:
        Unsupported: a register that is not modelled (the other ``%envreg``, ``%pm``).
    """
    if name in LANES:
        return f"lane_{name}", 32
    if name in _SCALARS:
        return _SCALARS[name], 32
    if name in _WIDE:
        return _WIDE[name], 64
    base, _, axis = name.partition(".")
    if base in _VECTORS and axis in ("x", "y", "z"):
        return _VECTORS[base].format("xyz".index(axis)), 32
    raise Unsupported(f"special register %{name}")
