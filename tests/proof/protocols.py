"""Recordings of small pipelines, written down: one warp copies k-tiles to a ring, another multiplies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_nvfp4.proof.pipeline.protocol import Protocol, fit
from pytest_nvfp4.proof.pipeline.recording import Array, Event, Recording, Role

STAGES = 3
EMPTY, FULL = 0, 1
LOADER, MULTIPLIER = Role(0, 5), Role(0, 4)
WAIT_EMPTY, EXPECT, COPY, WAIT_FULL, MMA, RELEASE, DONE = range(7)
"""Instructions, whose lines are 100 and up."""

Steps = Iterator[Event]


def stage_mask(stage: int) -> int:
    """The units of memory of a stage."""
    return 0xF << 4 * stage


def load(k: int) -> Steps:
    """What the loading warp does in iteration k."""
    stage = k % STAGES
    yield Event("wait", WAIT_EMPTY, EMPTY, stage, k // STAGES - 1)
    yield Event("arrive", EXPECT, FULL, stage, 1)
    yield Event("copy", COPY, FULL, stage, writes=stage_mask(stage))


def multiply(k: int) -> Steps:
    """What the multiplying warp does in iteration k."""
    stage = k % STAGES
    yield Event("wait", WAIT_FULL, FULL, stage, k // STAGES)
    for block in range(4):
        yield Event("mma", MMA, reads=1 << 4 * stage + block)
    yield Event("commit", RELEASE, EMPTY, stage, 1)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: what its two warps do in each iteration, and after the last."""

    load: Callable[[int], Steps] = load
    multiply: Callable[[int], Steps] = multiply
    after: Callable[[int], Steps] = lambda _: iter(())
    empty_count: int = 1

    def record(self, tiles: int) -> Recording:
        """Return the recording of a run of some k-tiles."""
        arrays = (
            Array(0, tuple(range(0, 8 * STAGES, 8)), self.empty_count, 90, named=False),
            Array(0, tuple(range(64, 64 + 8 * STAGES, 8)), 1, 91, named=False),
        )
        multiplier = [event for k in range(tiles) for event in self.multiply(k)]
        return Recording(
            kernel="pipeline",
            code="",
            label=f"{tiles} k-tiles",
            complete=True,
            cluster=1,
            arrays=arrays,
            warps={
                LOADER: tuple(event for k in range(tiles) for event in self.load(k)),
                MULTIPLIER: (*multiplier, *self.after(tiles)),
            },
            places={at: ("k.py", 100 + at, "") for at in range(7)},
        )

    def protocol(self) -> Protocol:
        """Return the protocol of runs of 1 to 9 k-tiles."""
        return fit([self.record(tiles) for tiles in (1, 2, 5, 7, 9)])
