"""The recorder's events of matrix instructions, TMEM, and accesses of lanes to memory."""

# ruff: noqa: ARG002 - every event has the instruction and its lanes
from __future__ import annotations

from collections.abc import Hashable, Sequence

from pytest_nvfp4.model.recorder_copies import CopyEvents
from pytest_nvfp4.model.recorder_flags import FlagAccess
from pytest_nvfp4.model.recorder_launch import LaunchTape, kind_of
from pytest_nvfp4.model.recorder_tape import MARK, NO_SLOT, PASSES, Operation, WarpTape
from pytest_nvfp4.model.recording import Shape, Unit
from pytest_nvfp4.sim.memory.access import ATOMIC, READ
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.memory.pattern import Pattern
from pytest_nvfp4.sim.memory.shared import SharedMemory
from pytest_nvfp4.sim.monitor import CtaAccesses, TmemBox
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.tcgen05.copy_plan import CopyPlan
from pytest_nvfp4.sim.tcgen05.mma_plan import MmaPlan
from pytest_nvfp4.sim.wgmma.operation import WgmmaOperation
from pytest_nvfp4.sim.wgmma.unit import Warpgroup

_UNIT = 16
"""Bytes of the units in which an operation's shared memory is given."""
_RELEASES = frozenset({"release", "acq_rel"})
_UNITS = {READ: Unit.GLOBAL_LOAD, ATOMIC: Unit.ATOMIC}


class MemoryEvents(CopyEvents):
    """The recorder's events of matrix instructions, TMEM, and accesses of lanes to memory."""

    def marked(self, w: Warp, at: int) -> None:
        """Add a mark to the warp's path."""
        warp = self._warp(w)
        warp.path.append((MARK, at, warp.launch.code.marked[at], 1))

    # ---- the tensor core -----------------------------------------------------------------------------------------

    def tensor_issued(
        self, w: Warp, at: int, queue: Hashable, touched: tuple[CtaAccesses, ...], plan: MmaPlan | CopyPlan
    ) -> None:
        """Issue an operation of a pipe."""
        warp: WarpTape = w.units[WarpTape]
        tape = warp.tape
        operation = tape.known.get(plan)
        if operation is None:
            unit = Unit.TENSOR if isinstance(plan, MmaPlan) else Unit.TMEM_COPY
            shape = _shape(warp.launch, touched, plan)
            operation = tape.known[plan] = Operation(unit, shape, tape.pipe(queue), NO_SLOT)
        warp.issue_again(at, operation)

    def tensor_committed(self, w: Warp, at: int, queue: Hashable, barriers: tuple[Mbarrier, ...]) -> None:
        """Issue a commit; its arrivals follow."""
        warp = self._warp(w)
        shape = self._launch(w).shape(Shape(ctas=tuple(barrier.cta.rank for barrier in barriers)))
        self._commit = warp.issue(at, Unit.COMMIT, shape, pipe=warp.tape.pipe(queue))

    def tmem_accessed(self, w: Warp, at: int, boxes: tuple[TmemBox, ...], write: bool) -> None:
        """Issue a load or store of TMEM, which the next wait of its kind covers."""
        warp, launch = self._warp(w), self._launch(w)
        tape = warp.tape
        columns = sum(box.columns for box in boxes)
        key = ("tmem", columns, boxes[0].lanes)
        shape = launch.find(key)
        if shape is None:
            size = 4 * columns * boxes[0].lanes
            shape = launch.add(key, Shape(bytes=size, columns=columns, lanes=boxes[0].lanes))
        phase = warp.stores if write else warp.loads
        if phase < 0:
            phase = tape.phase()
            if write:
                warp.stores = phase
            else:
                warp.loads = phase
        tape.completes(warp.issue(at, Unit.TMEM_STORE if write else Unit.TMEM_LOAD, shape), phase)

    # ---- wgmma ---------------------------------------------------------------------------------------------------

    def wgmma_issued(self, w: Warp, group: Warpgroup, operation: WgmmaOperation, at: int) -> None:
        """Issue the operation of a warpgroup when the last of its warps does."""
        if operation.arrived != 0xF:
            return
        warp, launch, form = self._warp(w), self._launch(w), operation.form
        shape = launch.find(form)
        if shape is None:
            rows = form.n + (0 if form.from_registers else 64)
            made = Shape(
                m=64, n=form.n, k=form.k, kind=kind_of(form.a.name), a_tmem=form.from_registers,
                shared_bytes=rows * form.row_bytes, lanes=128,
            )  # fmt: skip
            shape = launch.add(form, made)
        issued = warp.issue(at, Unit.TENSOR, shape, pipe=warp.tape.pipe(group))
        warp.tape.known.setdefault(group, {})[operation.number] = issued

    def wgmma_waited(self, w: Warp, group: Warpgroup, done: int) -> None:
        """Wait for the last of the first ``done`` operations of the warpgroup, which complete in order."""
        warp = self._warp(w)
        if not done:
            return
        last: Operation = warp.tape.known[group][done - 1]
        if not last.done:
            warp.tape.completes(last, warp.tape.phase())
        warp.wait(self._now(w), last.done[0])

    @staticmethod
    def _now(w: Warp) -> int:
        """Return the instruction that the warp is executing."""
        place = w.cta.launch.program.frames.place_now()
        assert place is not None
        return place[0]

    # ---- memory of lanes -------------------------------------------------------------------------------------------

    def shared_accessed(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Count the passes through the banks, or issue an access to a peer's memory."""
        passes = 1 if isinstance(where, int) else where.wavefronts(index & 127).taken
        if shared is w.cta.shared:
            self._warp(w).path.append((PASSES, at, -1, passes))
            return
        lanes = mask.bit_count() if isinstance(where, int) else int(where.active.size)
        size = where if isinstance(where, int) else where.bytes_touched
        what = "load" if kind == READ else "store"
        shape = self._launch(w).shape(Shape(bytes=size, ctas=(shared.rank,), kind=what, lanes=lanes))
        self._access(w, at, Unit.SHARED_REMOTE, shape, returns=kind != READ + 1)

    def global_accessed(
        self, w: Warp, at: int, region: Region, offset: int, where: Pattern | int, kind: int, mask: int = 0
    ) -> None:
        """Issue an access to global memory; parameters and constants are in a constant bank."""
        launch = self._launch(w)
        if region.start in launch.constants:
            return
        flag: FlagAccess | bool = True
        if launch.code.polls:
            flag = launch.flags.accessed(self._warp(w), at, region, offset, where, kind)
            if not flag:
                return
        footprint, sectors = launch.footprints.items(region, offset, where)
        if flag is not True:
            assert isinstance(flag, FlagAccess)
            self._flag(w, at, flag, footprint, sectors)
            return
        key = ("lanes", where, sectors, mask if isinstance(where, int) else 0)
        shape = launch.find(key)
        if shape is None:
            lanes = mask.bit_count() if isinstance(where, int) else int(where.active.size)
            size = where if isinstance(where, int) else where.bytes_touched
            shape = launch.add(key, Shape(bytes=size, lanes=lanes, sectors=sectors))
        unit = _UNITS.get(kind, Unit.GLOBAL_STORE)
        self._access(w, at, unit, shape, returns=unit is not Unit.GLOBAL_STORE, footprint=footprint)

    def _flag(self, w: Warp, at: int, flag: FlagAccess, footprint: int, sectors: int) -> None:
        """Issue a poll that has succeeded, or the write of a flag, which follows the fence that a release implies."""
        warp, launch = self._warp(w), self._launch(w)
        ins = launch.code.instructions[at]
        if flag.unit is Unit.FLAG_WRITE and not _RELEASES.isdisjoint(ins.parts) and not ins.has("cta"):
            # PTX ISA, "Memory Consistency Model": a release orders what precedes it, as a fence before the write does.
            warp.issue_and_wait(at, Unit.FENCE, launch.shape(Shape(kind="acq_rel.gpu")))
        size = int(flag.kind[-2:]) // 8
        shape = launch.shape(Shape(bytes=size, kind=flag.kind, lanes=1, sectors=sectors))
        issued = warp.issue(at, flag.unit, shape, footprint=footprint)
        issued.flag = flag
        if flag.unit is Unit.FLAG_WAIT:
            warp.tape.completes(issued, warp.tape.phase())

    def _access(self, w: Warp, at: int, unit: Unit, shape: int, *, returns: bool, footprint: int | None = None) -> None:
        """Issue an access; a phase stands for its result, if it has one."""
        warp = self._warp(w)
        issued = warp.issue(at, unit, shape) if footprint is None else warp.issue(at, unit, shape, footprint=footprint)
        if returns:
            warp.tape.completes(issued, warp.tape.phase())

    # ---- cp.async and st.async -----------------------------------------------------------------------------------

    def async_copied(
        self, w: Warp, at: int, index: int, target: Pattern, sources: Sequence[tuple[Region, int, Pattern | int]]
    ) -> None:
        """Issue a copy of the warp's open group."""
        warp, launch = self._warp(w), self._launch(w)
        footprint, sectors = launch.footprints.several(sources)
        size = target.bytes_touched
        shape = launch.shape(Shape(bytes=size, kind="cp.async", lanes=int(target.active.size), sectors=sectors))
        warp.copied = warp.issue(at, Unit.GLOBAL_LOAD, shape, footprint=footprint)
        warp.copies.open.append(warp.copied)

    def async_committed(self, w: Warp) -> None:
        """Give the copies of the new group their phase."""
        warp = self._warp(w)
        groups, tape = warp.copies, warp.tape
        phase = -1
        if groups.open:
            phase = tape.phase()
            for copy in groups.open:
                tape.completes(copy, phase)
        groups.groups.append((phase, phase))
        groups.open = []

    def async_waited(self, w: Warp, allowed: int | None) -> None:
        """Wait for all groups but the youngest, or for all copies, that no wait has covered."""
        warp = self._warp(w)
        groups = warp.copies
        if allowed is None and groups.open:
            self.async_committed(w)
        end = len(groups.groups) - (allowed or 0)
        for phase, _ in groups.groups[groups.done : max(groups.done, end)]:
            if phase >= 0:
                warp.wait(self._now(w), phase)
        groups.done = max(groups.done, end)

    def stored_async(
        self, w: Warp, at: int, shared: SharedMemory, index: int, where: Pattern, barrier: Mbarrier
    ) -> None:
        """Issue a store to a peer's memory; the completion of its bytes follows."""
        lanes = int(where.active.size)
        shape = self._launch(w).shape(Shape(bytes=where.size * lanes, ctas=(shared.rank,), kind="store", lanes=lanes))
        self._copy = self._warp(w).issue(at, Unit.SHARED_REMOTE, shape)


def _shape(launch: LaunchTape, touched: tuple[CtaAccesses, ...], plan: MmaPlan | CopyPlan) -> int:
    """Return the number of the shape of an operation of a pipe."""
    ctas = tuple([cta.rank for cta, _ in touched])
    read = _UNIT * int(touched[0].accesses.shared.size)
    key = (plan.decoded if isinstance(plan, MmaPlan) else plan.shape, read, ctas)
    found = launch.find(key)
    if found is not None:
        return found
    if isinstance(plan, MmaPlan):
        ins, form = plan.ins, plan.form
        made = Shape(
            m=ins.m, n=ins.n, k=ins.kind.k, kind=form.kind, a_tmem=form.a_in_tmem, shared_bytes=read, ctas=ctas
        )
    else:
        made = Shape(bytes=plan.size // len(ctas), shared_bytes=read, columns=plan.shape.columns, ctas=ctas)
    return launch.add(key, made)
