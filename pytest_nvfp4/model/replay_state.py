"""What runs during a replay: warps, and resident clusters with their phases."""

from __future__ import annotations

from pytest_nvfp4.model.replay_steps import ProgramSteps, WarpSteps

__all__ = ["Cause", "ClusterRun", "ReplayError", "WarpRun"]

Cause = tuple["WarpRun", int, float, tuple[tuple[str, float], ...]]
"""What released a wait: a warp, its step, the time of issue, and the parts of the operation's time with their ends."""


class ReplayError(ValueError):
    """A recording cannot be replayed: it is refused, or its waits can never be satisfied."""


class WarpRun:
    """A warp during a replay.

    Attributes:
        time: Its own time, in ns.
        port: Number of the port and scheduler of its SM that it uses.
        log: Waits that delayed it: (step, time of release, cause), the latter as ``Segment.cause`` says.
    """

    __slots__ = ("cluster", "cta", "log", "pc", "port", "sm", "started", "steps", "time", "warp")

    def __init__(self, warp: WarpSteps, cluster: ClusterRun, sm: int, time: float) -> None:
        self.warp, self.cluster, self.sm, self.cta = warp, cluster, sm, warp.cta
        self.steps, self.pc, self.time, self.started = warp.steps, 0, time, time
        self.port = sm * 4 + warp.index % 4
        self.log: list[tuple[int, float, Cause | None]] = []


class ClusterRun:
    """A resident cluster.

    Attributes:
        places: SM of each of its CTAs.
        left, at, why: By phase, the signals that it needs yet, the time of the latest one, and what that one follows.
        opened: By phase, the time of its first signal; filled for a timeline only.
        after: The warp whose end made room for the cluster.
    """

    __slots__ = (
        *("after", "at", "footprints", "left", "number", "opened", "pipes", "places", "program", "running", "slot"),
        *("waiting", "why"),
    )

    def __init__(
        self,
        number: int,
        program: ProgramSteps,
        footprints: list[int],
        *,
        slot: int,
        places: tuple[int, ...],
        after: WarpRun | None,
    ) -> None:
        self.number, self.program, self.footprints, self.slot, self.after = number, program, footprints, slot, after
        self.places = places
        self.left = list(program.phases)
        self.at = [0.0] * len(self.left)
        self.why: list[Cause | None] = [None] * len(self.left)
        self.opened: dict[int, float] = {}
        self.waiting: dict[int, list[WarpRun]] = {}
        self.pipes = [0.0] * program.pipes
        self.running = len(program.warps)
