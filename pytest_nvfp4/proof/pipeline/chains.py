"""Formulas for z3: the uses of streams as integers, and happens-before as instances of edges along a path.

The time of a point is an uninterpreted function of the number of its use. N, the number of uses of the clock, is any
integer from 0. An edge gives one fact for one pair of uses, under the condition that both uses exist; a path from
A to B(v) gives one fact for each edge, from its end. The conclusion is A(u) < B(v). A path that reaches another use
than u proves nothing for u, and z3 has a model without the order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_nvfp4.proof.pipeline.order import At, Edge, Order, Point, in_order
from pytest_nvfp4.proof.pipeline.protocol import lag
from pytest_nvfp4.proof.pipeline.streams import Stream
from pytest_nvfp4.proof.solver import Z3, Formula, Obligation, Term


class Question(NamedTuple):
    """An obligation that is built when it is asked; questions of one shape differ in names only."""

    shape: Hashable
    build: Callable[[], Obligation]


@dataclass(slots=True)
class Uses:
    """The streams of one clock in the symbols of z3.

    Attributes:
        n: Number of uses of the first stream.
    """

    z3: Z3
    order: Order
    n: Term = field(init=False)

    def __post_init__(self) -> None:
        self.n = self.z3.Int("N")

    @property
    def streams(self) -> Sequence[Stream]:
        """The streams, the base of the clock first."""
        return self.order.streams

    def count(self, stream: int) -> Term:
        """Return the number of uses of a stream."""
        return self.n + lag(self.streams[0], self.streams[stream])

    def exists(self, stream: int, use: Term) -> Formula:
        """Return that a use exists."""
        return self.z3.And(use >= 0, use < self.count(stream))

    def time(self, point: Point, use: Term) -> Term:
        """Return the time of a point of a use."""
        integer = self.z3.IntSort()
        return self.z3.Function(f"t{point.stream}.{point.at.name.lower()}", integer, integer)(use)

    def round_of(self, wait: int, use: Term) -> Term:
        """Return the phase that a use of a wait waits for."""
        stream = self.streams[wait]
        return use / stream.stages + stream.phase

    def signal_for(self, wait: int, signal: int, use: Term) -> Term:
        """Return the use of a signal that completes the phase which a use of a wait waits for."""
        one, other = self.streams[wait], self.streams[signal]
        return self.round_of(wait, use) * one.stages + (use + one.shift - other.shift) % one.stages

    def chain(self, path: Sequence[Edge], use: Term) -> tuple[dict[str, Formula], Term]:
        """Return the facts along a path that ends at a use, and the use at which it begins."""
        z3 = self.z3
        facts: dict[str, Formula] = {}
        for edge in reversed(path):
            source, target = edge.source.stream, edge.target.stream
            condition = [self.exists(target, use)]
            if edge.barrier:
                earlier = self.signal_for(target, source, use)
                condition.append(self.round_of(target, use) >= 0)
            else:
                last = self.count(source) - 1
                earlier = z3.If(use - edge.weight > last, last, use - edge.weight)
            condition.append(self.exists(source, earlier))
            before = self.time(edge.source, earlier) < self.time(edge.target, use)
            if edge.source == edge.target or (source == target and not edge.weight):
                before = self.time(edge.source, earlier) <= self.time(edge.target, use)
            facts[f"edge {len(facts)}: {_name(edge)}"] = z3.Implies(z3.And(*condition), before)
            use = earlier
        return facts, use

    def before(
        self,
        name: str,
        source: tuple[Point, Term],
        target: tuple[Point, Term],
        given: Mapping[str, Formula],
        shown: Mapping[str, Term],
    ) -> Question:
        """Return the question whether a point of one use is before a point of another."""
        (start, u), (end, v) = source, target
        path = self.order.path(start, end)

        def build() -> Obligation:
            facts = {"N >= 0": self.n >= 0, **given}
            if path is not None:
                chain, begin = self.chain(path, v)
                facts.update(chain)
                same = u <= begin if in_order(self.streams[start.stream], start.at) else u == begin
                facts["uses are in order"] = self.z3.Implies(same, self.time(start, u) <= self.time(start, begin))
            return Obligation(name, facts, self.time(start, u) < self.time(end, v), {"N": self.n, **shown})

        shapes = [self.shape(start), self.shape(end)]
        for edge in path or ():
            shapes += [(edge.weight, edge.barrier, edge.source.stream == edge.target.stream), self.shape(edge.source)]
        return Question((path is None, *shapes), build)

    def shape(self, point: Point) -> tuple[int, ...]:
        """Return what the formulas have of a point's stream."""
        stream = self.streams[point.stream]
        once = in_order(stream, point.at)
        return (stream.stages, stream.shift, stream.phase, lag(self.streams[0], stream), once, point.at)


def _name(edge: Edge) -> str:
    return f"{edge.source.stream}.{edge.source.at.name} -> {edge.target.stream}.{edge.target.at.name} ({edge.weight})"


FIRST, DONE = At.FIRST, At.DONE
