"""The micro-benchmarks of a GPU: kernels, sizes, and how many operations each launch performs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.model.calibrate import copies, memory, products, signals
from pytest_nvfp4.model.calibrate.kernel import Body

Launches = Literal["one", "plain", "programmatic", "graph"]
ROW_BYTES = copies.ROW_BYTES


ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
"""Target of the kernels by compute capability."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the sizes of the benchmarks follow from.

    Attributes:
        arch: Target of the kernels, one of `ARCHITECTURES`.
        sms: Number of SMs.
        cached_bytes: Bytes of data that stay in L2, a power of two.
        data_bytes: Bytes of data that do not, a power of two.
        shared_bytes: Largest dynamic shared memory of a CTA.
        length: Factor of the number of operations; below 1 for the simulator, which has no clock.
    """

    arch: str
    sms: int
    cached_bytes: int
    data_bytes: int
    shared_bytes: int
    length: float = 1.0

    @classmethod
    def of(cls, *, capability: tuple[int, int], sms: int, l2_bytes: int, free_bytes: int, shared_bytes: int) -> Machine:
        """Return the machine of a GPU.

        Args:
            free_bytes: Bytes of its memory that are free.
            shared_bytes: Largest shared memory of a CTA, the system's part included.

        Raises:
            ValueError: There are no benchmarks for its architecture.
        """
        arch = ARCHITECTURES.get(capability)
        if arch is None:
            raise ValueError(
                f"there are no micro-benchmarks for compute capability {capability[0]}.{capability[1]}; "
                f"there are for {', '.join(f'{major}.{minor}' for major, minor in ARCHITECTURES)}"
            )
        data = 1 << 30
        while data > free_bytes // 4:
            data >>= 1
        return cls(arch, sms, 1 << (max(l2_bytes, 8 << 20) // 4).bit_length() - 1, data, shared_bytes - 1024)

    def count(self, operations: int) -> int:
        """Return a number of operations for this machine."""
        return max(2, int(operations * self.length))

    @property
    def blackwell(self) -> bool:
        """Whether it has tensor memory."""
        return self.arch != "sm_90a"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of rows of 128 bytes, of 64 elements of 16 bits each, of which a map's box loads some."""

    rows: int
    pitch: int
    box_rows: int


@dataclass(frozen=True, slots=True)
class Point:
    """One launch of a benchmark's kernel.

    Attributes:
        n, a, b: The kernel's words.
        operations: Operations that thread 0 of each CTA must have counted.
    """

    n: int
    operations: int
    a: int = 0
    b: int = 0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A kernel and its launches.

    Attributes:
        points: Launches; the cycles of an operation are the slope over their numbers of operations.
        ctas: CTAs of the grid.
        samples: Words of 32 bits behind the first record that are the measurement.
        counting: One CTA of so many counts operations; the others of a pair help it.
        cold: Whether L2 is emptied before each launch.
        gaps: Whether the measurement is the cycles between two CTAs of an SM.
        launches: How ``Point.n`` empty kernels are launched; ``one`` for one launch of this kernel.
    """

    name: str
    body: Body
    points: tuple[Point, ...]
    ctas: int = 1
    threads: int = 32
    cluster: int = 1
    shared: int = 2048
    tensor: Tensor | None = None
    samples: int = 0
    counting: int = 1
    cold: bool = False
    gaps: bool = False
    launches: Launches = "one"


def plan(machine: Machine) -> list[Benchmark]:
    """Return all benchmarks of a machine."""
    found = [*_loads(machine), *_stores(machine), *_memory(machine), *_signals(machine), *_launches(machine)]
    found += _tensor_memory(machine) if machine.blackwell else []
    found += _tcgen05(machine) if machine.blackwell else _wgmma(machine)
    return found


def _points(machine: Machine, *counts: int, each: int = 1, a: int = 0, b: int = 0) -> tuple[Point, ...]:
    numbers = [machine.count(count) for count in counts]
    if len(set(numbers)) < len(numbers):
        numbers = [numbers[0] + step for step in range(len(numbers))]
    return tuple(Point(n, n * each, a, b) for n in numbers)


BOX_ROWS = 128
LATENCY_ROWS = (8, 32, 128)
"""Rows of the boxes whose latency and rate are measured."""
MULTICAST = (2, 4)
PITCHES = (4096, 1 << 18)
"""Bytes from row to row of the tensors whose rate is measured."""


def _loads(machine: Machine) -> Iterator[Benchmark]:
    def ring(
        name: str,
        rows: int,
        slots: int,
        *,
        region: int,
        ctas: int = 1,
        cluster: int = 1,
        pitch: int = ROW_BYTES,
        counts: tuple[int, ...] = (500, 1500),
    ) -> Benchmark:
        total = max(region // pitch, rows)
        step = total // max(1, ctas // cluster) // rows * rows
        return Benchmark(
            name,
            copies.load_ring(rows=rows, slots=slots, cluster=cluster),
            _points(machine, *counts, a=step, b=total - 1),
            ctas=ctas,
            cluster=cluster,
            shared=copies.ring_shared(rows, slots),
            tensor=Tensor(total, pitch, rows // cluster),
        )

    cached, data = machine.cached_bytes, machine.data_bytes
    for rows in LATENCY_ROWS:
        yield ring(f"tma.latency.{rows}", rows, 1, region=cached)
        yield ring(f"tma.rate.{rows}", rows, 8, region=cached)
    for pitch in PITCHES:
        region = max(cached, 2 * BOX_ROWS * pitch)
        yield ring(f"tma.pitch.{pitch}", BOX_ROWS, 8, region=min(data, region), pitch=pitch)
    for size in MULTICAST:
        yield ring(f"tma.multicast.{size}", BOX_ROWS, 8, region=cached, ctas=size, cluster=size)
    yield ring("l2.read", BOX_ROWS, 8, region=cached, ctas=machine.sms)
    each = data // ROW_BYTES // machine.sms // BOX_ROWS
    yield ring("dram.read", BOX_ROWS, 8, region=data, ctas=machine.sms, counts=(each // 3, each))


STORE_BYTES = (4096, 16384)


def _stores(machine: Machine) -> Iterator[Benchmark]:
    def ring(name: str, size: int, groups: int, ctas: int = 1) -> Benchmark:
        step = machine.cached_bytes // max(2, ctas) // size * size
        body = copies.store_ring(size=size, groups=groups)
        points = _points(machine, 300, 900, a=step, b=machine.cached_bytes - 1)
        return Benchmark(name, body, points, ctas=ctas, shared=copies.DATA + size)

    for size in STORE_BYTES:
        yield ring(f"store.latency.{size}", size, 0)
        yield ring(f"store.rate.{size}", size, 4)
    yield ring("l2.write", STORE_BYTES[1], 4, ctas=machine.sms)


SHARED_WARPS = (4, 16)
LINES = 1024
_LINE_STEP = 4096 + 128


def _memory(machine: Machine) -> Iterator[Benchmark]:
    each = memory.UNROLLED
    for warps in SHARED_WARPS:
        points = _points(machine, 300, 900, each=each)
        shared = 1024 + each * memory.VECTOR_BYTES
        yield Benchmark(f"shared.load.{warps}", memory.shared_loads(warps), points, threads=32 * warps, shared=shared)
        shared = memory.matrix_store_shared(warps)
        yield Benchmark(f"shared.stmatrix.{warps}", memory.matrix_stores(), points, threads=32 * warps, shared=shared)
    yield Benchmark("shared.latency", memory.shared_chase(), _points(machine, 500, 1500))
    yield Benchmark("shared.store", memory.shared_stores(), _points(machine, 300, 900, each=each), shared=4096)
    lines = machine.count(LINES)
    for name, again, cold in (("l2.latency", 1, False), ("dram.latency", 0, True)):
        point = Point(lines, lines, _LINE_STEP, again)
        yield Benchmark(name, memory.line_chase(), (point,), samples=lines, cold=cold)
    yield Benchmark("atomic", memory.atomic_chase(), _points(machine, 300, 900))
    warps = 16
    mask = min(machine.cached_bytes, 1 << 22) - 1
    loads = _points(machine, 60, 180, each=each, b=mask)
    yield Benchmark("global.load", memory.global_loads(warps), loads, threads=32 * warps)


NAMED_WARPS = (2, 4, 8)


def _signals(machine: Machine) -> Iterator[Benchmark]:
    points = _points(machine, 500, 1500)
    yield Benchmark("mbarrier.arrive", signals.mbarrier_arrivals(), points)
    yield Benchmark("mbarrier.round", signals.mbarrier_round(), points)
    yield Benchmark("mbarrier.handover", signals.mbarrier_handover(), points, threads=64)
    yield Benchmark("mbarrier.remote", signals.remote_handover(), points, ctas=2, cluster=2)
    for warps in NAMED_WARPS:
        yield Benchmark(f"barrier.named.{warps}", signals.named_barrier(warps), points, threads=32 * warps)
    yield Benchmark("barrier.cluster", signals.cluster_barrier(), points, ctas=2, cluster=2)
    yield Benchmark("fence.gpu", signals.fence("fence.acq_rel.gpu"), points)
    yield Benchmark("fence.async", signals.fence("fence.proxy.async"), points)
    few, tensor = _points(machine, 50, 150), Tensor(1024, ROW_BYTES, 8)
    yield Benchmark("map.change", signals.map_change(), few, tensor=tensor)
    yield Benchmark("map.acquire.changed", signals.map_acquire(changed=True), few, tensor=tensor)
    yield Benchmark("map.acquire", signals.map_acquire(changed=False), few, tensor=tensor)
    chained = _points(machine, 300, 900, each=signals.CHAIN)
    for kind in signals.CLASSES:
        yield Benchmark(f"issue.{kind}.dependent", signals.issue_slots(kind, dependent=True), chained)
        # Four warps on each of the four schedulers: their issue slots are the limit.
        body = signals.issue_slots(kind, dependent=False)
        yield Benchmark(f"issue.{kind}.independent", body, chained, threads=512)


def _launches(machine: Machine) -> Iterator[Benchmark]:
    counts = tuple(machine.count(count) for count in (50, 250))
    if counts[0] == counts[1]:
        counts = (counts[0], counts[1] + 1)
    points = tuple(Point(n, 1) for n in counts)
    ways: tuple[Launches, ...] = ("plain", "programmatic", "graph")
    for way in ways:
        body = signals.empty(programmatic=way == "programmatic")
        yield Benchmark(f"launch.{way}", body, points, ctas=machine.sms, threads=128, launches=way)
    # One CTA an SM: its shared memory leaves no room for another one.
    waves = 2 if machine.length < 1 else 8
    yield Benchmark(
        "cta.start",
        signals.empty(),
        (Point(1, 1),),
        ctas=waves * machine.sms,
        threads=128,
        shared=machine.shared_bytes,
        gaps=True,
    )


TMEM_COLUMNS = (8, 32, 64, 128)


def _tensor_memory(machine: Machine) -> Iterator[Benchmark]:
    for columns in TMEM_COLUMNS:
        for store in (False, True):
            name = f"tmem.{'store' if store else 'load'}.{columns}"
            body = memory.tmem_access(columns, store=store)
            yield Benchmark(name, body, _points(machine, 200, 600), threads=128)
    yield Benchmark("tmem.allocate", memory.tmem_allocation(), _points(machine, 100, 300))
    points = tuple(Point(point.n, 8 * point.n, 8) for point in _points(machine, 50, 150))
    single = tuple(Point(point.n, point.n, 1) for point in _points(machine, 50, 150))
    yield Benchmark("tmem.copy.rate", memory.tmem_copy(), points, threads=128)
    yield Benchmark("tmem.copy.latency", memory.tmem_copy(), single, threads=128)


SHAPE_N = (64, 128, 256)
_MANY = 64


def _wgmma(machine: Machine) -> Iterator[Benchmark]:
    for kind in ("f16", "f8f6f4"):
        for n in SHAPE_N:
            for place in ("ss", "ts"):
                shared = products.wgmma_shared(n, 1)
                name = f"mma.{kind}.{place}.1.64.{n}"
                body = products.wgmma_chain(kind, n=n, a_shared=place == "ss")
                yield Benchmark(
                    f"{name}.rate", body, _points(machine, 100, 300, each=products.STEPS), threads=128, shared=shared
                )
                body = products.wgmma_chain(kind, n=n, a_shared=place == "ss", each_waited=True)
                yield Benchmark(f"{name}.latency", body, _points(machine, 100, 300), threads=128, shared=shared)
    yield Benchmark(
        "clock",
        products.wgmma_chain("f16", n=256, groups=2),
        _points(machine, 200_000, each=products.STEPS),
        ctas=machine.sms,
        threads=256,
        shared=products.wgmma_shared(256, 2),
    )


def _tcgen05(machine: Machine) -> Iterator[Benchmark]:
    many = max(products.STEPS, machine.count(_MANY) // products.STEPS * products.STEPS)

    def chain(name: str, shape: tuple[str, int, int, int], each: int, *counts: int, clusters: int = 1) -> Benchmark:
        kind, m, n, group = shape
        points = tuple(Point(point.n, point.n * each, each) for point in _points(machine, *counts))
        return Benchmark(
            name,
            products.tcgen05_chain(kind, m=m, n=n, group=group),
            points,
            ctas=group * clusters,
            cluster=group,
            counting=group,
            threads=128,
            shared=products.tcgen05_shared(m, n, group),
        )

    for kind in products.KINDS:
        for n in SHAPE_N:
            for m, group in ((128, 1), (256, 2)):
                name, shape = f"mma.{kind}.ss.{group}.{m}.{n}", (kind, m, n, group)
                yield chain(f"{name}.rate", shape, many, 4, 16)
                yield chain(f"{name}.latency", shape, 1, 100, 300)
    yield chain("clock", ("mxf4nvf4", 128, 256, 1), many, 20_000, clusters=machine.sms)
