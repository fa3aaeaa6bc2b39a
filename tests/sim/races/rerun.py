"""Runs the launches of a program again with changed PTX, each from the memory that the original had before it.

``Session.launch`` is wrapped for as long as ``reruns`` lasts: ``again`` is called with every launch before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.run.asynchronous import Asynchronous
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.parallel import run_grid
from pytest_nvfp4.sim.run.programs import Programs
from pytest_nvfp4.sim.run.session import Session

__all__ = ["Again", "Outcome", "reruns"]


@dataclass
class Outcome:
    """What a run found, and what it wrote: whether that differs from ``like``."""

    findings: list[Finding]
    written: dict[int, bytes] = field(repr=False)
    fault: Fault | None = None

    @property
    def all(self) -> list[Finding]:
        """Findings, and the fault as one."""
        return [*self.findings, *([self.fault.finding()] if self.fault else [])]


@dataclass
class Again:
    """A launch that has not run yet."""

    session: Session
    launch: Launch

    def run(
        self, ptx: str | None = None, *, detector: Detector | None = None, asynchronous: Asynchronous | None = None
    ) -> Outcome:
        """Run it with this PTX on a copy of memory; memory is as before afterwards."""
        machine = self.session.machine
        launch = self.launch
        assert launch.module.ptx is not None
        writable = [region for region in machine.memory if region.writable]
        before = [region.data.copy() for region in writable]
        kept = machine.monitor, machine.asynchronous
        machine.monitor = detector
        if asynchronous is not None:
            machine.asynchronous = asynchronous
        programs = self.session.programs if ptx is None else Programs()
        grid = None
        fault = None
        try:
            grid = Grid(
                machine,
                programs.get(launch.module.ptx if ptx is None else ptx, launch.kernel),
                shape=launch.grid,
                block=launch.block,
                cluster=launch.cluster,
                dynamic_shared=launch.dynamic_smem,
                parameters=launch.params,
                ordinal=launch.ordinal,
            )
            if detector is not None:
                detector.launched(grid)
            run_grid(grid, processes=1)
        except Fault as error:
            fault = error
        finally:
            machine.monitor, machine.asynchronous = kept
            if grid is not None:
                grid.close()
        written = {}
        for region, data in zip(writable, before, strict=True):
            if (region.data != data).any():
                written[region.start] = region.data.tobytes()
                region.data[:] = data
        return Outcome(list(grid.findings) if grid is not None else [], written, fault)


@contextmanager
def reruns(again: Callable[[Again], None]) -> Iterator[None]:
    """Call ``again`` before every launch of every session."""
    original = Session.launch

    def launch(self: Session, launch: Launch) -> None:
        again(Again(self, launch))
        original(self, launch)

    Session.launch = launch  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.launch = original  # type: ignore[method-assign]
