"""The flags of a launch during a replay: values of cells over time, and the warps that poll them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_nvfp4.model.flags import holds, written
from pytest_nvfp4.model.recording import Cluster
from pytest_nvfp4.model.replay_state import Cause, WarpRun
from pytest_nvfp4.model.replay_steps import Step

__all__ = ["Flags"]


class Flags:
    """The cells of a launch.

    A write is seen from the time on at which it is complete; writes are applied in the order of their issue.

    Args:
        cells: Their values before the launch.
        clusters: The clusters of the recording.
    """

    def __init__(self, cells: Sequence[int], clusters: Sequence[Cluster]) -> None:
        self._history: list[list[tuple[float, int, Cause | None]]] = [[(float("-inf"), value, None)] for value in cells]
        self._waiting: list[list[WarpRun]] = [[] for _ in cells]
        self._rows = [cluster.flags.tolist() if len(cells) else [] for cluster in clusters]

    def poll(self, w: WarpRun, step: Step, now: float) -> tuple[float, Cause | None] | None:
        """Return when a poll ends, not before ``now``, and the write that ends it; None if none is known yet."""
        cell, operand = self._rows[w.cluster.number][step[8]]
        history = self._history[cell]
        for number, (time, value, cause) in enumerate(history):
            over = number + 1 < len(history) and history[number + 1][0] <= now
            if not over and holds(step[9], value, operand):
                return max(time, now), cause
        self._waiting[cell].append(w)
        return None

    def write(self, w: WarpRun, step: Step, done: float, cause: Cause) -> list[WarpRun]:
        """Apply a write; return the warps whose polls it ends, for which it is the first to."""
        cell, operand = self._rows[w.cluster.number][step[8]]
        history = self._history[cell]
        last, before, _ = history[-1]
        history.append((max(last, done), written(step[9], before, operand), cause))
        waiting, self._waiting[cell] = self._waiting[cell], []
        return waiting
