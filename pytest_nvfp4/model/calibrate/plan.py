"""The micro-benchmarks of a GPU: kernels, sizes, and how many operations each launch performs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_nvfp4.model.calibrate import copies, memory, products, signals
from pytest_nvfp4.model.calibrate.benchmark import Benchmark, Launches, Machine, Point, Tensor

ROW_BYTES = copies.ROW_BYTES


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


LATENCY_ROWS = (8, 32, 128)
"""Rows of the boxes that are loaded one after the other."""
ISSUE_BOXES = (8, 32)
"""Boxes of one row in a slot: their number, and not their bytes, takes the time."""
RATE_BOXES = (2, 3)
"""Boxes of the largest height in a slot, which take longer than the loop: an H200 turns it once in 365 cycles."""
RATE_ROWS = 256
SLOT_ROWS = 256
"""Rows of a slot where a rate of many SMs or of another tensor is measured, in two boxes."""
MULTICAST = (2, 4)
PITCHES = (4096, 1 << 18)
"""Bytes from row to row of the tensors whose rate is measured."""


def _loads(machine: Machine) -> Iterator[Benchmark]:
    cached, data = machine.cached_bytes, machine.data_bytes

    def ring(
        name: str,
        rows: int,
        *,
        boxes: int = 1,
        slots: int = 1,
        region: int = cached,
        ctas: int = 1,
        cluster: int = 1,
        pitch: int = ROW_BYTES,
        counts: tuple[int, ...] = (500, 1500),
        shared: bool = False,
    ) -> Benchmark:
        total, own = region // pitch, _own_rows(region // pitch, ctas // cluster)
        return Benchmark(
            name,
            copies.load_ring(rows=rows, boxes=boxes, slots=slots, cluster=cluster),
            _points(machine, *counts, a=0 if shared else own, b=own - 1),
            ctas=ctas,
            cluster=cluster,
            shared=copies.ring_shared(rows, boxes, slots),
            tensor=Tensor(total, pitch, rows // cluster),
        )

    half = SLOT_ROWS // 2
    yield ring("tma.loop", LATENCY_ROWS[0], boxes=0)
    for rows in LATENCY_ROWS:
        yield ring(f"tma.latency.{rows}", rows)
    for boxes in ISSUE_BOXES:
        yield ring(f"tma.issue.{boxes}", 1, boxes=boxes, slots=4)
    for boxes in RATE_BOXES:
        yield ring(f"tma.rate.{boxes}", RATE_ROWS, boxes=boxes, slots=6 // boxes)
    for pitch in PITCHES:
        region = min(data, max(cached, SLOT_ROWS * pitch))
        yield ring(f"tma.pitch.{pitch}", half, boxes=2, slots=6, region=region, pitch=pitch)
    for size in MULTICAST:
        yield ring(f"tma.multicast.{size}", half, boxes=2, slots=6, ctas=size, cluster=size)
    # No line is asked for twice at a time: an H200 answers such requests of several SMs, or of one, at once.
    yield ring("l2.read", half, boxes=2, slots=2, ctas=machine.sms)
    yield ring("l2.shared", half, boxes=2, slots=2, ctas=machine.sms, shared=True)
    each = max(3, _own_rows(data // ROW_BYTES, machine.sms) // SLOT_ROWS)
    yield ring("dram.read", half, boxes=2, slots=6, region=data, ctas=machine.sms, counts=(each // 3, each))


def _own_rows(rows: int, clusters: int) -> int:
    """Return the rows of a tensor that each of some clusters has for itself, a power of two."""
    return 1 << ((rows // clusters).bit_length() - 1)


STORE_BYTES = (8192, 32768)


def _stores(machine: Machine) -> Iterator[Benchmark]:
    def ring(name: str, size: int, *, ctas: int = 1, waited: bool = False) -> Benchmark:
        body = copies.store_ring(size=size, waited=waited)
        return Benchmark(name, body, _points(machine, 300, 900), ctas=ctas, shared=copies.DATA + size)

    for size in STORE_BYTES:
        yield ring(f"store.latency.{size}", size, waited=True)
        yield ring(f"store.rate.{size}", size)
    yield ring("l2.write", STORE_BYTES[0], ctas=machine.sms)
    size = STORE_BYTES[1]
    area = _own_rows(machine.data_bytes, machine.sms)
    times = max(2, area // size)
    body = copies.store_ring(size=size, area=area)
    # L2 holds the first stores until it is full; by then it writes back as fast as it is written.
    points = _points(machine, times, 3 * times)
    yield Benchmark("dram.write", body, points, ctas=machine.sms, shared=copies.DATA + size)


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
    yield Benchmark("fence.gpu", signals.fence("fence.acq_rel.gpu", stores="global"), points)
    yield Benchmark("fence.none", signals.fence("", stores="shared"), points)
    yield Benchmark("fence.near", signals.fence("fence.proxy.async.shared::cta", stores="shared"), points)
    few, tensor = _points(machine, 50, 150), Tensor(1024, ROW_BYTES, 8)
    yield Benchmark("map.change", signals.map_change(published=True), few, tensor=tensor)
    yield Benchmark("map.replace", signals.map_change(published=False), few, tensor=tensor)
    loads = {"map.load": (False, False), "map.load.acquired": (False, True), "map.load.changed": (True, True)}
    for name, (changed, acquired) in loads.items():
        body = signals.map_load(changed=changed, acquired=acquired)
        yield Benchmark(name, body, few, shared=4096, tensor=tensor)
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
    yield Benchmark(
        "launch.alone",
        signals.empty(),
        (Point(0, 0), Point(1, 1)),
        ctas=machine.sms,
        threads=128,
        cold=True,
        launches="plain",
    )
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
    yield Benchmark("tmem.loop", memory.tmem_loop(), _points(machine, 200, 600), threads=128)
    yield Benchmark("tmem.allocate", memory.tmem_allocation(), _points(machine, 100, 300))
    commits = machine.count(COMMITS)
    points = tuple(Point(commits, commits * each, each) for each in COMMITTED)
    single = tuple(Point(point.n, point.n, 1) for point in _points(machine, 50, 150))
    yield Benchmark("tmem.copy.rate", memory.tmem_copy(COMMITTED[0]), points, threads=128)
    yield Benchmark("tmem.copy.latency", memory.tmem_copy(1), single, threads=128)


CLOCKS = {"clock": 20, "clock.sustained": 2000}
"""Lengths of what all tensor cores do while a clock is read: about 1 ms, as a kernel's, and 0.1 s, which heats."""
SHAPE_N = (64, 128, 256)
COMMITS = 16
COMMITTED = (16, 64)
"""Instructions of a commit, two numbers: what a commit takes besides is the same."""
WARPGROUPS = 2
"""Warpgroups that share the tensor cores where their rate is measured: one alone may not keep them busy."""


def _wgmma(machine: Machine) -> Iterator[Benchmark]:
    def chain(
        name: str, shape: tuple[str, int, str], *counts: int, ctas: int = 1, groups: int = 1, each_waited: bool = False
    ) -> Benchmark:
        kind, n, place = shape
        return Benchmark(
            name,
            products.wgmma_chain(kind, n=n, a_shared=place == "ss", groups=groups, each_waited=each_waited),
            _points(machine, *counts, each=1 if each_waited else products.STEPS),
            ctas=ctas,
            threads=128 * groups,
            shared=products.wgmma_shared(n, groups),
        )

    for kind in ("f16", "f8f6f4"):
        for n in SHAPE_N:
            for place in ("ss", "ts"):
                name, shape = f"mma.{kind}.{place}.1.64.{n}", (kind, n, place)
                yield chain(f"{name}.rate", shape, 100, 300, groups=WARPGROUPS)
                yield chain(f"{name}.latency", shape, 100, 300, each_waited=True)
    for name, count in CLOCKS.items():
        yield chain(name, ("f16", 256, "ss"), 100 * count, ctas=machine.sms, groups=WARPGROUPS)


def _tcgen05(machine: Machine) -> Iterator[Benchmark]:
    def chain(name: str, shape: tuple[str, int, int, int], points: Iterable[Point], clusters: int = 1) -> Benchmark:
        kind, m, n, group = shape
        return Benchmark(
            name,
            products.tcgen05_chain(kind, m=m, n=n, group=group),
            tuple(points),
            ctas=group * clusters,
            cluster=group,
            counting=group,
            threads=128,
            shared=products.tcgen05_shared(m, n, group),
        )

    commits = machine.count(COMMITS)
    many = [Point(commits, commits * each, each) for each in COMMITTED]
    single = [Point(point.n, point.n, 1) for point in _points(machine, 100, 300)]
    for kind in products.KINDS:
        for n in SHAPE_N:
            for m, group in ((128, 1), (256, 2)):
                name, shape = f"mma.{kind}.ss.{group}.{m}.{n}", (kind, m, n, group)
                yield chain(f"{name}.rate", shape, many)
                yield chain(f"{name}.latency", shape, single)
    for name, count in CLOCKS.items():
        long = machine.count(10 * count)
        yield chain(name, ("mxf4nvf4", 128, 256, 1), [Point(long, 64 * long, 64)], clusters=machine.sms)
