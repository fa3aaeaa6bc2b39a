"""Dual products by other means than the reference: in decimal arithmetic, and as kernels compute them in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from pytest_nvfp4.numerics.arrays import HalfBits
from pytest_nvfp4.numerics.oracle import Exact, exact_product
from tests.numerics.exact import random_operand, tensor_core
from tests.numerics.oracles import dequantise

Activation = Callable[[np.ndarray], np.ndarray]
Between = Callable[[np.ndarray], np.ndarray]


def unchanged(x: np.ndarray) -> np.ndarray:
    """Return an intermediate as it is."""
    return x


def half(x: np.ndarray) -> np.ndarray:
    """Return an intermediate rounded to fp16."""
    return x.astype(np.float16).astype(np.float64)


@contextmanager
def digits() -> Iterator[None]:
    """Compute with fifty digits, and with exponents that hold every silu of an accumulator."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 50, -(10**12), 10**12
        yield


def silu(x: Decimal) -> Decimal:
    """Return x / (1 + exp(-x)); below -10^5 it is 0 to every digit of an fp16 result."""
    return Decimal(0) if x < -100_000 else x / (1 + (-x).exp())


@dataclass(frozen=True, eq=False)
class Dual:
    """Random operands of a dual product, with both exact products."""

    gate: Exact
    up: Exact
    gate_terms: np.ndarray
    up_terms: np.ndarray

    @classmethod
    def random(cls, seed: int, *, k: int, low: int, high: int, rows: int = 4) -> Dual:
        """Draw operands with scale codes from ``low`` to ``high``."""
        rng = np.random.default_rng(seed)
        (a, sfa), *others = (random_operand(rng, rows, k, low=low, high=high) for _ in range(3))
        left = dequantise(a, sfa)
        gate, up = (exact_product(a=a, b=b, sfa=sfa, sfb=sfb) for b, sfb in others)
        gate_terms, up_terms = (left[:, None, :] * dequantise(b, sfb)[None, :, :] for b, sfb in others)
        return cls(gate, up, gate_terms, up_terms)

    def by_decimals(self) -> list[list[Decimal]]:
        """Return the exact outputs to fifty digits."""
        unit = Decimal(2) ** -20
        with digits():
            return [
                [silu(int(g) * unit) * (int(u) * unit) for g, u in zip(*row, strict=True)]
                for row in zip(self.gate.units, self.up.units, strict=True)
            ]

    def kernel(
        self,
        activation: Activation,
        *,
        truncate: bool = False,
        gate: Between = unchanged,
        up: Between = unchanged,
        gated: Between = unchanged,
    ) -> HalfBits:
        """Return what a kernel stores, which changes both accumulators and the activation before it uses them."""
        g, u = (tensor_core(terms, truncate=truncate) for terms in (self.gate_terms, self.up_terms))
        with np.errstate(over="ignore"):
            made = gated(activation(gate(g).astype(np.float32))).astype(np.float32) * up(u).astype(np.float32)
            made = made.astype(np.float16)
        return made.view(np.uint16)


def fast_silu(error: float, *, divide: bool) -> Activation:
    """Return silu as fast fp32 arithmetic evaluates it; ``error`` in -1..1 is the part of the errors it may make."""
    log2e = np.float32(1.4426950408889634)

    def evaluate(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            exponential = np.exp2((-x * log2e).astype(np.float64)) * (1 + error * 2.0**-22)
            bottom = np.float32(1) + exponential.astype(np.float32)
            if divide:
                return (x.astype(np.float64) / bottom * (1 + error * 2.0**-22)).astype(np.float32)
            inverse = (1.0 / bottom.astype(np.float64) * (1 + error * 2.0**-23)).astype(np.float32)
            return (x * inverse).astype(np.float32)

    return evaluate
