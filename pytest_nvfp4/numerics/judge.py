"""Judgement of outputs: bit for bit where only one result is possible, else within a derived bound.

**Exact outputs.** Where every fp32 accumulation order is exact (:meth:`Exact.order_free`), the only rounding left is
the conversion to fp16. The kernel's bits must be those of the exact sum rounded once to nearest even. This presumes
accumulators that keep all 24 bits of fp32, which is not checked on Blackwell silicon; Hopper's FP8 MMA keeps fewer.

**Bounded outputs.** Elsewhere the order and the accumulator of the tensor core may show, and

    |out - ref| <= 2^-11 * |ref| * (1 + 1e-3)  +  2^-23 * (K / 64 + 8) * sum|ab|  +  2^-25

The first and last terms are half a unit in the last place of fp16: 2^-11 relative for normal numbers, half of the
subnormal step 2^-24. The middle term is the accumulation: K / 64 MMA instructions of 64 products, each with one fp32
rounding or truncation of at most 2^-23 of the running sum, which ``sum|ab|`` bounds; 8 more for roundings inside one.
Sequential and truncating accumulators were simulated against it without a violation; it has not been checked on
Blackwell silicon. An infinite output is right if the exact sum, moved by the middle term, could round to that infinity,
and a finite one is wrong if the sum so moved could not be finite.

**Special values.** NaN is right exactly where a NaN scale factor reaches the output; its payload does not matter. An
output that still holds the poison's bits was not written, and is wrong even where NaN is due. The sign of zero is not
part of the result (what the tensor core gives for an exact zero is not documented): -0 for +0 is counted and reported
but right, unless ``zero_sign="strict"``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import Float64, HalfBits, Mask, NumericsError, frozen
from pytest_nvfp4.numerics.elements import FLOAT16, Element
from pytest_nvfp4.numerics.oracle import Exact
from pytest_nvfp4.numerics.pattern import describe

Rule: TypeAlias = Literal["exact", "bound", "nan", "unwritten", "guard"]
ZeroSign: TypeAlias = Literal["ignore", "strict"]

FIRST = 8
"""Number of mismatches that a verdict stores."""
_SHOWN = 4
"""Number of mismatches in its text: an entirely wrong kernel yields one text per group and input."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A wrong output.

    Attributes:
        group: index of the group in the problem.
        row: row of C; for a guard row, counted from C's first row (negative before it, ``m`` and up after it).
        col: column of C.
        rule: which rule it breaks.
        got_bits: bits of the value found.
        want_bits: bits of the exact sum rounded to fp16 (the poison's for a guard row).
        exact: the exact sum as float64 (NaN for a guard row).
        bound: how far from ``exact`` an output may be; 0 under "exact", "nan", "unwritten" and "guard".
    """

    group: int
    row: int
    col: int
    rule: Rule
    got_bits: int
    want_bits: int
    exact: float = math.nan
    bound: float = 0.0
    element: Element = FLOAT16
    name: str = ""

    @property
    def got(self) -> float:
        """Value found."""
        return self.element.shown(self.got_bits)

    @property
    def want(self) -> float:
        """Value of ``want_bits``."""
        return self.element.shown(self.want_bits)

    @property
    def ulp(self) -> int | None:
        """Number of values of the type between got and want; None where one is NaN."""
        if math.isnan(self.got) or math.isnan(self.want):
            return None
        one, other = (np.array([bits], dtype=f"u{self.element.item}") for bits in (self.got_bits, self.want_bits))
        return int(self.element.distance(one, other)[0])

    def __str__(self) -> str:
        at = f"{self.name or f'group {self.group} C'}[{self.row}, {self.col}]"
        digits = 2 * self.element.item
        got = f"{self.got:.8g} (0x{self.got_bits:0{digits}X})"
        want = f"{self.want:.8g} (0x{self.want_bits:0{digits}X})"
        if self.rule == "unwritten":
            return f"{at}: not written (still the poison 0x{self.got_bits:0{digits}X}), want {want}"
        if self.rule == "guard":
            return f"{at}: written outside the tensor, got {got} over the guard 0x{self.want_bits:0{digits}X}"
        off = "" if self.ulp is None else f", {self.ulp} ulp off"
        if self.rule == "bound":
            return (
                f"{at}: got {got}, want {want}{off}; |error| {abs(self.got - self.exact):.4g} > bound {self.bound:.4g}"
            )
        if self.name:
            return f"{at}: got {got}, want {want}{off}"
        why = "NaN exactly where a scale factor is NaN" if self.rule == "nan" else "exact in every order"
        return f"{at}: got {got}, want {want}{off} ({why})"


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The judgement of one group.

    ``mismatches`` counts all wrong outputs, unwritten and NaN ones included, but not ``guard`` elements.
    ``exact_outputs`` had to match bit for bit, ``bounded_outputs`` within the bound; NaN outputs are in neither.
    ``max_ulp`` is the largest distance from the rounded exact sum over outputs where both are numbers, wrong or not.
    ``where`` says which part of C is wrong.
    """

    group: int
    shape: tuple[int, int]
    mismatches: int
    unwritten: int
    guard: int
    unexpected_nan: int
    missing_nan: int
    negative_zeros: int
    exact_outputs: int
    bounded_outputs: int
    max_ulp: int
    where: str
    first: tuple[Mismatch, ...]
    name: str = ""

    @property
    def ok(self) -> bool:
        """Whether no output is wrong and no guard element was overwritten."""
        return self.mismatches == 0 and self.guard == 0

    @property
    def _title(self) -> str:
        return self.name or f"group {self.group}"

    def __str__(self) -> str:
        size = f"{self.shape[0]}x{self.shape[1]}"
        judged = f"{self.exact_outputs} bit for bit, {self.bounded_outputs} within the bound"
        if self.ok:
            return f"{self._title} ({size}): right ({judged}; at most {self.max_ulp} ulp)"
        lines = [f"{self._title} ({size}): {self.mismatches} of {self.shape[0] * self.shape[1]} outputs wrong"]
        parts = [
            f"{count} {what}"
            for count, what in (
                (self.unwritten, "not written"),
                (self.unexpected_nan, "NaN where a number is due"),
                (self.missing_nan, "numbers where NaN is due"),
                (self.guard, "guard elements outside the tensor overwritten"),
            )
            if count
        ]
        lines[0] += f" ({', '.join(parts)})" if parts else ""
        lines[0] += f"; judged {judged}"
        if self.max_ulp:
            lines[0] += f"; at most {self.max_ulp} ulp"
        if self.where:
            lines.append(f"  where: {self.where}")
        # Unwritten outputs are all alike.
        shown = 1 if self.unwritten == self.mismatches and not self.guard else _SHOWN
        lines += [f"  {mismatch}" for mismatch in self.first[:shown]]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a problem, one entry a group."""

    groups: tuple[GroupVerdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every group is right."""
        return all(group.ok for group in self.groups)

    @property
    def mismatches(self) -> int:
        """Number of wrong outputs and overwritten guard elements in all groups."""
        return sum(group.mismatches + group.guard for group in self.groups)

    @property
    def first(self) -> tuple[Mismatch, ...]:
        """First mismatches of all groups, at most ``FIRST``."""
        return tuple(mismatch for group in self.groups for mismatch in group.first)[:FIRST]

    def __str__(self) -> str:
        return "\n".join(str(group) for group in self.groups if not group.ok or self.ok)


_ARRAYS = ("want", "values", "nan", "order_free", "bound", "slack")
"""Fields of a reference with a value for each output."""


def accumulation_bound(exact: Exact) -> Float64:
    """Return ``[m, n]``: the error bound of an fp32 accumulation, ``2^-23 * (K / 64 + 8) * sum|ab|``."""
    return exact.sum_of_magnitudes() * (2.0**-23 * (exact.k / 64 + 8))


def bound(exact: Exact) -> Float64:
    """Return ``[m, n]``: the error bound of a finite fp16 output (the module's formula); NaN where C is NaN."""
    return 2.0**-11 * (1 + 1e-3) * np.abs(exact.values()) + accumulation_bound(exact) + 2.0**-25


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Expected values for :func:`judge`, made once from an exact result for any number of outputs. All ``[m, n]``.

    Attributes:
        want: bits of the exact sum rounded to fp16.
        values: the exact sum as float64.
        nan: where NaN is due.
        order_free: where only ``want`` is right.
        bound: how far a finite output may be from ``values`` elsewhere, and 0 there.
        slack: the accumulation's part of ``bound``.
        element: type of the output.
        name: name of the output in texts; empty for the C of a group.
    """

    want: HalfBits
    values: Float64
    nan: Mask
    order_free: Mask
    bound: Float64
    slack: Float64
    element: Element = FLOAT16
    name: str = ""

    def part(self, rows: slice, columns: slice) -> Reference:
        """Return the reference of some elements."""
        parts: dict[str, Any] = {name: getattr(self, name)[rows, columns] for name in _ARRAYS}
        return dataclasses.replace(self, **parts)

    @classmethod
    def of(cls, exact: Exact) -> Reference:
        """Make the reference of an exact result."""
        order_free = exact.order_free()
        allowed, slack = np.zeros(exact.shape), np.zeros(exact.shape)
        if not exact.all_order_free:  # else nobody needs the sums of magnitudes
            np.copyto(allowed, bound(exact), where=~order_free)
            np.copyto(slack, accumulation_bound(exact), where=~order_free)
        return cls(
            want=frozen(exact.rounded().view(np.uint16)),
            values=frozen(exact.values()),
            nan=frozen(exact.nan),
            order_free=frozen(order_free),
            bound=frozen(allowed),
            slack=frozen(slack),
        )

    def with_rows(self, rows: Mapping[int, Reference]) -> Reference:
        """Return a copy in which other references, of one row each, stand for some rows."""
        if not rows:
            return self
        made: dict[str, Any] = {}
        for name in _ARRAYS:
            array = getattr(self, name).copy()
            for row, part in rows.items():
                array[row] = getattr(part, name)[0]
            made[name] = frozen(array)
        return dataclasses.replace(self, **made)

    @classmethod
    def stacked(cls, parts: Sequence[Reference]) -> Reference:
        """Return the reference of outputs one below the other, such as the batches of a tensor in memory."""
        if len(parts) == 1:
            return parts[0]
        arrays: dict[str, Any] = {
            name: frozen(np.concatenate([getattr(part, name) for part in parts])) for name in _ARRAYS
        }
        return dataclasses.replace(parts[0], **arrays)


def judge(
    out: NDArray[np.float16] | NDArray[np.uint16],
    exact: Exact | Reference,
    *,
    group: int = 0,
    guard_before: NDArray[Any] | None = None,
    guard_after: NDArray[Any] | None = None,
    poison: int = fp16.POISON,
    zero_sign: ZeroSign = "ignore",
) -> GroupVerdict:
    """Judge one group's output.

    Args:
        out: ``[m, n]`` fp16 or its bits.
        exact: what it should be; a :class:`Reference` when several outputs are judged.
        group: index to report.
        guard_before: rows ``[*, n]`` in front of C that were filled with ``poison``, or None.
        guard_after: rows ``[*, n]`` behind C, or None.
        poison: bits C and the guard rows held before the call.
        zero_sign: "strict" also demands +0 for an exact zero.

    Raises:
        NumericsError: a wrong dtype or shape.
    """
    reference = exact if isinstance(exact, Reference) else Reference.of(exact)
    m, n = reference.want.shape
    if out.shape != (m, n):
        raise NumericsError(f"output of group {group} has shape {list(out.shape)}, not {[m, n]}")
    element, want = reference.element, reference.want
    got: Any = out if out.dtype == want.dtype else fp16.bits_of(out)
    got_nan = element.is_nan(got)
    unwritten = (got == poison) & (want != poison)
    zeroes = (want == 0) & (got == element.sign) & ~reference.nan
    equal = got == want if zero_sign == "strict" else (got == want) | zeroes
    right = equal
    if not reference.order_free.all():
        near = equal | (_within_bound(got, reference) & (~zeroes if zero_sign == "strict" else True))
        right = np.where(reference.order_free, equal, near)
    right = np.where(reference.nan, got_nan, right)
    wrong = ~right | unwritten

    # Rows in front of C count from -len(guard_before), rows behind it from m.
    guards = [
        (top, rows if rows.dtype == want.dtype else fp16.bits_of(rows))
        for top, rows in ((-len(guard_before) if guard_before is not None else 0, guard_before),
                          (m, guard_after))
        if rows is not None
    ]  # fmt: skip
    first = _first_mismatches(wrong, got, reference, group=group, unwritten=unwritten)
    first += _first_guards(guards, group=group, poison=poison, reference=reference)
    distance = element.distance(got, want)
    return GroupVerdict(
        group=group,
        shape=(m, n),
        mismatches=int(wrong.sum()),
        unwritten=int(unwritten.sum()),
        guard=sum(int((rows != poison).sum()) for _, rows in guards),
        unexpected_nan=int((got_nan & ~reference.nan & ~unwritten).sum()),
        missing_nan=int((reference.nan & ~got_nan).sum()),
        negative_zeros=int(zeroes.sum()),
        exact_outputs=int((reference.order_free & ~reference.nan).sum()),
        bounded_outputs=int((~reference.order_free & ~reference.nan).sum()),
        max_ulp=int(distance.max(initial=0)),
        where=describe(wrong),
        first=tuple(first[:FIRST]),
        name=reference.name,
    )


def _within_bound(got: HalfBits, reference: Reference) -> Mask:
    with np.errstate(invalid="ignore"):
        found, magnitude = reference.element.to_float64(got), np.abs(reference.values)
        overflow = reference.element.overflow
        finite = np.abs(found - reference.values) <= reference.bound
        finite &= magnitude - reference.slack < overflow
        infinite = magnitude + reference.slack >= overflow
        infinite &= np.signbit(found) == np.signbit(reference.values)
    return np.where(np.isinf(found), infinite, finite)


def _first_mismatches(
    wrong: Mask, got: HalfBits, reference: Reference, *, group: int, unwritten: Mask
) -> list[Mismatch]:
    found = []
    for flat in np.flatnonzero(wrong)[:FIRST]:
        row, col = divmod(int(flat), wrong.shape[1])
        got_bits, want_bits = int(got[row, col]), int(reference.want[row, col])
        rule: Rule = "exact" if reference.order_free[row, col] else "bound"
        if unwritten[row, col]:
            rule = "unwritten"
        elif math.isnan(reference.element.shown(got_bits)) or math.isnan(reference.element.shown(want_bits)):
            rule = "nan"
        bound = float(reference.bound[row, col]) if rule == "bound" else 0.0
        exact = float(reference.values[row, col])
        of = {"element": reference.element, "name": reference.name}
        found.append(Mismatch(group, row, col, rule, got_bits, want_bits, exact, bound, **of))  # type: ignore[arg-type]
    return found


def _first_guards(
    guards: Sequence[tuple[int, HalfBits]], *, group: int, poison: int, reference: Reference
) -> list[Mismatch]:
    element, name = reference.element, reference.name
    return [
        Mismatch(group, top + int(row), int(col), "guard", int(rows[row, col]), poison, element=element, name=name)
        for top, rows in guards
        for row, col in np.argwhere(rows != poison)[:FIRST]
    ]
