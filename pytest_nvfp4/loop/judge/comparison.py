"""One interleaved comparison of incumbent and candidate on a device, and its outcome."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pytest_nvfp4.bench.paired import Interval, Side, judged_sides, paired_batch, ratio_interval
from pytest_nvfp4.bench.regression import Policy
from pytest_nvfp4.bench.stats import RoundsError
from pytest_nvfp4.device.job import KernelSpec
from pytest_nvfp4.device.remote.base import BatchResult
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.loop.configuration.config import DeviceSection
from pytest_nvfp4.loop.judge.place import Place
from pytest_nvfp4.loop.protocols import InfrastructureError
from pytest_nvfp4.loop.schemas import Comparison, ProblemTime
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.temporary import folder_in
from pytest_nvfp4.text import clip, json_text
from pytest_nvfp4.writing import write_whole

_SMOKE_ROUNDS: Final = 12
_FAR_SLOWER: Final = 1.25
"""Ratio of medians from which the first stage ends: far beyond what two processes of one kernel differ by."""
_MOST_TURNS: Final = 8
_ROUNDS_A_TURN: Final = 15
_MOST: Final = 8000
_HIGHEST: Final = 1e12
_UNAVAILABLE: Final = ("unavailable", "unsupported")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the measurements.

    Attributes:
        name: Its name in the configuration and in the evidence.
        rounds: Timed calls of each kernel and problem.
        turns: Processes of each kernel.
        seconds: Seconds until it is ended.
        candidate_first: Whether the candidate begins.
    """

    name: Literal["smoke", "candidate", "final"]
    rounds: int
    turns: int
    seconds: float
    candidate_first: bool = False


def stages(device: DeviceSection) -> tuple[Stage, Stage, Stage]:
    """Return the stages of a configuration."""
    return (
        Stage("smoke", _SMOKE_ROUNDS, 1, device.smoke_s),
        Stage("candidate", device.rounds, _turns(device.rounds), device.candidate_s),
        Stage("final", device.confirm_rounds, _turns(device.confirm_rounds), device.final_s, candidate_first=True),
    )


def _turns(rounds: int) -> int:
    """Return an even number of turns, of which each has enough rounds for a median if there are enough."""
    return max(4, min(_MOST_TURNS, rounds // _ROUNDS_A_TURN // 2 * 2))


class Pair(NamedTuple):
    """The incumbent, the candidate, and the problems that both are timed on."""

    incumbent: KernelSpec
    candidate: KernelSpec
    problems: tuple[Problem, ...]


class Compared(NamedTuple):
    """A comparison, or why the candidate is rejected; the seconds that the device was busy."""

    comparison: Comparison | None
    rejected: str
    busy_s: float


def compare(
    stage: Stage, place: Place, pair: Pair, *, least_gain: float, files: Path, evidence: Path, judge: Judge
) -> Compared:
    """Compare a candidate with the incumbent.

    Args:
        stage: The stage.
        place: The device.
        pair: The kernels.
        least_gain: Share by which the candidate must be faster.
        files: Folder for files of results.
        evidence: File for what was measured.
        judge: Judges the outputs of all stages.

    Raises:
        InfrastructureError: The device failed, or the incumbent itself on it.
        OSError: The evidence cannot be written.
        StoppedError: The loop is stopped.
    """
    order = (pair.candidate, pair.incumbent) if stage.candidate_first else (pair.incumbent, pair.candidate)
    batch = paired_batch(
        order,
        pair.problems,
        rounds=stage.rounds,
        turns=stage.turns,
        deadline_s=stage.seconds,
        capability=place.capability,
    )
    cost = place.usd()
    done = place.run(batch, limit_s=stage.seconds)
    with folder_in(files, "stage-") as folder:
        sides = judged_sides(batch, done, pair.problems, folder=folder, judge=judge)
    theirs, mine = sides[::-1] if stage.candidate_first else sides
    _require_incumbent(theirs, mine)
    if mine.status != "passed":
        text = "\n".join(str(finding) for finding in mine.findings[:3]) or "no reason is known"
        return Compared(None, clip(f"{mine.status} while it was measured: {text}", _MOST), done.busy_s)
    try:
        policy = Policy(threshold=least_gain)
        interval = ratio_interval(theirs.times, mine.times, pair.problems, turns=stage.turns, policy=policy)
    except RoundsError as error:
        raise InfrastructureError(f"the measured times cannot be compared: {error}") from error
    comparison = Comparison(
        device=_device(done),
        incumbent=_medians(theirs, pair.problems),
        candidate=_medians(mine, pair.problems),
        ratio=interval.ratio,
        low=interval.low,
        high=min(interval.high, _HIGHEST),
        outcome=outcome_of(interval, stage, least_gain=least_gain),
        gpu_s=done.busy_s,
        usd=max(0.0, place.usd() - cost),
    )
    data = {
        "stage": stage.name,
        "turns": stage.turns,
        "candidate_first": stage.candidate_first,
        "place": done.place.model_dump(mode="json"),
        "comparison": comparison.model_dump(mode="json"),
        "warnings": [str(finding) for side in (theirs, mine) for finding in side.findings],
        "device_us": {
            problem.name: {"incumbent": list(old.device_us), "candidate": list(new.device_us)}
            for problem, old, new in zip(pair.problems, theirs.times, mine.times, strict=True)
        },
    }
    write_whole(evidence, f"{json_text(data)}\n")
    return Compared(comparison, "", done.busy_s)


def outcome_of(interval: Interval, stage: Stage, *, least_gain: float) -> Literal["faster", "slower", "undecided"]:
    """Return the three-state outcome of a comparison; the first stage never says ``faster``."""
    if stage.name == "smoke":
        return "slower" if interval.ratio > _FAR_SLOWER else "undecided"
    if interval.high < 1 and interval.high <= 1 - least_gain:
        return "faster"
    return "slower" if interval.low > 1 else "undecided"


def said(stage: Stage, comparison: Comparison) -> str:
    """Return what a stage measured in one sentence."""
    if stage.name == "smoke":
        return f"measured {_share(comparison.ratio)} on {comparison.device} in a first look of {stage.rounds} rounds"
    ends = f"{_share(comparison.low)} to {_share(comparison.high)}"
    return f"measured {_share(comparison.ratio)} ({ends}) on {comparison.device}, stage {stage.name}"


def _require_incumbent(theirs: Side, mine: Side) -> None:
    """Raise InfrastructureError if a measurement says nothing about the candidate."""
    for side, name in ((theirs, "incumbent"), (mine, "candidate")):
        if side.status in _UNAVAILABLE or (side is theirs and side.status != "passed"):
            text = str(side.findings[0]) if side.findings else "no reason is known"
            raise InfrastructureError(clip(f"the {name} is {side.status} on the device: {text}", _MOST))


def _device(done: BatchResult) -> str:
    return next((str(result.device) for result in done.results if result.device is not None), "an unknown device")


def _medians(side: Side, problems: Sequence[Problem]) -> tuple[ProblemTime, ...]:
    return tuple(
        ProblemTime(problem=problem.name, us=statistics.median(times.device_us))
        for problem, times in zip(problems, side.times, strict=True)
    )


def _share(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %" if ratio < _HIGHEST and math.isfinite(ratio) else "any time"
