"""The detector's hooks for tensor maps that a kernel changes, in shared and in global memory.

In global memory every use of a map by the TMA (load, store, reduction, prefetch) is a read of its 128 bytes, ordered
like any other: behind the last write of each CTA, by happens-before, and before the next one. ``sync.fences`` checks
the fences of the tensormap proxy, which are needed besides: PTX ISA, "Proxies". Equal bytes are no excuse, because the
proxy caches maps and reads them in pieces, and no section of the ISA defines what a read that meets a write returns.

A use has ended when

- of a load, a wait has seen the phase in which the ``complete_tx`` of its bytes counts. Only the last load of a warp
  needs that: the TMA takes the copies of a warp in the order of their issue, and reads the map first. CUTLASS's grouped
  kernels rely on this; before they update a map, they wait for the last stage that they have filled.
- of a store, a ``wait_group`` for its group, with ``.read`` too, has ended (PTX ISA, "cp.async.bulk.wait_group": the
  operations "have read their tensor maps"). A wait of any lane counts for all stores of its warp: CuTe DSL emits both
  for the whole warp or for one lane.

A load belongs to no bulk group, so that a ``wait_group`` does not end it. CuTe DSL's tensor map manager executes only
that before it overwrites a map, and so do the grouped GEMMs of its examples: if a warp does so to its own loads, it is
a warning and not a race. Corrupted results are reported for it (DeepGEMM 343 and 430).

A map that the kernel does not change was written by the host or by a kernel before, and the proxy may have cached what
was there before. Each CTA must acquire it before its first use (CUDA Programming Guide, "Tensor map in global memory"):
a use without is a warning, because nothing is known to have failed for it.

In shared memory a map is data, which ``tensormap.replace`` writes and ``tensormap.cp_fenceproxy`` reads. The latter is
a warp-wide instruction with a fence: it orders the lanes behind it, but not before it. It copies all 128 bytes. Bytes
from 64 on hold no field, and CuTe DSL leaves them as they are: that they were never written is a warning.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.sim.memory.access import READ, WRITE
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.races.access import ASYNC, Access, make_access
from pytest_nvfp4.sim.races.access_pair import WARNING
from pytest_nvfp4.sim.races.agents import WarpAgent
from pytest_nvfp4.sim.races.hooks import ZERO
from pytest_nvfp4.sim.races.map_uses import MAP_BYTES, MapUses
from pytest_nvfp4.sim.races.memory_hooks import MemoryHooks
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.fences import TensormapFences, TensormapWrites


class MapHooks(MemoryHooks):
    """The detector's hooks for tensor maps."""

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """Check and record the replacement of a field."""
        if shared:
            memory = w.cta.shared
            self.shared_accessed(w, at, memory, memory.index(address, MAP_BYTES, what=""), MAP_BYTES, WRITE, mask)
        else:
            self._overwritten(w, at, address)

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """Check and record a copy from a map in shared memory to one in global memory."""
        self._check_written(w, at, index)
        self.shared_accessed(w, at, w.cta.shared, index, MAP_BYTES, READ, mask)
        self._warp(w).lanes.synchronise()
        self._overwritten(w, at, address)

    def map_stored(self, w: Warp, at: int, lane: int, address: int) -> None:
        """Check and record the use of a map by a store, which ends with a wait for the store's group."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        uses = self._used(agent, w, at, address)
        if uses is not None:
            agents = agent.agents
            reads = agents.map_reads[agent]
            uses.add(Access(reads.number, reads.add(agents.bulk[agent, lane]), ASYNC, at, agent.id))

    def map_loaded(self, w: Warp, at: int, address: int, targets: Sequence[CopyTarget]) -> None:
        """Check and record the use of a map by a load, which ends with the phase that counts its bytes."""
        agent = w.units.get(WarpAgent) or self._warp(w)
        uses = self._used(agent, w, at, address)
        if uses is not None:
            agents = agent.agents
            loads = agents.map_loads[agent]
            number, tick = loads.number, loads.issued + 1
            loads.issued = tick
            barriers = agents.barriers
            for target in targets:
                barriers[target[2]].map_loads[number] = tick
            uses.add(make_access((number, tick, ASYNC, at, agent.id, None, None)))

    def map_prefetched(self, w: Warp, at: int, address: int) -> None:
        """Check the use of a map by a prefetch, a hint whose end no instruction waits for."""
        self._used(w.units.get(WarpAgent) or self._warp(w), w, at, address)

    def _used(self, agent: WarpAgent, w: Warp, at: int, address: int) -> MapUses | None:
        """Check the use of a map in writable memory, and return the map's uses; None if the kernel changes no maps."""
        launch = agent.launch
        if not launch.unacquired_map_reported:
            self._check_acquired(agent, w, at, address)
        if not launch.changes_maps:
            return None
        uses = launch.maps.get(address)
        if uses is None or agent.id not in uses.checked:
            region = launch.grid.machine.memory.find(address)
            assert region is not None
            shadow, offset = launch.memory.shadow(region), address - region.start
            uses = launch.maps[address] = shadow.maps.setdefault(offset, MapUses())
            uses.checked.add(agent.id)
            access = Access(agent.number, agent.epoch(), ASYNC, at, agent.id)
            launch.memory.use_map(shadow, offset, access, agent.clock)
        return uses

    def _check_acquired(self, agent: WarpAgent, w: Warp, at: int, address: int) -> None:
        """Report the use of a map that neither the kernel has changed nor the CTA acquired, once a launch."""
        launch = agent.launch
        grid = launch.grid
        if address in w.cta.unit(TensormapFences).acquired or address in grid.unit(TensormapWrites).writes:
            return
        launch.unacquired_map_reported = True
        region = grid.machine.memory.find(address)
        assert region is not None
        line = launch.reporter.messages.line(at)
        launch.reporter.other(
            WARNING,
            f"{line} in {agent.id} uses the tensor map at {region.place(address)}, which its CTA "
            "has not acquired: it was written before the launch, and the TMA may have cached what was there before",
            "fence.proxy.tensormap::generic.acquire.sys [map], 128 in each CTA before its first use of a map in global "
            "memory (.gpu where a kernel wrote it); or pass the map as a __grid_constant__ parameter",
            warp=agent.id,
            at=at,
            group=("unacquired tensor map",),
        )

    def _overwritten(self, w: Warp, at: int, address: int) -> None:
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        region = launch.grid.machine.memory.find(address)
        if region is None:
            return
        shadow, offset = launch.memory.shadow(region), address - region.start
        launch.maps[address] = shadow.maps.setdefault(offset, MapUses())
        access = Access(agent.number, agent.epoch(), 0, at, agent.id)
        launch.memory.write(shadow, ZERO + offset, MAP_BYTES, access, agent.clock)

    def _check_written(self, w: Warp, at: int, index: int) -> None:
        """Report bytes of a published map that were never written."""
        written = w.cta.shared.written[index : index + MAP_BYTES]
        if written.all():
            return
        agent = w.units.get(WarpAgent) or self._warp(w)
        launch = agent.launch
        first = int(written.argmin())
        line = launch.reporter.messages.line(at)
        launch.reporter.other(
            WARNING,
            f"{line} in {agent.id} publishes {int((~written).sum())} bytes of shared memory that "
            f"were never written, from byte {first} of the tensor map on: they hold no field of a map, so that the "
            "copies are right, but the 128 bytes differ from run to run; CuTe DSL's template has 64 bytes, and "
            "official kernels leave the others",
            "store zeros to the 128 bytes in shared memory before the template is copied there (copy_tensormap)",
            warp=agent.id,
            at=at,
            group=("published",),
        )
