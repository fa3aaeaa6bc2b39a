"""The recorder's events of TMA, of bulk copies and of tensor maps."""

# ruff: noqa: ARG002 - every event has the instruction and its lanes
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.recorder_sync import SyncEvents
from pytest_nvfp4.model.recorder_tape import NO_SLOT, Groups
from pytest_nvfp4.model.recording import Shape, Unit
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.monitor import CopyTarget
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.tma.box import TmaBox
from pytest_nvfp4.sim.tma.tile import TmaTile

_ROW = 128
"""Bytes of the rows in which TMA delivers a box to shared memory."""
_MAP_BYTES = 128


def _tile_shape(tile: TmaTile, boxes: int, ctas: tuple[int, ...], kind: str) -> Shape:
    rows = (4 if boxes > 1 else tile.rows) * -(-tile.row // _ROW)
    size = boxes * tile.inner if boxes > 1 else tile.bytes
    return Shape(rows=rows, bytes=size, ctas=ctas, kind=kind)


class CopyEvents(SyncEvents):
    """The recorder's events of TMA, of bulk copies and of tensor maps."""

    def copy_in(
        self, w: Warp, at: int, targets: Sequence[CopyTarget], size: int, order: NDArray[np.intp] | None = None,
        box: TmaBox | None = None,
    ) -> None:  # fmt: skip
        """Issue a copy. Its shape and footprint follow, unless it is one to a peer's memory."""
        launch = self._launch(w)
        ctas = tuple([target.cta.rank for target in targets])
        key = ("copy", size, ctas)
        shape = launch.find(key)
        if shape is None:
            rows = -(-size // _ROW)
            shape = launch.add(key, Shape(rows=rows, bytes=size, ctas=ctas, kind="bulk", shared_bytes=size))
        self._copy = self._warp(w).issue(at, Unit.SHARED_REMOTE, shape)

    def global_copied_in(self, w: Warp, at: int, barrier: Mbarrier, boxes: Sequence[TmaBox]) -> None:
        """Record the boxes of a tensor load."""
        launch, copy = self._launch(w), self._copy
        assert copy is not None
        tile = boxes[0].tile
        key = ("load", tile, len(boxes), copy.shape)
        shape = launch.find(key)
        if shape is None:
            ctas = launch.shape_at(copy.shape).ctas
            shape = launch.add(key, _tile_shape(tile, len(boxes), ctas, "tile" if len(boxes) == 1 else "gather4"))
        copy.unit, copy.shape, copy.footprint = Unit.TMA_LOAD, shape, launch.footprints.boxes(boxes)

    def global_read_in(self, w: Warp, at: int, barrier: Mbarrier, region: Region, offset: int, size: int) -> None:
        """Record the source of a bulk load."""
        launch, copy = self._launch(w), self._copy
        assert copy is not None
        key = ("bulk", copy.shape)
        shape = launch.find(key)
        if shape is None:
            ctas = launch.shape_at(copy.shape).ctas
            shape = launch.add(key, Shape(rows=-(-size // _ROW), bytes=size, ctas=ctas, kind="bulk"))
        copy.unit, copy.shape, copy.footprint = Unit.TMA_LOAD, shape, launch.footprints.run(region, offset, size)

    def copy_out(self, w: Warp, at: int, lane: int, index: int, size: int) -> None:
        """Issue a store of the lane's open group."""
        warp = self._warp(w)
        key = ("out", size)
        shape = warp.launch.find(key)
        if shape is None:
            shape = warp.launch.add(key, Shape(rows=-(-size // _ROW), bytes=size, kind="bulk", shared_bytes=size))
        store = warp.issue(at, Unit.TMA_STORE, shape)
        groups = warp.bulk.get(lane)
        if groups is None:
            groups = warp.bulk[lane] = Groups()
        groups.open.append(store)

    def global_copied_out(self, w: Warp, at: int, lane: int, boxes: Sequence[TmaBox], reduces: bool) -> None:
        """Record the boxes of a tensor store."""
        launch = self._launch(w)
        store = self._warp(w).bulk[lane].open[-1]
        tile = boxes[0].tile
        key = ("store", tile, len(boxes), reduces)
        shape = launch.find(key)
        if shape is None:
            kind = "reduce" if reduces else "tile" if len(boxes) == 1 else "scatter4"
            made = _tile_shape(tile, len(boxes), (), kind)
            shape = launch.add(key, made)
        store.shape, store.footprint = shape, launch.footprints.boxes(boxes)
        if launch.code.polls:
            for region in {box.region.start: box.region for box in boxes if box.region is not None}.values():
                launch.flags.copied(region, 0, region.size)

    def global_written_out(
        self, w: Warp, at: int, lane: int, region: Region, offset: int, size: int, reduces: bool
    ) -> None:
        """Record the target of a bulk store."""
        launch = self._launch(w)
        store = self._warp(w).bulk[lane].open[-1]
        if reduces:
            store.shape = launch.shape(Shape(rows=-(-size // _ROW), bytes=size, kind="reduce", shared_bytes=size))
        store.footprint = launch.footprints.run(region, offset, size)
        if launch.code.polls:
            launch.flags.copied(region, offset, size)

    def bulk_commit(self, w: Warp, mask: int, at: int) -> None:
        """Give the stores of each lane's new group its phases: one for their completion, one for their reads."""
        warp = self._warp(w)
        tape = warp.tape
        for lane, groups in warp.bulk.items():
            if not mask >> lane & 1 or not (groups.open or groups.groups):
                continue
            done = read = -1
            if groups.open:
                done, read = tape.phase(), tape.phase()
                tape.counts[read] = len(groups.open)
                for store in groups.open:
                    tape.completes(store, done)
                    store.read.append(read)
            groups.groups.append((done, read))
            groups.open = []

    def bulk_wait(self, w: Warp, mask: int, at: int, allowed: int, read: bool) -> None:
        """Wait for all groups but the youngest that no wait has covered."""
        warp = self._warp(w)
        for lane, groups in warp.bulk.items():
            if not mask >> lane & 1:
                continue
            end = len(groups.groups) - allowed
            first = max(groups.done, groups.read) if read else groups.done
            for done_phase, read_phase in groups.groups[first : max(first, end)]:
                if done_phase >= 0:
                    warp.wait(at, read_phase if read else done_phase)
            if read:
                groups.read = max(groups.read, end)
            else:
                groups.done = max(groups.done, end)

    # ---- tensor maps -------------------------------------------------------------------------------------------------

    def map_changed(self, w: Warp, mask: int, at: int, address: int, shared: bool) -> None:
        """Issue the replacement of a field."""
        warp = self._warp(w)
        shape = warp.launch.find(("replace", shared))
        if shape is None:
            kind = "replace.shared" if shared else "replace.global"
            shape = warp.launch.add(("replace", shared), Shape(kind=kind))
        warp.issue(at, Unit.MAP_CHANGE, shape, footprint=NO_SLOT if shared else self._map(w, address))

    def map_copied(self, w: Warp, mask: int, at: int, index: int, address: int) -> None:
        """Wait for a copy of a map and the fence in it."""
        shape = self._launch(w).shape(Shape(bytes=_MAP_BYTES, kind="copy"))
        self._warp(w).issue_and_wait(at, Unit.MAP_CHANGE, shape, footprint=self._map(w, address))

    def _map(self, w: Warp, address: int) -> int:
        region = w.cta.launch.machine.memory.find(address)
        if region is None:
            return NO_SLOT
        if self._launch(w).code.polls:
            self._launch(w).flags.copied(region, address - region.start, _MAP_BYTES)
        return self._launch(w).footprints.run(region, address - region.start, _MAP_BYTES)
