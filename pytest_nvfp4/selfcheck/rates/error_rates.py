"""Error rates from measured rounds: every stretch of a session is one comparison, whose true result is known.

*Interleaved* comparisons are between arms of the same stretch of one session; stretches share no rounds, so they are
independent trials. *Separate* comparisons are between a stretch of one session and one of another, as with a stored
baseline; they share sessions, so the interval of their rate counts pairs of sessions without a common session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pytest_nvfp4.bench.distributions import binomial_interval
from pytest_nvfp4.bench.regression import Policy, ShapeRounds, Verdict, compare
from pytest_nvfp4.bench.stats import Floats, Noise, aa_noise, block_length
from pytest_nvfp4.selfcheck.rates.experiment import EQUAL_ARMS, Data, windows
from pytest_nvfp4.selfcheck.rates.report import DoseRates, ProblemRates, Rate, Report

_LEAST_SESSIONS = 5
_STRETCHES_A_PAIR = 4
_EQUAL = 1
"""Arm with the same work as arm 0."""


@dataclass(slots=True)
class _Counts:
    """Numbers of comparisons by the states of their verdicts, which are those of one problem or of several."""

    trials: int = 0
    changed: int = 0
    slower: int = 0
    same: int = 0

    def add(self, verdict: Verdict) -> None:
        states = {shape.state for shape in verdict.everything}
        self.trials += 1
        self.changed += bool(states & {"slower", "faster"})
        self.slower += "slower" in states
        self.same += states == {"same"}

    def rate(self, events: int, *, independent: int | None = None) -> Rate:
        """Return a rate and its exact interval, scaled to the number of independent trials."""
        trials = self.trials if independent is None else min(self.trials, independent)
        scaled = round(events * trials / self.trials) if self.trials else 0
        low, high = binomial_interval(scaled, trials)
        return Rate(events=events, trials=self.trials, independent=trials, low=low, high=high)


def analyse(data: Data, *, rounds: int, effects: Sequence[float], policy: Policy) -> Report:
    """Return the error rates of the benchmark check on measured rounds.

    Args:
        data: The measured rounds.
        rounds: Rounds a side in one comparison.
        effects: The injected slowdowns, in the order of the arms.
        policy: Parameters of the verdicts.

    Raises:
        ValueError: No session is long enough for one comparison.
    """
    stretches = _Stretches(data, rounds=rounds, policy=policy)
    first = next(iter(data.sessions[0].measurements.values()))
    equal = stretches.interleaved(stretches.names, _EQUAL)
    measurements = [measurement for session in data.sessions for measurement in session.measurements.values()]
    return Report(
        device=data.device,
        method=first.method,
        l2=first.l2,
        rounds=rounds,
        sessions=len(data.sessions),
        wall_s=data.wall_s,
        stopped=data.stopped,
        alpha=policy.alpha,
        false_alarms=equal.rate(equal.changed),
        problems=tuple(_problem(name, data, stretches, effects=effects) for name in stretches.names),
        host_us={name: measurement.host_us for name, measurement in data.sessions[0].measurements.items()},
        call_us={name: measurement.call_us for name, measurement in data.sessions[0].measurements.items()},
        late_rounds=sum(measurement.late_rounds for measurement in measurements),
        clocks_mhz=tuple(clock for measurement in measurements for clock in measurement.clocks_mhz),
    )


class _Stretches:
    """Sessions cut into stretches of one comparison each.

    Args:
        data: The measured rounds.
        rounds: Rounds of a stretch.
        policy: Parameters of the verdicts.

    Attributes:
        names: Names of the problems.
        rounds: Rounds of a stretch.

    Raises:
        ValueError: No session is as long as a stretch.
    """

    def __init__(self, data: Data, *, rounds: int, policy: Policy) -> None:
        self.names = list(data.calibrations)
        self.rounds = rounds
        self._data = data
        self._policy = policy
        self._cut = {name: [windows(session.arms[name], rounds) for session in data.sessions] for name in self.names}
        if not any(stretches for sessions in self._cut.values() for stretches in sessions):
            raise ValueError(
                f"no session has {rounds} rounds of every arm; measure longer sessions or compare fewer rounds"
            )

    def interleaved(self, subject: Sequence[str], arm: int) -> _Counts:
        """Compare arm 0 with another over all stretches, of one problem or of all at once."""
        counts = _Counts()
        for session in range(len(self._data.sessions)):
            for index in range(min(len(self._cut[name][session]) for name in subject)):
                stretches = {name: self._cut[name][session][index] for name in subject}
                shapes = [
                    ShapeRounds(name, list(stretch[0]), list(stretch[arm]), interleaved=True)
                    for name, stretch in stretches.items()
                ]
                counts.add(compare(shapes, self._policy))
        return counts

    def separate(self, name: str, arm: int) -> _Counts | None:
        """Compare arm 0 of one session with an arm of another on one problem; None with too few sessions.

        The noise is measured on the sessions left out.
        """
        sessions, cut = self._data.sessions, self._cut[name]
        if len(sessions) < _LEAST_SESSIONS:
            return None
        counts = _Counts()
        for pair in combinations(range(len(sessions)), 2):
            before, after = (cut[session] for session in pair)
            noise = _noise([session.arms[name][0] for at, session in enumerate(sessions) if at not in pair])
            limit = noise.limit if noise else None
            for index in range(min(len(before), len(after), _STRETCHES_A_PAIR)):
                shape = ShapeRounds(name, list(before[index][0]), list(after[index][arm]), noise=limit)
                counts.add(compare([shape], self._policy))
        return counts


def _problem(name: str, data: Data, stretches: _Stretches, *, effects: Sequence[float]) -> ProblemRates:
    bases = [session.arms[name][0] for session in data.sessions]
    base = np.concatenate(bases)
    pairs = len(data.sessions) // 2  # pairs of sessions without a common session
    equal = stretches.interleaved([name], _EQUAL)
    apart = stretches.separate(name, _EQUAL)
    noise = _noise(bases)
    return ProblemRates(
        problem=name,
        base_us=float(np.median(base)),
        p10_us=float(np.quantile(base, 0.1)),
        p90_us=float(np.quantile(base, 0.9)),
        us_per_cycle=data.calibrations[name].us_per_cycle,
        block_lengths=tuple(block_length(rounds[: stretches.rounds]) for rounds in bases),
        session_medians_us=tuple(float(np.median(rounds)) for rounds in bases),
        noise_deviation=noise.deviation if noise else None,
        noise_limit=noise.limit if noise else None,
        false_alarms=equal.rate(equal.changed),
        same=equal.rate(equal.same),
        separate_false_alarms=apart.rate(apart.changed, independent=pairs) if apart else None,
        separate_same=apart.rate(apart.same, independent=pairs) if apart else None,
        doses=tuple(
            _dose(name, data, stretches, effect=effect, arm=EQUAL_ARMS + index) for index, effect in enumerate(effects)
        ),
    )


def _dose(name: str, data: Data, stretches: _Stretches, *, effect: float, arm: int) -> DoseRates:
    near, far = stretches.interleaved([name], arm), stretches.separate(name, arm)
    ratios = np.concatenate([session.arms[name][arm] / session.arms[name][0] for session in data.sessions])
    return DoseRates(
        nominal=effect,
        measured=float(np.median(ratios)) - 1,
        slower=near.rate(near.slower),
        same=near.rate(near.same),
        separate_slower=far.rate(far.slower, independent=len(data.sessions) // 2) if far else None,
    )


def _noise(sessions: Sequence[Floats]) -> Noise | None:
    return aa_noise([list(rounds) for rounds in sessions]) if len(sessions) >= 3 else None
