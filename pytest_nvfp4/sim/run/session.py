"""A simulated device and the launches that ran on it; a launch runs to its end before the call returns."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod

from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.launches import Launch, ModuleImage
from pytest_nvfp4.driver.streams import Extent, Streams
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.globals import Touched
from pytest_nvfp4.sim.ptx.syntax import Kernel, Variable
from pytest_nvfp4.sim.races.host_order import HostOrder
from pytest_nvfp4.sim.races.launch_overlap import Overlap
from pytest_nvfp4.sim.run.device_memory import SimulatedMemory
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.parallel import run_grid
from pytest_nvfp4.sim.run.programs import Programs
from pytest_nvfp4.sim.sync.barrier_log import BarrierLog

_ACCESSES = frozenset({"atom", "cp", "ld", "ldu", "red", "st"})


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """Result of one launch. The units' modules document the counters, which are deterministic."""

    launch: Launch
    counters: Counter[str]
    findings: tuple[Finding, ...]
    output: str
    barriers: BarrierLog | None = None
    """The operations on mbarriers, if they were logged."""
    multiply_adds: int = 0
    """Products of its matrix instructions and of its scalar and packed multiplications, padding included."""
    touched: Touched = field(default_factory=Touched)
    """The regions that it read and wrote."""


def _first_access(kernel: Kernel) -> int | None:
    """Return the first instruction of a kernel that accesses global memory by name, in the order of its text."""
    return next((at for at, one in enumerate(kernel.instructions) if one.root in _ACCESSES and one.has("global")), None)


def _multiply_adds(grid: Grid) -> int:
    counters = grid.counters
    return grid.products + counters["mma.flops"] // 2 + counters["mma.macs"] + counters["wgmma.macs"]


@dataclass(slots=True)
class Session:
    """A simulated device and the launches that ran on it.

    Attributes:
        processes: Number of processes that may share the CTAs of a large launch.
        launches: Results, in order.
        faults: Faults that stopped a kernel; stored because code around a launch may catch the exception.
        prepare: Called with each grid before it runs (to watch outputs, to count, to trace).
        order: Race detection between streams, if races are looked for.
        streams: The device's streams; None if no host code issues the launches.
        on_cluster: Called when a cluster starts, in this process.
        around: Surrounds each launch, to change what it sees of other streams' work.
        log_ctas: Largest number of CTAs of a launch whose operations on mbarriers are logged; it runs in one process.
        launch_only: Whether launches are recorded and not executed.
        detailed: Whether the detail of launches is recorded (``run.detail``).
        running: The launch that is being executed, if any.
    """

    machine: Machine
    memory: SimulatedMemory
    processes: int = 1
    programs: Programs = field(default_factory=Programs)
    launches: list[LaunchRecord] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    prepare: Callable[[Grid], None] | None = None
    order: HostOrder | None = None
    streams: Streams | None = None
    on_cluster: Callable[[Grid], None] | None = None
    around: Callable[[Launch], AbstractContextManager[None]] | None = None
    log_ctas: int = 0
    launch_only: bool = False
    detailed: bool = False
    running: Grid | None = field(default=None, init=False)
    _variables: dict[int, tuple[ModuleImage, Mapping[str, Extent]]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def findings(self) -> list[Finding]:
        """Findings that did not stop a kernel."""
        between_streams = self.order.findings if self.order is not None else []
        return [*(finding for record in self.launches for finding in record.findings), *between_streams]

    @property
    def output(self) -> str:
        """Text that kernels printed."""
        return "".join(record.output for record in self.launches)

    def launch(self, launch: Launch) -> None:
        """Run a launch to its end. Raises Fault: an error of the kernel, with its place; earlier writes remain."""
        if launch.module.ptx is None:
            raise Fault(
                "launch",
                f"{short_kernel(launch.kernel)} has no PTX, and only PTX can be simulated",
                hint="a kernel that was compiled elsewhere, or loaded from a CUBIN, runs only on a GPU",
            )
        monitor = self.machine.monitor
        debugger = self.machine.debugger
        program = self.programs.get(
            launch.module.ptx,
            launch.kernel,
            monitor=monitor,
            counted=self.detailed,
            stepped=debugger is not None,
        )
        grid = Grid(
            self.machine,
            program,
            shape=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_shared=launch.dynamic_smem,
            parameters=launch.params,
            ordinal=launch.ordinal,
            variables={name: extent.address for name, extent in self.variables(launch.module, False).items()},
            cooperative=launch.cooperative,
        )
        if launch.module.cubin:
            grid.registers_per_thread = launch.module.registers.get(launch.kernel)
        elif (declared := grid.kernel.directives.get("maxnreg", "")).isdigit():
            grid.registers_per_thread = int(declared)
        grid.on_cluster = self.on_cluster
        if self.detailed:
            grid.add_detail()
        trace = self.machine.trace
        logged = not self.launch_only and prod(launch.grid) <= self.log_ctas
        log = self.machine.barrier_log = BarrierLog(grid) if logged else None
        overlap = self._overlap(launch)
        judged = False
        self.running = grid
        try:
            if self.prepare is not None:
                self.prepare(grid)
            if self.launch_only:
                return
            if trace is not None:
                trace.begin(grid)
            if self.machine.operands is not None:
                self.machine.operands.begin(grid)
            if monitor is not None:
                dependent = launch.programmatic_dependent_launch
                judged = monitor.launched(grid, stream=launch.stream, overlap=overlap, dependent=dependent)
            # The distribution of CTAs over processes depends on time, so a seed reproduces a run in one process only.
            recorded = trace is not None or log is not None or self.machine.operands is not None
            alone = recorded or debugger is not None or self.machine.asynchronous.shuffles
            with self.around(launch) if self.around is not None else nullcontext():
                run_grid(grid, processes=1 if alone else self.processes)
            if self.order is not None:
                self.order.launched(launch, grid)
            if not judged:
                self._check_dependence(launch, grid)
        except Fault as fault:
            self.faults.append(fault)
            raise
        finally:
            self.running = None
            if trace is not None:
                trace.end()
            self.machine.barrier_log = None
            self.launches.append(
                LaunchRecord(
                    launch,
                    grid.counters,
                    tuple(grid.findings),
                    "".join(grid.output),
                    log,
                    multiply_adds=_multiply_adds(grid),
                    touched=self.machine.memory.touched,
                )
            )
            grid.close()

    def variables(self, module: ModuleImage, fresh: bool) -> Mapping[str, Extent]:
        """Return the memory of a module's variables (``driver.variables.Variables``).

        Raises:
            PtxError: the parser does not accept the PTX.
            Fault: the module has none.
        """
        if module.ptx is None:
            raise Fault("launch", "a module has no PTX, and only the variables of PTX can be placed")
        _, placed = self._variables.get(id(module), (module, None))
        if placed is not None and not fresh:
            return placed
        variables = [each for each in self.programs.module(module.ptx).variables if each.is_placed]
        if placed is None:
            placed = {each.name: self._place(each) for each in variables}
            self._variables[id(module)] = module, placed  # the reference keeps the identity unique
        addresses = {name: where.address for name, where in placed.items()}
        for each in variables:
            ctypes.memmove(addresses[each.name], each.initial(addresses), each.size)
        return placed

    def _place(self, variable: Variable) -> Extent:
        address = self.memory.allocate(variable.size)
        self.memory.name(address, f"variable {variable.name}", writable=variable.space == "global")
        if self.streams is not None:
            self.streams.allocated(address, variable.size)
        return Extent(address, variable.size)

    def _before(self, launch: Launch) -> LaunchRecord | None:
        """Return the previous launch on the stream of a programmatic dependent launch; None for any other launch."""
        if not launch.programmatic_dependent_launch:
            return None
        return next((record for record in reversed(self.launches) if record.launch.stream == launch.stream), None)

    def _overlap(self, launch: Launch) -> Overlap | None:
        """Return what of the previous launch may be missing when this one begins."""
        before = self._before(launch)
        if before is None:
            return None
        return Overlap.RUNNING if before.counters["griddepcontrol.launch_dependents"] else Overlap.WRITES

    def _check_dependence(self, launch: Launch, grid: Grid) -> None:
        """Report a launch that may overlap the one before it and never waits for it.

        Launches run one after the other here, so the results do not show the error.
        """
        before = self._before(launch)
        running = before is not None and before.counters["griddepcontrol.launch_dependents"]
        if before is not None and running and not grid.counters["griddepcontrol.wait"]:
            kernel, earlier = short_kernel(launch.kernel), short_kernel(before.launch.kernel)
            at = _first_access(grid.kernel)
            first = "" if at is None else " before this first access to global memory"
            grid.report(
                "griddepcontrol",
                f"no warp of {kernel} executes griddepcontrol.wait{first}, and the launch may begin while {earlier} "
                "still runs (programmatic dependent launch, griddepcontrol.launch_dependents): data that the earlier "
                "kernel writes may be missing",
                hint="execute <griddepcontrol.wait> before the first access to data of earlier kernels, or launch "
                "without <programmatic dependent launch>",
                where=grid.where_of(at),
            )
