"""Problems that settings and options name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_nvfp4.contracts.registry import contract_named, is_own
from pytest_nvfp4.problem import GROUP_GEMM, Problem, resolve


def resolved(names: Sequence[str], own: Mapping[str, Problem], contract: str | None) -> tuple[Problem, ...]:
    """Return problems by name. Those of the user's own contract are known by name alone until it has run."""
    if contract is not None and is_own(contract):
        if "#" not in contract:
            return tuple(Problem(name, (), contract=contract) for name in dict.fromkeys(names))
        from pytest_nvfp4.contracts.own.run import own_problems

        return tuple(own_problems(contract).named(name) for name in dict.fromkeys(names))
    chosen = contract_named(contract or GROUP_GEMM)
    return resolve(names, own=own, sets=chosen.sets, contract=chosen.name)
