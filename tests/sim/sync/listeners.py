"""Monitors that record events of synchronisation."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.sync.cluster import ClusterBarrier
from pytest_nvfp4.sim.sync.mbarrier import Mbarrier
from pytest_nvfp4.sim.sync.named import NamedBarrier
from tests.sim.sync.harness import clean


class Listener:
    """Monitor that records every event of synchronisation."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:  # noqa: ARG002
        self.events.append(("fence", w.index, kind))

    def warp_met(self, w: Warp, mask: int, at: int) -> None:  # noqa: ARG002
        self.events.append(("met", w.index, mask))

    def mbarrier_initialised(self, barrier: Mbarrier, who: Any) -> None:
        self.events.append(("made", who[0].index, barrier.count))

    def mbarrier_arrived(self, barrier: Mbarrier, who: Any, count: int, lanes: int) -> None:  # noqa: ARG002
        self.events.append(("arrived", who[0].index, count, barrier.phase))

    def mbarrier_bytes(self, barrier: Mbarrier, who: Any, size: int) -> None:  # noqa: ARG002
        self.events.append(("bytes", size, barrier.phase))

    def mbarrier_completed(self, barrier: Mbarrier) -> None:
        self.events.append(("completed", barrier.phase))

    def mbarrier_waited(self, w: Warp, mask: int, barrier: Mbarrier, at: int) -> None:  # noqa: ARG002
        self.events.append(("waited", w.index, mask, barrier.phase))

    def barrier_arrived(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:  # noqa: ARG002
        self.events.append(("at", _name(barrier), w.index, mask))

    def barrier_completed(self, barrier: NamedBarrier | ClusterBarrier) -> None:
        self.events.append(("done", _name(barrier)))

    def barrier_passed(self, w: Warp, mask: int, barrier: NamedBarrier | ClusterBarrier, at: int) -> None:  # noqa: ARG002
        self.events.append(("past", _name(barrier), w.index, mask))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _name(barrier: NamedBarrier | ClusterBarrier) -> object:
    return "cluster" if isinstance(barrier, ClusterBarrier) else barrier.number


def recorded(body: str, **options: Any) -> list[tuple[object, ...]]:
    """Return the events of a run."""
    machine = Machine()
    machine.monitor = listener = Listener()
    clean(body, machine=machine, **options)
    return listener.events


class FenceListener:
    """FenceListener that records fences."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, str]] = []

    def fence(self, w: Warp, mask: int, kind: str, at: int) -> None:  # noqa: ARG002
        self.heard.append((w.index, mask, kind))

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None
