"""The gates of one commit in its worktree: which command checks which, what its end says, and when they stop.

Gates that need the same work share a process. A hang or crash of a kernel is met, and reported as red, by the check
that runs it; what exceeds the limit of the whole examination is a kernel whose simulation is far slower than the
baseline's, or a machine that is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from pytest_nvfp4.isolation import Outcome
from pytest_nvfp4.loop.judge.answers import CostAnswer, ModelAnswer, ReportAnswer, read_answer
from pytest_nvfp4.loop.judge.findings import Found
from pytest_nvfp4.loop.judge.gates import COMPILED, REQUIRED, SIMULATED, check_gates, cost_gate, model_gate
from pytest_nvfp4.loop.judge.processes import Run, last_lines
from pytest_nvfp4.loop.judge.product import Product
from pytest_nvfp4.loop.judge.same import candidate_sha256
from pytest_nvfp4.loop.protocols import InfrastructureError, Purse
from pytest_nvfp4.loop.schemas import Examination, GateResult
from pytest_nvfp4.text import clip

_LEAST_S: Final = 1.0
_GRACE_S: Final = 30.0
"""Seconds for a command to report that its own limit has passed."""
_SLOWER: Final = 3.0
"""An examination that has taken so many times as long as the baseline's is the candidate's fault."""
_USAGE: Final = 2
_WHOLE: Final = (0, 1)
"""Exit codes of pytest after a whole run: all checks passed, or one failed. Others are interrupts and own errors."""
_MOST: Final = 4000


@dataclass(slots=True)
class GateRun:
    """The gates of one commit.

    Attributes:
        product: The commands in its worktree.
        run: Runs them.
        folder: Folder for evidence.
        found: What was found so far.
        baseline: The examination of the baseline; None if this is it.
        purse: What a remote may cost.
        hourly_usd: Price of one container of the remote.
        until: End of the examination on the monotonic clock.
    """

    product: Product
    run: Run
    folder: Path
    found: Found
    baseline: Examination | None
    purse: Purse
    hourly_usd: float
    until: float

    def pass_gates(self, gates: Sequence[str], known: Mapping[str, int], on_gate: Callable[[GateResult], None]) -> None:
        """Run gates up to the first that is red, or up to ``compile`` if the kernel is a known one.

        Raises:
            InfrastructureError: The surroundings failed.
            OSError: A command cannot be started, or a file not be written.
            BudgetError: The remote does not fit the budget.
        """
        for result in self._results(gates):
            self.found.gates.append(result)
            on_gate(result)
            if result.outcome != "passed" and not self._may_skip(result):
                self.found.red = True
                return
            if result.gate == "compile":
                self.found.ptx_sha256 = self._sha256()
                self.found.duplicate_of = known.get(self.found.ptx_sha256 or "")
                if self.found.duplicate_of is not None:
                    return

    def _results(self, gates: Sequence[str]) -> Iterator[GateResult]:
        """Yield the results of gates in order; each group begins when its first result is asked for."""
        for number, (_, group) in enumerate(groupby(gates, key=_group)):
            names = tuple(group)
            file = self.folder / f"gates-{number}-{names[0]}.json"
            file.unlink(missing_ok=True)
            if names == ("cost",):
                yield self._cost(file)
            elif names == ("model",):
                yield self._model(file)
            else:
                yield from self._checks(names, file)

    @property
    def _left_s(self) -> float:
        return max(_LEAST_S, self.until - time.monotonic())

    def _cost(self, file: Path) -> GateResult:
        left = self._left_s
        outcome = self.run(self.product.cost(file, deadline_s=left), cwd=self.product.root, deadline_s=left + _GRACE_S)
        answer = read_answer(file, CostAnswer)
        if answer is None:
            return self._without_answer("cost", outcome)
        self.found.count(answer)
        result = cost_gate(answer, wall_s=round(outcome.wall_s, 3))
        return self._with_counter(result) if result.outcome == "passed" else result

    def _model(self, file: Path) -> GateResult:
        left = self._left_s
        outcome = self.run(self.product.model(file, deadline_s=left), cwd=self.product.root, deadline_s=left + _GRACE_S)
        answer = read_answer(file, ModelAnswer)
        if answer is None:
            return self._without_answer("model", outcome)
        self.found.time(answer)
        return model_gate(answer, wall_s=round(outcome.wall_s, 3))

    def _checks(self, gates: Sequence[str], file: Path) -> list[GateResult]:
        config, left = self.product.config, self._left_s
        simulates = gates[0] in SIMULATED
        usd = self._reserved(left) if simulates else None
        command = self.product.pytest(gates, file, deadline_s=left, stop=simulates, remote_usd=usd)
        spent = usd or 0.0  # unless the run says less
        try:
            outcome = self.run(command, cwd=self.product.root, deadline_s=left + _GRACE_S)
            report = read_answer(file, ReportAnswer)
            if report is not None and report.remote is not None and report.remote.usd is not None:
                spent = report.remote.usd
        finally:
            self.found.usd += spent
            if usd is not None:
                self.purse.settle(usd=spent)
        if report is None:
            return [self._without_answer(gates[0], outcome)]
        if report.checks and outcome.returncode not in _WHOLE:  # some checks may be missing
            reason = f"{outcome.describe_end()} before its end: {last_lines(outcome)}"
            raise InfrastructureError(clip(f"the gates {', '.join(gates)}: pytest {reason}", _MOST))
        if report.remote is not None and report.remote.failure:
            raise InfrastructureError(f"the remote {config.judge.remote} failed: {report.remote.failure}")
        self.found.check(report)
        return check_gates(
            gates,
            report.checks,
            wall_s=outcome.wall_s,
            missing="" if report.checks else last_lines(outcome),
            reported=config.policy.layouts == "reported",
            protected=config.policy.protected,
        )

    def _without_answer(self, gate: str, outcome: Outcome) -> GateResult:
        """Return the red gate of a command that left no answer by the candidate's fault; raise otherwise."""
        wall_s, limit = round(outcome.wall_s, 3), self.product.config.judge.timeout_s
        if outcome.timed_out:
            text = f"the examination did not end within judge.timeout_s = {limit:g} s"
            if self.baseline is not None and self.baseline.wall_s * _SLOWER <= limit:
                message = f"{text}; that of the baseline took {self.baseline.wall_s:.0f} s"
                return GateResult(gate=gate, outcome="failed", wall_s=wall_s, message=message)
            raise InfrastructureError(f"{text}; raise it")
        reason = last_lines(outcome) or "it wrote nothing"
        if gate in ("cost", "model") and outcome.returncode == _USAGE:  # it says what is wrong with the kernel
            return GateResult(gate=gate, outcome="failed", wall_s=wall_s, message=clip(reason, _MOST))
        raise InfrastructureError(clip(f"the gate {gate} {outcome.describe_end()} without an answer: {reason}", _MOST))

    def _reserved(self, seconds: float) -> float | None:
        """Reserve what a remote may cost, and return it; None without a remote that costs something."""
        judge = self.product.config.judge
        if not judge.remote or not self.hourly_usd:
            return None
        usd = self.hourly_usd * judge.containers * seconds / 3600
        self.purse.reserve(usd=usd)
        return usd

    def _sha256(self) -> str | None:
        config = self.product.config
        return candidate_sha256(
            self.found.compiled,
            root=self.product.root,
            kernel=config.kernel.file,
            may_change=config.policy.may_change,
        )

    def _with_counter(self, result: GateResult) -> GateResult:
        """Return the result of ``cost``, red if the baseline has not the counter that is the target."""
        _, counted, name = self.product.config.target.metric.partition("counter:")
        names = {key.partition("/")[2] for key in self.found.counters}
        if not counted or name in names or self.baseline is not None:
            return result
        message = f"target.metric: no counter is named {name}; known are {', '.join(sorted(names))}"
        return result.model_copy(update={"outcome": "failed", "message": clip(message, _MOST)})

    def _may_skip(self, result: GateResult) -> bool:
        """Return whether a gate that does not apply is no fault: it did not apply to the baseline either."""
        if result.outcome != "skipped" or result.gate in REQUIRED:
            return False
        applied = () if self.baseline is None else self.baseline.gates
        return not any(gate.gate == result.gate and gate.outcome == "passed" for gate in applied)


def _group(gate: str) -> str:
    """Return what gates have in common that share a process."""
    if gate in COMPILED:
        return "compiled"
    return "simulated" if gate in SIMULATED else gate
