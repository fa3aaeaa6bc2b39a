"""Result of a validation, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pytest_nvfp4.device.result import DeviceInfo

Judgement = Literal["shown", "not contradicted", "failed"]

REQUIRED_POWER = 0.95
"""Share of slowdowns of at least ``REQUIRED_EFFECT`` that the check must call slower."""
REQUIRED_EFFECT = 0.03


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rate(_Model):
    """Events among trials, with an exact 95 % interval over the trials that count as independent."""

    events: int
    trials: int
    independent: int
    low: float
    high: float

    def __str__(self) -> str:
        if not self.trials:
            return "not measured"
        text = f"{self.events} of {self.trials} ({100 * self.low:.1f} % to {100 * self.high:.1f} %"
        return text + (")" if self.independent == self.trials else f", over {self.independent} independent)")

    def at_most(self, limit: float) -> Judgement:
        """Judge by the interval whether the rate is at most a limit."""
        if self.trials and self.high <= limit:
            return "shown"
        return "failed" if self.trials and self.low > limit else "not contradicted"

    def at_least(self, limit: float) -> Judgement:
        """Judge by the interval whether the rate is at least a limit."""
        if self.trials and self.low >= limit:
            return "shown"
        return "failed" if self.trials and self.high < limit else "not contradicted"


class DoseRates(_Model):
    """Verdicts on one injected slowdown.

    Attributes:
        nominal: Intended slowdown, as a share.
        measured: Measured slowdown over all rounds, as a share.
        slower: Interleaved comparisons with the verdict slower.
        same: Interleaved comparisons with the verdict same.
        separate_slower: Comparisons across sessions with the verdict slower; None with too few sessions.
    """

    nominal: float
    measured: float
    slower: Rate
    same: Rate
    separate_slower: Rate | None


class ProblemRates(_Model):
    """Rates on one problem.

    Attributes:
        problem: Name of the problem.
        base_us: Median of the kernel with the shortest spin.
        p10_us: Tenth percentile of the same rounds.
        p90_us: Ninetieth percentile of the same rounds.
        us_per_cycle: Microseconds that a cycle of spin adds.
        block_lengths: Block length of the rounds in each session's first comparison (``stats.block_length``).
        session_medians_us: Median of each session.
        noise_deviation: Standard deviation of the logarithm of a session's median; None for fewer than 3 sessions.
        noise_limit: Bound of the difference of two sessions, as a share (``stats.Noise.limit``).
        false_alarms: Interleaved comparisons of equal arms with the verdict slower or faster.
        same: Interleaved comparisons of equal arms with the verdict same.
        separate_false_alarms: False alarms across sessions; None with too few sessions.
        separate_same: Verdicts same across sessions; None with too few sessions.
        doses: Verdicts on each injected slowdown.
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
    """Result of a validation on one device.

    Attributes:
        schema_version: Version of this schema.
        device: The device.
        method: How device time was measured.
        l2: State of the L2 cache before each call.
        rounds: Rounds a side in one comparison.
        sessions: Number of sessions; each is a process.
        wall_s: Seconds of device time.
        stopped: Why there are fewer sessions than planned; None if there are all.
        alpha: Rate of false alarms that the check is designed for.
        false_alarms: Comparisons of all problems at once, with equal arms, with any verdict slower or faster.
        problems: Rates by problem.
        host_us: Host times of the first session's calls by problem, spin included (input of ``bench.judge``).
        call_us: Median host time of the call itself, by problem.
        late_rounds: Number of rounds whose device time includes host time, over all sessions.
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
        """Return the judgement of each rate that the check is designed for, by its description."""
        judged = {f"false alarms at most {100 * self.alpha:g} %": self.false_alarms.at_most(self.alpha)}
        for problem in self.problems:
            for dose in problem.doses:
                if dose.measured >= REQUIRED_EFFECT * 0.95:
                    rate = f"{100 * dose.measured:.1f} % slower detected in {100 * REQUIRED_POWER:g} %"
                    judged[f"{problem.problem}: {rate}"] = dose.slower.at_least(REQUIRED_POWER)
        return judged

    @property
    def failed(self) -> bool:
        """Whether a designed rate is contradicted."""
        return "failed" in self.judgements().values()

    def text(self) -> str:
        """Return the report as lines of text."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"measured on {self.device}, {self.method}, {self.l2} L2, {self.sessions} sessions, {self.wall_s:.0f} s"
        if self.stopped:
            yield f"stopped early: {self.stopped}"
        if self.late_rounds:
            yield f"{self.late_rounds} late rounds: their device time includes host time"
        yield f"{self.rounds} rounds a side in each comparison"
        for rates in self.problems:
            yield f"{rates.problem}: {rates.base_us:.2f} us (p10-p90 {rates.p10_us:.2f}-{rates.p90_us:.2f})"
            if rates.noise_limit is not None:
                deviation = f"{100 * (rates.noise_deviation or 0):.3f} % standard deviation"
                yield f"  noise between sessions: {deviation}, two differ by at most {100 * rates.noise_limit:.2f} %"
            yield f"  equal, interleaved: changed in {rates.false_alarms}, same in {rates.same}"
            if rates.separate_false_alarms is not None:
                changed, same = rates.separate_false_alarms, rates.separate_same
                yield f"  equal, two sessions: changed in {changed}, same in {same}"
            for dose in rates.doses:
                apart = f"; two sessions: slower in {dose.separate_slower}" if dose.separate_slower is not None else ""
                yield (
                    f"  {100 * dose.measured:+.2f} % (intended {100 * dose.nominal:+.2f} %): slower in {dose.slower}, "
                    f"same in {dose.same}{apart}"
                )
        for rate, judgement in self.judgements().items():
            yield f"{judgement}: {rate}"
