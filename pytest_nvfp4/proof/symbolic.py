"""Layouts at symbolic coordinates: what CuTe's evaluation of ``shape:stride`` is for every coordinate at once.

CuTe takes the coordinate of a mode apart in mixed radix, the first size fastest, and the last digit goes on past its
size. Here each digit is a variable with the equation and the ranges that define it: z3 decides linear facts on such
digits in milliseconds, and nested divisions not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.tree import Dynamic, Leaf, leaves
from pytest_nvfp4.proof.solver import Z3, Formula, Term


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A layout at a coordinate.

    Attributes:
        value: Its offset, as a sum over the digits.
        digits: The digits, mode by mode.
        by_mode: What defines the digits of each mode, in words.
    """

    value: Term
    digits: tuple[tuple[Term, ...], ...]
    by_mode: tuple[Mapping[str, Formula], ...]

    @property
    def facts(self) -> dict[str, Formula]:
        """What defines all digits."""
        return {words: formula for facts in self.by_mode for words, formula in facts.items()}


def evaluate(
    z3: Z3, layout: Layout, coordinate: Sequence[Term], *, unknowns: Sequence[Term] = (), prefix: str = "d"
) -> Evaluated:
    """The layout at one coordinate a top-level mode.

    Args:
        z3: The solver.
        layout: Its sizes and strides are integers or ``?``.
        coordinate: One number or symbol a mode.
        unknowns: What stands for each ``?``, in the order of the text (sizes, then strides).
        prefix: Begins the names of the digits.

    Raises:
        LayoutError: another rank than the coordinate's, a ``?`` too many or too few, a stride that is a coordinate.
    """
    parts = modes(layout)
    if len(parts) != len(coordinate):
        raise LayoutError(f"{layout}: it has {len(parts)} modes, and the coordinate {len(coordinate)}")
    flat = [*leaves(layout.shape), *leaves(layout.stride)]
    queue = iter(unknowns)
    if sum(isinstance(leaf, Dynamic) for leaf in flat) != len(unknowns):
        raise LayoutError(f"{layout}: {len(unknowns)} values are given for its '?'")
    sizes_of = [[_number(layout, leaf, queue) for leaf in leaves(part.shape)] for part in parts]
    strides_of = [[_number(layout, leaf, queue) for leaf in leaves(part.stride)] for part in parts]
    value: Term = 0
    by_mode: list[Mapping[str, Formula]] = []
    digits: list[tuple[Term, ...]] = []
    for mode, (place, sizes, strides) in enumerate(zip(coordinate, sizes_of, strides_of, strict=True)):
        names = [z3.Int(f"{prefix}{mode}_{at}") for at in range(len(sizes))]
        whole: Term = names[-1]
        facts: dict[str, Formula] = {}
        for digit, size in zip(reversed(names[:-1]), reversed(sizes[:-1]), strict=True):
            whole = digit + size * whole
            facts[f"0 <= {digit} < {size}"] = z3.And(digit >= 0, digit < size)
        facts[f"the digits of coordinate {mode} ({prefix})"] = place == whole
        facts[f"{names[-1]} >= 0"] = names[-1] >= 0
        value = value + sum(digit * stride for digit, stride in zip(names, strides, strict=True))
        digits.append(tuple(names))
        by_mode.append(facts)
    return Evaluated(value, tuple(digits), tuple(by_mode))


def _number(layout: Layout, leaf: Leaf, queue: object) -> Term:
    if isinstance(leaf, Dynamic):
        return next(queue)  # type: ignore[call-overload]
    if isinstance(leaf, int):
        return leaf
    raise LayoutError(f"{layout}: '{leaf}' is not an integer")
