"""The contracts by name."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points
from typing import Final

from pytest_nvfp4.contracts.base import Contract
from pytest_nvfp4.contracts.dual_gemm import DualGemm
from pytest_nvfp4.contracts.gemm import Gemm
from pytest_nvfp4.contracts.gemv import Gemv
from pytest_nvfp4.contracts.group_gemm import GroupGemm
from pytest_nvfp4.problem import Problem, ProblemError

GROUP: Final = "pytest_nvfp4.contracts"
"""Entry point group of contracts in other packages: each is a class without arguments."""
_BUILT_IN: Final[tuple[type[Contract], ...]] = (GroupGemm, Gemm, DualGemm, Gemv)


@lru_cache(maxsize=1)
def contracts() -> dict[str, Contract]:
    """Return all contracts by name, those of this package first."""
    found: dict[str, Contract] = {each.name: each() for each in _BUILT_IN}
    for point in entry_points(group=GROUP):
        if point.name not in found:
            found[point.name] = point.load()()
    return found


def is_own(name: str) -> bool:
    """Return whether a name is that of a contract of the user's own, ``FILE::NAME``."""
    return "::" in name


def contract_named(name: str) -> Contract:
    """Return the contract of a name. Raises ProblemError with the known names."""
    if is_own(name):
        from pytest_nvfp4.contracts.own.contract import OwnContract

        return OwnContract(name)
    known = contracts()
    if name not in known:
        raise ProblemError(f"no contract is called {name!r}; known are {', '.join(known)}")
    return known[name]


def contract_of(problem: Problem) -> Contract:
    """Return the contract that a problem belongs to. Raises ProblemError."""
    return contract_named(problem.contract)
