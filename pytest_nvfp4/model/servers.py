"""Memory shared by all SMs: which lines L2 holds, and what the operations of a recording cost there.

L2 holds lines of 128 B and replaces at random: a line that was last touched when ``a`` bytes had been allocated is
still there with probability ``exp(-(now - a) / capacity)``. Hits and misses are these expectations, so that a replay
needs no random numbers. Both dies count as one cache: a table's latencies and rates are means over near and far lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.model.recording import Cluster, Footprint

__all__ = ["L2", "LINE", "Atoms", "atoms_of", "of_several"]

LINE = 128
"""Bytes of a line of L2."""

Atoms = tuple[tuple[int, int], ...]
"""Sets of lines that make up a footprint: (number of the set, lines)."""


def atoms_of(footprints: Sequence[Footprint]) -> tuple[list[Atoms], int]:
    """Return the footprints as unions of disjoint sets of lines, and the number of these sets.

    Lines that the same footprints touch make one set, so that a replay keeps one number for all of them. Most
    footprints are one set: boxes of a tensor are disjoint or equal.
    """
    sizes = np.array([len(footprint.lines) for footprint in footprints], np.int64)
    if not sizes.sum():
        return [() for _ in footprints], 0
    lines = np.concatenate([footprint.lines for footprint in footprints]).astype(np.int64)
    shared = np.bincount(lines) > 1
    owner = np.repeat(np.arange(len(footprints)), sizes)
    overlap = np.zeros(len(footprints), bool)
    overlap[owner[shared[lines]]] = True
    atoms: list[Atoms] = [((index, int(size)),) if size else () for index, size in enumerate(sizes)]
    count = len(footprints)
    if overlap.any():
        chosen = overlap[owner]
        lines, owner = lines[chosen], owner[chosen]
        # The sum of random numbers of the footprints that touch a line tells apart the sets of footprints.
        keys = np.random.default_rng(0).integers(1, 2**62, len(footprints), dtype=np.uint64)
        identity = np.zeros(int(lines.max()) + 1, np.uint64)
        np.add.at(identity, lines, keys[owner])
        _, atom = np.unique(identity[lines], return_inverse=True)
        pairs, number = np.unique(owner * (int(atom.max()) + 1) + atom, return_counts=True)
        width = int(atom.max()) + 1
        for index in np.flatnonzero(overlap):
            atoms[index] = ()
        for pair, held in zip(pairs.tolist(), number.tolist(), strict=True):
            atoms[pair // width] += ((count + pair % width, held),)
        count += width
    return atoms, count


class L2:
    """Contents of L2, in expectation.

    Args:
        sets: Sets of lines (``atoms_of``).
        capacity_lines: Lines that it holds.
        written: Lines read from DRAM in the time in which one is written back.

    Attributes:
        last: Lines allocated when each set of lines was last touched; below 0 if it never was.
        allocated: Lines allocated since the start.
        dirty: Lines that are written and not yet evicted.
    """

    def __init__(self, sets: int, capacity_lines: float, written: float = 1.0) -> None:
        self.written = written
        self.last: list[float] = [-1.0] * sets
        self.allocated = 0.0
        self.dirty = 0.0
        self.capacity = capacity_lines

    def read(self, atoms: Atoms) -> float:
        """Touch lines; return how many come from DRAM, with what the lines that these evict take besides."""
        missing = 0.0
        last, allocated, capacity = self.last, self.allocated, self.capacity
        for atom, lines in atoms:
            before = last[atom]
            if before < 0:
                missing += lines
            elif allocated > before:
                missing += lines * (1.0 - exp((before - allocated) / capacity))
            last[atom] = allocated
        if missing:
            self.allocated = allocated = allocated + missing
            for atom, _ in atoms:
                last[atom] = allocated
            if self.dirty:
                evicted = self.dirty * (1.0 - exp(-missing / capacity))
                self.dirty -= evicted
                return missing + evicted * self.written
        return missing

    def write(self, atoms: Atoms) -> float:
        """Write lines; return how many DRAM would read while L2 writes back what makes room."""
        missing = written = 0.0
        last, allocated, capacity = self.last, self.allocated, self.capacity
        for atom, lines in atoms:
            before = last[atom]
            missing += lines if before < 0 else lines * (1.0 - exp((before - allocated) / capacity))
            written += lines
        self.allocated = allocated = allocated + missing
        for atom, _ in atoms:
            last[atom] = allocated
        evicted = self.dirty * (1.0 - exp(-missing / capacity))
        self.dirty += missing - evicted
        return evicted * self.written


def of_several(clusters: Sequence[Cluster], count: int) -> NDArray[np.bool_]:
    """Return for each of ``count`` footprints whether several clusters touch it; one more, False, stands for none."""
    own = [np.unique(cluster.footprints) for cluster in clusters]
    numbers = np.concatenate(own).astype(np.int64) if own else np.zeros(0, np.int64)
    found = np.bincount(numbers[numbers >= 0], minlength=count + 1) > 1
    found[count] = False
    return found


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a sample of a launch's clusters moves, instead of what an ``L2`` finds out.

    Attributes:
        lines: Lines of each footprint.
        missing: Lines that each footprint moves from or to DRAM.
        delayed: Share of its clusters that wait for DRAM at each footprint.
        shared: Whether several clusters touch it.
        scale: Clusters that each cluster of the sample stands for.
    """

    lines: Sequence[float]
    missing: Sequence[float]
    delayed: Sequence[float]
    shared: Sequence[bool]
    scale: float


def in_lockstep(
    atoms: NDArray[np.int64], lines: NDArray[np.float64], writes: NDArray[np.bool_], capacity: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lines that a sequence of accesses misses, and those written back at each, as ``L2`` counts them.

    What an access misses depends on what was allocated before it, so that the result is a fixed point.

    Args:
        atoms: Set of lines of each access, in order of time.
        lines: Lines of each access.
        writes: Whether each access writes.
        capacity: Lines of L2.
    """
    count = len(atoms)
    order = np.argsort(atoms, kind="stable")
    same = np.zeros(count, bool)
    same[1:] = atoms[order][1:] == atoms[order][:-1]
    before = np.full(count, -1)
    before[order[same]] = order[np.flatnonzero(same) - 1]
    known = before >= 0
    missing = np.where(known, 0.0, lines)
    for _ in range(12):
        allocated = np.cumsum(missing)
        ago = allocated[known] - missing[known] - allocated[before[known]]
        found = lines[known] * -np.expm1(-np.maximum(ago, 0) / capacity)
        settled = np.abs(found - missing[known]).sum() < 1e-3 * missing.sum()
        missing[known] = found
        if settled:
            break
    allocated = np.cumsum(missing)
    # Written lines leave at the rate of allocation: d(dirty)/d(allocated) = written share - dirty / capacity.
    decay = np.exp(-allocated / capacity)
    made = np.where(writes, missing, 0.0)
    growth = np.maximum(decay, 1e-300)
    dirty = growth * np.cumsum(made / growth)
    return missing, np.maximum(np.diff(np.cumsum(made) - dirty, prepend=0.0), 0.0)
