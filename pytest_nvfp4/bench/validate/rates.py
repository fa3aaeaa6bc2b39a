"""Error rates from measured rounds: every stretch of a session is one run of the gate, whose truth is known.

*Interleaved* runs compare arms of the same stretch of one session; stretches share no rounds, so they count as
independent trials. *Separate* runs compare a stretch of one session with one of another, as a stored baseline is
compared; they share sessions, so the interval of their rate counts pairs of sessions that have none in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pytest_nvfp4.bench.distributions import binomial_interval
from pytest_nvfp4.bench.regression import Policy, ShapeRounds, Verdict, compare
from pytest_nvfp4.bench.stats import Floats, Noise, aa_noise, block_length
from pytest_nvfp4.bench.validate.experiment import EQUAL_ARMS, Data, windows
from pytest_nvfp4.bench.validate.report import DoseRates, ProblemRates, Rate, Report

_LEAST_SESSIONS = 5
_STRETCHES_A_PAIR = 4


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
    names = list(data.calibrations)
    cut = {name: [windows(session.arms[name], rounds) for session in data.sessions] for name in names}
    if not any(stretches for one in cut.values() for stretches in one):
        raise ValueError(
            f"no session has {rounds} rounds of every arm; measure longer sessions or compare fewer rounds"
        )
    noises = {name: _noise([session.arms[name][0] for session in data.sessions]) for name in names}

    def arm(index: int) -> Callable[[list[Floats]], Floats]:
        return lambda stretch: stretch[index]

    def interleaved(subject: Sequence[str], current: int) -> _Rates:
        """Arm 0 against another, over all stretches, of one problem or of all at once."""
        found = _Rates.new()
        pick = arm(current)
        for session in range(len(data.sessions)):
            for index in range(min(len(cut[name][session]) for name in subject)):
                stretches = {name: cut[name][session][index] for name in subject}
                found.add(_states(_judge({n: (s[0], pick(s)) for n, s in stretches.items()}, None, policy)))
        return found

    def separate(subject: Sequence[str], current: int) -> _Rates:
        """Arm 0 of one session against an arm of another; the noise is measured on the sessions left out."""
        found = _Rates.new()
        pick = arm(current)
        for one, other in combinations(range(len(data.sessions)), 2):
            noise = {
                name: _noise([s.arms[name][0] for i, s in enumerate(data.sessions) if i not in (one, other)])
                for name in subject
            }
            stretches = min(len(cut[name][session]) for name in subject for session in (one, other))
            for index in range(min(stretches, _STRETCHES_A_PAIR)):
                sides = {n: (cut[n][one][index][0], pick(cut[n][other][index])) for n in subject}
                limits = {name: each.limit if each else None for name, each in noise.items()}
                found.add(_states(_judge(sides, limits, policy)))
        return found

    pairs = len(data.sessions) // 2
    enough = len(data.sessions) >= _LEAST_SESSIONS

    def problem(name: str) -> ProblemRates:
        calibration = data.calibrations[name]
        base = np.concatenate([session.arms[name][0] for session in data.sessions])
        equal = interleaved([name], 1)
        apart = separate([name], 1) if enough else None
        doses = []
        for index, effect in enumerate(effects):
            near = interleaved([name], EQUAL_ARMS + index)
            far = separate([name], EQUAL_ARMS + index) if enough else None
            ratios = np.concatenate(
                [session.arms[name][EQUAL_ARMS + index] / session.arms[name][0] for session in data.sessions]
            )
            doses.append(
                DoseRates(
                    nominal=effect,
                    measured=float(np.median(ratios)) - 1,
                    slower=near.slower.rate(),
                    same=near.same.rate(),
                    separate_slower=far.slower.rate(independent=pairs) if far else None,
                )
            )
        noise = noises[name]
        return ProblemRates(
            problem=name,
            base_us=float(np.median(base)),
            p10_us=float(np.quantile(base, 0.1)),
            p90_us=float(np.quantile(base, 0.9)),
            us_per_cycle=calibration.us_per_cycle,
            block_lengths=tuple(block_length(session.arms[name][0][:rounds]) for session in data.sessions),
            session_medians_us=tuple(float(np.median(session.arms[name][0])) for session in data.sessions),
            noise_deviation=noise.deviation if noise else None,
            noise_limit=noise.limit if noise else None,
            false_alarms=equal.changed.rate(),
            same=equal.same.rate(),
            separate_false_alarms=apart.changed.rate(independent=pairs) if apart else None,
            separate_same=apart.same.rate(independent=pairs) if apart else None,
            doses=tuple(doses),
        )

    whole = interleaved(names, 1)
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
        false_alarms=whole.changed.rate(),
        problems=tuple(problem(name) for name in names),
        host_us={name: one.host_us for name, one in data.sessions[0].measurements.items()},
        call_us={name: one.call_us for name, one in data.sessions[0].measurements.items()},
        late_rounds=sum(one.late_rounds for session in data.sessions for one in session.measurements.values()),
        clocks_mhz=tuple(
            c for session in data.sessions for one in session.measurements.values() for c in one.clocks_mhz
        ),
    )


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
