"""Metamorphic relations: how the outputs of a kernel must change when its inputs change in a known way.

Relations need no oracle, and most require equal *bits*, so they are strict where the derived bound is wide. They also
detect results that change from run to run, and faults that reach from one group into another.

A kernel whose order of accumulation depends on the tile or on timing (stream-K, atomic adds) can violate ``repeat`` and
the permutations by a rounding without being wrong; :mod:`~pytest_nvfp4.numerics.judge` decides whether it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from pytest_nvfp4.numerics import fp16, scale_layout
from pytest_nvfp4.numerics.arrays import Bytes, HalfBits, Mask, NumericsError
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.numerics.packing import swap_nibbles
from pytest_nvfp4.numerics.pattern import describe
from pytest_nvfp4.problem import Problem

Outputs = Sequence[HalfBits]
"""One ``[m, n]`` array of fp16 bits a group."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A group of the second run that violates a relation.

    ``count`` outputs differ; the first is at ``(row, col)`` with bits ``got`` where the first run requires ``want``.
    """

    relation: str
    group: int
    count: int
    row: int
    col: int
    got: int
    want: int
    where: str

    def __str__(self) -> str:
        return (
            f"{self.relation}: group {self.group}: {self.count} outputs differ ({self.where}); first C[{self.row}, "
            f"{self.col}] = {fp16.value(self.got):.8g} (0x{self.got:04X}), the other run requires "
            f"{fp16.value(self.want):.8g} (0x{self.want:04X})"
        )


@dataclass(frozen=True, slots=True)
class Relation:
    """A change of inputs, and the outputs that must follow.

    Attributes:
        name: Short name.
        description: The change and its consequence.
        change: Returns the inputs of the second run.
        required: Returns the bits that the second run must have, from the first run's inputs and outputs.
        claimed: Returns where they must hold, one mask a group *of the second run*; None for everywhere.
    """

    name: str
    description: str
    change: Callable[[ProblemInput], ProblemInput]
    required: Callable[[ProblemInput, Outputs], list[HalfBits]]
    claimed: Callable[[ProblemInput, Outputs], list[Mask]] | None = None

    def check(self, inputs: ProblemInput, first: Outputs, second: Outputs) -> tuple[Violation, ...]:
        """Return the violations of two runs, one a group.

        NaN equals NaN and -0 equals +0: neither payload nor sign of zero is part of a result.

        Args:
            inputs: Inputs of the first run.
            first: Outputs of the first run, bits ``[m, n]`` of each group in order.
            second: Outputs of the run on ``change(inputs)``, in *its* order of groups.

        Raises:
            NumericsError: The number of outputs or a shape does not match.
        """
        required = self.required(inputs, first)
        masks = self.claimed(inputs, first) if self.claimed else [np.ones(bits.shape, np.bool_) for bits in required]
        if len(second) != len(required):
            raise NumericsError(f"relation {self.name}: {len(second)} outputs for {len(required)} groups")
        violations = []
        for group, (got, want, mask) in enumerate(zip(second, required, masks, strict=True)):
            if got.shape != want.shape:
                raise NumericsError(
                    f"relation {self.name}: output {group} has shape {list(got.shape)}, not {list(want.shape)}"
                )
            differs = mask & ~_same(got, want)
            if differs.any():
                row, col = (int(i) for i in np.argwhere(differs)[0])
                count, bits = int(differs.sum()), (int(got[row, col]), int(want[row, col]))
                violations.append(Violation(self.name, group, count, row, col, *bits, where=describe(differs)))
        return tuple(violations)


def _same(first: HalfBits, second: HalfBits) -> Mask:
    nan = fp16.is_nan(first) & fp16.is_nan(second)
    zero = ((first | second) & 0x7FFF) == 0
    same: Mask = (first == second) | nan | zero
    return same


def _rebuilt(inputs: GroupInput, **operands: Bytes) -> GroupInput:
    """Return the group with operands replaced, and scale factors reordered with their padding unchanged."""
    changes: dict[str, Any] = operands | {
        f"{name}_reordered": _reordered(operands[name], getattr(inputs, f"{name}_reordered"))
        for name in ("sfa", "sfb")
        if name in operands
    }
    return replace(inputs, **changes)


def _reordered(plain: Bytes, before: Bytes) -> Bytes:
    _, _, rest_m, _, rest_k, _ = before.shape
    padding = scale_layout.restore(before, rows=rest_m * scale_layout.ROWS, blocks=rest_k * scale_layout.BLOCKS)
    return scale_layout.reorder(plain, padding=padding)


def _each(change: Callable[[GroupInput], GroupInput]) -> Callable[[ProblemInput], ProblemInput]:
    return lambda inputs: replace(inputs, groups=tuple(change(group) for group in inputs.groups))


def _reversed_groups(inputs: ProblemInput) -> ProblemInput:
    problem = Problem(f"{inputs.problem.name}-reversed", inputs.problem.groups[::-1], inputs.problem.seed)
    return replace(inputs, problem=problem, groups=inputs.groups[::-1])


def _reversed_rows(group: GroupInput) -> GroupInput:
    return _rebuilt(group, a=group.a[::-1].copy(), sfa=group.sfa[::-1].copy())


def _reversed_columns(group: GroupInput) -> GroupInput:
    return _rebuilt(group, b=group.b[::-1].copy(), sfb=group.sfb[::-1].copy())


def _doubled(group: GroupInput) -> GroupInput:
    """Double SFA: a subnormal's code doubles, a normal's exponent field (of 8 codes) grows by one."""
    code = group.sfa
    nan = E4M3.is_nan(code)
    if (~nan & (code > E4M3.largest - 8)).any():
        raise NumericsError("SFA has scale factors above 224, which cannot be doubled; this relation does not apply")
    return _rebuilt(group, sfa=np.where(nan, code, np.where(code < 8, code * 2, code + 8)).astype(np.uint8))


def _double(_inputs: ProblemInput, first: Outputs) -> list[HalfBits]:
    return [fp16.round_nearest(fp16.to_float64(bits) * 2).view(np.uint16) for bits in first]


def _doubles_exactly(_inputs: ProblemInput, first: Outputs) -> list[Mask]:
    """Mask normal fp16 numbers: subnormals were rounded to fewer bits, and infinity does not determine its half."""
    return [((bits & 0x7C00) != 0) & ((bits & 0x7C00) != fp16.INFINITY) for bits in first]


def _negated(group: GroupInput) -> GroupInput:
    return _rebuilt(group, a=group.a ^ np.uint8(E2M1.sign | E2M1.sign << 4))


def _order_free(inputs: ProblemInput, _first: Outputs) -> list[Mask]:
    return [group.exact().order_free() for group in inputs.groups]


def _swapped(group: GroupInput) -> GroupInput:
    return _rebuilt(group, a=swap_nibbles(group.a), b=swap_nibbles(group.b))


def _reversed_blocks(group: GroupInput) -> GroupInput:
    def blocks(packed: Bytes) -> Bytes:
        rows, width = packed.shape
        return packed.reshape(rows, width // 8, 8)[:, ::-1].reshape(rows, width)

    return _rebuilt(
        group,
        a=blocks(group.a),
        b=blocks(group.b),
        sfa=group.sfa[:, ::-1].copy(),
        sfb=group.sfb[:, ::-1].copy(),
    )


def _poisoned_first(inputs: ProblemInput) -> ProblemInput:
    first = next((index for index, group in enumerate(inputs.groups) if group.group.m), 0)
    chosen = inputs.groups[first]
    poisoned = _rebuilt(chosen, sfa=np.full_like(chosen.sfa, E4M3.nan))
    return replace(inputs, groups=(*inputs.groups[:first], poisoned, *inputs.groups[first + 1 :]))


def _nan_in_first(inputs: ProblemInput, first: Outputs) -> list[HalfBits]:
    chosen = next((index for index, group in enumerate(inputs.groups) if group.group.m), 0)
    return [np.full_like(bits, fp16.CANONICAL_NAN) if index == chosen else bits for index, bits in enumerate(first)]


def _unchanged(_inputs: ProblemInput, first: Outputs) -> list[HalfBits]:
    return list(first)


_RELATIONS = (
    Relation(
        "repeat",
        "the same inputs again: the same bits",
        change=lambda inputs: inputs,
        required=_unchanged,
    ),
    Relation(
        "group_permutation",
        "groups in reverse order: the same bits in reverse order",
        change=_reversed_groups,
        required=lambda _, first: list(first[::-1]),
    ),
    Relation(
        "row_permutation",
        "rows of A in reverse order: rows of C in reverse order, bit for bit",
        change=_each(_reversed_rows),
        required=lambda _, first: [bits[::-1] for bits in first],
    ),
    Relation(
        "column_permutation",
        "rows of B in reverse order: columns of C in reverse order, bit for bit",
        change=_each(_reversed_columns),
        required=lambda _, first: [bits[:, ::-1] for bits in first],
    ),
    Relation(
        "double",
        "SFA times two: twice the output, bit for bit where it is a normal number",
        change=_each(_doubled),
        required=_double,
        claimed=_doubles_exactly,
    ),
    Relation(
        "negate",
        "A negated: C negated, bit for bit where every order of accumulation is exact",
        change=_each(_negated),
        required=lambda _, first: [
            np.where(fp16.is_nan(bits), bits, bits ^ np.uint16(fp16.SIGN)).astype(np.uint16) for bits in first
        ],
        claimed=_order_free,
    ),
    Relation(
        "nibble_swap",
        "the elements of each byte exchanged in A and in B: the same bits where every order of accumulation is exact",
        change=_each(_swapped),
        required=_unchanged,
        claimed=_order_free,
    ),
    Relation(
        "block_permutation",
        "k-blocks of A, B and their scales in reverse order: the same bits where every order of accumulation is exact",
        change=_each(_reversed_blocks),
        required=_unchanged,
        claimed=_order_free,
    ),
    Relation(
        "nan_isolation",
        "NaN for every scale factor of the first group's A: that group is NaN, every other keeps its bits",
        change=_poisoned_first,
        required=_nan_in_first,
    ),
)

RELATIONS: Mapping[str, Relation] = MappingProxyType({relation.name: relation for relation in _RELATIONS})
"""All relations by name."""
