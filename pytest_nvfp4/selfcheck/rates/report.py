"""What a validation found, as data that is kept and as text that is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_nvfp4.device.result import DeviceInfo

Judgement = Literal["shown", "not contradicted", "failed"]

WANTED_POWER = 0.95
"""Share of slowdowns of at least ``WANTED_EFFECT`` that the gate is to call slower."""
WANTED_EFFECT = 0.03


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rate(_Model):
    """Events among trials, with an exact 95 % interval over the trials that count as independent."""

    events: int
    trials: int
    independent: int
    low: float
    high: float

    @property
    def share(self) -> float | None:
        """Events over trials; None without trials."""
        return self.events / self.trials if self.trials else None

    def __str__(self) -> str:
        if not self.trials:
            return "not measured"
        text = f"{self.events} of {self.trials} ({100 * self.low:.1f} % to {100 * self.high:.1f} %"
        return text + (")" if self.independent == self.trials else f", over {self.independent} independent)")

    def at_most(self, limit: float) -> Judgement:
        """Whether the rate is at most a limit: shown by its interval, not contradicted by it, or failed."""
        if self.trials and self.high <= limit:
            return "shown"
        return "failed" if self.trials and self.low > limit else "not contradicted"

    def at_least(self, limit: float) -> Judgement:
        """Whether the rate is at least a limit."""
        if self.trials and self.low >= limit:
            return "shown"
        return "failed" if self.trials and self.high < limit else "not contradicted"


class DoseRates(_Model):
    """What the gate said of one injected slowdown.

    Attributes:
        nominal: The slowdown that was meant, as a share.
        measured: The one that came, over all rounds.
        slower: Interleaved comparisons that called it slower.
        same: Those that called it the same.
        separate_slower: Comparisons across sessions that called it slower; None for too few sessions.
    """

    nominal: float
    measured: float
    slower: Rate
    same: Rate
    separate_slower: Rate | None


class ProblemRates(_Model):
    """What was found on one problem.

    Attributes:
        problem: Its name.
        base_us: Median of the kernel with the shortest spin, with its tenth and ninetieth percentile beside it.
        us_per_cycle: What a cycle of spin adds, in microseconds.
        block_lengths: Rounds that belong together, in each session's first comparison.
        session_medians_us: The median of each session.
        noise_deviation: Standard deviation of the logarithm of a session's median; None for fewer than 3 sessions.
        noise_limit: What two sessions differ by at most, as a share (``stats.Noise.limit``).
        false_alarms: Interleaved comparisons of equal arms that were called slower or faster.
        same: Those that were called the same; the rest were ambiguous.
        separate_false_alarms: The same across sessions; None for too few sessions.
        separate_same: The same across sessions.
        doses: What was said of each injected slowdown.
    """

    problem: str
    base_us: float
    p10_us: float
    p90_us: float
    us_per_cycle: float
    block_lengths: tuple[int, ...]
    session_medians_us: tuple[float, ...]
    noise_deviation: float | None
    noise_limit: float | None
    false_alarms: Rate
    same: Rate
    separate_false_alarms: Rate | None
    separate_same: Rate | None
    doses: tuple[DoseRates, ...]


class Report(_Model):
    """What a validation found on one device.

    Attributes:
        schema_version: Version of this form.
        device: The device.
        method: How device time was measured.
        l2: State of the L2 cache before each call.
        rounds: Rounds a side in one comparison.
        sessions: Processes.
        wall_s: Seconds of device time.
        stopped: Why there are fewer sessions than planned.
        alpha: The error rate the gate is designed for.
        false_alarms: Comparisons of all problems at once, with equal arms, in which anything was called changed.
        problems: The problems.
        host_us: Host times of the first session's calls by problem, with the spin: what ``bench.judge`` looks at.
        call_us: Median host time of the call itself.
        late_rounds: Rounds whose device time holds host time, over all sessions.
        clocks_mhz: Every SM clock that was read.
    """

    schema_version: Literal[1] = 1
    device: DeviceInfo
    method: str
    l2: Literal["cold", "warm"]
    rounds: int
    sessions: int
    wall_s: float
    stopped: str | None
    alpha: float
    false_alarms: Rate
    problems: tuple[ProblemRates, ...]
    host_us: dict[str, tuple[float, ...]]
    call_us: dict[str, float]
    late_rounds: int
    clocks_mhz: tuple[int, ...]

    def judgements(self) -> dict[str, Judgement]:
        """What the gate promises, and whether these rounds bear it out."""
        found = {f"false alarms at most {100 * self.alpha:g} %": self.false_alarms.at_most(self.alpha)}
        for problem in self.problems:
            for dose in problem.doses:
                if dose.measured >= WANTED_EFFECT * 0.95:
                    promise = f"{problem.problem}: {100 * dose.measured:.1f} % slower seen in {100 * WANTED_POWER:g} %"
                    found[promise] = dose.slower.at_least(WANTED_POWER)
        return found

    @property
    def failed(self) -> bool:
        """Some promise is contradicted."""
        return "failed" in self.judgements().values()

    def text(self) -> str:
        """The report for a reader."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"measured on {self.device}, {self.method}, {self.l2} L2, {self.sessions} sessions, {self.wall_s:.0f} s"
        if self.stopped:
            yield f"stopped early: {self.stopped}"
        if self.late_rounds:
            yield f"{self.late_rounds} late rounds: their device time holds host time"
        yield f"{self.rounds} rounds a side in each comparison"
        for one in self.problems:
            yield f"{one.problem}: {one.base_us:.2f} us (p10-p90 {one.p10_us:.2f}-{one.p90_us:.2f})"
            if one.noise_limit is not None:
                deviation = f"{100 * (one.noise_deviation or 0):.3f} % standard deviation"
                yield f"  noise between sessions: {deviation}, two differ by at most {100 * one.noise_limit:.2f} %"
            yield f"  equal, interleaved: {one.false_alarms} called changed, {one.same} the same"
            if one.separate_false_alarms is not None:
                yield f"  equal, two sessions: {one.separate_false_alarms} called changed, {one.separate_same} the same"
            for dose in one.doses:
                apart = f"; two sessions: {dose.separate_slower}" if dose.separate_slower is not None else ""
                yield (
                    f"  {100 * dose.measured:+.2f} % (meant {100 * dose.nominal:+.2f} %): {dose.slower} called slower, "
                    f"{dose.same} the same{apart}"
                )
        for promise, judgement in self.judgements().items():
            yield f"{judgement}: {promise}"


def read_report(path: Path) -> Report:
    """A report that was stored as JSON.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a report of this version.
    """
    try:
        return Report.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise ValueError(
            f"{path} is not a report of python -m pytest_nvfp4.selfcheck.rates of this version: "
            f"{error.errors()[0]['msg']}"
        ) from error


def measured_noise(report: Report, *, device: DeviceInfo, method: str, l2: str, problem: str) -> float | None:
    """The noise between sessions that a report holds for a measurement, as a share; None where it says nothing of it.

    Another problem's noise is not taken: the shorter a kernel, the more it differs between sessions.
    """
    if (report.device.name, report.method, report.l2) != (device.name, method, l2):
        return None
    return next((one.noise_limit for one in report.problems if one.problem == problem), None)
