"""``search``: no problem is found on which the kernel's outputs are wrong.

Hypothesis draws awkward group lists that are legal for the kernel's tile, or problems from the axes that a contract of
the user's own lists; the simulator runs them in batches, and the oracle judges the outputs. A failing problem is
reduced, named, and tried first in the next run. A search that finds nothing proves nothing. The check exists with
``--nvfp4-search`` only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.contracts.registry import contract_of, is_own
from pytest_nvfp4.plugin.checks.base import Check, CollectedKernel
from pytest_nvfp4.plugin.checks.kernel import KernelUnderTest, job_case
from pytest_nvfp4.plugin.failure import CheckFailure, failure_at, finding_lines
from pytest_nvfp4.plugin.state import KernelCase
from pytest_nvfp4.problem import GPUMODE, Problem, ProblemError

if TYPE_CHECKING:
    from pytest_nvfp4.device.job import KernelSpec
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.search.group_lists import Bounds
    from pytest_nvfp4.search.own_axes import OwnAxes
    from pytest_nvfp4.search.problem_search import Searched
    from pytest_nvfp4.search.space import Space
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
    help = "no problem is found on which an output is wrong (searched by Hypothesis, simulated)"
    stage = 60
    summary_title = "searched (Hypothesis, in the simulator)"
    options: SearchOptions

    def add_options(self, parser: pytest.Parser) -> None:
        """Declare the option."""
        parser.getgroup("nvfp4").addoption(
            "--nvfp4-search",
            metavar="N",
            help="search for a problem on which a kernel is wrong: N problems, drawn by Hypothesis and run in the "
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
        """Yield one case for each configuration, if a search is requested."""
        if self.options.examples and kernel.device_options.simulates:
            for case, *_ in kernel.runnable:
                yield replace(case, label=case.settings.name, traced=case)

    def run(self, nvfp4_case: KernelUnderTest) -> None:
        """Fail if a problem fails; the text names the smallest one and the command that repeats it.

        The item is skipped, with the reason, if its contract has no problems to draw.
        """
        from hypothesis.database import DirectoryBasedExampleDatabase

        from pytest_nvfp4.search.problem_search import BATCH, search

        kernel = nvfp4_case
        kernel.devices.require_simulator(kernel.case.settings.arch)
        if (reason := _nothing_to_draw(kernel.case.problem)) is not None:
            kernel.note(f"nothing searched: {reason}")
            pytest.skip(reason)
        trace = kernel.trace()
        try:
            space, fresh = self._drawn(kernel.case.problem, trace)
            simulator = _BatchSimulator(kernel, *kernel.spec(trace), space=space)
            result = search(
                fresh,
                simulator.failing,
                space=space,
                batch=BATCH * (kernel.devices.simulations_at_once or 1),
                database=DirectoryBasedExampleDatabase(kernel.run.options.root / ".hypothesis" / "nvfp4"),
                key=f"{kernel.run.portable(kernel.case.path)}[{kernel.case.settings.name}]".encode(),
            )
        except ProblemError as error:
            raise CheckFailure(str(error), file=str(kernel.case.path)) from error
        kernel.note(simulator.note(result))
        if result.reduced is not None:
            raise simulator.failure(result)
        if not result.drawn:
            raise CheckFailure("no problem was drawn, so nothing new was searched", file=str(kernel.case.path))
        kernel.establish(simulator.note(result))

    def _drawn(self, problem: Problem, trace: Trace) -> tuple[Space, list[Problem]]:
        """Return fresh problems of the contract of a problem, and their space. Raises ProblemError."""
        examples, repeatable = self.options.examples, self.options.repeatable
        if is_own(problem.contract):
            own = _own_axes(problem)
            return own, own.draw(examples=examples, repeatable=repeatable)
        from pytest_nvfp4.search.group_lists import GroupLists, draw

        bounds = _bounds(trace)
        return GroupLists(bounds.steps), draw(bounds, examples=examples, repeatable=repeatable)


def _nothing_to_draw(problem: Problem) -> str | None:
    """Return why no problems can be drawn of the contract of a problem; None if they can."""
    if is_own(problem.contract):
        from pytest_nvfp4.contracts.own.run import own_problems

        if own_problems(problem.contract).axes is None:
            file = Path(problem.contract.partition("::")[0]).name
            return f"the contract {file} lists no values to draw problems from: give it axes = {{axis: range(1, 300)}}"
        return None
    if contract_of(problem).drawn(GPUMODE[0]) is None:
        return f"the contract {problem.contract} has no problems to draw"
    return None


def _own_axes(problem: Problem) -> OwnAxes:
    from pytest_nvfp4.contracts.own.run import legal, own_problems
    from pytest_nvfp4.search.own_axes import OwnAxes

    listed = own_problems(problem.contract)
    assert listed.axes is not None

    def admitted(problems: Sequence[Problem]) -> list[bool]:
        return legal(problem.contract, problems) if listed.restricted else [True] * len(problems)

    return OwnAxes(problem, listed.axes, admitted)


def _bounds(trace: Trace) -> Bounds:
    """Return the bounds of the problems to draw, which follow from the kernel's tile."""
    from pytest_nvfp4.search.group_lists import Bounds, Steps
    from pytest_nvfp4.tmem.usage import usage

    tile = usage((value.name, value.type) for value in trace.values).tile
    if tile is None:
        return Bounds()
    return Bounds(Steps(tile_m=tile.m, n_step=_CONTRACT_N, k_step=_CONTRACT_K), tile_n=tile.n)


class _BatchSimulator:
    """Simulates batches of problems, each problem once, and judges their outputs."""

    def __init__(self, kernel: KernelUnderTest, spec: KernelSpec, base: Path, *, space: Space) -> None:
        self._kernel, self._spec, self._base, self._space = kernel, spec, base, space
        self._done: dict[str, tuple[str, SimulationResult]] = {}
        """By problem the first input family that fails, or the last, and its result."""
        self._contract = contract_of(kernel.case.problem)
        self._own = is_own(self._contract.name)
        named = kernel.devices.options.families or (tuple(self._contract.families()) if self._own else (_FAMILY,))
        self._families = tuple(dict.fromkeys(map(self._contract.family, named)))

    def failing(self, problems: Sequence[Problem]) -> list[bool]:
        """Return which problems fail; new problems run in one job, on a remote in one for each of its machines."""
        from pytest_nvfp4.device.simulate import simulate

        devices = self._kernel.devices
        # Several lists of groups may stand for one problem.
        asked = [self.own(problem) for problem in problems]
        new = list({problem.key: problem for problem in asked if problem.key not in self._done}.values())
        if new:
            cases = [(problem, family) for problem in new for family in self._families]
            results = simulate(
                devices.simulator,
                self._spec,
                [job_case(problem, family) for problem, family in cases],
                folder=devices.jobs,
                base=self._base,
                deadline_s=devices.options.timeout_s,
                outputs=True,
                jobs=devices.simulations_at_once or 1,
            )
            for (problem, family), result in zip(cases, results, strict=True):
                if result.status in ("unavailable", "unsupported"):
                    devices.not_run("; ".join(map(str, result.findings)) or "the simulator is not available")
                for finding in result.findings:
                    if finding.kind == "contract" and self._own:  # nothing that the kernel does
                        text = finding_lines([finding], self._kernel.run, most=1)
                        raise failure_at([f"searched: {problem.name}", *text], [finding], kernel=self._kernel.case.path)
                if self._passed(problem):
                    self._done[problem.key] = family, self._kernel.without_accepted(result)
        return [not self._passed(problem) for problem in asked]

    def _passed(self, problem: Problem) -> bool:
        """Return whether a problem has not failed in any family so far."""
        done = self._done.get(problem.key)
        return done is None or done[1].status == "passed"

    def own(self, problem: Problem) -> Problem:
        """Return a drawn problem as one of the kernel's contract."""
        if self._own:
            return problem
        found = self._contract.drawn(problem)
        assert found is not None
        return found

    def failure(self, result: Searched) -> CheckFailure:
        """Return the failure of a search that found a failing problem."""
        reduced, first = result.reduced, result.first
        assert reduced is not None
        assert first is not None
        problem, first = self.own(reduced.problem), self.own(first)
        family, verdict = self._done[problem.key]
        how = "the smallest that fails" if reduced.minimal else "still fails; the reduction ran out of rounds"
        groups = len(problem.groups)
        many = "" if self._own else "1 group; " if groups == 1 else f"{groups} groups; "
        lines = [
            f"searched: {self._space.text(problem)} {verdict.status} ({many}{how})",
            f"found as {self._space.text(first)}, after {result.tried} problems in the simulator, inputs {family!r}",
        ]
        findings = verdict.errors or verdict.findings
        for finding in findings[:_FINDINGS_SHOWN]:
            text = finding_lines([finding], self._kernel.run, most=1)
            lines += [f"  {line}" for line in text[:_LINES_SHOWN]] + ["  ..."] * (len(text) > _LINES_SHOWN)
        if len(findings) > _FINDINGS_SHOWN:
            lines.append(f"  and {len(findings) - _FINDINGS_SHOWN} more findings")
        lines.append(
            f"repeat it with: pytest {self._kernel.run.argument(self._kernel.case.path)} -k verify --nvfp4-device=sim "
            f"--nvfp4-family={family} {shlex.quote(f'--nvfp4-problem={self._space.text(problem)}')}"
        )
        return failure_at(lines, verdict.findings, kernel=self._kernel.case.path)

    def note(self, result: Searched) -> str:
        """Return the result of a search in one line."""
        again = f", {result.replayed} that failed before" if result.replayed else ""
        what = "problems" if self._own else "group lists"
        if result.reduced is None:
            return f"searched {result.drawn} {what}{again}: none is wrong (which proves nothing)"
        failing = self._space.text(self.own(result.reduced.problem))
        return f"searched {result.tried} {what}{again}: {failing} fails"
