"""The problem fitted to each kernel and configuration, shared by the checks that run on it (`device.fitted_problem`).

It is not known when items are made, so their cases have the variant `FITTED`, and the problem is looked up when an item
runs. The fit is a function of simulations, which the caches on disk hold; an unchanged kernel is not measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.plugin.simulations import Simulations

if TYPE_CHECKING:
    from pytest_nvfp4.device.fitted_problem import FittedProblem
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.problem import Problem

FITTED = "fitted"
"""Variant and label of a case on the fitted problem."""
_FAMILY = "gpumode"


class FittedProblems:
    """The fitted problems of a run."""

    def __init__(self, simulations: Simulations) -> None:
        self._simulations = simulations
        self._fitted: dict[KernelSpec, FittedProblem] = {}

    def of(
        self, kernel: KernelSpec, *, fallback: Problem, raced: bool = False, ahead: bool = False, base: Path
    ) -> FittedProblem:
        """Return the problem for a kernel; ``fallback`` if the kernel refuses what would be fitted.

        If this run searches the problem for races (``raced``), what is measured on it is what the search records. For
        code that is compiled before it is called (``ahead``), see `device.fitted_problem`.

        If the simulator does not support the architecture, the calling test is skipped or fails.
        """
        from pytest_nvfp4.device.fitted_problem import fit
        from pytest_nvfp4.device.job import JobCase, ProblemSpec

        def observe(
            problems: Sequence[Problem], launch_only: tuple[int, ...], sms: int | None
        ) -> list[SimulationResult]:
            cases = [JobCase(problem=ProblemSpec.of(problem), family=_FAMILY) for problem in problems]
            return self._simulations.observe(kernel, cases, launch_only=launch_only, sms=sms, raced=raced, base=base)

        with self._simulations.locked(FITTED, kernel):
            if kernel not in self._fitted:
                self._fitted[kernel] = fit(observe, contract=contract_of(fallback), fallback=fallback, ahead=ahead)
            return self._fitted[kernel]


FITTED_PROBLEMS = pytest.StashKey[FittedProblems]()
