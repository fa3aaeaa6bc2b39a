"""The signature of a call as JSON, for processes without this package's libraries."""

from __future__ import annotations

from typing import Any

from pytest_nvfp4.contracts.registry import contract_of, is_own
from pytest_nvfp4.problem import Problem


def signature_json(problem: Problem) -> dict[str, Any]:
    """Return ``tensors``, ``arguments`` (``{"at": index}``, ``{"tuple": [...]}``, lists, values) and ``compiles``."""
    from pytest_nvfp4.contracts.call import At

    contract = contract_of(problem)
    if is_own(problem.contract):
        from pytest_nvfp4.contracts.own.contract import signature_of

        call = signature_of(problem)
    else:
        call = contract.signature(problem)

    def encoded(value: Any) -> Any:
        if isinstance(value, At):
            return {"at": value.index}
        if isinstance(value, tuple):
            return {"tuple": [encoded(each) for each in value]}
        return [encoded(each) for each in value] if isinstance(value, list) else value

    tensors = [
        {"dtype": one.dtype, "shape": one.shape, "strides": one.strides, "size": one.size, "device": one.device}
        for one in call.tensors
    ]
    return {
        "tensors": tensors,
        "arguments": [encoded(value) for value in call.arguments],
        "compiles": contract.compiles,
    }
