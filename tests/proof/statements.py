"""Claims that the tests of statements and of ``nvfp4 prove`` judge."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from pytest_nvfp4.proof.solver import Obligation
from pytest_nvfp4.proof.statement import Check, Claim, Control, Method


def claim(check: Check, *, controls: Sequence[Control] = (), method: Method = Method.EXHAUSTIVE) -> Claim:
    return Claim("topic.name", "Words.", ("a = b",), method, check, ("given",), tuple(controls))


def cubes(z3: ModuleType) -> list[Obligation]:
    """Whether 33 has three cubes was open until 2019; no solver answers that in 30 ms."""
    x, y, z = z3.Ints("x y z")
    return [Obligation("cubes", {"any": x == x}, x**3 + y**3 + z**3 != 33)]
