"""Problems of a contract of the user's own, drawn from the values that it lists for each axis.

A smaller problem has an earlier value of an axis: a contract lists the simplest value first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_nvfp4.contracts.own.axes import Axes, read_axes, text_of
from pytest_nvfp4.problem import Problem, ProblemError

_MORE = 10
"""Draws for each example, of which the contract may admit few."""


@dataclass(frozen=True, slots=True)
class OwnAxes:
    """The space (``search.space``) of the problems that a contract's axes span.

    Attributes:
        like: A problem of the contract, whose seed and contract the others have.
        axes: The values of each axis.
        legal: Returns which problems the contract admits.
    """

    like: Problem
    axes: Axes
    legal: Callable[[Sequence[Problem]], Sequence[bool]]

    def size(self, problem: Problem) -> tuple[int, ...]:
        """See ``Space``."""
        places = self._places(problem)
        return sum(places), *places

    def smaller(self, problem: Problem) -> list[Problem]:
        """See ``Space``: one axis, or all of them, have an earlier value."""
        places = self._places(problem)
        tried = [tuple(0 for _ in places), tuple(place // 2 for place in places)]
        for at, place in enumerate(places):
            tried += [(*places[:at], less, *places[at + 1 :]) for less in _earlier(place)]
        return self._admitted([each for each in dict.fromkeys(tried) if each != places])

    def text(self, problem: Problem) -> str:
        """See ``Space``."""
        return problem.name

    def read(self, text: str) -> Problem:
        """See ``Space``."""
        found = read_axes(text, self.axes)
        if found is None:
            raise ProblemError(f"{text!r} does not give each axis one of its values")
        return replace(self.like, name=text, axes=tuple(found.items()))

    def draw(self, *, examples: int, repeatable: bool) -> list[Problem]:
        """Return at most ``examples`` distinct problems drawn by Hypothesis, the same in every run if repeatable."""
        import hypothesis
        from hypothesis import HealthCheck, Phase
        from hypothesis import strategies as st

        drawn: dict[tuple[int, ...], None] = {}
        places = st.tuples(*(st.integers(0, len(values) - 1) for values in self.axes.values()))

        @hypothesis.settings(
            max_examples=_MORE * examples,
            derandomize=repeatable,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(places)
        def collect(found: tuple[int, ...]) -> None:
            drawn.setdefault(found)

        collect()
        return self._admitted(list(drawn))[:examples]

    def _places(self, problem: Problem) -> tuple[int, ...]:
        """Return the index of the value of each axis."""
        given = dict(problem.axes)
        return tuple(values.index(given[name]) for name, values in self.axes.items())

    def _admitted(self, places: Sequence[tuple[int, ...]]) -> list[Problem]:
        """Return the problems at some indices that the contract admits."""
        made = []
        for each in places:
            axes = {name: values[at] for (name, values), at in zip(self.axes.items(), each, strict=True)}
            made.append(replace(self.like, name=text_of(axes), axes=tuple(axes.items())))
        return [problem for problem, admitted in zip(made, self.legal(made), strict=True) if admitted] if made else []


def _earlier(place: int) -> Iterator[int]:
    """Yield places before one: a bisection with all its steps, and the place before it."""
    if place:
        yield from sorted({0, place - 1, *(place - (place >> shift) for shift in range(1, 6) if place >> shift)})
