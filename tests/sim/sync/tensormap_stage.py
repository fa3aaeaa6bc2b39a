"""CTAs and a tensor map, for the fences of modified maps."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.cta import Cluster, Cta
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.sync.fences import TensormapFences, TensormapWrites
from tests.sim.ptx_case import run_ptx


class TensormapStage:
    """Two CTAs of one cluster and one of another, and a tensor map in global memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = np.zeros(384, np.uint8)
        start = self.memory.ctypes.data
        self.map = -(-start // 128) * 128
        self.machine = Machine()
        self.machine.memory.add(Region("the maps", start, 384))
        self.found: list[str] = []
        captured: dict[str, Grid] = {}

        def keep(grid: Grid) -> None:
            captured["grid"] = grid

        ran = run_ptx("bar.sync 0;", grid=(4, 1, 1), cluster=(2, 1, 1), machine=self.machine, prepare=keep)
        grid = ran.grid
        clusters = [self._cluster(grid, number) for number in range(2)]
        self.one, self.peer = clusters[0].ctas
        self.far = clusters[1].ctas[0]
        monkeypatch.setattr(grid, "report", lambda kind, message, hint="": self.found.append(message))  # noqa: ARG005
        self.writes = grid.unit(TensormapWrites)

    def _cluster(self, grid: Grid, number: int) -> Cluster:
        grid._order = iter([number])
        grid.clusters_left = 1
        return grid.next_cluster(None)

    def use(self, cta: Cta) -> str:
        """Return the finding when a CTA uses the map, or an empty string."""
        self.found.clear()
        cta.unit(TensormapFences).check_use(self.map, what="a load")
        return self.found[0] if self.found else ""
