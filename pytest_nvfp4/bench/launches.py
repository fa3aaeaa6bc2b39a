"""Times held against what CUPTI recorded: the kernels that a call launches, and how long they were on the device.

The record and the times come from one process, in which the kernel's code runs too. They are made by different means,
though: the times by events on the timed stream, the record by CUPTI, which sees every stream.
"""

from __future__ import annotations

import statistics
from collections import Counter

from pytest_nvfp4.device.device_work import CountedCall
from pytest_nvfp4.device.result import Measurement
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Problem

CLOCK_US = 1.0
"""Resolution of a time between two events: about 0.5 us for each (CUDA Driver API, ``cuEventElapsedTime``)."""
LAUNCH_US = 1.0
"""Microseconds by which recording may lengthen each kernel; recorded calls are not those that are reported."""
OTHER_CALL_SHARE = 0.25
"""Share by which other calls may be faster: clocks, temperature and data differ between rounds and sessions."""
_NAMES_SHOWN = 6


def launch_findings(claimed: Measurement, counted: Measurement, problem: Problem) -> list[Finding]:
    """Return the findings against times and launches, errors first.

    Every counted call has its outputs judged. ``plain`` calls are made as verified ones are, ``timed`` ones as in a
    timed round, with the same inputs. Two rules hold:

    - All counted calls launch the same kernels, and at least one. Copies and fills are shown and not compared, as a
      kernel may keep tables on the device.
    - A call takes at least as long as its kernels keep the device busy, minus ``CLOCK_US`` for the resolution of the
      events, and minus ``LAUNCH_US`` for each kernel, as a recorded kernel takes longer. Time during which several
      kernels of the call overlap counts once, and the gaps between them, which recording widens, do not count. Calls
      do not overlap with each other, as the clock waits for an idle device between them. For the recorded calls' own
      times there is no other allowance. Other calls may be faster by ``OTHER_CALL_SHARE``; a smaller difference, or
      one from the span, gaps included, is a warning.

    Args:
        claimed: The measurement whose times are reported.
        counted: The measurement whose process counted the launches; it may be the same.
        problem: The problem.
    """
    launches = counted.launches
    if launches is None or launches.unavailable is not None or not launches.calls:
        why = (launches and launches.unavailable) or "the answer has no counted call"
        return [_warning(f"{problem.name}: launches not counted: {why}")]
    if not any(m and n for m, n, *_ in problem.sizes):
        return []
    return _same_launches(launches.calls, problem) or _long_enough(claimed, counted, launches.calls, problem)


def _warning(message: str) -> Finding:
    return Finding(kind="timing", message=message, severity="warning")


def _cheat(message: str) -> Finding:
    return Finding(kind="cheat", message=message)


def _same_launches(calls: tuple[CountedCall, ...], problem: Problem) -> list[Finding]:
    for call in calls:
        if not call.kernels:
            others = Counter(work.kind for work in call.works)
            did = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items())) or "nothing"
            return [
                _cheat(
                    f"{problem.name}: a {call.way} call launched no kernel on the device, only {did}: it does not "
                    "compute"
                )
            ]
    expected = next((call for call in calls if call.way == "plain"), calls[0])
    for call in calls:
        if _names(call) != _names(expected):
            return [
                _cheat(
                    f"{problem.name}: calls do not launch the same kernels: a {expected.way} call launched "
                    f"{_listed(expected)}, and a {call.way} call {_listed(call)}: the times are not those of the work "
                    "that verified calls do"
                )
            ]
    return []


def _names(call: CountedCall) -> Counter[str]:
    return Counter(kernel.name for kernel in call.kernels)


def _listed(call: CountedCall) -> str:
    names = [f"{count} x {name[:80]}" for name, count in sorted(_names(call).items())]
    more = f" and {len(names) - _NAMES_SHOWN} other kernels" if len(names) > _NAMES_SHOWN else ""
    return f"{len(call.kernels)} ({', '.join(names[:_NAMES_SHOWN])}{more})"


def _long_enough(
    claimed: Measurement, counted: Measurement, calls: tuple[CountedCall, ...], problem: Problem
) -> list[Finding]:
    allowed = CLOCK_US + LAUNCH_US * max(len(call.kernels) for call in calls)
    timed = [call for call in calls if call.way == "timed"]
    for call in timed:
        if call.device_us is not None and call.device_us < call.busy_us - allowed:
            return [
                _cheat(
                    f"{problem.name}: the clock measured {call.device_us:.2f} us for a call whose kernels kept the "
                    f"device busy for {call.busy_us:.2f} us (CUPTI, {len(call.kernels)} launches; {allowed:.0f} us are "
                    "allowed): its events do not surround the work"
                )
            ]
    medians = [statistics.median(one.device_us) for one in (claimed, counted) if one.device_us]
    if not timed or not medians:
        return []
    claim, busy, span = min(medians), min(call.busy_us for call in timed), min(call.span_us for call in timed)
    figures = (
        f"{problem.name}: the timed rounds have a median of {claim:.2f} us, and the kernels of one call keep the "
        f"device busy for {busy:.2f} us, {span:.2f} us from first to last (CUPTI, the shortest of {len(timed)} calls)"
    )
    if claim < busy * (1 - OTHER_CALL_SHARE) - allowed:
        return [_cheat(f"{figures}: the timed rounds do not do that work, or their times are not true")]
    if claim < span - allowed:
        return [_warning(f"{figures}: clocks differ, recording slows the kernel, or the timed rounds do less work")]
    return []
