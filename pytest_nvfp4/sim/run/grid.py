"""One launch: a grid of CTAs in clusters, its parameters, counters and findings."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.lower.registers import WORKSPACE
from pytest_nvfp4.sim.memory.coverage import repeat
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.ptx.syntax import Instruction, Special, Variable
from pytest_nvfp4.sim.run.cta import Cluster, Cta, Dim3
from pytest_nvfp4.sim.run.detail import DetailedCounter, LaunchDetail
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.scheduler import Scheduler
from pytest_nvfp4.sim.run.source import place_of
from pytest_nvfp4.sim.run.undefined import follow_unset
from pytest_nvfp4.sim.run.units import HasUnits
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.run.wording import worded

_TMEM_COLUMNS = 512
"""TMEM capacity of an SM in columns (PTX ISA, "Tensor Memory")."""
_WORKSPACE_BYTES = 8
"""Size of ``cooperative_groups::details::grid_workspace``, the part of a workspace that kernels read."""
PRINTED_MOST = 1 << 20
"""Largest number of printed characters stored, in each process of a launch."""


@dataclass(frozen=True, slots=True)
class GridPart:
    """Result of a forked process that ran some of a launch's clusters.

    Attributes:
        touched: The addresses of the regions that it read, and of those that it wrote.
        units: Results of the launch's units by class, for those with a method ``part``.
        written: The writes of watched regions (``memory.coverage``), by the address of the region.
        by_instruction: The counters by instruction, of a launch with a detail.
        fault: The fault that stopped the process, as a finding.
        unsupported: Whether that fault is ``Unsupported``.
    """

    counters: Counter[str]
    products: int
    touched: tuple[frozenset[int], frozenset[int]]
    findings: list[Finding]
    output: list[str]
    units: dict[type, Any]
    written: dict[int, list[tuple[Any, ...]]]
    fault: Finding | None
    unsupported: bool
    by_instruction: Counter[tuple[int, str]] | None = None


class Grid(HasUnits):
    """A launch on a machine.

    Args:
        machine: The device.
        program: The compiled kernel.
        shape: Grid dimensions in CTAs.
        block: Block dimensions in threads.
        cluster: Cluster dimensions in CTAs.
        dynamic_shared: Bytes of dynamic shared memory.
        parameters: Bytes of each kernel parameter, in order.
        ordinal: Number of the launch.
        variables: Addresses of the module's variables by name. One that is not in it has its initial value, in memory
            of the launch's own.
        cooperative: Whether the launch has a workspace, in which cooperative groups synchronise all its CTAs.

    Raises:
        Fault: the launch does not fit the kernel (parameters, ``.reqntid``, cluster).
    """

    def __init__(
        self,
        machine: Machine,
        program: Program,
        *,
        shape: Dim3,
        block: Dim3,
        cluster: Dim3 = (1, 1, 1),
        dynamic_shared: int = 0,
        parameters: tuple[bytes, ...] = (),
        ordinal: int = 0,
        variables: Mapping[str, int] | None = None,
        cooperative: bool = False,
    ) -> None:
        super().__init__()
        self.machine = machine
        self.program = program
        self.kernel = program.kernel
        self.shape = shape
        self.block = block
        self.cluster_shape = cluster
        self.has_cluster = int(cluster != (1, 1, 1) or self.kernel.explicit_cluster)
        self.dynamic_shared = dynamic_shared
        self.ordinal = ordinal
        self.counters: Counter[str] = Counter()
        self.detail: LaunchDetail | None = None
        self.products = 0
        """Products of the scalar and packed multiplications of all lanes."""
        self.findings: list[Finding] = []
        self.output: list[str] = []
        self._printed = 0
        self.symbols: dict[str, int] = {}
        self.registers_per_thread: int | None = None
        self.processes = 1
        """Processes that may share its clusters (``run.parallel``)."""
        self.sharing = 1
        """Processes that share the clusters left, of which this one starts its part."""
        self.on_cluster: Callable[[Grid], None] | None = None
        """Called when a cluster starts, to show progress."""
        self.counting = False
        self._check(parameters)
        machine.memory.begin_launch()
        self.shared_bytes = program.shared.static + dynamic_shared
        self._buffers: list[Any] = []
        self.parameters = self._pack(parameters)
        self._regions: list[Region] = []
        self.parameter_address = self._place(self.parameters, "the kernel's parameters", align=128, writable=False)
        self._place_variables([each for each in program.module.variables if each.is_placed], variables or {})
        self.workspace = self._place_workspace() if cooperative else 0
        """Address of a cooperative launch's workspace, or 0."""
        self.numbers: Sequence[int] = range(self._cluster_count)
        """Numbers of the clusters to run."""
        self._order: Iterator[int] = iter(machine.asynchronous.clusters(self.numbers))
        self.clusters_left = self._cluster_count
        """Number of clusters that have not started."""
        self._repeats: Counter[tuple[str, str, int | None]] = Counter()
        instructions = program.kernel.instructions
        for region in self._watched():
            region.begin_launch(lambda at: place_of(instructions[at]))

    def _check(self, parameters: tuple[bytes, ...]) -> None:
        kernel, given = self.kernel, [len(data) for data in parameters]
        sizes = [parameter.size for parameter in kernel.parameters]
        shared, most = self.program.shared.static + self.dynamic_shared, self.machine.model.smem_per_block_optin
        problem, name = "", short_kernel(kernel.name)
        if given != sizes:
            problem = f"{name} has parameters of {sizes} bytes, but the launch has {given}"
        elif kernel.required_threads not in (None, self.block):
            problem = f"{name} requires {kernel.required_threads} threads, but the launch has {self.block}"
        elif kernel.required_cluster not in (None, self.cluster_shape):
            problem = f"{name} requires clusters of {kernel.required_cluster}, but the launch has "
            problem += f"{self.cluster_shape}"
        elif any(ctas % size for ctas, size in zip(self.shape, self.cluster_shape, strict=True)):
            problem = f"a grid of {self.shape} CTAs does not divide into clusters of {self.cluster_shape}"
        elif shared > most:
            problem = f"{shared} bytes of shared memory, but a CTA has at most {most}"
        if problem:
            raise Fault("launch", problem)

    def add_detail(self) -> None:
        """Begin the detail of the launch, in a program that counts for it."""
        self.detail = LaunchDetail(self.program)
        self.counters = DetailedCounter(self.detail)

    @property
    def clusters(self) -> Dim3:
        """``%nclusterid``."""
        return tuple(n // c for n, c in zip(self.shape, self.cluster_shape, strict=True))  # type: ignore[return-value]

    @property
    def _cluster_count(self) -> int:
        x, y, z = self.clusters
        return x * y * z

    @property
    def capacity(self) -> int:
        """Largest number of resident CTAs: SMs times CTAs per SM, limited by shared memory, threads and blocks."""
        model = self.machine.model
        x, y, z = self.block
        by_shared = model.smem_per_sm // (self.shared_bytes + model.smem_reserved_per_block)
        by_threads = model.threads_per_sm // max(32, x * y * z)
        return model.sm_count * max(1, min(by_shared, by_threads, model.blocks_per_sm))

    @property
    def ctas_per_sm(self) -> int:
        """CTAs resident on an SM: ``capacity``, limited by the TMEM columns that a CTA of the launch has allocated."""
        most, ctas = self.capacity // self.machine.model.sm_count, self.counters["ctas"]
        columns = -(-self.counters["tmem.columns"] // ctas) if ctas else 0
        return max(1, min(most, _TMEM_COLUMNS // columns)) if columns else most

    @property
    def started_together(self) -> int:
        """Number of clusters that start before any runs: half of them, if the kernel uses cluster launch control.

        How many clusters are still queued at a ``try_cancel`` depends on the device's other work, so any number is
        legal. With half of them, requests both succeed and fail, and CTAs run concurrently as on a device. The clusters
        of other kernels start one by one.
        """
        if not any(instruction.root == "clusterlaunchcontrol" for instruction in self.kernel.instructions):
            return 1
        x, y, z = self.cluster_shape
        return max(1, min(self.capacity // (x * y * z), -(-self.clusters_left // 2)))

    def sm_of(self, cta: Cta) -> int:
        """Return ``%smid``: the linear CTA modulo the number of SMs. Any value is legal."""
        return cta.linear % self.machine.model.sm_count

    @property
    def progress(self) -> tuple[int, int]:
        """CTAs that have started, in all processes about, and those to run."""
        ctas = prod(self.cluster_shape)
        total = len(self.numbers)
        return max(0, total - self.clusters_left * self.sharing) * ctas, total * ctas

    # ---- clusters ------------------------------------------------------------------------------------------------

    def _index(self, number: int) -> Dim3:
        x, y, _ = self.clusters
        return number % x, number // x % y, number // (x * y)

    def next_cluster(self, scheduler: Scheduler) -> Cluster | None:
        """Start the next cluster of the grid, or return None if all have started or were cancelled."""
        number = next(self._order, None)
        if number is None:
            return None
        self.clusters_left -= 1
        if self.on_cluster is not None:
            self.on_cluster(self)
        cluster = Cluster(self, self._index(number), self.cluster_shape)
        cx, cy, cz = self.cluster_shape
        threads = self.block[0] * self.block[1] * self.block[2]
        for rank in range(cx * cy * cz):
            place = (rank % cx, rank // cx % cy, rank // (cx * cy))
            index: Dim3 = tuple(  # type: ignore[assignment]
                c * n + p for c, n, p in zip(cluster.index, self.cluster_shape, place, strict=True)
            )
            cta = Cta(cluster, rank, index, place=place, shared_bytes=self.shared_bytes, scheduler=scheduler)
            cta.warps = [Warp(cta, i, registers=list(self.program.registers)) for i in range(-(-threads // 32))]
            for warp in cta.warps if self.program.unset else ():
                follow_unset(warp)
            cluster.ctas.append(cta)
            self.counters["ctas"] += 1
            if self.detail is not None:
                self.detail.begin(cta)
        if self.machine.monitor is not None:
            self.machine.monitor.cluster_started(cluster)
        return cluster

    def cancel_next(self) -> Dim3 | None:
        """Cancel the next queued cluster (cluster launch control); return the index of its first CTA, or None."""
        number = next(self._order, None)
        if number is None:
            return None
        self.clusters_left -= 1
        self.counters["clusters.cancelled"] += 1
        return tuple(i * n for i, n in zip(self._index(number), self.cluster_shape, strict=True))  # type: ignore[return-value]

    # ---- parameters ----------------------------------------------------------------------------------------------

    def _pack(self, parameters: tuple[bytes, ...]) -> bytes:
        block = b""
        for parameter, data in zip(self.kernel.parameters, parameters, strict=True):
            block = block.ljust(parameter.offset, b"\xee") + data
        return block

    def _place_variables(self, variables: Sequence[Variable], placed: Mapping[str, int]) -> None:
        own = [variable for variable in variables if variable.name not in placed]
        self.symbols.update({variable.name: placed[variable.name] for variable in variables if variable not in own})
        for variable in own:
            self.symbols[variable.name] = self._place(
                variable.data, f"variable {variable.name}", align=variable.align, writable=variable.space == "global"
            )
        for variable in own:
            ctypes.memmove(self.symbols[variable.name], variable.initial(self.symbols), variable.size)

    def _place_workspace(self) -> int:
        """Place the size of the workspace and the barrier of the grid, 32 bits each, as a driver does."""
        data = _WORKSPACE_BYTES.to_bytes(_WORKSPACE_BYTES // 2, "little").ljust(_WORKSPACE_BYTES, b"\0")
        return self._place(data, "the barrier of the cooperative launch", align=_WORKSPACE_BYTES, writable=True)

    @property
    def lacks_workspace(self) -> bool:
        """Whether the kernel asks for a cooperative launch's workspace, and the launch is none."""
        return not self.workspace and any(
            isinstance(operand, Special) and operand.name in WORKSPACE
            for instruction in self.kernel.instructions
            for operand in instruction.operands
        )

    def _place(self, data: bytes, name: str, *, align: int, writable: bool) -> int:
        size = max(len(data), 1)
        memory = ctypes.create_string_buffer(size + 2 * align)
        start = -(-ctypes.addressof(memory) // align) * align
        ctypes.memmove(start, data, len(data))
        self._buffers.append(memory)
        self._regions.append(self.machine.memory.add(Region(name, start, size, writable)))
        return start

    def close(self) -> None:
        """Remove the launch's own regions."""
        for region in self._regions:
            self.machine.memory.remove(region)
        self._regions.clear()

    # ---- findings ------------------------------------------------------------------------------------------------

    def where(self, warp: Warp, at: int | None, *, mask: int | None = None) -> Where:
        """Return the place of an instruction that a warp executes."""
        group = warp.current.mask if mask is None else mask
        shown = () if group == 0xFFFF_FFFF else lanes(group)
        return replace(self.where_of(at), cta=warp.cta.index, warp=warp.index, lanes=shown)

    def where_of(self, at: int | None) -> Where:
        """Return an instruction as a place, whatever executes it; None is the kernel."""
        instruction = self.kernel.instructions[at] if at is not None and at < len(self.kernel.instructions) else None
        return Where(
            kernel=self.kernel.name,
            at=at,
            ptx_line=instruction.ptx_line if instruction else None,
            text=instruction.text if instruction else "",
            source=instruction.location if instruction else None,
        )

    def where_cta(self, cta: Cta) -> Where:
        """Return a CTA as a place."""
        return Where(kernel=self.kernel.name, cta=cta.index)

    def place(self, at: int) -> str:
        """Describe an instruction: the source line and the opcode."""
        if at >= len(self.kernel.instructions):
            return "the end of the kernel"
        instruction = self.kernel.instructions[at]
        return f"{place_of(instruction)} ({instruction.opcode})"

    def report(self, kind: str, message: str, *, hint: str = "", where: Where | None = None) -> None:
        """Record a finding that does not stop the kernel, once for each kind and instruction.

        ``where`` is the place, if it is not that of the running instruction.
        """
        warp = self.running_warp
        at, mask = (where.at, None) if where is not None else self.program.frames.place_now() or (None, None)
        key = (kind, message if at is None else "", at)
        self._repeats[key] += 1
        if self._repeats[key] > 1:
            return
        if where is None:
            where = self.where(warp, at, mask=mask) if warp is not None else Where(kernel=self.kernel.name)
        self.findings.append(Finding(kind, message, hint=worded(hint, self.kernel), where=where))

    def reported(self, kind: str, at: int) -> bool:
        """Return whether a finding of this kind at an instruction is recorded, so that another one would be none."""
        return (kind, "", at) in self._repeats

    def report_fault(self, fault: Fault) -> None:
        """Record a fault as a finding: see ``report``."""
        self.report(fault.kind, fault.message, hint=fault.hint)

    @property
    def instruction(self) -> Instruction | None:
        """The instruction that runs now; None if that is unknown."""
        place = self.program.frames.place_now()
        return None if place is None else self.kernel.instructions[place[0]]

    @property
    def running_warp(self) -> Warp | None:
        """The warp that executes an instruction now."""
        return self._scheduler.running if self._scheduler is not None else None

    def unended(self) -> Fault | None:
        """Return where the warps are that this process executes now, as the fault of a launch that takes too long."""
        from pytest_nvfp4.sim.run.deadlock import unended

        return None if self._scheduler is None else unended(self._scheduler)

    def resident(self, cta: Dim3, warp: int) -> Warp | None:
        """Return a warp of a CTA that has started and whose cluster was not discarded yet."""
        clusters = self._scheduler.resident if self._scheduler is not None else []
        return next((each.warps[warp] for cluster in clusters for each in cluster.ctas if each.index == cta), None)

    def printed(self, text: str) -> None:
        """Store text that the kernel printed, up to 1 MiB (the default size of a device's printf buffer)."""
        left = PRINTED_MOST - self._printed
        self._printed += len(text)
        if len(text) <= left:
            self.output.append(text)
        elif left >= 0:
            self.output.append(f"{text[:left]}\n... the kernel printed more than {PRINTED_MOST} characters\n")
            self._printed = PRINTED_MOST + 1

    _scheduler: Scheduler | None = None

    def run(self) -> None:
        """Run all clusters of the grid. Raises Fault."""
        self.run_part()
        self.finish()

    def run_part(self) -> None:
        """Run the selected clusters (see ``limit_to``). Raises Fault."""
        from pytest_nvfp4.sim.run.scheduler import Scheduler

        debugger = self.machine.debugger
        self._scheduler = Scheduler(self, self.program) if debugger is None else debugger.scheduler(self)
        try:
            # Kernels may compute infinities and NaN, so numpy's warnings about them are disabled.
            with np.errstate(all="ignore"):
                self._scheduler.run()
            self.call_units("settle")
        finally:
            self._scheduler = None

    def finish(self) -> None:
        """Run the final checks of the launch's units, after all clusters have ended."""
        self.call_units("at_exit")

    # ---- several processes ---------------------------------------------------------------------------------------

    def select(self, clusters: Sequence[int]) -> None:
        """Select the clusters to run, by number."""
        self.numbers = clusters
        self.limit_to(clusters)

    def limit_to(self, clusters: Sequence[int]) -> None:
        """Select those of the clusters that this process starts next, by number."""
        self._order = iter(clusters)
        self.clusters_left = len(clusters)

    def begin_part(self) -> None:
        """Reset all results in a forked process, so that the parent can add them to its own."""
        self.counters = Counter()
        if self.detail is not None:
            self.add_detail()
        self.products = 0
        self.findings = []
        self.output = []
        self._printed = 0
        for region in self._watched():
            region.notes = []
        self.call_units("begin_part")

    def part(self, fault: Fault | None) -> GridPart:
        """Return the result of a forked process. A launch's unit with a method ``part`` adds its own."""
        touched = self.machine.memory.touched
        return GridPart(
            counters=Counter(self.counters),
            products=self.products,
            touched=(frozenset(r.start for r in touched.reads), frozenset(r.start for r in touched.writes)),
            findings=self.findings,
            output=self.output,
            units=self.call_units("part"),
            written={region.start: region.notes for region in self._watched() if region.notes},
            fault=None if fault is None else fault.finding(),
            unsupported=isinstance(fault, Unsupported),
            by_instruction=None if self.detail is None else self.detail.settle(),
        )

    def _watched(self) -> list[Region]:
        return [region for region in self.machine.memory if region.owner is not None]

    def absorb(self, part: GridPart) -> Fault | None:
        """Add the result of a forked process, and return its fault."""
        self.counters.update(part.counters)
        if self.detail is not None:
            self.detail.by_instruction.update(part.by_instruction or {})
        self.products += part.products
        touched, regions = self.machine.memory.touched, list(self.machine.memory)
        touched.reads.update(region for region in regions if region.start in part.touched[0])
        touched.writes.update(region for region in regions if region.start in part.touched[1])
        known = {(f.kind, f.where.at if f.where else None): index for index, f in enumerate(self.findings)}
        for finding in part.findings:
            index = known.get((finding.kind, finding.where.at if finding.where else None))
            if index is None:
                self.findings.append(finding)
            elif _first_cta(finding) < _first_cta(self.findings[index]):
                self.findings[index] = finding  # the order in which processes report is arbitrary
        self.output.extend(part.output)
        by_start = {region.start: region for region in self._watched()}
        for start, notes in part.written.items():
            repeat(by_start[start], notes)
        for kind, data in part.units.items():
            self.unit(kind).absorb(data)
        found = part.fault
        if found is None:
            return None
        fault = (
            Unsupported(found.message, hint=found.hint)
            if part.unsupported
            else Fault(found.kind, found.message, hint=found.hint, notes=found.notes)
        )
        fault.where = found.where
        return fault


def _first_cta(finding: Finding) -> tuple[int, ...]:
    """Sort key: the place of a finding's CTA in the grid."""
    return finding.where.cta[::-1] if finding.where is not None and finding.where.cta is not None else ()
