"""A persistent, warp-specialised GEMM with 2-CTA MMA, as NVIDIA's CuTe DSL examples have it, written by hand.

Structure: a warp that copies (TMA), one that multiplies, and epilogue warps in each CTA; a static schedule of tiles, M
fastest; a ring of stages of 128 B of K; two accumulators; an epilogue in subtiles of 4,096 elements that leave by TMA.
One cluster stands for all that are resident: they share the rates of L2 and DRAM, and what they miss in L2 is counted
for all of them in lockstep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.placement import Slots
from pytest_nvfp4.model.recording import Footprint, Program, Shape, Unit
from pytest_nvfp4.model.replay_machine import Machine
from pytest_nvfp4.model.replay_steps import Costs, steps_of
from pytest_nvfp4.model.servers import L2, LINE, Traffic, in_lockstep

from .builder import ProgramBuilder, recording

CLOCK = 1.3
SUBTILE = 4096
SHARED = 232_448 - 1_024
CHUNKS = 12
"""Parts of a tile's K in which the contents of L2 are followed."""
SHORT = (14, 20)
"""Tiles of K that are replayed of a long K; the rest has their rate."""
STEPS = 36
"""Steps of the main loop, at least, from which the rate of waves is taken: twice the stages of a ring."""
LONG = 16
"""Waves that are followed; further ones are like the second half of these."""


@dataclass(frozen=True)
class Harness:
    """What is not the device's: fitted to the table's ``fit`` set.

    Attributes:
        overhead_us: Launch and prologue in a loop of 5 launches at 1.3 GHz.
        floor_us: Time of a launch on the host, for NVFP4 (more arguments).
        multiply_instructions, store_instructions: Instructions between two tiles, of the warps that multiply and store:
            what a tile costs beside its main loop and its subtiles.
    """

    overhead_us: float = 6.0
    floor_us: float = 23.5
    multiply_instructions: int = 300
    store_instructions: int = 130


@dataclass(frozen=True)
class Gemm:
    """One timed configuration."""

    dtype: str
    mma_m: int
    mma_n: int
    cluster_n: int
    m: int
    n: int
    k: int

    @staticmethod
    def of(row: dict[str, str]) -> Gemm:
        numbers = (int(row[name]) for name in ("mma_m", "mma_n", "cluster_n", "m", "n", "k"))
        return Gemm(row["in_dtype"], *numbers)

    @property
    def element_bits(self) -> int:
        return {"e2m1": 4, "fp8": 8, "fp16": 16}[self.dtype]

    @property
    def out_bytes(self) -> int:
        return {"e2m1": 4, "fp8": 1, "fp16": 2}[self.dtype]

    @property
    def k_tiles(self) -> int:
        return -(-self.k * self.element_bits // 1024)

    @property
    def scaled(self) -> bool:
        return self.dtype == "e2m1"

    @property
    def scale_bytes(self) -> tuple[int, int]:
        """Bytes of a stage's scale factors in a CTA: of A, and of B."""
        return (2048, 2048 if self.mma_n <= 128 else 4096) if self.scaled else (0, 0)

    @property
    def stages(self) -> int:
        stage = (self.mma_m + self.mma_n) // 2 * 128 + sum(self.scale_bytes)
        return (SHARED - 2 * SUBTILE * self.out_bytes) // stage

    @property
    def store_stages(self) -> int:
        stage = (self.mma_m + self.mma_n) // 2 * 128 + sum(self.scale_bytes)
        return (SHARED - self.stages * stage) // (SUBTILE * self.out_bytes)

    @property
    def accumulators(self) -> int:
        """NVFP4 behaves as if its accumulators did not overlap (a choice made on the open points; not explained)."""
        return 1 if self.scaled else 2

    @property
    def lines_a_row(self) -> float:
        """Lines that 128 B of a row touch: more than one if the pitch is no multiple of a line."""
        pitch = self.k * self.element_bits // 8
        return 1.0 if pitch % LINE == 0 else 1.875


@lru_cache(maxsize=64)
def program(gemm_key: tuple[str, int, int, int], tiles: int, k_tiles: int, between: tuple[int, int]) -> Program:
    """Return the program of a cluster. Footprint slots: ``tile * 3`` for A, ``+ 1`` for B, ``+ 2`` for C."""
    dtype, mma_m, mma_n, pairs = gemm_key
    gemm = Gemm(dtype, mma_m, mma_n, pairs, 1, 1, 1)
    made = ProgramBuilder()
    made.slots = 3 * tiles
    a_rows, b_rows = mma_m // 2 // pairs, mma_n // 2
    scale_a, scale_b = gemm.scale_bytes
    kind = {"e2m1": "mxf4nvf4", "fp8": "f8f6f4", "fp16": "f16"}[dtype]
    ctas = 2 * pairs
    empty: list[list[int]] = [[] for _ in range(ctas)]
    full: list[list[int]] = [[] for _ in range(pairs)]
    loads_a_stage = 2 * pairs * (1 + bool(scale_a)) + 2 * (1 + bool(scale_b))
    for _ in range(tiles * k_tiles):
        for rank in range(ctas):
            empty[rank].append(made.phase(pairs))
        for pair in range(pairs):
            full[pair].append(made.phase(1 + loads_a_stage))
    done = [[made.phase(1) for _ in range(tiles)] for _ in range(pairs)]
    drained = [[made.phase(2) for _ in range(tiles)] for _ in range(pairs)]
    columns = SUBTILE // (mma_m // 2)
    subtiles = mma_n // columns
    for rank in range(ctas):
        pair = rank // 2
        own = (2 * pair, 2 * pair + 1)
        peers = tuple(range(rank % 2, ctas, 2))
        copy_a = Shape(rows=a_rows, bytes=128 * a_rows, ctas=peers)
        copy_b = Shape(rows=b_rows, bytes=128 * b_rows, ctas=(rank,))
        copy_sa = Shape(rows=scale_a // 128 // pairs, bytes=scale_a // pairs, ctas=peers)
        copy_sb = Shape(rows=scale_b // 256, bytes=scale_b // 2, ctas=own)
        load = made.warp(rank, 5, "load")
        for tile in range(tiles):
            for step in range(tile * k_tiles, (tile + 1) * k_tiles):
                if step >= gemm.stages:
                    load.wait(empty[rank][step - gemm.stages])
                if rank % 2 == 0:
                    load.signal(full[pair][step])
                both = [full[peer // 2][step] for peer in peers]
                load.issue(Unit.TMA_LOAD, copy_a, slot=3 * tile, done=both)
                load.issue(Unit.TMA_LOAD, copy_b, slot=3 * tile + 1, done=[full[pair][step]])
                if scale_a:
                    load.issue(Unit.TMA_LOAD, copy_sa, done=both)
                    load.issue(Unit.TMA_LOAD, copy_sb, done=[full[pair][step]])
        if rank % 2 == 0:
            multiply = made.warp(rank, 4, "mma")
            shape = Shape(m=mma_m, n=mma_n, k=32, kind=kind, ctas=own)
            scales = Shape(bytes=scale_a + scale_b, shared_bytes=scale_a + scale_b, ctas=own)
            for tile in range(tiles):
                multiply.run(alu=between[0])
                if tile >= gemm.accumulators:
                    multiply.wait(drained[pair][tile - gemm.accumulators])
                for step in range(tile * k_tiles, (tile + 1) * k_tiles):
                    multiply.wait(full[pair][step])
                    if scale_a:
                        multiply.issue(Unit.TMEM_COPY, scales, pipe=pair)
                    for _ in range(4):
                        multiply.issue(Unit.TENSOR, shape, pipe=pair)
                    released = (
                        [empty[other][step] for other in range(ctas)] if pairs > 1 else [empty[0][step], empty[1][step]]
                    )
                    multiply.issue(Unit.COMMIT, Shape(), pipe=pair, done=released)
                multiply.issue(Unit.COMMIT, Shape(), pipe=pair, done=[done[pair][tile]])
        store = made.warp(rank, 0, "store")
        piece = Shape(rows=SUBTILE * gemm.out_bytes // 128, bytes=SUBTILE * gemm.out_bytes)
        read: list[int] = []
        written = -1
        for tile in range(tiles):
            store.wait(done[pair][tile])
            store.run(alu=between[1])
            for _ in range(subtiles):
                loaded = made.phase(1)
                store.issue(Unit.TMEM_LOAD, Shape(columns=32, lanes=32), done=[loaded])
                store.wait(loaded)
                store.run(convert=16, alu=8, shared_store=8, branch=2)
                fenced, met = made.phase(1), made.phase(1)
                store.issue(Unit.FENCE, Shape(kind="proxy.async"), done=[fenced])
                store.signal(met)
                store.wait(met)
                read.append(made.phase(1))
                written = made.phase(1)
                store.issue(Unit.TMA_STORE, piece, slot=3 * tile + 2, read=[read[-1]], done=[written])
                if len(read) >= gemm.store_stages:
                    store.wait(read[len(read) - gemm.store_stages])
                again = made.phase(1)
                store.signal(again)
                store.wait(again)
            store.signal(drained[pair][tile])
        store.wait(written)
    return made.build()


@dataclass(frozen=True)
class Wave:
    """What one cluster of a wave moves, in the mean: lines of one copy of A, of B and of one store, and what misses."""

    active: int
    missing: tuple[float, float, float]
    delayed: tuple[float, float, float]


def waves_of(gemm: Gemm, resident: int, capacity: float) -> tuple[list[Wave], int]:
    """Return the first waves and the number of all."""
    rows, columns = -(-gemm.m // gemm.mma_m), -(-gemm.n // (gemm.mma_n * gemm.cluster_n))
    tiles = rows * columns
    count = -(-tiles // resident)
    chunks = min(CHUNKS, gemm.k_tiles)
    width = gemm.k_tiles / chunks
    scale = 1.125 if gemm.scaled else 1.0
    sizes = (
        gemm.mma_m * width * scale * gemm.lines_a_row,
        gemm.mma_n * gemm.cluster_n * width * scale * gemm.lines_a_row,
        gemm.mma_m * gemm.mma_n * gemm.cluster_n * gemm.out_bytes / LINE,
    )
    followed = min(count, LONG)
    index = np.arange(min(tiles, followed * resident))
    wave = index // resident
    parts = np.arange(chunks)
    # Order of time: wave, part of K, cluster; stores after the last part.
    a = (index % rows)[:, None] * chunks + parts
    b = (index // rows)[:, None] * chunks + parts + rows * chunks
    c = index + (rows + columns) * chunks
    time = np.concatenate([
        (wave[:, None] * (chunks + 1) + parts).ravel(), (wave[:, None] * (chunks + 1) + parts).ravel(),
        wave * (chunks + 1) + chunks,
    ])  # fmt: skip
    atoms = np.concatenate([a.ravel(), b.ravel(), c])
    what = np.repeat([0, 1, 2], [a.size, b.size, c.size])
    waves = np.concatenate([np.repeat(wave, chunks), np.repeat(wave, chunks), wave])
    order = np.argsort(time, kind="stable")
    missing, evicted = in_lockstep(atoms[order], np.take(sizes, what[order]), what[order] == 2, capacity)
    key = waves[order] * 3 + what[order]
    total = np.bincount(key, missing, 3 * followed).reshape(-1, 3)
    total[:, 2] = 0.0  # a written line costs DRAM when it is evicted
    back = np.bincount(waves[order], evicted, followed)
    active = np.bincount(wave, minlength=followed)
    asked = active[:, None] * np.array([sizes[0] * chunks, sizes[1] * chunks, sizes[2]])
    share = total / asked
    share[:, 2] = back / asked[:, 2]
    # Who follows in the same wave finds lines that are still on their way (see model/sample.py).
    own = np.minimum(np.where(what[order] == 2, 0.0, missing), 1.0)
    _, same = np.unique(waves[order] * (int(atoms.max()) + 1) + atoms[order], return_inverse=True)
    leader = np.zeros(int(same.max()) + 1)
    np.maximum.at(leader, same, own)
    waits = np.bincount(key, own + 0.85 * (leader[same] - own), 3 * followed) / np.bincount(key, minlength=3 * followed)
    delays = waits.reshape(-1, 3)
    return [Wave(int(active[at]), tuple(share[at]), tuple(delays[at])) for at in range(followed)], count


def kernel_us(gemm: Gemm, device: DeviceConstants, harness: Harness) -> float:
    """Return the modelled time of the kernel, without what the harness adds."""
    resident = device.clusters(2 * gemm.cluster_n)
    waves, count = waves_of(gemm, resident, device["l2_capacity"] * 1e6 / LINE)
    if gemm.k_tiles <= 24:
        return _time(gemm, device, harness, waves, gemm.k_tiles, count)
    first, second = (_time(gemm, device, harness, waves, steps, count) for steps in SHORT)
    return second + (gemm.k_tiles - SHORT[1]) * (second - first) / (SHORT[1] - SHORT[0])


def _time(
    gemm: Gemm, device: DeviceConstants, harness: Harness, waves: Sequence[Wave], k_tiles: int, count: int
) -> float:
    """Return the time of all waves: that of some, and the rate of the second half of those followed for the rest."""
    few = 2 + max(2, -(-STEPS // k_tiles))
    if count <= min(few + 1, len(waves)):
        return _replay(gemm, device, harness, waves[:count], k_tiles)
    middle = waves[len(waves) // 2 : -1]
    mean = Wave(
        max(wave.active for wave in waves),
        tuple(np.mean([wave.missing for wave in middle], 0)),
        tuple(np.mean([wave.delayed for wave in middle], 0)),
    )
    last = waves[-1] if count <= LONG else mean
    more = max(1, few // 3)
    base, longer = (
        _replay(gemm, device, harness, [waves[0], *[mean] * (number - 2), last], k_tiles)
        for number in (few, few + more)
    )
    return base + (count - few) * (longer - base) / more


def _replay(gemm: Gemm, device: DeviceConstants, harness: Harness, waves: Sequence[Wave], k_tiles: int) -> float:
    key = (gemm.dtype, gemm.mma_m, gemm.mma_n, gemm.cluster_n)
    made = program(key, len(waves), k_tiles, (harness.multiply_instructions, harness.store_instructions))
    pairs = gemm.cluster_n
    scale = 1.125 if gemm.scaled else 1.0
    sizes = (
        gemm.mma_m / 2 / pairs * scale * gemm.lines_a_row,
        gemm.mma_n / 2 * scale * gemm.lines_a_row,
        SUBTILE * gemm.out_bytes / LINE,
    )
    full = max(wave.active for wave in waves)
    lines = [size * wave.active / full for wave in waves for size in sizes]
    delayed = [share for wave in waves for share in wave.delayed]
    missing = [
        size * share * wave.active / full for wave in waves for size, share in zip(sizes, wave.missing, strict=True)
    ]
    prints = [Footprint(np.zeros(0, np.int32), 0)] * len(lines)
    launch = recording(made, size=2 * pairs, footprints=prints, slots=[range(len(lines))])
    costs = Costs.of(device, CLOCK, device["dram"])
    machine = Machine(
        recording=launch,
        costs=costs,
        programs=steps_of(launch, device, costs),
        slots=Slots((tuple(range(2 * pairs)),), 1),
        atoms=[()] * len(lines),
        l2=L2(0, 1.0),
        cta_start=device["cta_start"],
        traffic=Traffic(lines, missing, delayed, [False] * len(lines), full),
    )
    machine.run()
    return machine.end / 1e3


def gemm_us(gemm: Gemm, device: DeviceConstants, harness: Harness) -> float:
    """Return the modelled time as the study timed it."""
    time = kernel_us(gemm, device, harness) + harness.overhead_us
    return max(time, harness.floor_us) if gemm.scaled else time
