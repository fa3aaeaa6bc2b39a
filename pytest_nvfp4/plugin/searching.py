"""The ``search`` checks: their option, their cases, and the kernel of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.plugin.devices import DEVICES, Devices
from pytest_nvfp4.plugin.failure import CheckFailure, finding_lines
from pytest_nvfp4.plugin.kernel import KernelUnderTest
from pytest_nvfp4.plugin.running import kernel_spec
from pytest_nvfp4.plugin.state import Case, Run

if TYPE_CHECKING:
    from pytest_nvfp4.device import job
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.problem import Problem
    from pytest_nvfp4.search.problem_search import Bounds, Searched
    from pytest_nvfp4.toolchain.trace import Trace

SEARCH = "search"
SEARCH_LINE = "nvfp4_search"
"""Under which name a search notes its line."""
_PROFILES = ("dev", "ci", "thorough")
_FAMILY = "nan_pad"
"""Exact, and whatever lies outside the tensors is NaN."""
_MOST_FINDINGS = 3
_MOST_LINES = 6
_CONTRACT_N, _CONTRACT_K = 128, 256
"""What GPU MODE's contract makes n and k multiples of."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What the user asked for.

    Attributes:
        examples: Examples of each kernel; 0 for no search.
        repeatable: The same examples on every run.
    """

    examples: int
    repeatable: bool


OPTIONS = pytest.StashKey[SearchOptions]()


def add(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.getgroup("nvfp4").addoption(
        "--nvfp4-search",
        metavar="N",
        help="search for a problem that a kernel gets wrong: N group lists drawn by Hypothesis and run in the "
        "simulator, or dev (20), ci (50, the same on every run) or thorough (400); also on with "
        "--hypothesis-profile=nvfp4-thorough",
    )


def read(config: pytest.Config) -> SearchOptions:
    """The options of a run.

    Raises:
        pytest.UsageError: a value cannot be used.
    """
    given = config.getoption("--nvfp4-search")
    if given is None:
        loaded = str(config.getoption("--hypothesis-profile", default=None) or "")
        given = "thorough" if loaded == "nvfp4-thorough" else "0"
    if given in _PROFILES:
        from pytest_nvfp4.strategies.profiles import PROFILES

        profile = PROFILES[given]
        return SearchOptions(profile.examples, profile.repeatable)
    if not (given.isascii() and given.isdigit()):
        raise pytest.UsageError(f"--nvfp4-search {given!r} is neither a number of examples nor {', '.join(_PROFILES)}")
    return SearchOptions(int(given), False)


def search_cases(options: SearchOptions, devices: Devices, cases: Iterable[Case]) -> list[Case]:
    """One case of each configuration that can be run; none unless a search was asked for."""
    if not options.examples or not devices.options.simulates:
        return []
    first: dict[str, Case] = {}
    for case in cases:
        if case.settings.entry is None and case.trouble is None:
            first.setdefault(case.settings.name, replace(case, label=case.settings.name))
    return list(first.values())


class KernelInSearch:
    """Searches for a problem that the kernel of a check item gets wrong."""

    def __init__(self, item: pytest.Item, run: Run, case: Case) -> None:
        self._item = item
        self._run = run
        self._case = case
        self._devices = item.config.stash[DEVICES]
        self._options = item.config.stash[OPTIONS]
        self._done: dict[str, SimulationResult] = {}

    @property
    def _family(self) -> str:
        return next(iter(self._devices.options.families), _FAMILY)

    def search(self) -> None:
        """Search, and note a line about it.

        Raises:
            CheckFailure: a problem fails; the text names the smallest, and the command that repeats it.
        """
        from hypothesis.database import DirectoryBasedExampleDatabase

        from pytest_nvfp4.search.problem_search import draw, search

        if (unsupported := self._devices.simulator.unsupported(self._case.settings.arch)) is not None:
            self._devices.lack(unsupported)
        trace = KernelUnderTest(self._item, self._run, self._case).compiled_or_skip()
        spec, base = kernel_spec(self._case, trace)
        bounds = self._bounds(trace)
        fresh = draw(bounds, examples=self._options.examples, repeatable=self._options.repeatable)
        found = search(
            fresh,
            lambda problems: self._failing(spec, base, problems),
            steps=bounds.steps,
            database=DirectoryBasedExampleDatabase(self._run.options.root / ".hypothesis" / "nvfp4"),
            key=f"{self._run.portable(self._case.path)}[{self._case.settings.name}]".encode(),
        )
        self._item.user_properties.append((SEARCH_LINE, search_line(found)))
        if found.reduced is not None:
            raise self._failure(found)

    def _bounds(self, trace: Trace) -> Bounds:
        from pytest_nvfp4.search.problem_search import Bounds
        from pytest_nvfp4.search.reduce import Steps
        from pytest_nvfp4.tmem.usage import usage

        tile = usage((value.name, value.type) for value in trace.values).tile
        if tile is None:
            return Bounds()
        return Bounds(Steps(tile_m=tile.m, n_step=_CONTRACT_N, k_step=_CONTRACT_K), tile_n=tile.n)

    def _failing(self, spec: job.KernelSpec, base: Path, problems: Sequence[Problem]) -> list[bool]:
        """Which problems fail; all that are not known yet run in one job, each once."""
        from pytest_nvfp4.device.job import JobCase, ProblemSpec
        from pytest_nvfp4.device.simulate import simulate

        lacking = [problem for problem in problems if problem.key not in self._done]
        if lacking:
            done = simulate(
                self._devices.simulator,
                spec,
                [JobCase(problem=ProblemSpec.of(problem), family=self._family) for problem in lacking],
                folder=self._devices.folder / "jobs",
                base=base,
                deadline_s=self._devices.options.timeout_s,
                outputs=True,
            )
            for problem, one in zip(lacking, done, strict=True):
                if one.status in ("unavailable", "unsupported"):
                    self._devices.lack("; ".join(map(str, one.findings)) or "the simulator is not available")
                self._done[problem.key] = one
        return [self._done[problem.key].status != "passed" for problem in problems]

    def _failure(self, found: Searched) -> CheckFailure:
        reduced = found.reduced
        assert reduced is not None
        assert found.first is not None
        problem = reduced.problem
        verdict = self._done[problem.key]
        how = "the smallest that fails" if reduced.minimal else "still fails; the rounds of making it smaller ran out"
        many = "1 group" if len(problem.groups) == 1 else f"{len(problem.groups)} groups"
        lines = [
            f"searched: {_text(problem)} {verdict.status} ({many}; {how})",
            f"found as {_text(found.first)}, after {found.tried} problems in the simulator, inputs {self._family!r}",
        ]
        findings = verdict.errors or verdict.findings
        for finding in findings[:_MOST_FINDINGS]:
            said = finding_lines([finding], self._run, most=1)
            lines += [f"  {line}" for line in said[:_MOST_LINES]] + ["  ..."] * (len(said) > _MOST_LINES)
        if len(findings) > _MOST_FINDINGS:
            lines.append(f"  and {len(findings) - _MOST_FINDINGS} more findings")
        lines.append(f"repeat it with: {self._command(problem)}")
        place = next((finding for finding in verdict.findings if finding.file), None)
        return CheckFailure(
            "\n".join(lines),
            file=place.file if place is not None else str(self._case.path),
            line=place.line if place is not None else None,
        )

    def _command(self, problem: Problem) -> str:
        return (
            f"pytest {self._run.typed(self._case.path)} -k verify --nvfp4-device=sim --nvfp4-family={self._family} "
            f"--nvfp4-problem={_text(problem)}"
        )


def _text(problem: Problem) -> str:
    return ",".join(map(str, problem.groups))


def search_line(found: Searched) -> str:
    """What a search came to, in a line."""
    again = f", {found.replayed} that failed before" if found.replayed else ""
    if found.reduced is None:
        return f"searched {found.drawn} group lists{again}: none is wrong (which proves nothing)"
    return f"searched {found.tried} group lists{again}: {_text(found.reduced.problem)} fails"


def show(terminal: Any) -> None:
    """Write what searches came to, from whichever test process."""
    reports = [report for outcome in ("passed", "failed") for report in terminal.stats.get(outcome, [])]
    lines = [
        f"{report.nodeid}: {value}"
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == SEARCH_LINE and report.when == "call"
    ]
    if lines:
        terminal.write_sep("-", "nvfp4: searched (Hypothesis, in the simulator)")
        for line in lines:
            terminal.write_line(line)
