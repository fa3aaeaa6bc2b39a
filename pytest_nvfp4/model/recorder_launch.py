"""The record of one launch: the programs and clusters that have ended, in one process or in several.

Forked processes that share a launch (``sim.run.parallel``) return theirs to the parent, which absorbs them like
counters: a recording does not depend on which process ran a cluster, so that recording keeps all cores busy.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.large import LEAST, Derivation, Observed, UnlikeError, samples
from pytest_nvfp4.model.recorder_code import Code
from pytest_nvfp4.model.recorder_flags import FlagTape
from pytest_nvfp4.model.recorder_footprints import NOWHERE, Footprints, LineNumbers, Place
from pytest_nvfp4.model.recorder_program import identity, program_of
from pytest_nvfp4.model.recorder_tape import Tape
from pytest_nvfp4.model.recording import NO_FLAGS, Cluster, Program, Recording, Shape, Site, Unit
from pytest_nvfp4.model.segments import Segments
from pytest_nvfp4.sim.ptx.syntax import Instruction
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.parallel import run_selected
from pytest_nvfp4.sim.wgmma.opcode_types import MmaShape

_KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "s8": "i8", "u8": "i8"}
"""The kind of a matrix instruction (as tcgen05 names it) by the type of its operands."""


def kind_of(operand: str) -> str:
    """Return the kind of a ``wgmma`` or ``mma`` by the type of A."""
    return _KINDS.get(operand, operand)


@dataclass(frozen=True, slots=True)
class LaunchPart:
    """What a forked process has recorded, as plain data."""

    programs: tuple[Program, ...]
    clusters: tuple[tuple[int, int, NDArray[np.int32]], ...]
    footprints: tuple[Place, ...]
    refused: tuple[str, ...]


class LaunchTape:
    """The record of one launch: ``grid.unit(LaunchTape)``, begun by the recorder.

    Attributes:
        ended: Whether the launch has ended without a fault.
        code: Its kernel.
        dependent: Whether it is a programmatic dependent launch.
        constants: Addresses of the regions of its parameters and constants.
        flags: Its flags in global memory.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.code = Code(grid.program)
        self.ended = False
        self.flags = FlagTape(self.code)
        self.dependent = False
        self.constants: set[int] = set()
        self.footprints = Footprints(LineNumbers())
        self._shapes: dict[Shape, int] = {}
        self._by_number: list[Shape] = []
        self._keys: dict[Hashable, int] = {}
        self._own = {at: self._own_operation(self.code.instructions[at]) for at in self.code.own}
        self._programs: dict[tuple[object, ...], int] = {}
        self._all: list[Program] = []
        self._known: dict[tuple[object, ...], tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
        self._flags: dict[int, NDArray[np.int64]] = {}
        self._clusters: list[tuple[int, int, NDArray[np.int32]]] = []
        self._refused: dict[str, None] = {}
        self._notes: list[str] = []
        self._sampled = False

    def begin(self, numbers: LineNumbers, *, dependent: bool) -> None:
        """Begin the record; ``numbers`` are those of the device's lines."""
        numbers.add(self._grid.machine.memory)
        constants = [
            each.name for each in self._grid.program.module.variables if each.space == "const" and not each.external
        ]
        self.constants = {self._grid.parameter_address, *(self._grid.symbols[name] for name in constants)}
        self.footprints = Footprints(numbers)
        self.dependent = dependent

    def sample(self) -> None:
        """Let only some of the clusters run, if there are many; the others are derived from them (``large``)."""
        count = self._grid.clusters_left
        if count >= LEAST and not self.code.refusing and not self.code.polls:
            self._sampled = True
            self._grid.select(samples(count))

    def _add_others(self) -> None:
        count = self._total
        observed: dict[int, Observed] = {}

        def observe() -> dict[int, Observed]:
            for number, program, footprints in self._clusters[len(observed) :]:
                observed[number] = Observed(program, *self.footprints.split(footprints))
            return observed

        try:
            try:
                derived = Derivation(count, self._all, self._run).derive(observe)
            except UnlikeError:
                derived = Segments(count, self._run, observe).derive()
        except UnlikeError as error:
            self._notes.append(f"all clusters were simulated: {error}")
            self._run([number for number in range(count) if number not in observe()])
            return
        self._notes.append(f"{len(observed)} of {count} clusters were simulated, and the others derived from them")
        for region in self._grid.machine.memory:
            if region.initialised is not None and region.writable:
                region.initialised[:] = True  # a later launch may read what the others would have written
        for region in self._grid.machine.memory.touched.writes:
            region.unknown = True
        if derived:
            all_of = list(derived.values())
            joined = self.footprints.joined(
                np.concatenate([each.first for each in all_of]), np.concatenate([each.shape for each in all_of])
            )
            parts = np.split(joined, np.cumsum([len(each.first) for each in all_of])[:-1])
            self._clusters += [
                (number, each.program, own) for (number, each), own in zip(derived.items(), parts, strict=True)
            ]

    def _run(self, clusters: list[int]) -> None:
        self._grid.select(clusters)
        run_selected(self._grid)

    @property
    def _total(self) -> int:
        x, y, z = self._grid.clusters
        return x * y * z

    def shape(self, shape: Shape) -> int:
        """Return the number of a shape."""
        number = self._shapes.setdefault(shape, len(self._by_number))
        if number == len(self._by_number):
            self._by_number.append(shape)
        return number

    def shape_at(self, number: int) -> Shape:
        """Return a shape by its number."""
        return self._by_number[number]

    def find(self, key: Hashable) -> int | None:
        """Return the number of a shape by the key of ``add``."""
        return self._keys.get(key)

    def add(self, key: Hashable, shape: Shape) -> int:
        """Return the number of a shape, and remember it by a key that is faster than itself."""
        found = self._keys[key] = self.shape(shape)
        return found

    def finish(self, tape: Tape) -> None:
        """Add a cluster that has ended."""
        roles = {warp: "+".join(sorted(warp.does)) or "nothing" for warp in tape.warps}
        key = (
            tuple((role, tuple(tape.warps[warp].path)) for warp, role in roles.items()),
            tuple((o.unit, o.shape, o.pipe, *o.done, -1, *o.read, o.footprint < NOWHERE) for o in tape.operations),
            tuple(tape.counts),
        )
        known = self._known.get(key)
        if known is None:
            numbered = program_of(tape, self.code, self._by_number, self._own, roles)
            self._refused.update(dict.fromkeys(numbered.refused))
            known = self._known[key] = (self._program(numbered.program), numbered.slots, numbered.flags)
        program, slots, flags = known
        operations = tape.operations
        if flags:
            self.flags.settle()
            rows = [(each.cell, _signed(each.value)) for at in flags if (each := operations[at].flag) is not None]
            self._flags[self._number(tape)] = np.array(rows, np.int64)
        footprints = np.array([operations[slot].footprint for slot in slots], np.int32)
        self._clusters.append((self._number(tape), program, footprints))

    def refuse(self, why: str) -> None:
        """Record why the launch has no model."""
        self._refused[why] = None

    def recording(self, *, below: str = "") -> Recording:
        """Return the recording; sites name files relative to the folder ``below``."""
        grid = self._grid
        sites = sorted({int(at) for program in self._all for warp in program.warps for at in warp.events["site"]})
        places = np.array(sites, np.int32)
        refused = [*self._refused, *self.flags.refusals()]
        if not self.ended:
            refused.append("the launch did not end, because of an error that the simulation reports")
        if self.ended and not refused and len(self._clusters) != self._total:
            refused.append(f"{len(self._clusters)} of {self._total} clusters ran")
        return Recording(
            kernel=grid.kernel.name,
            arch=grid.program.module.target,
            grid=grid.shape,
            block=grid.block,
            cluster=grid.cluster_shape,
            shared_bytes=grid.shared_bytes,
            ctas_per_sm=grid.ctas_per_sm,
            dependent=self.dependent,
            sites=tuple(self._site(at, below) for at in sites),
            programs=tuple(_placed(program, places) for program in self._all),
            clusters=tuple(
                Cluster(*each, self._flags.get(each[0], NO_FLAGS))
                for each in sorted(self._clusters, key=lambda each: each[0])
            ),
            footprints=self.footprints.footprints(),
            refused=tuple(refused),
            notes=tuple(self._notes),
            marks=self.code.marks,
            cells=tuple(self.flags.cells),
        )

    # ---- units' hooks --------------------------------------------------------------------------------------------

    def at_exit(self) -> None:
        """Note that the launch has ended without a fault, after clusters that were left out have been added."""
        if self._sampled:
            self._add_others()
        self.ended = True

    def begin_part(self) -> None:
        """Forget, in a forked process, what the parent has recorded."""
        self.footprints.clear()
        self._programs.clear()
        self._all.clear()
        self._known.clear()
        self._clusters.clear()

    def part(self) -> LaunchPart:
        """Return what this forked process has recorded."""
        return LaunchPart(
            tuple(self._all), tuple(self._clusters), tuple(self.footprints.places()), tuple(self._refused)
        )

    def absorb(self, part: LaunchPart) -> None:
        """Add what another process has recorded."""
        programs = [self._program(program) for program in part.programs]
        # An additional last item for NOWHERE, which is -1.
        places = np.array([*self.footprints.absorb(part.footprints), NOWHERE], np.int32)
        self._clusters += [(index, programs[program], places[at]) for index, program, at in part.clusters]
        self._refused.update(dict.fromkeys(part.refused))

    # ---- details -------------------------------------------------------------------------------------------------

    def _program(self, program: Program) -> int:
        number = self._programs.setdefault(identity(program), len(self._all))
        if number == len(self._all):
            self._all.append(program)
        return number

    def _number(self, tape: Tape) -> int:
        x, y, _ = self._grid.clusters
        i, j, k = tape.cluster.index
        return i + x * (j + y * k)

    def _own_operation(self, ins: Instruction) -> tuple[int, int]:
        """Return the unit and the shape of an operation that reports no event."""
        if ins.root != "mma":
            return int(Unit.LAUNCH_DEPENDENTS), self.shape(Shape())
        sizes = next((found for part in ins.parts if (found := MmaShape.parse(part))), None)
        operand = next((part for part in ins.parts[3:] if part in _KINDS and part != "f32"), "")
        m, n, k = sizes or (0, 0, 0)
        return int(Unit.TENSOR), self.shape(Shape(m=m, n=n, k=k, kind=kind_of(operand), a_tmem=True, lanes=32))

    def _site(self, at: int, below: str) -> Site:
        if not 0 <= at < len(self.code.instructions):
            return Site(at, "", "")
        ins = self.code.instructions[at]
        where = ins.location
        source = "" if where is None else f"{where.file.removeprefix(f'{below}/')}:{where.line}"
        return Site(at, ins.opcode, source)


def _signed(value: int) -> int:
    """Return the low 64 bits of a number as a signed one."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _placed(program: Program, places: NDArray[np.int32]) -> Program:
    """Return a program whose events name their sites by number."""
    warps = []
    for warp in program.warps:
        events = warp.events.copy()
        events["site"] = np.searchsorted(places, events["site"])
        warps.append(replace(warp, events=events))
    return replace(program, warps=tuple(warps))
