"""The verdict by measured times: incumbent and candidate in turns on one device, in stages that cost more and more.

1. *smoke*: both once, in few rounds. A candidate that is wrong, cheats or is far slower ends here.
2. *candidate*: an interleaved comparison. What is not faster by the least gain, in the whole interval, ends here.
3. *final*: a second, fresh comparison confirms a win, with other inputs, new processes, and the other kernel first.

A stage begins only if its worst case fits the budget. A candidate whose modelled time is slower by more than the
model's band is not measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.comparison import Pair, Stage, compare, said, stages
from pytest_nvfp4.loop.judge.decide import value_of, worse_counters, worse_text
from pytest_nvfp4.loop.judge.examine import Worktrees
from pytest_nvfp4.loop.judge.place import Place
from pytest_nvfp4.loop.protocols import InfrastructureError, Purse
from pytest_nvfp4.loop.schemas import Candidate, Comparison, Examination, Outcome, ProblemTime, Verdict
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.problem import Problem, ProblemError
from pytest_nvfp4.settings import SettingsError, load
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.text import clip

_MOST: Final = 8000
OpenPlace = Callable[..., AbstractContextManager[Place]]
"""Opens the device of a configuration (`place.open_place`)."""


@dataclass(slots=True)
class _Found:
    """What the stages have found so far."""

    outcome: Outcome = "undecided"
    reason: str = ""
    comparisons: list[Comparison] = field(default_factory=list)
    gpu_s: float = 0.0
    usd: float = 0.0


class Measurer:
    """Measures candidates against the incumbent.

    Args:
        config: The configuration.
        worktrees: Where commits are checked out from.
        state: The directory of state.
        open_place: Opens the device.
    """

    def __init__(self, config: LoopConfig, *, worktrees: Worktrees, state: StateFolder, open_place: OpenPlace) -> None:
        self._config, self._worktrees, self._state, self._open = config, worktrees, state, open_place

    def verdict(
        self,
        candidate: Candidate,
        mine: Examination,
        theirs: Examination,
        *,
        against: str,
        folder: Path,
        purse: Purse,
    ) -> Verdict:
        """Return the verdict on a candidate without a red gate.

        Raises:
            BudgetError: A stage does not fit the budget.
            InfrastructureError: The device failed, or the incumbent itself on it.
            StoppedError: The loop is stopped.
        """
        found = _Found()
        if reason := self._not_worth(mine, theirs):
            found.outcome, found.reason = "slower", reason
        else:
            self._measure(candidate, against, folder, purse, found)
        last = found.comparisons[-1] if found.comparisons else None
        worse = worse_counters(mine, theirs)
        return Verdict(
            candidate=candidate.number,
            iteration=candidate.iteration,
            against=against,
            outcome=found.outcome,
            reason=clip(found.reason.partition("\n")[0], 1000),
            feedback="" if found.outcome == "faster" else clip(worse_text(found.reason, mine, theirs, worse), _MOST),
            metric="measured",
            value=None if last is None else _geomean(last.candidate),
            incumbent_value=None if last is None else _geomean(last.incumbent),
            worse=worse,
            comparisons=tuple(found.comparisons),
            gpu_s=found.gpu_s,
            usd=found.usd,
        )

    def _not_worth(self, mine: Examination, theirs: Examination) -> str:
        """Return why a candidate is not measured; empty if it is."""
        if not self._config.judge.skip_modelled_slower or mine.table != theirs.table or mine.kind != theirs.kind:
            return ""
        new, old = value_of("modelled", mine), value_of("modelled", theirs)
        band = max(mine.band, theirs.band)
        if new is None or old is None or new <= old * (1 + band):
            return ""
        return (
            f"not measured: its modelled time is {100 * (new / old - 1):.3g} % longer, which is more than the model's "
            f"band of {100 * band:.3g} %"
        )

    def _measure(self, candidate: Candidate, against: str, folder: Path, purse: Purse, found: _Found) -> None:
        """Run the stages. Raises as `verdict`."""
        assert candidate.commit is not None
        folder.mkdir(parents=True, exist_ok=True)
        place: Place | None = None
        try:
            with ExitStack() as stack:
                old, problems = self._kernel(stack, against, "incumbent")
                new, _ = self._kernel(stack, candidate.commit, "candidate")
                files = stack.enter_context(temporary_folder("measured"))
                place = stack.enter_context(self._open(self._config, folder=files))
                run = _Run(place, Pair(old, new, problems), files, folder, purse, found)
                for stage in stages(self._config.device):
                    if not run.goes_on_after(stage, least_gain=self._config.target.least_gain):
                        break
        except OSError as error:
            raise InfrastructureError(f"candidate {candidate.number} cannot be measured: {error}") from error
        finally:
            # A rented machine is paid for until it is released, which it is now.
            if place is not None and (rest := place.usd() - found.usd) > 0:
                found.usd += rest
                purse.settle(usd=rest)

    def _kernel(self, stack: ExitStack, commit: str, name: str) -> tuple[KernelSpec, tuple[Problem, ...]]:
        """Return the kernel of a commit with the problems of the target. Raises InfrastructureError."""
        root = stack.enter_context(self._worktrees.worktree(commit, self._state.root / "judge" / name))
        kernel = self._config.kernel
        try:
            settings = load(root)
            own = settings.for_kernel(root / kernel.file)
            chosen = next((each for each in own if (each.name or "") == kernel.config), own[0])
            spec, _ = KernelSpec.from_files(root / kernel.file, roots=(root,), **chosen.of_job)
            return spec, settings.resolve_problems(kernel.problems)
        except (SettingsError, ProblemError, OSError, SyntaxError, ValueError) as error:
            raise InfrastructureError(f"the {name} {commit[:12]} cannot be measured: {error}") from error


@dataclass(slots=True)
class _Run:
    """The stages of one candidate on an open device."""

    place: Place
    pair: Pair
    files: Path
    folder: Path
    purse: Purse
    found: _Found
    judge: Judge = field(default_factory=Judge)

    def goes_on_after(self, stage: Stage, *, least_gain: float) -> bool:
        """Run a stage, note what it found, and return whether the next one is worth its cost. Raises as `verdict`."""
        found, place = self.found, self.place
        usd = place.hourly_usd * (stage.seconds + place.idle_s) / 3600
        self.purse.reserve(gpu_s=stage.seconds, usd=usd)
        evidence, busy_s = self.folder / f"measured-{stage.name}.json", stage.seconds  # unless the device says less
        try:
            done = compare(
                stage,
                place,
                self.pair,
                least_gain=least_gain,
                files=self.files,
                evidence=evidence,
                judge=self.judge,
            )
            busy_s = done.busy_s
        finally:
            spent = max(0.0, place.usd() - found.usd)
            found.gpu_s, found.usd = found.gpu_s + busy_s, found.usd + spent
            self.purse.settle(gpu_s=busy_s, usd=spent)
        if done.comparison is None:
            found.outcome, found.reason = "rejected", done.rejected
            return False
        found.comparisons.append(done.comparison)
        found.outcome, found.reason = done.comparison.outcome, said(stage, done.comparison)
        if stage.name == "smoke":
            return found.outcome != "slower"
        if stage.name == "final" and found.outcome != "faster":
            found.outcome = "undecided"
            found.reason = f"a first comparison was faster, and a fresh one did not confirm it: {found.reason}"
        return found.outcome == "faster"


def _geomean(times: tuple[ProblemTime, ...]) -> float:
    return math.exp(statistics.fmean(math.log(time.us) for time in times))
