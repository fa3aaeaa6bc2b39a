"""References of a contract of the user's own, computed by its process from given inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_nvfp4.contracts.own.packing import Array
from pytest_nvfp4.contracts.own.run import ContractError, computed
from pytest_nvfp4.numerics.elements import element
from pytest_nvfp4.numerics.judge import Reference

if TYPE_CHECKING:
    from pytest_nvfp4.contracts.own.contract import OwnInputs


def references(draws: Sequence[OwnInputs]) -> list[list[Reference]]:
    """Return the references of the outputs of draws under one contract. Raises ContractError."""
    requests = [{"problem": inputs.problem.name, "inputs": inputs.fields["inputs"]} for inputs in draws]
    answers = computed(draws[0].problem.contract, requests, [inputs.arrays for inputs in draws])
    return [
        _references(inputs, arrays, bounded=answer.bounds)
        for inputs, (answer, arrays) in zip(draws, answers, strict=True)
    ]


def _references(inputs: OwnInputs, arrays: list[Array], *, bounded: bool) -> list[Reference]:
    contract, problem, outputs = inputs.problem.contract, inputs.problem.name, inputs.fields["outputs"]
    if len(arrays) != len(outputs) * (1 + bounded):
        raise ContractError(_differs(problem, f"{len(arrays)} results"), file=contract.partition("::")[0])
    results, bounds = arrays[: len(outputs)], arrays[len(outputs) :] if bounded else [None] * len(outputs)
    made = []
    for (name, dtype, shape), result, bound in zip(outputs, results, bounds, strict=True):
        if (result.dtype, list(result.shape)) != (dtype, list(shape)):
            shown = f"{result.name}: {result.dtype} {list(result.shape)}"
            raise ContractError(_differs(problem, shown), file=contract.partition("::")[0])
        made.append(_reference(name, result, bound))
    return made


def _differs(problem: str, shown: str) -> str:
    return f"reference of {problem} returns other shapes or types for other inputs: {shown}"


def _reference(name: str, result: Array, bound: Array | None) -> Reference:
    kind = element(result.dtype)
    shape = -1, (max(1, result.shape[-1]) if result.shape else 1)
    want = np.frombuffer(result.data, dtype=f"u{kind.item}").reshape(shape)
    values = kind.to_float64(want)
    limit = np.zeros(want.shape) if bound is None else np.frombuffer(bound.data, dtype=np.float64).reshape(shape)
    return Reference(
        want=want,
        values=values,
        nan=kind.is_nan(want),
        order_free=np.full(want.shape, bound is None),
        bound=limit,
        slack=limit,
        element=kind,
        name=name,
    )
