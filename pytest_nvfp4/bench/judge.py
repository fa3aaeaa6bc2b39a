"""Plausibility of measured times, judged from the measurement alone, without its outputs.

A ``cheat`` finding means that the times cannot be those of the work: it fails the check. A ``timing`` warning means
that the times are weak evidence: they are reported with the warning.
"""

from __future__ import annotations

import math
import statistics

from pytest_nvfp4.bench.roofline import percentile, physics_violation
from pytest_nvfp4.device.result import DeviceInfo, Measurement
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.problem import Problem

LAUNCH_AND_SYNC_US = 40.0
"""Microseconds that a launch on an idle device and the wait for its end may add to a call's own times."""
_RELATIVE_SLACK = 0.25
_LATE_SHARE = 0.1
_SPREAD = 1.5
_OUTLIER = 10.0
SAME_SHARE, SAME_US = 0.15, 1.0
"""Band in which the medians of two processes agree: a share, plus the 0.8 to 1 us by which rounds differ on an H200."""
_OTHER_SHARE, _OTHER_US = 0.5, 2.0
"""Difference of the medians of two processes beyond which one of them cannot be the kernel's time."""
_LEAST_FOR_SHAPE = 10
"""Rounds below which the distribution of times is not judged."""


def timing_findings(measurement: Measurement, problem: Problem, device: DeviceInfo | None) -> list[Finding]:
    """Return the findings against the times of a measurement, errors first."""
    found = [
        *_no_times(measurement, problem),
        *_physics(measurement, problem, device),
        *_hidden_work(measurement, problem),
        *_late(measurement, problem),
        *_spread(measurement, problem),
    ]
    return sorted(found, key=lambda finding: finding.severity != "error")


def agreement_findings(first: Measurement, second: Measurement, problem: Problem) -> list[Finding]:
    """Return the finding against two measurements of a kernel in processes of their own that do not agree.

    State that a kernel keeps between calls, or makes when it is imported, is new in each process, and so are the order
    of calls and the rows that change.
    """
    if not first.device_us or not second.device_us:
        return []
    one, other = statistics.median(first.device_us), statistics.median(second.device_us)
    if not (math.isfinite(one) and math.isfinite(other)):
        return []
    less, more = sorted((one, other))
    said = (
        f"{problem.name}: suspicious time: a median of {one:.2f} us in one process and {other:.2f} us in a second one; "
        f"they agree within {100 * SAME_SHARE:.0f} % and {SAME_US:.0f} us"
    )
    if more > less * (1 + _OTHER_SHARE) + _OTHER_US:
        return [_cheat(f"{said}: the kernel does not do the same work in both, or another program uses the device")]
    if more > less * (1 + SAME_SHARE) + SAME_US:
        return [_warning(f"{said}: another program uses the device, its clocks change, or the work differs")]
    return []


def _cheat(message: str, detail: str = "") -> Finding:
    return Finding(kind="cheat", message=message, detail=detail)


def _warning(message: str) -> Finding:
    return Finding(kind="timing", message=message, severity="warning")


def _no_times(measurement: Measurement, problem: Problem) -> list[Finding]:
    if not measurement.device_us:
        return [_warning(f"{problem.name}: no round was timed")]
    for name, times in (("device", measurement.device_us), ("host", measurement.host_us)):
        bad = [time for time in times if not (math.isfinite(time) and time > 0)]
        if bad:
            return [_cheat(f"{problem.name}: a {name} time is {bad[0]} us; times must be positive and finite")]
    return []


def _physics(measurement: Measurement, problem: Problem, device: DeviceInfo | None) -> list[Finding]:
    violation = physics_violation(measurement, problem, device)
    return [_cheat(violation)] if violation else []


def hidden_us(measurement: Measurement) -> float | None:
    """Return the host time that neither the timed work nor the call explains, in microseconds; None if not measured.

    On an idle device, a call and its work end at the latest after the call's own host time plus the device time, as all
    launches are enqueued when the call returns. The rest is launch and synchronisation, or work that the timed stream's
    events did not cover: on a non-blocking stream, or started by a thread.
    """
    if not measurement.host_us or not measurement.device_us:
        return None
    explained = statistics.median(measurement.device_us) + measurement.call_us
    return statistics.median(measurement.host_us) - explained


def hidden_limit_us(measurement: Measurement) -> float:
    """Return the largest ``hidden_us`` of an honest kernel, in microseconds; shorter hidden work is not detected."""
    explained = statistics.median(measurement.device_us) + measurement.call_us
    return max(LAUNCH_AND_SYNC_US, _RELATIVE_SLACK * explained)


def _hidden_work(measurement: Measurement, problem: Problem) -> list[Finding]:
    hidden = hidden_us(measurement)
    if hidden is None or hidden <= hidden_limit_us(measurement):
        return []
    device, host = statistics.median(measurement.device_us), statistics.median(measurement.host_us)
    return [
        _cheat(
            f"{problem.name}: a call and all its work take {host:.1f} us on the host, of which the timed stream "
            f"explains {device:.1f} us and the call itself {measurement.call_us:.1f} us: {hidden:.1f} us of work ran "
            "outside the timed stream (on another stream, or started by a thread)",
            detail=f"the limit for a kernel without hidden work is {hidden_limit_us(measurement):.1f} us",
        )
    ]


def _late(measurement: Measurement, problem: Problem) -> list[Finding]:
    rounds = len(measurement.device_us)
    late, again = measurement.late_rounds, measurement.repeated_rounds
    if not rounds or late + again <= _LATE_SHARE * rounds:
        return []
    repeated = f" ({again} of them were measured again)" if again else ""
    return [
        _warning(
            f"{problem.name}: in {late + again} of {rounds + again} rounds the host was still enqueueing when the "
            f"timed work began, so the device time of these rounds includes host time{repeated}: the kernel is bound "
            "by its launches, or the host was busy"
        )
    ]


def _spread(measurement: Measurement, problem: Problem) -> list[Finding]:
    times = measurement.device_us
    if len(times) < _LEAST_FOR_SHAPE or min(times) <= 0:
        return []
    found = []
    median = statistics.median(times)
    low, high = percentile(times, 0.1), percentile(times, 0.9)
    if min(times) == max(times):
        found.append(
            _warning(
                f"{problem.name}: all {len(times)} rounds took exactly {median} us; a clock that resolves the kernel's "
                "noise never reports that"
            )
        )
    if high > _SPREAD * low:
        found.append(
            _warning(
                f"{problem.name}: the times spread from {low:.2f} us (p10) to {high:.2f} us (p90): another program "
                "uses the device, its clocks change, or the kernel does not do the same work each time"
            )
        )
    # A kernel may do the work of several calls in one of them: the median is then that of calls that do nothing.
    heavy = [time for time in times if time > _OUTLIER * median]
    if heavy and sum(heavy) > sum(times) / 2:
        found.append(
            _warning(
                f"{problem.name}: {len(heavy)} of {len(times)} rounds hold {100 * sum(heavy) / sum(times):.0f} % of "
                f"the device time (up to {max(heavy):.1f} us, against a median of {median:.2f} us): the median does "
                "not represent the work"
            )
        )
    return found
