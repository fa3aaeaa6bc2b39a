"""``search``: no problem is found on which the kernel's outputs are wrong.

Hypothesis draws awkward group lists that are legal for the kernel's tile; the simulator runs them in batches, and the
exact oracle judges the outputs. A failing list is reduced, named, and tried first in the next run. A search that finds
nothing proves nothing. The check exists with ``--nvfp4-search`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.contracts.registry import contract_of
from pytest_nvfp4.plugin.checks.base import Check, CollectedKernel
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, job_case
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at, finding_lines
from pytest_nvfp4.plugin.state import KernelCase
from pytest_nvfp4.problem import GPUMODE, Problem

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.search.problem_search import Bounds, Searched
    from pytest_nvfp4.toolchain.trace import Trace

_PROFILES = ("dev", "ci", "thorough")
_FAMILY = "nan_pad"
"""Exact inputs; memory outside the tensors is NaN, so reading it shows in the outputs."""
_FINDINGS_SHOWN = 3
_LINES_SHOWN = 6
_CONTRACT_N, _CONTRACT_K = 128, 256
"""GPU MODE's contract makes n and k multiples of these."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of the check.

    Attributes:
        examples: Examples for each kernel; 0 for no search.
        repeatable: Draw the same examples in every run.
    """

    examples: int
    repeatable: bool


class SearchCheck(Check):
    """The check that searches for a failing problem."""

    name = "search"
    help = "no group list is found on which an output is wrong (searched by Hypothesis, simulated)"
    stage = 60
    summary_title = "searched (Hypothesis, in the simulator)"
    options: SearchOptions

    def add_options(self, parser: pytest.Parser) -> None:
        """Declare the option."""
        parser.getgroup("nvfp4").addoption(
            "--nvfp4-search",
            metavar="N",
            help="search for a problem on which a kernel is wrong: N group lists, drawn by Hypothesis and run in the "
            "simulator, or dev (20), ci (50, the same in every run) or thorough (400); also enabled by "
            "--hypothesis-profile=nvfp4-thorough",
        )

    def configure(self, config: pytest.Config) -> None:
        """Read the option. Raises pytest.UsageError."""
        given = config.getoption("--nvfp4-search")
        if given is None:
            profile = str(config.getoption("--hypothesis-profile", default=None) or "")
            given = "thorough" if profile == "nvfp4-thorough" else "0"
        if given in _PROFILES:
            from pytest_nvfp4.strategies.profiles import PROFILES

            self.options = SearchOptions(PROFILES[given].examples, PROFILES[given].repeatable)
        elif given.isascii() and given.isdigit():
            self.options = SearchOptions(int(given), False)
        else:
            raise pytest.UsageError(
                f"--nvfp4-search {given!r} is neither a number of examples nor {', '.join(_PROFILES)}"
            )

    def cases(self, kernel: CollectedKernel) -> Iterator[KernelCase]:
        """Yield one case for each configuration whose contract has problems to draw, if a search is requested."""
        if self.options.examples and kernel.device_options.simulates:
            for case, *_ in kernel.runnable:
                if contract_of(case.problem).drawn(GPUMODE[0]) is not None:
                    yield replace(case, label=case.settings.name, traced=case)

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if a problem fails; the text names the smallest one and the command that repeats it."""
        from hypothesis.database import DirectoryBasedExampleDatabase

        from pytest_nvfp4.search.problem_search import BATCH, draw, search

        kernel = nvfp4_case
        kernel.devices.require_simulator(kernel.case.settings.arch)
        trace = kernel.trace()
        simulator = _BatchSimulator(kernel, *kernel.spec(trace))
        bounds = _bounds(trace)
        result = search(
            draw(bounds, examples=self.options.examples, repeatable=self.options.repeatable),
            simulator.failing,
            steps=bounds.steps,
            batch=BATCH * (kernel.devices.simulations_at_once or 1),
            database=DirectoryBasedExampleDatabase(kernel.run.options.root / ".hypothesis" / "nvfp4"),
            key=f"{kernel.run.portable(kernel.case.path)}[{kernel.case.settings.name}]".encode(),
        )
        kernel.note(_note(result, simulator.own))
        if result.reduced is not None:
            raise simulator.failure(result)
        if not result.drawn:
            raise CheckFailure("no group list was drawn, so nothing new was searched", file=str(kernel.case.path))


def _bounds(trace: Trace) -> Bounds:
    """Return the bounds of the problems to draw, which follow from the kernel's tile."""
    from pytest_nvfp4.search.problem_search import Bounds
    from pytest_nvfp4.search.reduce import Steps
    from pytest_nvfp4.tmem.usage import usage

    tile = usage((value.name, value.type) for value in trace.values).tile
    if tile is None:
        return Bounds()
    return Bounds(Steps(tile_m=tile.m, n_step=_CONTRACT_N, k_step=_CONTRACT_K), tile_n=tile.n)


class _BatchSimulator:
    """Simulates batches of problems, each problem once, and judges their outputs."""

    def __init__(self, kernel: KernelUnderTest, spec: KernelSpec, base: Path) -> None:
        self._kernel, self._spec, self._base = kernel, spec, base
        self._family = next(iter(kernel.devices.options.families), _FAMILY)
        self._done: dict[str, SimulationResult] = {}
        self._contract = contract_of(kernel.case.problem)

    def failing(self, problems: Sequence[Problem]) -> list[bool]:
        """Return which problems fail; new problems run in one job, on a remote in one for each of its machines."""
        from pytest_nvfp4.device.simulate import simulate

        devices = self._kernel.devices
        # Several lists of groups may stand for one problem.
        asked = [self.own(problem) for problem in problems]
        new = list({problem.key: problem for problem in asked if problem.key not in self._done}.values())
        if new:
            results = simulate(
                devices.simulator,
                self._spec,
                [job_case(problem, self._family) for problem in new],
                folder=devices.jobs,
                base=self._base,
                deadline_s=devices.options.timeout_s,
                outputs=True,
                jobs=devices.simulations_at_once or 1,
            )
            for problem, result in zip(new, results, strict=True):
                if result.status in ("unavailable", "unsupported"):
                    devices.not_run("; ".join(map(str, result.findings)) or "the simulator is not available")
                self._done[problem.key] = result
        return [self._done[problem.key].status != "passed" for problem in asked]

    def own(self, problem: Problem) -> Problem:
        """Return a drawn list of groups as a problem of the kernel's contract."""
        found = self._contract.drawn(problem)
        assert found is not None
        return found

    def failure(self, result: Searched) -> CheckFailure:
        """Return the failure of a search that found a failing problem."""
        reduced, first = result.reduced, result.first
        assert reduced is not None
        assert first is not None
        problem, first = self.own(reduced.problem), self.own(first)
        verdict = self._done[problem.key]
        how = "the smallest that fails" if reduced.minimal else "still fails; the reduction ran out of rounds"
        many = "1 group" if len(problem.groups) == 1 else f"{len(problem.groups)} groups"
        lines = [
            f"searched: {_text(problem)} {verdict.status} ({many}; {how})",
            f"found as {_text(first)}, after {result.tried} problems in the simulator, inputs {self._family!r}",
        ]
        findings = verdict.errors or verdict.findings
        for finding in findings[:_FINDINGS_SHOWN]:
            text = finding_lines([finding], self._kernel.run, most=1)
            lines += [f"  {line}" for line in text[:_LINES_SHOWN]] + ["  ..."] * (len(text) > _LINES_SHOWN)
        if len(findings) > _FINDINGS_SHOWN:
            lines.append(f"  and {len(findings) - _FINDINGS_SHOWN} more findings")
        lines.append(
            f"repeat it with: pytest {self._kernel.run.argument(self._kernel.case.path)} -k verify --nvfp4-device=sim "
            f"--nvfp4-family={self._family} --nvfp4-problem={_text(problem)}"
        )
        return failure_at(lines, verdict.findings, kernel=self._kernel.case.path)


def _text(problem: Problem) -> str:
    return ",".join(map(str, problem.groups))


def _note(result: Searched, own: Callable[[Problem], Problem]) -> str:
    """Return the result of a search in one line; ``own`` is that of `_BatchSimulator`."""
    again = f", {result.replayed} that failed before" if result.replayed else ""
    if result.reduced is None:
        return f"searched {result.drawn} group lists{again}: none is wrong (which proves nothing)"
    return f"searched {result.tried} group lists{again}: {_text(own(result.reduced.problem))} fails"
