"""The result of a dual product, ``silu(A B1^T) * (A B2^T)`` with ``silu(x) = x / (1 + exp(-x))``, and its bound.

Let g and u be the exact products (:mod:`~pytest_nvfp4.numerics.oracle`). A kernel has ``g' = g + dg`` and
``u' = u + du`` in fp32 accumulators, where ``|dg| <= G`` and ``|du| <= U``: 0 where every fp32 order is exact, else the
bound of an accumulation (:func:`~pytest_nvfp4.numerics.judge.accumulation_bound`). It then evaluates silu in fp32,
multiplies, and rounds once to fp16.

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

``tanh.approx.f32`` has a relative error of 2^-11 (PTX ISA, ``tanh``): on a GPU, a sigmoid by way of it is outside this
bound where it is small, as it is outside GPU MODE's tolerance of 1e-3 there.
"""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics import fp16
from pytest_nvfp4.numerics.arrays import Float64, NumericsError, frozen
from pytest_nvfp4.numerics.judge import Reference, accumulation_bound
from pytest_nvfp4.numerics.oracle import Exact

_STEEPEST = 1.1
"""Above the largest slope of silu, 1.0998 at 2.4."""


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
    g, u = (np.where(nan, 0.0, product.values()) for product in (gate, up))
    error_g, error_u = (_accumulated(product) for product in (gate, up))
    s = sigmoid(g)
    silu, size_u = g * s, np.abs(u) + error_u
    slope = np.abs(s * (1.0 + g * (1.0 - s)))
    size_g = np.abs(g) + error_g
    bend = np.minimum(0.5, (2.0 + size_g) * np.exp(-np.maximum(0.0, np.abs(g) - error_g)))
    moved = np.minimum(_STEEPEST * error_g, slope * error_g + 0.5 * bend * error_g**2)
    sensitivity = np.minimum(1.0, sigmoid(-g) * np.exp(np.minimum(error_g, 100.0)))
    evaluation = sensitivity * (size_g + 2.0) * 2.0**-23 + 2.0**-21
    slack = moved * size_u + np.abs(silu) * error_u + evaluation * (np.abs(silu) + moved) * size_u
    slack += 2.0**-125 * size_g * size_u
    values = silu * u
    want = fp16.round_nearest(values).view(np.uint16)
    # A zero of the product has the sign of its factors; the oracle's zero is +0, and the sign is not judged.
    want[want == fp16.SIGN] = 0
    want[nan] = fp16.CANONICAL_NAN
    values[nan] = np.nan
    bound = 2.0**-11 * (np.abs(values) * (1 + 1e-3) + slack) + slack + 2.0**-25
    return Reference(
        want=frozen(want),
        values=frozen(values),
        nan=frozen(nan),
        order_free=frozen(np.zeros_like(nan)),
        bound=frozen(bound),
        slack=frozen(slack),
    )


def _accumulated(product: Exact) -> Float64:
    """Return how far the accumulators of a product may be from it."""
    if product.all_order_free:
        return np.zeros(product.shape)
    return np.where(product.order_free(), 0.0, accumulation_bound(product))
