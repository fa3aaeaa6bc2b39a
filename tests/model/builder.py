"""Recordings written by hand: what a kernel's warps do, without the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_nvfp4.model.recording import (
    EVENT,
    INSTRUCTION_CLASSES,
    OPERATION,
    Cluster,
    Does,
    Footprint,
    Program,
    Recording,
    Shape,
    Site,
    Unit,
    WarpEvents,
)

NONE = -1


@dataclass
class WarpBuilder:
    """Events of one warp, in program order."""

    program: ProgramBuilder
    cta: int
    index: int
    role: str
    events: list[tuple[int, int, int, int]] = field(default_factory=list)

    def run(self, site: int = 0, **instructions: int) -> None:
        """Execute instructions, by class; none at all is no event."""
        if instructions:
            self.events.append((Does.RUN, 1, site, self.program.mix(instructions)))

    def signal(self, phase: int, *, site: int = 0, count: int = 1) -> None:
        """Arrive at a phase."""
        self.events.append((Does.SIGNAL, count, site, phase))

    def wait(self, phase: int, *, site: int = 0) -> None:
        """Wait for a phase."""
        self.events.append((Does.WAIT, 1, site, phase))

    def issue(
        self,
        unit: Unit,
        shape: Shape,
        *,
        slot: int = NONE,
        pipe: int = NONE,
        done: Sequence[int] = (),
        read: Sequence[int] = (),
        site: int = 0,
    ) -> None:
        """Start an operation."""
        program = self.program
        program.operations.append(
            (unit, program.shape(shape), slot, pipe, program.signal_list(done), program.signal_list(read))
        )
        self.events.append((Does.ISSUE, 1, site, len(program.operations) - 1))


@dataclass
class ProgramBuilder:
    """One program: its warps, operations, shapes and phases."""

    warps: list[WarpBuilder] = field(default_factory=list)
    operations: list[tuple[int, ...]] = field(default_factory=list)
    shapes: dict[Shape, int] = field(default_factory=dict)
    mixes: dict[tuple[int, ...], int] = field(default_factory=dict)
    signals: dict[tuple[int, ...], int] = field(default_factory=dict)
    phases: list[int] = field(default_factory=list)
    slots: int = 0

    def warp(self, cta: int, index: int, role: str) -> WarpBuilder:
        """Return a further warp."""
        self.warps.append(WarpBuilder(self, cta, index, role))
        return self.warps[-1]

    def phase(self, signals: int) -> int:
        """Return a further phase."""
        self.phases.append(signals)
        return len(self.phases) - 1

    def slot(self) -> int:
        """Return a further place for a footprint."""
        self.slots += 1
        return self.slots - 1

    def shape(self, shape: Shape) -> int:
        """Return the index of a shape."""
        return self.shapes.setdefault(shape, len(self.shapes))

    def mix(self, instructions: dict[str, int]) -> int:
        """Return the index of instruction counts."""
        row = tuple(instructions.get(name, 0) for name in INSTRUCTION_CLASSES)
        assert set(instructions) <= set(INSTRUCTION_CLASSES), instructions
        return self.mixes.setdefault(row, len(self.mixes))

    def signal_list(self, phases: Sequence[int]) -> int:
        """Return the index of a list of phases, -1 for none."""
        return self.signals.setdefault(tuple(phases), len(self.signals)) if phases else NONE

    def build(self) -> Program:
        """Return the program."""
        return Program(
            warps=tuple(
                WarpEvents(warp.cta, warp.index, warp.role, np.array(warp.events, EVENT)) for warp in self.warps
            ),
            operations=np.array(self.operations, OPERATION),
            shapes=tuple(self.shapes),
            mixes=np.array(list(self.mixes), np.int32).reshape(-1, len(INSTRUCTION_CLASSES)),
            phases=np.array(self.phases, np.int32),
            signals=tuple(self.signals),
            slots=self.slots,
        )


def footprint(first: int, lines: int, sectors: int | None = None) -> Footprint:
    """Return consecutive lines."""
    return Footprint(np.arange(first, first + lines, dtype=np.int32), 4 * lines if sectors is None else sectors)


def recording(
    program: Program,
    *,
    clusters: int = 1,
    size: int = 1,
    ctas_per_sm: int = 1,
    footprints: Sequence[Footprint] = (),
    slots: Sequence[Sequence[int]] | None = None,
    sites: Sequence[str] = ("kernel.py:1",),
    refused: tuple[str, ...] = (),
    dependent: bool = False,
) -> Recording:
    """Return a launch of equal clusters; ``slots``: footprints of each cluster."""
    rows = slots if slots is not None else [[NONE] * program.slots] * clusters
    return Recording(
        kernel="by_hand",
        arch="sm_100a",
        grid=(len(rows) * size, 1, 1),
        block=(32 * len(program.warps), 1, 1),
        cluster=(size, 1, 1),
        shared_bytes=0,
        ctas_per_sm=ctas_per_sm,
        dependent=dependent,
        sites=tuple(Site(at, "", source) for at, source in enumerate(sites)),
        programs=(program,),
        clusters=tuple(Cluster(index, 0, np.array(row, np.int32)) for index, row in enumerate(rows)),
        footprints=tuple(footprints),
        refused=refused,
    )
