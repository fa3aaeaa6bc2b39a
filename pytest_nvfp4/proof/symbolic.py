"""Layouts at symbolic coordinates: CuTe's evaluation of ``shape:stride`` for every coordinate at once.

CuTe decomposes the coordinate of a mode in mixed radix, the first size fastest; the last digit may exceed its size.
Here each digit is a variable with its defining equation and ranges: z3 decides linear facts on such digits in
milliseconds, and nested divisions not at all.
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
        value: The offset, as a sum over the digits.
        digits: The digits, mode by mode.
        by_mode: Defining facts of the digits of each mode, by name.
    """

    value: Term
    digits: tuple[tuple[Term, ...], ...]
    by_mode: tuple[Mapping[str, Formula], ...]

    @property
    def facts(self) -> dict[str, Formula]:
        """Defining facts of all digits."""
        return {words: formula for facts in self.by_mode for words, formula in facts.items()}


def evaluate(
    z3: Z3, layout: Layout, coordinate: Sequence[Term], *, unknowns: Sequence[Term] = (), prefix: str = "d"
) -> Evaluated:
    """Evaluate a layout at one coordinate per top-level mode.

    Args:
        z3: The solver.
        layout: A layout whose sizes and strides are integers or ``?``.
        coordinate: One number or symbol per mode.
        unknowns: Value of each ``?``, in the order of the text (sizes, then strides).
        prefix: Prefix of the digits' names.

    Raises:
        LayoutError: the ranks differ, the number of ``?`` differs, or a stride is a coordinate.
    """
    parts = modes(layout)
    if len(parts) != len(coordinate):
        raise LayoutError(f"{layout}: the layout has {len(parts)} modes, and the coordinate {len(coordinate)}")
    flat = [*leaves(layout.shape), *leaves(layout.stride)]
    queue = iter(unknowns)
    if sum(isinstance(leaf, Dynamic) for leaf in flat) != len(unknowns):
        raise LayoutError(f"{layout}: {len(unknowns)} values do not match its number of '?'")
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
