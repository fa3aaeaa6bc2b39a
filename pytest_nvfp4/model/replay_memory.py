"""L2 and DRAM during a replay: two servers for the whole GPU, and the lines that are still on their way.

Reads and writes of all units are booked here, whether TMA or lanes of warps issue them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay_steps import Costs
from pytest_nvfp4.model.servers import L2, Atoms, Traffic, of_several

__all__ = ["Memory"]

_NONE = 0.01
"""Lines below which nothing is moved from or to DRAM: expectations are seldom exactly 0."""


class Memory:
    """The servers of L2 and of DRAM.

    Attributes:
        line_ns: By footprint, the time of a line: one that several clusters load leaves L2 faster.
        shares: By footprint, the sectors that are touched, as a share of those of its lines.
        l2_busy, dram_busy: Busy ns.
    """

    __slots__ = (
        *("arrives", "atoms", "delayed", "dram", "dram_busy", "dram_latency", "dram_ns", "l2", "l2_busy", "l2_free"),
        *("line_ns", "missing_of", "shares", "sizes", "written_ns"),
    )

    def __init__(
        self, costs: Costs, l2: L2, atoms: Sequence[Atoms], recording: Recording, traffic: Traffic | None
    ) -> None:
        clusters, prints = recording.clusters, recording.footprints
        scale = 1.0 if traffic is None else traffic.scale
        several = of_several(clusters, len(prints)).tolist() if traffic is None else traffic.shared
        self.line_ns = [scale * (costs.line_shared if shared else costs.line) for shared in several]
        self.written_ns = costs.line_written * scale
        self.dram_ns, self.dram_latency = costs.dram_line * scale, costs.dram_latency
        self.l2, self.atoms = l2, atoms
        self.arrives = [0.0] * len(l2.last)
        self.missing_of = None if traffic is None else traffic.missing
        self.delayed: Sequence[float] = () if traffic is None else traffic.delayed
        self.sizes: Sequence[float]
        if traffic is None:
            self.sizes = [sum(lines for _, lines in parts) for parts in atoms]
            self.shares = [
                min(1.0, each.sectors / (4 * size)) if size and each.sectors else 1.0
                for each, size in zip(prints, self.sizes, strict=True)
            ]
        else:
            self.sizes, self.shares = traffic.lines, [1.0] * len(traffic.lines)
        self.l2_free = self.dram = self.l2_busy = self.dram_busy = 0.0

    def read(self, print_: int, lines: float, now: float, through: float) -> tuple[float, float]:
        """Book the read of a footprint; return when it is through L2, and when its last line is there.

        Args:
            print_: Number of the footprint.
            lines: Lines that leave L2, one for each destination.
            now: Time of the request.
            through: Time before which it is not through, for the unit that requests it.
        """
        cost = lines * self.line_ns[print_]
        free = self.l2_free
        self.l2_free = free = (free if free > now else now) + cost
        self.l2_busy += cost
        memory = through = free if free > through else through
        missing_of = self.missing_of
        if missing_of is None:
            atoms = self.atoms[print_]
            missing = self.l2.read(atoms)
        else:
            missing = missing_of[print_]
        if missing > _NONE:
            cost = missing * self.shares[print_] * self.dram_ns
            free = self.dram
            self.dram = free = (free if free > now else now) + cost
            self.dram_busy += cost
            memory = free if free > memory else memory
            # Rows follow each other while the first waits for DRAM, so that its latency adds to them.
            if missing_of is not None:
                memory += self.dram_latency * self.delayed[print_]
            elif missing > 1:
                memory += self.dram_latency
                for atom, _ in atoms:
                    self.arrives[atom] = memory
            else:
                memory += self.dram_latency * missing
        elif missing_of is None:
            for atom, _ in atoms:  # a hit may be on lines that are still on their way
                there = self.arrives[atom]
                memory = there if there > memory else memory
        return through, memory

    def write(self, print_: int, now: float, through: float) -> float:
        """Book the write of a footprint; return when it is in L2. Arguments are those of `read`."""
        cost = self.sizes[print_] * self.shares[print_] * self.written_ns
        free = self.l2_free
        self.l2_free = free = (free if free > now else now) + cost
        self.l2_busy += cost
        evicted = self.l2.write(self.atoms[print_]) if self.missing_of is None else self.missing_of[print_]
        if evicted > _NONE:
            cost = evicted * self.dram_ns
            self.dram = (self.dram if self.dram > now else now) + cost
            self.dram_busy += cost
        return free if free > through else through
