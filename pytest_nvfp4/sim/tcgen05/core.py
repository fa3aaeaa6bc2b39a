"""State of one CTA's tensor core that its MMAs, copies and commits share."""

from __future__ import annotations

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan, CopyShape
from pytest_nvfp4.sim.tcgen05.group import Pipe
from pytest_nvfp4.sim.tcgen05.issuers import Issuers
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaPlan
from pytest_nvfp4.sim.tcgen05.operand import SharedChunks
from pytest_nvfp4.sim.tcgen05.tile_cache import OperandTileCache
from pytest_nvfp4.sim.tcgen05.tmem import Tmem


class TensorCore:
    """Tensor core of one CTA: ``cta.unit(TensorCore)``.

    A loop issues the same copies and MMAs again and again. Their checked plans are cached here by operands; a plan is
    valid while the epoch of TMEM (``Tmem.epoch``) is the one it was made in.

    Attributes:
        chunks: The CTA's shared memory in units of 16 bytes.
        cache: Decoded operands, shared by all CTAs of the machine.
        without_data: Whether operations are checked and not executed.
        copies: Plans of ``tcgen05.cp`` by destination address, source descriptor and shape.
        plans: Plans of ``tcgen05.mma`` by operands and form.
    """

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
        self.without_data = cta.launch.machine.without_data
        self.copies: dict[tuple[int, int, CopyShape], CopyPlan] = {}
        self.plans: dict[tuple[object, ...], MmaPlan] = {}

    def dissolve(self) -> None:
        """Drop the plans, which refer back to the CTA, so that reference counting can free it."""
        self.copies.clear()
        self.plans.clear()
