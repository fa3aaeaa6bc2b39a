"""From readings to the constants of a device table (``constants.UNITS``), and to further values of interest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pytest_nvfp4.model.calibrate import memory, plan, signals
from pytest_nvfp4.model.calibrate.benchmark import Machine
from pytest_nvfp4.model.calibrate.estimates import Estimate, Measurements, NotMeasuredError, robust, two_levels
from pytest_nvfp4.model.calibrate.readings import Gpu

_KIB_ROWS = 8
"""Rows of 128 bytes in a KiB."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured value that no replay needs."""

    what: str
    unit: str
    estimate: Estimate


@dataclass(slots=True)
class Fitted:
    """The outcome of all fits.

    Attributes:
        constants: Estimates by the name of the constant.
        matrix: Rows of the table of matrix instructions: kind, place of A, CTAs, M, N, interval, latency.
        observed: Further values.
        missing: Why a constant was not measured, by its name.
    """

    constants: dict[str, Estimate] = field(default_factory=dict)
    matrix: list[tuple[str, str, int, int, int, float, float]] = field(default_factory=list)
    matrix_spread: float = 0.0
    observed: list[Observed] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Estimate], *, may_be_zero: bool = False) -> None:
        """Add a constant, or why it was not measured."""
        try:
            self.constants[name] = make().checked(name, may_be_zero=may_be_zero)
        except (NotMeasuredError, ZeroDivisionError) as error:
            self.missing[name] = str(error)

    def observe(self, what: str, unit: str, make: Callable[[], Estimate]) -> None:
        """Add a further value if it was measured."""
        try:
            self.observed.append(Observed(what, unit, make().checked(what)))
        except (NotMeasuredError, ZeroDivisionError) as error:
            self.missing[what] = str(error)

    def need(self, name: str) -> Estimate:
        """Return a constant that others follow from. Raises NotMeasuredError."""
        if name not in self.constants:
            raise NotMeasuredError(f"{name} was not measured")
        return self.constants[name]


def fit(gpu: Gpu, machine: Machine, measured: Measurements) -> Fitted:
    """Return everything that follows from the readings of a GPU."""
    found = Fitted()
    _chip(found, gpu, measured)
    _warps(found, measured)
    _copies(found, measured)
    _stores(found, measured)
    _lines(found, measured)
    _bandwidths(found, machine, measured)
    _launches(found, measured)
    if machine.blackwell:
        _tensor_memory(found, measured)
    _matrix(found, machine, measured)
    return found


def _exact(value: float, what: str) -> Estimate:
    return Estimate(value, 0.0, (what,))


def _chip(found: Fitted, gpu: Gpu, measured: Measurements) -> None:
    found.constants["sms"] = _exact(gpu.sms, "device query")
    found.constants["l2_capacity"] = _exact(gpu.l2_bytes / 1e6, "device query")
    for size, count in gpu.clusters.items():
        if count:
            found.constants[f"clusters_of_{size}"] = _exact(count, "cuOccupancyMaxActiveClusters")
    found.add("clock", lambda: measured.ghz("clock"))
    found.observe("clock under sustained matrix work", "GHz", lambda: measured.ghz("clock.sustained"))


def _warps(found: Fitted, measured: Measurements) -> None:
    """Instructions, barriers, fences and tensor maps, in cycles."""

    def of_all(name: str, counted: int, warps: int = 16) -> Estimate:
        return measured.cycles(name).over(counted * warps)

    def instruction(kind: str) -> Estimate:
        """Time of an instruction of a warp of which every second one needs the one before it.

        Sixteen warps share four schedulers, so that an independent one takes a quarter of what they take together.
        """
        alone = measured.cycles(f"issue.{kind}.dependent") + measured.cycles(f"issue.{kind}.independent").scaled(0.25)
        return alone.scaled(0.5)

    def hop() -> Estimate:
        """Half of an exchange: an arrival, and a wait that it ends."""
        return measured.cycles("mbarrier.handover").scaled(0.5)

    def barrier() -> Estimate:
        """Half of what an arrival and a wait take together, without the instructions of the loop."""
        return (hop() - measured.cycles("mbarrier.arrive")).scaled(0.5)

    for kind in signals.CLASSES:
        found.add(kind, partial(instruction, kind))
        dependent = partial(measured.cycles, f"issue.{kind}.dependent")
        found.observe(f"{kind} instruction that needs the one before it", "cycle", dependent)
        rate = partial(of_all, f"issue.{kind}.independent", 1)
        found.observe(f"{kind} instructions of all warps", "warp instruction/cycle", rate)
    found.add("shared_load", partial(measured.cycles, "shared.latency"))
    found.observe("store of a word to shared memory by one warp", "cycle", partial(measured.cycles, "shared.store"))
    # Only their sum can be seen: the way to the barrier, and the way back to a warp that waits.
    found.add("barrier_arrive", barrier)
    found.add("barrier_wait", barrier)
    # A remote arrival takes the place of a near one.
    remote = partial(measured.cycles, "mbarrier.remote")
    found.add("remote_latency", lambda: remote().scaled(0.5) - hop() + found.need("barrier_arrive"))
    found.add("fence", lambda: measured.cycles("fence.gpu") - measured.cycles("fence.none"))
    found.add("fence_near", lambda: measured.cycles("fence.near") - measured.cycles("fence.none"))
    # The copy of a map contains a fence, which a replay counts by itself.
    copied = partial(measured.cycles, "map.change")
    found.add("map_change", lambda: copied() - measured.cycles("map.replace") - found.need("fence_near"))
    # What a load takes longer after a fence: the fence itself does not wait, but the load reads the map anew.
    acquired = partial(measured.cycles, "map.load.acquired")
    found.add("map_acquire", lambda: (acquired() - measured.cycles("map.load")).at_least(0), may_be_zero=True)
    changed = partial(measured.cycles, "map.load.changed")
    found.add("map_acquire_changed", lambda: changed() - measured.cycles("map.change") - measured.cycles("map.load"))
    most = plan.SHARED_WARPS[-1]
    found.add("shared_port", partial(of_all, f"shared.load.{most}", memory.VECTOR_BYTES, most))
    stores = partial(of_all, f"shared.stmatrix.{most}", memory.VECTOR_BYTES, most)
    found.observe("stmatrix of all warps", "B/cycle", stores)
    found.observe("cluster barrier of two CTAs", "cycle", partial(measured.cycles, "barrier.cluster"))
    for warps in plan.NAMED_WARPS:
        found.observe(f"named barrier of {warps} warps", "cycle", partial(measured.cycles, f"barrier.named.{warps}"))


def _copies(found: Fitted, measured: Measurements) -> None:
    """TMA loads of one SM."""
    small, middle, large = plan.LATENCY_ROWS

    def between(name: str, low: int, high: int) -> Estimate:
        """Return the cycles of one more box, or row, than ``low`` up to ``high``."""
        return (measured.cycles(f"{name}.{high}") - measured.cycles(f"{name}.{low}")).scaled(1 / (high - low))

    def per_kib() -> Estimate:
        return (between("tma.latency", middle, large) - found.need("tma_row")).scaled(_KIB_ROWS).at_least(0)

    def latency() -> Estimate:
        """Time of a load without rows, its issue and the loop around it, in which an arrival ends the wait."""
        rows = between("tma.latency", middle, large).scaled(small)
        whole = measured.cycles(f"tma.latency.{small}") - rows - measured.cycles("tma.loop")
        return whole - found.need("tma_issue") + found.need("barrier_arrive")

    def row_of(name: str) -> Estimate:
        return measured.cycles(name).scaled(1 / plan.SLOT_ROWS)

    found.add("tma_issue", partial(between, "tma.issue", *plan.ISSUE_BOXES))
    found.add("tma_row", lambda: between("tma.rate", *plan.RATE_BOXES).scaled(1 / plan.RATE_ROWS))
    found.add("tma_latency_per_kib", per_kib, may_be_zero=True)
    found.add("tma_latency", latency)
    for pitch in plan.PITCHES:
        found.observe(f"TMA row, pitch of {pitch} B", "cycle/row", partial(row_of, f"tma.pitch.{pitch}"))
    for size in plan.MULTICAST:
        what = f"TMA row delivered to each of {size} CTAs by multicast"
        found.observe(what, "cycle/row", partial(row_of, f"tma.multicast.{size}"))


def _stores(found: Fitted, measured: Measurements) -> None:
    low, high = plan.STORE_BYTES

    def rate() -> Estimate:
        return (measured.cycles(f"store.rate.{high}") - measured.cycles(f"store.rate.{low}")).over(high - low)

    def latency() -> Estimate:
        bytes_ = _exact(low / found.need("store_rate").value, f"store.rate.{low}")
        return measured.cycles(f"store.latency.{low}") - bytes_ - measured.cycles("fence.none")

    found.add("store_rate", rate)
    found.add("store_latency", latency)


def _lines(found: Fitted, measured: Measurements) -> None:
    """Single loads: latencies of L2 and DRAM."""

    def mean() -> Estimate:
        # Half of the lines lie in the far part of L2, and a replay does not know which: the mean of all.
        values = np.asarray(measured.samples("l2.latency"))
        error = float(values.std() / len(values) ** 0.5)
        return Estimate(float(values.mean()), error / float(values.mean()), ("l2.latency",))

    def dram() -> Estimate:
        # Both benchmarks load the same lines: what one of them takes longer from DRAM, wherever it lies in L2.
        cold, warm = (np.asarray(measured.samples(name)) for name in ("dram.latency", "l2.latency"))
        return robust((cold - warm).tolist(), "dram.latency").scaled(1 / measured.ghz("l2.latency").value)

    found.add("load_latency", mean)
    found.add("dram_latency", dram)
    try:
        levels = two_levels(measured.samples("l2.latency"))
    except NotMeasuredError:
        levels = None
    for word, level in zip(("near", "far"), levels or (), strict=False):
        found.observed.append(Observed(f"load from the {word} part of L2", "cycle", _exact(level, "l2.latency")))
    found.add("atomic_latency", lambda: measured.cycles("atomic"))
    found.add("load_rate", lambda: measured.cycles("global.load").over(16 * memory.VECTOR_BYTES))


def _bandwidths(found: Fitted, machine: Machine, measured: Measurements) -> None:
    tile = plan.SLOT_ROWS * plan.ROW_BYTES * machine.sms / 1e3
    found.add("l2_read", lambda: measured.ns("l2.read").over(tile))
    found.add("l2_clock", lambda: measured.ghz("l2.read"))
    found.add("l2_write", lambda: measured.ns("l2.write").over(plan.STORE_BYTES[0] * machine.sms / 1e3))
    found.add("dram", lambda: measured.ns("dram.read").over(tile))
    found.add("l2_shared", lambda: measured.ns("l2.read").ratio(measured.ns("l2.shared")).at_least(1))
    stored = plan.STORE_BYTES[1] / plan.SLOT_ROWS / plan.ROW_BYTES
    found.add(
        "dram_written", lambda: measured.ns("dram.write").ratio(measured.ns("dram.read").scaled(stored)).at_least(1)
    )


def _launches(found: Fitted, measured: Measurements) -> None:
    found.add(
        "cta_start",
        lambda: robust(measured.samples("cta.start"), "cta.start").scaled(1 / measured.ghz("l2.latency").value),
    )

    def gap(name: str) -> Estimate:
        """Time from launch to launch less a kernel's own, and less the start of its CTAs, which is a constant too.

        A programmatic kernel starts before the one before it has ended, so that its own time is that of a plain one.
        """
        own = "launch.plain" if name == "launch.programmatic" else name
        return measured.ns(name) - robust(measured.samples(own), own) - found.need("cta_start")

    names = {"launch": "launch.plain", "launch_dependent": "launch.programmatic", "launch_graph": "launch.graph"}
    for constant, name in names.items():
        found.add(constant, partial(gap, name))
    # Of a kernel that nothing of its kind precedes: its instructions and parameters come from DRAM.
    found.add("launch_alone", lambda: measured.ns("launch.alone") - found.need("cta_start"))


def _tensor_memory(found: Fitted, measured: Measurements) -> None:
    low, middle, *_, high = plan.TMEM_COLUMNS

    def column(what: str) -> Estimate:
        difference = measured.cycles(f"tmem.{what}.{high}") - measured.cycles(f"tmem.{what}.{middle}")
        return difference.scaled(1 / (high - middle))

    def latency() -> Estimate:
        return measured.cycles(f"tmem.load.{low}") - column("load").scaled(low) - measured.cycles("tmem.loop")

    found.add("tmem_column", partial(column, "load"))
    found.add("tmem_load_latency", latency)
    found.observe("column of a store to tensor memory", "cycle/column", partial(column, "store"))
    found.add("tmem_allocate", lambda: measured.cycles("tmem.allocate").scaled(0.5))
    found.add("tmem_copy", lambda: measured.cycles("tmem.copy.rate").over(memory.COPY_BYTES))
    found.observe("tcgen05.cp of 512 B, until its commit", "cycle", partial(measured.cycles, "tmem.copy.latency"))


def _matrix(found: Fitted, machine: Machine, measured: Measurements) -> None:
    spreads = []
    for benchmark in plan.plan(machine):
        prefix, _, what = benchmark.name.rpartition(".")
        if not prefix.startswith("mma.") or what != "rate":
            continue
        _, kind, place, ctas, m, n = prefix.split(".")
        try:
            shared = 1 if machine.blackwell else plan.WARPGROUPS
            interval = measured.cycles(f"{prefix}.rate").scaled(1 / shared).checked(prefix)
            latency = measured.cycles(f"{prefix}.latency").checked(prefix)
        except NotMeasuredError as error:
            found.missing[prefix] = str(error)
            continue
        spreads.append(max(interval.spread, latency.spread))
        row = (kind, place, int(ctas), int(m), int(n), round(interval.value, 2), round(latency.value, 2))
        found.matrix.append(row)
    found.matrix_spread = max(spreads, default=0.0)
