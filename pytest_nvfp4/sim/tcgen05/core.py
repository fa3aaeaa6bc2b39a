"""One CTA's tensor core: TMEM, shared memory in chunks, its pipe, and what is known of operands already looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.sim.tcgen05.group import Pipe
from pytest_nvfp4.sim.tcgen05.issuers import Issuers
from pytest_nvfp4.sim.tcgen05.operand import SharedChunks
from pytest_nvfp4.sim.tcgen05.operand_tiles import OperandTileCache
from pytest_nvfp4.sim.tcgen05.tmem import Tmem

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.tcgen05.copy import CopyPlan, CopyShape
    from pytest_nvfp4.sim.tcgen05.mma import MmaPlan

__all__ = ["TensorCore"]


class TensorCore:
    """``cta.unit(TensorCore)``."""

    __slots__ = (
        "cache", "chunks", "copies", "counters", "cta", "issuers", "machine", "pipe", "plans", "submit", "tmem",
    )  # fmt: skip

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.tmem = cta.unit(Tmem)
        self.pipe = cta.unit(Pipe)
        self.issuers = cta.unit(Issuers)
        self.chunks = SharedChunks(cta.shared)
        self.cache = cta.launch.machine.unit(OperandTileCache)
        self.counters = cta.launch.counters
        self.machine = cta.launch.machine
        self.submit = cta.launch.machine.asynchronous.submit
        self.copies: dict[tuple[int, int, CopyShape], CopyPlan] = {}
        """Copies that were checked, by operands and shape, and hold in one epoch of TMEM."""
        self.plans: dict[tuple[object, ...], MmaPlan] = {}
        """MMAs that were checked, likewise."""

    def dissolve(self) -> None:
        """Let go of what refers back to it."""
        self.copies.clear()
        self.plans.clear()
