"""The recorder's events of barriers and fences."""

# ruff: noqa: ARG002 - every event has the instruction and its lanes
from __future__ import annotations

from typing import Any

from pytest_nvfp4.model.recorder_launch import LaunchTape
from pytest_nvfp4.model.recorder_tape import REFUSED, Operation, Tape, WarpTape
from pytest_nvfp4.model.recording import Shape, Unit
from pytest_nvfp4.sim.monitor import Monitor
from pytest_nvfp4.sim.run.cta import Cluster
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Actor, Mbarrier

_LOADS, _STORES = "tcgen05.wait::ld", "tcgen05.wait::st"


class SyncEvents(Monitor):
    """The recorder's events of barriers and fences, and what all its parts use."""

    def __init__(self) -> None:
        super().__init__()
        self._copy: Operation | None = None
        """The copy that was issued last; in the eager schedule its bytes arrive next."""
        self._commit: Operation | None = None

    @staticmethod
    def _tape(cluster: Cluster) -> Tape:
        tape: Tape = cluster.units[Tape]
        return tape

    @staticmethod
    def _warp(w: Warp) -> WarpTape:
        found: WarpTape = w.units[WarpTape]
        return found

    @staticmethod
    def _launch(w: Warp) -> LaunchTape:
        warp: WarpTape = w.units[WarpTape]
        return warp.launch

    # ---- mbarriers -------------------------------------------------------------------------------------------------

    def mbarrier_arrived(self, barrier: Mbarrier, who: Actor, count: int, lanes: int) -> None:
        """Signal the current phase: by the warp, or by the operation whose completion is the arrival."""
        tape = self._tape(barrier.cta.cluster)
        phase = tape.phase_of(barrier)
        if isinstance(who, str):
            assert self._commit is not None
            for _ in range(count):
                tape.completes(self._commit, phase)
            return
        w, at = who
        warp = tape.warps[w]
        if w.cta.launch.kernel.instructions[at].root == "cp" and warp.copied is not None:
            # The copies of a warp complete in order, near enough: the last one signals for all lanes.
            tape.completes(warp.copied, phase)
            return
        if barrier.cta is not w.cta:
            shape = self._launch(w).shape(Shape(ctas=(barrier.cta.rank,), kind="arrive", lanes=lanes.bit_count()))
            arrive = warp.issue(at, Unit.SHARED_REMOTE, shape)
            for _ in range(count):
                tape.completes(arrive, phase)
            return
        warp.signal(at, phase, count)

    def mbarrier_bytes(self, barrier: Mbarrier, who: Actor, size: int) -> None:
        """Signal the current phase once for a copy, whatever its number of bytes."""
        tape = self._tape(barrier.cta.cluster)
        phase = tape.phase_of(barrier)
        if isinstance(who, str) or who[0].cta.launch.kernel.instructions[who[1]].root != "mbarrier":
            assert self._copy is not None
            tape.completes(self._copy, phase)
            return
        tape.warps[who[0]].signal(who[1], phase)

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        """End the phase."""
        self._tape(barrier.cta.cluster).end_phase(barrier)

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Wait for the phase completed last; a wait that passes before the first needs none."""
        warp = self._warp(w)
        phase = warp.tape.complete.get(barrier)
        if phase is not None:
            warp.wait(at, phase)

    def mbarrier_refused(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:
        """Note that the wait will be repeated."""
        self._warp(w).path.append((REFUSED, at, -1, 1))

    # ---- named barriers and the cluster barrier ----------------------------------------------------------------------

    def barrier_arrived(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """Signal the current round."""
        warp = self._warp(w)
        tape = warp.tape
        tape.arrivers.setdefault(barrier, set()).add(w)
        warp.signal(at, tape.phase_of(barrier))

    def barrier_completed(self, barrier: Any) -> None:
        """End the round. If it waited for all warps, those that have ended signal it by their end."""
        of_cluster = hasattr(barrier, "cluster")
        tape = self._tape(barrier.cluster if of_cluster else barrier.cta.cluster)
        arrivers = tape.arrivers.pop(barrier, set())
        members = list(tape.warps) if of_cluster else barrier.cta.warps
        ended = [w for w in members if not w.live and w not in arrivers]
        if ended and len(ended) + len(arrivers) == len(members):
            phase = tape.phase_of(barrier)
            for w in ended:
                tape.warps[w].signal(len(w.cta.launch.kernel.instructions) - 1, phase)
        tape.end_phase(barrier)

    def barrier_passed(self, w: Warp, mask: int, barrier: Any, at: int) -> None:
        """Wait for the round completed last."""
        warp = self._warp(w)
        warp.wait(at, warp.tape.complete[barrier])

    # ---- fences ----------------------------------------------------------------------------------------------------

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:
        """Wait for the loads or stores of TMEM, or for the fence itself; a ``tcgen05.fence`` costs nothing."""
        warp = self._warp(w)
        if kind.startswith("tcgen05."):
            if kind.startswith(_LOADS) and warp.loads >= 0:
                warp.wait(at, warp.loads)
                warp.loads = -1
            elif kind.startswith(_STORES) and warp.stores >= 0:
                warp.wait(at, warp.stores)
                warp.stores = -1
            return
        launch = self._launch(w)
        shape = launch.find(kind)
        if shape is None:
            shape = launch.add(kind, Shape(kind=kind))
        acquires = kind.startswith("proxy.tensormap") and "acquire" in kind
        warp.issue_and_wait(at, Unit.MAP_ACQUIRE if acquires else Unit.FENCE, shape)

    def grid_waited(self, w: Warp, mask: int, at: int) -> None:
        """Wait for the launches before this one."""
        self._warp(w).issue_and_wait(at, Unit.GRID_WAIT, self._launch(w).shape(Shape()))

    # ---- the registers and columns of a CTA --------------------------------------------------------------------------

    def tmem_allocated(self, w: Warp, at: int, column: int, count: int, *, pair: bool) -> None:
        """Wait for the allocation."""
        self._warp(w).issue_and_wait(at, Unit.TMEM_ALLOCATE, self._launch(w).shape(Shape(columns=count)))
