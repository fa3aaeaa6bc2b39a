"""The result of a dual product, ``silu(A B1^T) * (A B2^T)`` with ``silu(x) = x / (1 + exp(-x))``, and its bound.

Let g and u be the exact products (:mod:`~pytest_nvfp4.numerics.oracle`). A kernel has ``g' = g + dg`` and
``u' = u + du`` in fp32 accumulators, where ``|dg| <= G`` and ``|du| <= U``: 0 where every fp32 order is exact, else the
bound of an accumulation (:func:`~pytest_nvfp4.numerics.judge.accumulation_bound`). It then evaluates silu in fp32,
multiplies, and rounds once to fp16. GPU MODE's reference does so: ``torch._scaled_mm`` with fp32 outputs, silu and the
product in fp32, one conversion.

**Propagation.** ``|silu'| <= 1.1``, and ``|silu''(x)|`` is at most 1/2 (at 0) and at most ``(2 + |x|) exp(-|x|)``, both
at most B between ``g - G`` and ``g + G``. So silu moves by at most ``D = min(1.1 G, |silu'(g)| G + B G^2 / 2)``, and
the product by ``D (|u| + U) + |silu(g)| U``.

**Evaluation.** With ``s = 1 / (1 + e)`` and ``e = exp(-g')``, a relative error r of e is one of ``(1 - s) r`` of s. The
argument of ``ex2`` is ``-g' log2(e)`` in fp32, with a rounded constant and a rounded product: 2^-23 of its size, which
is ``|g'| 2^-23`` of e. ``ex2.approx.f32`` adds at most 2^-22 (PTX ISA, ``ex2``), and ``1 - s`` at g' is at most
``q = min(1, (1 - s(g)) exp(G))``. The rest is relative to the result: the sum 2^-24, ``div.full.f32`` with 2 ulp (PTX
ISA, ``div``; ``rcp.approx`` has 1) 2^-22, both products 2^-24 each. Together ``E = q (|g| + G + 2) 2^-23 + 2^-21`` of
``(|silu(g)| + D) (|u| + U)``, higher orders in what 2^-21 exceeds 7 * 2^-24. Where e overflows or s is subnormal and
flushed, the result is off by at most ``2^-125 (|g| + G) (|u| + U)``.

**Rounding.** ``2^-11 (|r| (1 + 1e-3) + slack) + 2^-25`` for the result r, as for a single product. The factor also
covers the float64 evaluation of r here, whose error is below 2^-45 of r.

**Intermediates in fp16.** Accepted submissions keep silu or u in fp16, which rounds it by at most
``2^-11 |x| + 2^-25``. With G and U larger by a rounding of g' and of u', and with a rounding of silu, the same formulas
give a second bound, of which as much counts as GPU MODE's checker accepts, ``|out - want| <= 1e-3 + 1e-3 |want|``: an
output may be that far from r, less ``|want - r|``, plus twice the slack of fp32 (the kernel and the reference have it).

One factor in fp16 is then always right (for ``|u| < 2^14``, below which 1e-3 covers a subnormal silu). In units of the
last place of want, let ``|r| = 1024 x`` with x in 1..2, and want be d <= 1/2 from r. The factor moves r by x / 2 at
most, so an output beyond want has ``d <= (x - 1) / 2``, and is ``1 + d <= 1.024 x - d`` from r; on the other side it is
``1 - d`` from r. But g in fp16 is not: at g = -10, silu moves by 10 times the relative error of g. With random operands
the checker refuses 0.1 % of the outputs of such a kernel, and 0.3 % if u is in fp16, too (measured on 128x128 outputs).
Nor is an intermediate that overflows fp16.

``tanh.approx.f32`` has a relative error of 2^-11 (PTX ISA, ``tanh``): on a GPU, a sigmoid by way of it is outside this
bound where it is small, as it is outside GPU MODE's tolerance of 1e-3 there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import Float64, NumericsError, frozen
from pytest_nvfp4.numerics.judge import Reference, accumulation_bound
from pytest_nvfp4.numerics.oracle import Exact

_STEEPEST = 1.1
"""Above the largest slope of silu, 1.0998 at 2.4."""
_ACCEPTED = 1e-3
"""Absolute and relative tolerance of GPU MODE's checker of this task."""
_PART = 1 << 14
"""Outputs that are evaluated together, few enough for the intermediate arrays to stay in a core's cache."""


def sigmoid(x: Float64) -> Float64:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    small = np.exp(-np.abs(x))
    made: Float64 = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return made


def gated(gate: Exact, up: Exact) -> Reference:
    """Return the reference of ``silu(gate) * up``; no output of it is exact in every order.

    NaN is due where either product is NaN. Raises NumericsError for products of different shapes.
    """
    if gate.shape != up.shape:
        raise NumericsError(f"the products have shapes {list(gate.shape)} and {list(up.shape)}; they must be equal")
    nan = gate.nan | up.nan
    factors: list[NDArray[Any]] = [gate.values(), up.values(), _accumulated(gate), _accumulated(up), nan]
    want = np.empty(gate.shape, np.uint16)
    values, bound, slack = (np.empty(gate.shape) for _ in range(3))
    results: list[NDArray[Any]] = [want, values, bound, slack]
    for start in range(0, want.size, _PART):
        part = slice(start, start + _PART)
        made = _gated(*(factor.reshape(-1)[part] for factor in factors))
        for result, of_part in zip(results, made, strict=True):
            result.reshape(-1)[part] = of_part
    return Reference(
        want=frozen(want),
        values=frozen(values),
        nan=frozen(nan),
        order_free=frozen(np.zeros_like(nan)),
        bound=frozen(bound),
        slack=frozen(slack),
    )


def _gated(
    gate: Float64, up: Float64, error_g: Float64, error_u: Float64, nan: NDArray[np.bool_]
) -> tuple[NDArray[np.uint16], Float64, Float64, Float64]:
    """Return ``want``, ``values``, ``bound`` and ``slack`` of the reference of some outputs (``judge.Reference``)."""
    g, u = np.where(nan, 0.0, gate), np.where(nan, 0.0, up)
    values = g * sigmoid(g) * u
    want = fp16.round_nearest(values).view(np.uint16)
    # A zero of the product has the sign of its factors; the oracle's zero is +0, and the sign is not judged.
    want[want == fp16.SIGN] = 0
    want[nan] = fp16.CANONICAL_NAN
    slack = _slack(g, u, error_g, error_u)
    of_halves = _slack(g, u, error_g + _half(np.abs(g) + error_g), error_u + _half(np.abs(u) + error_u), halves=True)
    narrow, wide = _bound(values, slack), _bound(values, of_halves)
    # At an infinity the checker accepts that infinity alone, which the slack decides.
    rounded = np.clip(fp16.to_float64(want), -fp16.OVERFLOW, fp16.OVERFLOW)
    accepted = _ACCEPTED * (1 + np.abs(rounded)) - np.abs(rounded - values) + 2 * slack
    bound = np.maximum(narrow, np.minimum(wide, accepted))
    slack += np.maximum(0.0, bound - narrow) / (1 + 2.0**-11)
    values[nan] = np.nan
    return want, values, bound, slack


def _half(magnitude: Float64) -> Float64:
    """Return how far a rounding to fp16 moves numbers of at most these magnitudes, which it never moves beyond 0."""
    moved: Float64 = np.minimum(magnitude, 2.0**-11 * magnitude + 2.0**-25)
    return moved


def _slack(g: Float64, u: Float64, error_g: Float64, error_u: Float64, *, halves: bool = False) -> Float64:
    """Return how far a product may be from the exact one before its last rounding.

    Args:
        g, u: The exact factors, of which silu is applied to the first.
        error_g, error_u: How far the kernel's are from them.
        halves: Whether silu is rounded to fp16.
    """
    s = sigmoid(g)
    silu, size_g, size_u = np.abs(g * s), np.abs(g) + error_g, np.abs(u) + error_u
    slope = np.abs(s * (1.0 + g * (1.0 - s)))
    bend = np.minimum(0.5, (2.0 + size_g) * np.exp(-np.maximum(0.0, np.abs(g) - error_g)))
    moved = np.minimum(_STEEPEST * error_g, slope * error_g + 0.5 * bend * error_g**2)
    sensitivity = np.minimum(1.0, sigmoid(-g) * np.exp(np.minimum(error_g, 100.0)))
    evaluation = (sensitivity * (size_g + 2.0) * 2.0**-23 + 2.0**-21) * (silu + moved) + 2.0**-125 * size_g
    if halves:
        evaluation += _half(silu + moved + evaluation)
    made: Float64 = (moved + evaluation) * size_u + silu * error_u
    return made


def _bound(values: Float64, slack: Float64) -> Float64:
    """Return how far fp16 outputs may be from these values."""
    return 2.0**-11 * (np.abs(values) * (1 + 1e-3) + slack) + slack + 2.0**-25


def _accumulated(product: Exact) -> Float64:
    """Return how far the accumulators of a product may be from it."""
    if product.all_order_free:
        return np.zeros(product.shape)
    return np.where(product.order_free(), 0.0, accumulation_bound(product))
