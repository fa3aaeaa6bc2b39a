"""One launch: a grid of CTAs in clusters, its parameters, counters and findings."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.fault import Fault, Unsupported
from pytest_nvfp4.sim.lanes import lanes
from pytest_nvfp4.sim.lower.compiler import Program
from pytest_nvfp4.sim.memory.coverage import merge
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.cta import Cluster, Cta, Dim3
from pytest_nvfp4.sim.run.source import place_of
from pytest_nvfp4.sim.run.units import HasUnits
from pytest_nvfp4.sim.run.warp import Warp

if TYPE_CHECKING:
    from pytest_nvfp4.sim.run.machine import Machine
    from pytest_nvfp4.sim.run.scheduler import Scheduler

__all__ = ["PRINTED_MOST", "Grid"]

PRINTED_MOST = 1 << 20
"""Characters that are kept of what a launch prints, in each of its processes."""


class Grid(HasUnits):
    """A launch on a machine.

    Args:
        machine: The device.
        program: The compiled kernel.
        shape: Grid dimensions in CTAs.
        block: Block dimensions in threads.
        cluster: Cluster dimensions in CTAs.
        dynamic_shared: Bytes of dynamic shared memory.
        parameters: The bytes of each kernel parameter, in order.
        ordinal: Number of the launch.

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
        self.findings: list[Finding] = []
        self.output: list[str] = []
        self._printed = 0
        self.symbols: dict[str, int] = {}
        self.registers_per_thread: int | None = None
        self.counting = False
        self._check(parameters)
        self.shared_bytes = program.shared.static + dynamic_shared
        self._kept: list[Any] = []
        self.parameters = self._pack(parameters)
        self._regions: list[Region] = []
        self.parameter_address = self._place(self.parameters, "the kernel's parameters", align=128, writable=False)
        for variable in program.module.variables:
            if variable.space in ("global", "const") and not variable.external:
                data = variable.data.ljust(variable.size, b"\0")
                self.symbols[variable.name] = self._place(
                    data, f"variable {variable.name}", align=variable.align, writable=variable.space == "global"
                )
        self._order: Iterator[int] = iter(machine.asynchronous.clusters(range(self._cluster_count)))
        self._left = self._cluster_count
        self._repeats: Counter[tuple[str, str, int | None]] = Counter()
        for region in self._watched():
            region.begin_launch()

    def _check(self, parameters: tuple[bytes, ...]) -> None:
        kernel = self.kernel
        sizes = [p.size for p in kernel.parameters]
        if [len(p) for p in parameters] != sizes:
            raise Fault(
                "launch", f"{kernel.name} takes parameters of {sizes} bytes, and got {[len(p) for p in parameters]}"
            )
        if kernel.required_threads is not None and kernel.required_threads != self.block:
            raise Fault("launch", f"{kernel.name} requires {kernel.required_threads} threads, and got {self.block}")
        if kernel.required_cluster is not None and kernel.required_cluster != self.cluster_shape:
            raise Fault(
                "launch", f"{kernel.name} requires clusters of {kernel.required_cluster}, and got {self.cluster_shape}"
            )
        for axis in range(3):
            if self.shape[axis] % self.cluster_shape[axis]:
                raise Fault(
                    "launch", f"a grid of {self.shape} CTAs does not divide into clusters of {self.cluster_shape}"
                )
        most = self.machine.model.smem_per_block_optin
        if self.program.shared.static + self.dynamic_shared > most:
            raise Fault(
                "launch",
                f"{self.program.shared.static + self.dynamic_shared} bytes of shared memory, and a CTA can have {most}",
            )

    @property
    def clusters(self) -> Dim3:
        """``%nclusterid``."""
        return tuple(n // c for n, c in zip(self.shape, self.cluster_shape, strict=True))  # type: ignore[return-value]

    @property
    def _cluster_count(self) -> int:
        x, y, z = self.clusters
        return x * y * z

    @property
    def clusters_left(self) -> int:
        """Clusters that have not started."""
        return self._left

    @property
    def capacity(self) -> int:
        """CTAs that are resident at once at most: SMs times CTAs an SM, by shared memory and threads."""
        model = self.machine.model
        x, y, z = self.block
        by_shared = model.smem_per_sm // (self.shared_bytes + model.smem_reserved_per_block)
        by_threads = model.threads_per_sm // max(32, x * y * z)
        return model.sm_count * max(1, min(by_shared, by_threads, model.blocks_per_sm))

    @property
    def started_together(self) -> int:
        """Clusters that are started before any runs: half of them, where the kernel takes clusters off the queue.

        Which of them still wait when it asks is up to the device's other work, so any number is legal; with half of
        them both answers occur, and CTAs run beside each other as they do on a device. Other kernels start one by one.
        """
        if not any(instruction.root == "clusterlaunchcontrol" for instruction in self.kernel.instructions):
            return 1
        x, y, z = self.cluster_shape
        return max(1, min(self.capacity // (x * y * z), -(-self._left // 2)))

    def sm_of(self, cta: Cta) -> int:
        """``%smid``: any answer is legal; the linear CTA modulo the number of SMs."""
        return cta.linear % self.machine.model.sm_count

    # ---- clusters ------------------------------------------------------------------------------------------------

    def _index(self, number: int) -> Dim3:
        x, y, _ = self.clusters
        return number % x, number // x % y, number // (x * y)

    def next_cluster(self, scheduler: Scheduler) -> Cluster | None:
        """Start the next cluster of the grid; None if all have started or were cancelled."""
        number = next(self._order, None)
        if number is None:
            return None
        self._left -= 1
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
            cluster.ctas.append(cta)
            self.counters["ctas"] += 1
        return cluster

    def cancel_next(self) -> Dim3 | None:
        """Take the next cluster off the queue, as cluster launch control does; its first CTA's index, or None."""
        number = next(self._order, None)
        if number is None:
            return None
        self._left -= 1
        self.counters["clusters.cancelled"] += 1
        return tuple(i * n for i, n in zip(self._index(number), self.cluster_shape, strict=True))  # type: ignore[return-value]

    # ---- parameters ----------------------------------------------------------------------------------------------

    def _pack(self, parameters: tuple[bytes, ...]) -> bytes:
        block = b""
        for parameter, data in zip(self.kernel.parameters, parameters, strict=True):
            block = block.ljust(parameter.offset, b"\xee") + data
        return block

    def _place(self, data: bytes, name: str, *, align: int, writable: bool) -> int:
        size = max(len(data), 1)
        memory = ctypes.create_string_buffer(size + 2 * align)
        start = -(-ctypes.addressof(memory) // align) * align
        ctypes.memmove(start, data, len(data))
        self._kept.append(memory)
        self._regions.append(self.machine.memory.add(Region(name, start, size, writable)))
        return start

    def close(self) -> None:
        """Forget the launch's own regions."""
        for region in self._regions:
            self.machine.memory.remove(region)
        self._regions.clear()

    # ---- findings ------------------------------------------------------------------------------------------------

    def where(self, warp: Warp, at: int | None, *, mask: int | None = None) -> Where:
        """A place, in full."""
        instruction = self.kernel.instructions[at] if at is not None and at < len(self.kernel.instructions) else None
        group = warp.current.mask if mask is None else mask
        return Where(
            kernel=self.kernel.name,
            cta=warp.cta.index,
            warp=warp.index,
            lanes=() if group == 0xFFFF_FFFF else lanes(group),
            at=at,
            ptx_line=instruction.ptx_line if instruction else None,
            text=instruction.text if instruction else "",
            source=instruction.location if instruction else None,
        )

    def where_cta(self, cta: Cta) -> Where:
        """A CTA as a place."""
        return Where(kernel=self.kernel.name, cta=cta.index)

    def say(self, at: int) -> str:
        """An instruction in words: the user's line first."""
        if at >= len(self.kernel.instructions):
            return "the end of the kernel"
        instruction = self.kernel.instructions[at]
        return f"{place_of(instruction)} ({instruction.opcode})"

    def report(self, kind: str, message: str, *, hint: str = "", where: Where | None = None) -> None:
        """Note a finding that does not stop the kernel; the same at the same instruction is noted once.

        ``where`` is the place, if it is not that of the instruction that runs.
        """
        scheduler = self._scheduler
        warp = scheduler.running if scheduler is not None else None
        at, mask = (where.at, None) if where is not None else self.program.place_now() or (None, None)
        key = (kind, message if at is None else "", at)
        self._repeats[key] += 1
        if self._repeats[key] > 1:
            return
        if where is None:
            where = self.where(warp, at, mask=mask) if warp is not None else Where(kernel=self.kernel.name)
        self.findings.append(Finding(kind, message, hint=hint, where=where))

    def printed(self, text: str) -> None:
        """Take what the kernel printed; what comes after the first mebibyte (a device's buffer has one) is left out."""
        left = PRINTED_MOST - self._printed
        self._printed += len(text)
        if len(text) <= left:
            self.output.append(text)
        elif left >= 0:
            self.output.append(f"{text[:left]}\n... the kernel printed more than {PRINTED_MOST} characters\n")
            self._printed = PRINTED_MOST + 1

    _scheduler: Scheduler | None = None

    def run(self) -> None:
        """Run the grid to its end. Raises Fault."""
        self.run_part()
        self.finish()

    def run_part(self) -> None:
        """Run the clusters that are on the list (see ``limit_to``). Raises Fault."""
        from pytest_nvfp4.sim.run.scheduler import Scheduler

        self._scheduler = Scheduler(self, self.program)
        try:
            # Overflow to infinity and NaN are results here, not accidents.
            with np.errstate(all="ignore"):
                self._scheduler.run()
        finally:
            self._scheduler = None

    def finish(self) -> None:
        """Let the launch's units judge what they have seen, once all clusters have ended."""
        for unit in self.units.values():
            at_exit = getattr(unit, "at_exit", None)
            if at_exit is not None:
                at_exit()

    # ---- several processes ---------------------------------------------------------------------------------------

    def limit_to(self, clusters: range) -> None:
        """From now on start only these clusters, by number."""
        self._order = iter(clusters)
        self._left = len(clusters)

    def begin_part(self) -> None:
        """In a forked process: count from nothing, for the parent to add."""
        self.counters = Counter()
        self.findings = []
        self.output = []
        self._printed = 0
        for region in self._watched():
            region.watch(region.owner_bytes)
        for unit in self.units.values():
            begin = getattr(unit, "begin_part", None)
            if begin is not None:
                begin()

    def part(self, fault: Fault | None) -> dict[str, Any]:
        """What a forked process has to tell: plain values. A launch's unit with ``part`` adds its own."""
        units = {}
        for kind, unit in self.units.items():
            tell = getattr(unit, "part", None)
            if tell is not None:
                units[kind] = tell()
        told = None if fault is None else (fault.finding(), isinstance(fault, Unsupported))
        return {
            "counters": self.counters,
            "findings": self.findings,
            "output": self.output,
            "units": units,
            "written": [(region.start, region.owner, region.coverage) for region in self._watched()],
            "fault": told,
        }

    def _watched(self) -> list[Region]:
        return [region for region in self.machine.memory if region.owner is not None]

    def absorb(self, told: dict[str, Any]) -> Fault | None:
        """Add what a forked process told; its fault, if it had one."""
        self.counters.update(told["counters"])
        known = {(f.kind, f.where.at if f.where else None): index for index, f in enumerate(self.findings)}
        for finding in told["findings"]:
            index = known.get((finding.kind, finding.where.at if finding.where else None))
            if index is None:
                self.findings.append(finding)
            elif _first_cta(finding) < _first_cta(self.findings[index]):
                self.findings[index] = finding  # which process tells first is chance
        self.output.extend(told["output"])
        by_start = {region.start: region for region in self._watched()}
        for start, owner, coverage in told["written"]:
            merge(by_start[start], owner, coverage)
        for kind, data in told["units"].items():
            self.unit(kind).absorb(data)
        if told["fault"] is None:
            return None
        finding, unsupported = told["fault"]
        fault = (
            Unsupported(finding.message, hint=finding.hint)
            if unsupported
            else Fault(finding.kind, finding.message, hint=finding.hint, notes=finding.notes)
        )
        fault.where = finding.where
        return fault


def _first_cta(finding: Finding) -> tuple[int, ...]:
    """Sorts findings by their CTA's place in the grid."""
    return finding.where.cta[::-1] if finding.where is not None and finding.where.cta is not None else ()
