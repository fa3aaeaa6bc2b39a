"""Happens-before between the uses of streams, for every number of uses.

A point is an event of use n of a stream: its first and last instruction, and its completion. An edge of weight w from
point A to point B says: A of use u happens before B of use v for all v - u >= w. Edges are

* program order: the weight is the largest distance that the recordings show for the two streams;
* asynchronous work: it completes after its issue, the operations of a tensor core's pipe in order;
* ``tcgen05.commit`` and ``cp.async.mbarrier.arrive``: they arrive when the earlier operations are complete (PTX ISA,
  "tcgen05.commit", "cp.async.mbarrier.arrive");
* barriers: the arrivals and bytes of phase f happen before a wait for phase f returns (PTX ISA, "mbarrier").

Weights add up along a path, so the lightest path gives the strongest order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.proof.pipeline.streams import Action, Completion, Stream, Use


class At(IntEnum):
    """Point of a use."""

    FIRST = 0
    LAST = 1
    DONE = 2


class Point(NamedTuple):
    """A point of the uses of a stream, by the stream's place in the list."""

    stream: int
    at: At


class Edge(NamedTuple):
    """An edge. ``barrier`` says that it leads to a wait, whose phase decides which use it comes from."""

    source: Point
    target: Point
    weight: int
    barrier: bool = False


def signalled(wait: Stream, signal: Stream, use: int) -> int:
    """Return the use of a signal that completes the phase which a use of a wait waits for; negative for none."""
    phase = use // wait.stages + wait.phase
    return phase * wait.stages + (use + wait.shift - signal.shift) % wait.stages


class Order:
    """The edges between points of streams of one clock, and the lightest paths (Floyd and Warshall)."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        self.edges: dict[tuple[Point, Point], Edge] = {}
        self._last: NDArray[np.int64] | None = None
        self._weight: NDArray[np.int64] | None = None

    def add(self, edge: Edge) -> None:
        """Add an edge, if there is no lighter one between its points."""
        old = self.edges.get((edge.source, edge.target))
        if edge.source != edge.target and (old is None or edge.weight < old.weight):
            self.edges[edge.source, edge.target] = edge

    def path(self, source: Point, target: Point) -> list[Edge] | None:
        """Return the lightest path between two points; None if there is none, or a circular wait is on it."""
        last, _ = self._lightest()
        start, point = _number(source), _number(target)
        found: list[Edge] = []
        while point != start:
            previous = int(last[start, point])
            if previous < 0 or len(found) > len(last):
                return None
            found.append(self.edges[_point(previous), _point(point)])
            point = previous
        return found[::-1]

    def weight(self, source: Point, target: Point) -> int | None:
        """Return the weight of the lightest path."""
        weight = int(self._lightest()[1][_number(source), _number(target)])
        return weight if weight < _FAR else None

    def _lightest(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._last is None or self._weight is None:
            size = len(At) * len(self.streams)
            weight = np.full((size, size), 2 * _FAR, np.int64)
            last = np.full((size, size), -1, np.int64)
            for edge in self.edges.values():
                weight[_number(edge.source), _number(edge.target)] = edge.weight
                last[_number(edge.source), _number(edge.target)] = _number(edge.source)
            np.fill_diagonal(weight, 0)
            for middle in range(size):
                through = weight[:, middle, None] + weight[None, middle, :]
                lighter = through < weight
                np.fill_diagonal(lighter, val=False)
                weight[lighter] = through[lighter]
                last = np.where(lighter, last[None, middle, :], last)
            self._last, self._weight = last, weight
        return self._last, self._weight


_FAR = 1 << 40


def _number(point: Point) -> int:
    return len(At) * point.stream + point.at


def _point(number: int) -> Point:
    return Point(number // len(At), At(number % len(At)))


def distance(sources: Sequence[int | None], targets: Sequence[int | None]) -> int | None:
    """Return the least d such that position n of the sources is before position n + d of the targets, for all n.

    A use that no target follows allows no target at its distance. None if a position is unknown, or if no target
    follows the first source.
    """
    if None in sources or None in targets:
        return None
    found: int | None = None
    following = 0
    for number, source in enumerate(sources):
        assert source is not None
        while following < len(targets) and (targets[following] or 0) <= source:
            following += 1
        if not number and following == len(targets):
            return None
        found = following - number if found is None else max(found, following - number)
    return found


def order_of(streams: Sequence[Stream]) -> Order:
    """Return the order of streams of one clock."""
    order = Order(streams)
    for source, one in enumerate(streams):
        for target, other in enumerate(streams):
            if one.role == other.role:
                _program_order(order, source, target)
            if (
                other.action is Action.WAIT and other.array == one.array and one.action is Action.SIGNAL
                and one.stages == other.stages and not one.problem and not other.problem
            ):  # fmt: skip
                weight = max(use - signalled(other, one, use) for use in range(other.stages))
                order.add(Edge(Point(source, At.DONE), Point(target, At.FIRST), weight, barrier=True))
        last, done = Point(source, At.LAST), Point(source, At.DONE)
        order.add(Edge(Point(source, At.FIRST), last, 0))
        order.add(Edge(last, done, 0))
    return order


_POSITION: dict[At, Callable[[Use], int | None]] = {
    At.FIRST: lambda use: use.first,
    At.LAST: lambda use: use.last,
    At.DONE: lambda use: use.done,
}


def _program_order(order: Order, source: int, target: int) -> None:
    one, other = order.streams[source], order.streams[target]
    before: list[At] = [At.FIRST, At.LAST]
    if one.completion is Completion.OWN:
        before.append(At.DONE)
    for at in before:
        for to in (At.FIRST, At.LAST):
            if (source, at) != (target, to) and (weight := _weight(one, at, other, to)) is not None:
                order.add(Edge(Point(source, at), Point(target, to), weight))
    if source == target:
        order.add(Edge(Point(source, At.LAST), Point(target, At.FIRST), 1))
    elif (one.action, other.action) == (Action.FILL, Action.SIGNAL) and _same_copies(one, other):
        order.add(Edge(Point(source, At.DONE), Point(target, At.DONE), 0))
    follows_pipe = one.completion is Completion.PIPE and other.completion is Completion.PIPE
    covers_copies = (
        one.action is not Action.SIGNAL
        and one.completion is Completion.CP_ASYNC
        and other.action is Action.SIGNAL
        and other.completion is Completion.CP_ASYNC
    )
    if follows_pipe or covers_copies:
        weight = 1 if source == target else _weight(one, At.LAST, other, At.FIRST)
        if weight is not None and source != target:
            order.add(Edge(Point(source, At.DONE), Point(target, At.DONE), weight))


def _same_copies(one: Stream, other: Stream) -> bool:
    """Return whether two streams are the same copies: as what fills memory, and as the bytes that a barrier counts."""
    copies = Completion.COPY is one.completion is other.completion
    return (
        copies
        and one.array == other.array
        and all(
            [use.first for use in mine] == [use.first for use in theirs]
            for mine, theirs in zip(one.runs, other.runs, strict=True)
        )
    )


def _weight(one: Stream, at: At, other: Stream, to: At) -> int | None:
    """Return the largest distance that the recordings show."""
    start, end = _POSITION[at], _POSITION[to]
    found: int | None = None
    for sources, targets in zip(one.runs, other.runs, strict=True):
        weight = distance([start(use) for use in sources], [end(use) for use in targets])
        if weight is None and any(start(use) is None for use in sources):
            return None
        if weight is not None:
            found = weight if found is None else max(found, weight)
    return found


def in_order(stream: Stream, at: At) -> bool:
    """Return whether a point of use u is never after that of use u + 1: false for the landing of copies."""
    return at is not At.DONE or stream.completion in (Completion.OWN, Completion.PIPE)
