"""Z3's terms reckoned by Python's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_nvfp4.proof.solver import Obligation
from pytest_nvfp4.proof.statement import Limits

z3 = pytest.importorskip("z3")
LIMITS = Limits(query_ms=600_000)


def reckon(term: Any, model: Any) -> Any:
    """The value of a term, by Python's arithmetic; the model gives nothing but the values of its symbols."""
    if z3.is_int_value(term) or z3.is_bv_value(term):
        return term.as_long()
    if z3.is_true(term) or z3.is_false(term):
        return z3.is_true(term)
    kind, arguments = term.decl().kind(), term.children()
    if kind == z3.Z3_OP_UNINTERPRETED:
        found = model.eval(term, model_completion=True)
        return found.as_long()
    if kind == z3.Z3_OP_IMPLIES:
        return not reckon(arguments[0], model) or reckon(arguments[1], model)
    if kind == z3.Z3_OP_ITE:
        return reckon(arguments[1 if reckon(arguments[0], model) else 2], model)
    return OPERATIONS[kind]([reckon(each, model) for each in arguments])


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def product(values: Sequence[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total


OPERATIONS = {
    z3.Z3_OP_ADD: sum,
    z3.Z3_OP_SUB: lambda v: v[0] - sum(v[1:]),
    z3.Z3_OP_UMINUS: lambda v: -v[0],
    z3.Z3_OP_MUL: product,
    z3.Z3_OP_IDIV: lambda v: v[0] // v[1],
    z3.Z3_OP_MOD: lambda v: v[0] % v[1],
    z3.Z3_OP_LE: lambda v: v[0] <= v[1],
    z3.Z3_OP_LT: lambda v: v[0] < v[1],
    z3.Z3_OP_GE: lambda v: v[0] >= v[1],
    z3.Z3_OP_GT: lambda v: v[0] > v[1],
    z3.Z3_OP_EQ: lambda v: v[0] == v[1],
    z3.Z3_OP_AND: all,
    z3.Z3_OP_OR: any,
    z3.Z3_OP_NOT: lambda v: not v[0],
}


def fails_at(obligation: Obligation, pinned: Sequence[Any] = ()) -> Any:
    """Numbers at which the hypotheses hold and the conclusion does not, both by Python's arithmetic; None if none."""
    solver = z3.Solver()
    solver.set("timeout", LIMITS.query_ms)
    solver.set("random_seed", 0)
    solver.add(*obligation.hypotheses.values(), z3.Not(obligation.conclusion), *pinned)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    for words, hypothesis in obligation.hypotheses.items():
        assert reckon(hypothesis, model), (obligation.name, words)
    assert not reckon(obligation.conclusion, model), obligation.name
    return model


def has_vectors(term: Any) -> bool:
    return z3.is_bv(term) or any(map(has_vectors, term.children()))
