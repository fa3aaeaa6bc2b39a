"""Error rates from measured rounds: every stretch of a session is one run of the gate, whose truth is known.

*Interleaved* runs compare arms of the same stretch of one session; stretches share no rounds, so they count as
independent trials. *Separate* runs compare a stretch of one session with one of another, as a stored baseline is
compared; they share sessions, so the interval of their rate counts pairs of sessions that have none in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
"""The arm that does the same as arm 0."""


@dataclass(slots=True)
class _Count:
    """Events among trials."""

    events: int = 0
    trials: int = 0

    def add(self, event: bool) -> None:
        self.events += event
        self.trials += 1

    def rate(self, *, independent: int | None = None, confidence: float = 0.95) -> Rate:
        """The rate and its exact interval; over fewer trials where they are not independent."""
        trials = self.trials if independent is None else min(self.trials, independent)
        events = round(self.events * trials / self.trials) if self.trials else 0
        low, high = binomial_interval(events, trials, confidence=confidence)
        return Rate(events=self.events, trials=self.trials, independent=trials, low=low, high=high)


@dataclass(slots=True)
class _Rates:
    """The counts of one kind of comparison."""

    changed: _Count
    slower: _Count
    same: _Count

    @classmethod
    def new(cls) -> _Rates:
        return cls(_Count(), _Count(), _Count())

    def add(self, states: Iterable[str]) -> None:
        found = set(states)
        self.changed.add(bool(found & {"slower", "faster"}))
        self.slower.add("slower" in found)
        self.same.add(found == {"same"})


def analyse(data: Data, *, rounds: int, effects: Sequence[float], policy: Policy) -> Report:
    """The error rates of the gate on measured rounds.

    Args:
        data: What was measured.
        rounds: Rounds a side in one comparison.
        effects: The injected slowdowns, in the order of the arms.
        policy: How verdicts are reached.

    Raises:
        ValueError: no session is long enough for one comparison.
    """
    stretches = _Stretches(data, rounds=rounds, policy=policy)
    first = next(iter(data.sessions[0].measurements.values()))
    return Report(
        device=data.device,
        method=first.method,
        l2=first.l2,
        rounds=rounds,
        sessions=len(data.sessions),
        wall_s=data.wall_s,
        stopped=data.stopped,
        alpha=policy.alpha,
        false_alarms=stretches.interleaved(stretches.names, _EQUAL).changed.rate(),
        problems=tuple(_problem(name, data, stretches, effects=effects) for name in stretches.names),
        host_us={name: one.host_us for name, one in data.sessions[0].measurements.items()},
        call_us={name: one.call_us for name, one in data.sessions[0].measurements.items()},
        late_rounds=sum(one.late_rounds for session in data.sessions for one in session.measurements.values()),
        clocks_mhz=tuple(
            c for session in data.sessions for one in session.measurements.values() for c in one.clocks_mhz
        ),
    )


class _Stretches:
    """The sessions cut into stretches of one comparison each, and the comparisons.

    Args:
        data: What was measured.
        rounds: Rounds of a stretch.
        policy: How verdicts are reached.

    Attributes:
        names: The problems.
        rounds: Rounds of a stretch.

    Raises:
        ValueError: there is no stretch.
    """

    def __init__(self, data: Data, *, rounds: int, policy: Policy) -> None:
        self.names = list(data.calibrations)
        self.rounds = rounds
        self._data = data
        self._policy = policy
        self._cut = {name: [windows(session.arms[name], rounds) for session in data.sessions] for name in self.names}
        if not any(stretches for one in self._cut.values() for stretches in one):
            raise ValueError(
                f"no session has {rounds} rounds of every arm; measure longer sessions or compare fewer rounds"
            )

    def interleaved(self, subject: Sequence[str], arm: int) -> _Rates:
        """Arm 0 against another, over all stretches, of one problem or of all at once."""
        found = _Rates.new()
        for session in range(len(self._data.sessions)):
            for index in range(min(len(self._cut[name][session]) for name in subject)):
                stretches = {name: self._cut[name][session][index] for name in subject}
                sides = {name: (stretch[0], stretch[arm]) for name, stretch in stretches.items()}
                found.add(_states(_judge(sides, None, self._policy)))
        return found

    def separate(self, subject: Sequence[str], arm: int) -> _Rates:
        """Arm 0 of one session against an arm of another; the noise is measured on the sessions left out."""
        found = _Rates.new()
        for one, other in combinations(range(len(self._data.sessions)), 2):
            noise = {name: self._noise_without((one, other), name) for name in subject}
            limits = {name: each.limit if each else None for name, each in noise.items()}
            stretches = min(len(self._cut[name][session]) for name in subject for session in (one, other))
            for index in range(min(stretches, _STRETCHES_A_PAIR)):
                sides = {name: (self._cut[name][one][index][0], self._cut[name][other][index][arm]) for name in subject}
                found.add(_states(_judge(sides, limits, self._policy)))
        return found

    def _noise_without(self, pair: tuple[int, int], name: str) -> Noise | None:
        return _noise([s.arms[name][0] for at, s in enumerate(self._data.sessions) if at not in pair])


def _problem(name: str, data: Data, stretches: _Stretches, *, effects: Sequence[float]) -> ProblemRates:
    bases = [session.arms[name][0] for session in data.sessions]
    base = np.concatenate(bases)
    pairs = _disjoint_pairs(data)
    equal = stretches.interleaved([name], _EQUAL)
    apart = stretches.separate([name], _EQUAL) if len(data.sessions) >= _LEAST_SESSIONS else None
    noise = _noise(bases)
    return ProblemRates(
        problem=name,
        base_us=float(np.median(base)),
        p10_us=float(np.quantile(base, 0.1)),
        p90_us=float(np.quantile(base, 0.9)),
        us_per_cycle=data.calibrations[name].us_per_cycle,
        block_lengths=tuple(block_length(one[: stretches.rounds]) for one in bases),
        session_medians_us=tuple(float(np.median(one)) for one in bases),
        noise_deviation=noise.deviation if noise else None,
        noise_limit=noise.limit if noise else None,
        false_alarms=equal.changed.rate(),
        same=equal.same.rate(),
        separate_false_alarms=apart.changed.rate(independent=pairs) if apart else None,
        separate_same=apart.same.rate(independent=pairs) if apart else None,
        doses=tuple(
            _dose(name, data, stretches, effect=effect, arm=EQUAL_ARMS + index) for index, effect in enumerate(effects)
        ),
    )


def _dose(name: str, data: Data, stretches: _Stretches, *, effect: float, arm: int) -> DoseRates:
    near = stretches.interleaved([name], arm)
    far = stretches.separate([name], arm) if len(data.sessions) >= _LEAST_SESSIONS else None
    ratios = np.concatenate([session.arms[name][arm] / session.arms[name][0] for session in data.sessions])
    return DoseRates(
        nominal=effect,
        measured=float(np.median(ratios)) - 1,
        slower=near.slower.rate(),
        same=near.same.rate(),
        separate_slower=far.slower.rate(independent=_disjoint_pairs(data)) if far else None,
    )


def _disjoint_pairs(data: Data) -> int:
    """Pairs of sessions that have none in common."""
    return len(data.sessions) // 2


def _noise(sessions: Sequence[Floats]) -> Noise | None:
    return aa_noise([list(rounds) for rounds in sessions]) if len(sessions) >= 3 else None


def _judge(sides: dict[str, tuple[Floats, Floats]], noise: dict[str, float | None] | None, policy: Policy) -> Verdict:
    return compare(
        [
            ShapeRounds(name, list(before), list(now), interleaved=noise is None, noise=noise[name] if noise else None)
            for name, (before, now) in sides.items()
        ],
        policy,
    )


def _states(verdict: Verdict) -> list[str]:
    return [one.state for one in verdict.everything]
