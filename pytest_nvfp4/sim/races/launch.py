"""What the detector keeps of one launch: how its memory is divided, its flags, what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.races.access import Access, Who
from pytest_nvfp4.sim.races.agents import ClusterAgents, Owner, WarpAgent
from pytest_nvfp4.sim.races.clocks import ASYNC_GLOBAL, ASYNC_SHARED, Clock, Ticks
from pytest_nvfp4.sim.races.early_use import early_uses
from pytest_nvfp4.sim.races.findings import COPY_FENCE, PROXY, RACE, WARNING, Pair, Reporter
from pytest_nvfp4.sim.races.global_shadow import GlobalShadow, RegionShadow
from pytest_nvfp4.sim.races.leaving import Visits
from pytest_nvfp4.sim.races.orders import Order, order_of
from pytest_nvfp4.sim.races.overlap import Overlap
from pytest_nvfp4.sim.races.partition import Partition
from pytest_nvfp4.sim.races.shadow import Shadow
from pytest_nvfp4.sim.races.sync_variables import SyncVariables
from pytest_nvfp4.sim.races.tensor_order import TensorShadow, ordered_by_fences
from pytest_nvfp4.sim.races.touched import READ, STRONG_READ, ExtentTouched, RegionTouched, Touched
from pytest_nvfp4.sim.races.warp_lanes import GlobalTouch, Touch, matrix_of

if TYPE_CHECKING:
    from pytest_nvfp4.sim.memory.globals import Region
    from pytest_nvfp4.sim.run.cta import Cta
    from pytest_nvfp4.sim.run.grid import Grid
    from pytest_nvfp4.sim.tcgen05.monitor import PipeAccesses

__all__ = ["LANES_A_UNIT", "CtaMemory", "Doubts", "LaunchRaces", "Parts"]

LANES_A_UNIT = 16
"""Lanes of TMEM that are one unit: every shape of every instruction has a multiple of them, or is alone in its 32."""
_COLUMNS = 512
_UNITS_A_COLUMN = 128 // LANES_A_UNIT


Parts = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""What an operation of the tensor core touches, in parts: of shared memory, of TMEM that it reads, that it writes."""


Seen = tuple[int, int, NDArray[np.uint8], NDArray[np.int32]]
"""Where a region starts, the bytes of its units, how each is touched, and by which instruction, and one."""
Part = tuple[dict[tuple[object, ...], Finding], list[Seen], list[tuple[int, int]]]
"""What a forked process tells: findings; what it touched; which regions it read that are never written, and where."""


class Doubts:
    """Findings that depend on what a store is about to write.

    Attributes:
        storing: Whether a warp's store to global memory is being told of.
        doubts: What decides, once the store is done.
    """

    def __init__(self) -> None:
        self.storing = False
        self.doubts: list[Callable[[], None]] = []

    def global_written(self) -> None:
        """The store is done."""
        doubts, self.doubts = self.doubts, []
        for decide in doubts:
            decide()


class CtaMemory:
    """The shadows of a CTA's memories: ``cta.unit(CtaMemory)``."""

    __slots__ = ("agents", "cta", "gathered", "launch", "shared", "tmem", "visits")

    def __init__(self, cta: Cta) -> None:
        launch = self.launch = cta.launch.unit(LaunchRaces)
        self.cta: Cta | None = cta
        self.agents = cta.cluster.unit(ClusterAgents)
        self.visits = Visits(self.agents.clocks)
        launch.owners[self.agents.clocks.number] = self.agents.clocks.owners
        who = f" of CTA rank {cta.rank}" if len(cta.cluster.ctas) > 1 else ""
        self.shared = Shadow(launch.shared, launch.shared_conflict, agents=self.agents, name=f"shared memory{who}")
        kind = TensorShadow if launch.warnings else Shadow
        self.tmem = kind(launch.tmem, launch.tmem_conflict, agents=self.agents, name=f"TMEM{who}", in_order=True)
        if isinstance(self.tmem, TensorShadow):
            self.tmem.omission = launch.tmem_omission
            self.tmem.told, self.tmem.commits = launch.told_omissions, launch.told_commits
        self.gathered: dict[int, int] = {}
        """By warp that has left a cluster barrier, its tick then: all CTAs had started."""

    def at_exit(self) -> None:
        """The CTA has ended: nobody may use it any more."""
        cta = self.cta
        if cta is not None and self.visits.last:
            numbers = [warp.units[WarpAgent].number for warp in cta.warps if WarpAgent in warp.units]
            self.visits.check(cta, self.launch, numbers)

    def dissolve(self) -> None:
        """The cluster has ended: let go of what refers back to it."""
        self.cta = None
        self.agents.dissolve()
        self.shared.dissolve()
        self.tmem.dissolve()


class LaunchRaces:
    """``launch.unit(LaunchRaces)``.

    Attributes:
        warnings: Whether what official kernels leave out is told.
        followed: Whether somebody wants to know what the launch touches.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.warnings = bool(getattr(grid.machine.monitor, "warnings", False))
        self.followed = bool(getattr(grid.machine.monitor, "followed", False))
        self.shared = Partition(max(1, grid.shared_bytes))
        self.tmem = Partition(_COLUMNS * _UNITS_A_COLUMN)
        self.memory = GlobalShadow(self.global_conflict)
        self.variables = SyncVariables()
        self.reporter = Reporter(grid)
        self.owners: dict[int, list[Owner]] = {}
        """By cluster, what its agents are."""
        self.told_omissions: set[tuple[int, int, tuple[str, ...]]] = set()
        self.told_commits: set[tuple[int, int]] = set()
        self.overlap: Overlap | None = None
        """The launch before this one, if it may still run."""
        self.touches: dict[PipeAccesses, Parts] = {}
        """What operations of the tensor core touch."""
        self._kinds: dict[int, tuple[str, str]] = {}
        self._orders: dict[int, Order] = {}
        self._relaxed: dict[int, bool] = {}
        self._matrices: dict[int, int] = {}
        self._early: dict[int, int] | None = None
        self._told_early: set[str] = set()
        self._elsewhere: list[Seen] = []
        """What other processes have touched."""

    @cached_property
    def changes_maps(self) -> bool:
        """Whether the kernel modifies tensor maps."""
        return any(instruction.root == "tensormap" for instruction in self.grid.kernel.instructions)

    def order(self, at: int) -> Order:
        """The memory order of an instruction."""
        found = self._orders.get(at)
        if found is None:
            found = self._orders[at] = order_of(self.grid.kernel.instructions[at])
        return found

    def tensor_kind(self, at: int) -> tuple[str, str]:
        """What a tcgen05 instruction is (``mma``, ``cp``, ``ld`` ...), and the kind of an MMA."""
        found = self._kinds.get(at)
        if found is None:
            parts = self.grid.kernel.instructions[at].parts
            found = self._kinds[at] = (parts[1], next((part for part in parts if part.startswith("kind::")), ""))
        return found

    def relaxed(self, at: int) -> bool:
        """Whether a barrier instruction is ``.relaxed``."""
        found = self._relaxed.get(at)
        if found is None:
            found = self._relaxed[at] = "relaxed" in self.grid.kernel.instructions[at].parts
        return found

    def matrix(self, at: int) -> int:
        """How the lanes of an instruction hold what they touch in shared memory."""
        found = self._matrices.get(at)
        if found is None:
            found = self._matrices[at] = matrix_of(self.grid.kernel.instructions[at])
        return found

    def touched(self) -> list[Touched]:
        """What the launch has touched of global memory, in all of its processes."""
        found = {
            region.start: self._touched(region, unit, kinds, at) for region, unit, kinds, at in self.memory.touched()
        }
        regions = {region.start: region for region in self.grid.machine.memory}
        for start, unit, kinds, at in self._elsewhere:
            if start in found:
                found[start].add(unit, kinds, at)
            elif start in regions:
                found[start] = self._touched(regions[start], unit, kinds, at)
        read = [
            ExtentTouched(Extent(region.start, region.size), READ, self.grid.say(region.read_at))
            for region in regions.values()
            if region.read_at >= 0 and not region.writable
        ]
        return [*found.values(), *read]

    def _touched(self, region: Region, unit: int, kinds: NDArray[np.uint8], at: NDArray[np.int32]) -> RegionTouched:
        """An ``atom`` reads what it updates; a ``red`` does not."""
        known = np.flatnonzero(np.bincount(at)).tolist()
        atoms = [one for one in known if one and self.grid.kernel.instructions[one - 1].root == "atom"]
        if atoms:
            kinds = np.where(np.isin(at, atoms), kinds | STRONG_READ, kinds).astype(np.uint8)
        return RegionTouched(region, unit, kinds, at, self.grid.say)

    def part(self) -> Part:
        """What a forked process tells."""
        if not self.followed:
            return self.reporter.part(), [], []
        seen = [(region.start, unit, kinds, at) for region, unit, kinds, at in self.memory.touched() if kinds.any()]
        read = [(one.start, one.read_at) for one in self.grid.machine.memory if one.read_at >= 0]
        return self.reporter.part(), seen, read

    def absorb(self, part: Part) -> None:
        """Add what another process told."""
        told, seen, read = part
        self.reporter.absorb(told)
        self._elsewhere += seen
        regions = {region.start: region for region in self.grid.machine.memory}
        for start, at in read:
            regions[start].read_at = at

    # ---- pairs ---------------------------------------------------------------------------------------------------

    def shared_conflict(
        self, shadow: Shadow, part: int, old: Access, old_writes: bool, new: Access, new_writes: bool, proxy: bool,
        ticks: Ticks,
    ) -> None:  # fmt: skip
        """Two accesses to shared memory are not ordered."""
        agents, name = shadow.agents, shadow.name
        assert agents is not None
        low, high, size = self.shared.extent(part)
        place = f"{name} bytes [{low}, {high})" + ("" if size == high - low else f" ({size} bytes of them)")
        if proxy and agents.clocks.owners[old.agent].kind == "cp.async":
            self._tell(agents, WARNING, place, old, new, (old_writes, new_writes), (COPY_FENCE,))
        else:
            self._tell(agents, PROXY if proxy else RACE, place, old, new, (old_writes, new_writes))
        _heal(agents, ticks, old, ASYNC_SHARED if proxy else None)

    def lanes_conflict(self, agent: WarpAgent, old: Touch, new: Access, writes: tuple[bool, bool]) -> None:
        """Two lanes of one warp touch shared memory, and nothing orders them."""
        place = f"shared memory bytes [{old.low}, {old.high})"
        before = Access(agent.number, new.tick, 0, old.at, agent.who)
        self.reporter.pair(Pair(RACE, place, before, new, (agent.owner, agent.owner), writes))

    def lanes_conflict_there(
        self, agent: WarpAgent, region: Region, found: tuple[GlobalTouch, int], touch: GlobalTouch, new: Access
    ) -> None:
        """Two lanes of one warp touch global memory, and nothing orders them."""
        old, byte = found
        before = Access(agent.number, new.tick, 0, old.at, agent.who)
        place = f"global memory at {region.say(byte)}"
        self.reporter.pair(Pair(RACE, place, before, new, (agent.owner, agent.owner), (old.writes, touch.writes)))

    def tmem_conflict(
        self, shadow: Shadow, part: int, old: Access, old_writes: bool, new: Access, new_writes: bool, _proxy: bool,
        ticks: Ticks,
    ) -> None:  # fmt: skip
        """Two accesses to tensor memory, which has no proxies, are not ordered."""
        if ordered_by_fences(old, new):
            return
        agents = shadow.agents
        assert agents is not None
        self._tell(agents, RACE, self._columns(shadow, part), old, new, (old_writes, new_writes))
        _heal(agents, ticks, old, None)

    def map_conflict(self, agent: WarpAgent, place: str, old: Access, new: Access) -> None:
        """A tensor map is overwritten that a store may still read."""
        self._tell(agent.agents, RACE, place, old, new, (False, True))

    def tmem_omission(
        self, shadow: Shadow, part: int, old: Access, old_writes: bool, new: Access, new_writes: bool,
        missing: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Two accesses to tensor memory are ordered, but for a fence or wait that the ISA wants."""
        agents = shadow.agents
        assert agents is not None
        self._tell(agents, WARNING, self._columns(shadow, part), old, new, (old_writes, new_writes), missing)

    def loaded(self, who: Who, at: int) -> None:
        """A ``tcgen05.ld`` runs: tell of a use of its registers before a wait."""
        if self._early is None:
            self._early = early_uses(self.grid.program.flow)
        use = self._early.pop(at, None)
        line = self.grid.say(at).split(" (")[0]
        if use is None or line in self._told_early:
            return
        self._told_early.add(line)
        self.reporter.other(
            WARNING,
            f"{self.grid.say(use)} in {who} uses a register that {line} (tcgen05.ld) in {who} loads, on a way "
            "without tcgen05.wait::ld: the PTX ISA respects this true dependency, so that the value is right, and "
            "orders nothing else by it; official kernels leave the wait out",
            f"tcgen05.wait::ld (cute.arch.fence_view_async_tmem_load) in {who} after {line}",
            who=who,
            at=use,
        )

    def _columns(self, shadow: Shadow, part: int) -> str:
        """A part of tensor memory in words."""
        low, high, _ = self.tmem.extent(part)
        first, last = low // _UNITS_A_COLUMN, (high - 1) // _UNITS_A_COLUMN
        lane = low % _UNITS_A_COLUMN * LANES_A_UNIT
        return f"{shadow.name} columns [{first}, {last + 1}) from lane {lane} on"

    def global_conflict(
        self, shadow: RegionShadow, offset: int, old: Access, old_writes: bool, new: Access, new_writes: bool,
        proxy: bool, clock: Clock,
    ) -> None:  # fmt: skip
        """Two accesses to global memory are not ordered.

        Two warps that store the same values by the same statement do no harm: the bytes are the same in any order
        (PTX ISA, "Memory Consistency Model": a race of accesses of one size is not undefined). NVIDIA's kernels do so.
        """
        region = shadow.region
        foreign = old.who.cluster != new.who.cluster
        owners = (self.owners[old.who.cluster][old.agent], self.owners[new.who.cluster][new.agent])
        place = f"global memory at {region.say(region.start + offset)}"
        pair = Pair(PROXY if proxy else RACE, place, old, new, owners, (old_writes, new_writes), foreign=foreign)
        monitor = self.grid.machine.monitor
        alike = old_writes and not old.flags and self.grid.say(old.at) == self.grid.say(new.at)
        if alike and isinstance(monitor, Doubts) and monitor.storing:
            before = region.data.copy()
            monitor.doubts.append(lambda: None if (region.data == before).all() else self.reporter.pair(pair))
            return
        self.reporter.pair(pair)
        if not foreign:
            _heal(None, clock.ticks, old, ASYNC_GLOBAL if proxy else None)

    def _tell(
        self, agents: ClusterAgents, kind: str, place: str, old: Access, new: Access, writes: tuple[bool, bool],
        missing: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        owners = agents.clocks.owners
        knower = _knower(agents, old, new) if kind == RACE else None
        both = owners[old.agent], owners[new.agent]
        self.reporter.pair(Pair(kind, place, old, new, both, writes, knower=knower, missing=missing))


def _knower(agents: ClusterAgents, old: Access, new: Access) -> Who | None:
    """A warp that has waited for work beside the warps: whoever issued it, or else another but the later one's."""
    if agents.clocks.owners[old.agent].kind == "warp":
        return None
    knowing = [
        agent.who
        for agent in agents.clocks.agents.values()
        if isinstance(agent, WarpAgent) and agent.who is not new.who and agent.knows(old.agent, old.tick)
    ]
    return next((who for who in knowing if who is old.who), knowing[0] if knowing else None)


def _heal(agents: ClusterAgents | None, ticks: Ticks, old: Access, row: int | None) -> None:
    """Count the pair as ordered, and so all that the earlier one knows: what follows from it is not another finding."""
    earlier = agents.clocks.agents.get(old.agent) if agents is not None and row is None else None
    if earlier is not None and earlier.clock.ticks.shape == ticks.shape:
        np.maximum(ticks, earlier.clock.ticks, out=ticks)
        if earlier.asynchronous:
            earlier.next_tick()
        else:
            earlier.advance()
    rows = slice(None) if row is None else slice(row, row + 1)
    column = ticks[rows, old.agent]
    np.maximum(column, old.tick, out=column)
