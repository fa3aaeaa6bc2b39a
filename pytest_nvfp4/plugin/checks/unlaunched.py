"""Skip of an item whose kernel launched nothing, with the problem that would make it launch."""

from __future__ import annotations

from typing import NoReturn

import pytest

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest
from pytest_nvfp4.plugin.simulations import SIMULATIONS
from pytest_nvfp4.problem import Problem

_FAMILY = "gpumode"
_MOST_WORK = 10**10
"""Multiplications of the largest problem that is tried."""


def skip_without_launch(kernel: KernelUnderTest, what: str) -> NoReturn:
    """Skip the item, because no launch is there to check (``what``: "to count"), and say on which problem one is.

    The host code is called on the contract's official problems, larger ones last, with launches recorded and not
    executed.
    """
    found = _launching(kernel)
    if found is not None:
        where = f"; {found.name} makes it launch: --nvfp4-problem={found.name}, or `simulate` in the settings"
    elif not contract_of(kernel.case.problem).tests:
        where = ""
    else:
        where = ", and none is on the official problems of its contract, the largest left out"
    pytest.skip(f"no kernel was launched, so there is nothing {what}{where}")


def _launching(kernel: KernelUnderTest) -> Problem | None:
    """Return the smallest official problem on which the kernel launches."""
    from pytest_nvfp4.device.job import JobCase, ProblemSpec

    contract = contract_of(kernel.case.problem)
    spec, base = kernel.spec()
    simulations = kernel.item.config.stash[SIMULATIONS]
    # Torch may compute the product of a call that launches nothing, on the CPU.
    few = [problem for problem in contract.benchmarks if problem.work <= _MOST_WORK]
    benchmarks = sorted(few, key=lambda problem: problem.work)
    for problems in (sorted(contract.tests, key=lambda problem: problem.work), *([each] for each in benchmarks)):
        cases = [JobCase(problem=ProblemSpec.of(problem), family=_FAMILY) for problem in problems]
        done = simulations.observe(spec, cases, launch_only=tuple(range(len(cases))), base=base) if cases else []
        for problem, result in zip(problems, done, strict=True):
            if result.call is not None and result.call.launches:
                return problem
    return None
