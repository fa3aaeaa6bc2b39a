"""Times held against the kernels that CUPTI recorded; the records are made up here."""

from __future__ import annotations

import pytest

from pytest_nvfp4.bench.launches import launch_findings
from pytest_nvfp4.device.device_work import CountedCall, CountedLaunches, DeviceWork
from pytest_nvfp4.device.result import Measurement
from pytest_nvfp4.problem import parse_shape
from tests.bench.helpers import SMALL, measurement


def call(
    *kernels: tuple[str, float, float], way: str = "timed", device_us: float | None = None, copies: int = 0
) -> CountedCall:
    """A call of some kernels, each with its name, start and duration in microseconds."""
    works = [
        DeviceWork(kind="kernel", name=name, start_ns=round(start * 1e3), duration_ns=round(took * 1e3))
        for name, start, took in kernels
    ]
    works += [DeviceWork(kind="memcpy", name="Memcpy DtoD", start_ns=0, duration_ns=900)] * copies
    us = (device_us or 20.5) if way == "timed" else None
    return CountedCall.model_validate({"way": way, "inputs": (0, 1), "device_us": us, "works": works})


GEMM = ("gemm", 0.0, 20.0)
PLAIN = call(GEMM, way="plain")


def claims(us: float, *calls: CountedCall, unavailable: str | None = None) -> Measurement:
    launches = CountedLaunches(calls=calls, unavailable=unavailable)
    return measurement([us] * 9).model_copy(update={"launches": launches})


def found(made: Measurement) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in launch_findings(made, made, SMALL)]


def test_an_honest_kernel_is_clean() -> None:
    assert found(claims(20.4, call(GEMM), PLAIN)) == []
    two = (("prepare", 0.0, 3.0), ("gemm", 4.0, 16.0))
    assert found(claims(20.4, call(*two), call(*reversed(two), way="plain"), call(*two, copies=2))) == []


def test_a_timed_call_that_launches_less_or_other_kernels_is_found() -> None:
    """Both lists are named; which call was judged does not change that they differ."""
    full = call(("gemm<128>", 0.0, 20.0), ("reduce", 21.0, 2.0), way="plain")
    for other in (call(("gemm<128>", 0.0, 20.0)), call(("gemm<128>", 0.0, 20.0), ("copy", 21.0, 2.0))):
        ((severity, message),) = found(claims(23.0, other, full))
        assert severity == "error"
        assert "2 (1 x gemm<128>, 1 x reduce)" in message
        assert f"timed call {len(other.kernels)} (" in message


def test_a_call_without_kernels_is_found() -> None:
    ((severity, message),) = found(claims(20.0, call(copies=2), PLAIN))
    assert severity == "error"
    assert "launched no kernel on the device, only 2 memcpy" in message
    empty = parse_shape("0x128x256", name="empty")
    made = claims(20.0, call(), call(way="plain"))
    assert launch_findings(made, made, empty) == [], "there is nothing to compute"


def test_a_clock_that_lies_about_a_recorded_call_is_found() -> None:
    ((severity, message),) = found(claims(20.0, call(GEMM, device_us=17.9), PLAIN))
    assert severity == "error"
    assert "17.90 us" in message
    assert "20.00 us" in message
    assert found(claims(20.0, call(GEMM, device_us=18.1), PLAIN)) == [], "1 us for the events, 1 us for the launch"


@pytest.mark.parametrize(
    ("claimed", "severity"), [(20.0, []), (18.1, []), (17.5, ["warning"]), (13.1, ["warning"]), (12.9, ["error"])]
)
def test_a_claim_below_the_kernels_of_a_call_is_found(claimed: float, severity: list[str]) -> None:
    made = found(claims(claimed, call(GEMM), call(("gemm", 0.0, 24.0), device_us=24.0), PLAIN))
    assert [one for one, _ in made] == severity
    assert all(f"{claimed:.2f} us" in message and "20.00 us" in message for _, message in made)


def test_the_claim_of_the_other_process_counts() -> None:
    counted = claims(20.0, call(GEMM), PLAIN)
    (finding,) = launch_findings(measurement([5.0] * 9), counted, SMALL)
    assert (finding.kind, finding.severity) == ("cheat", "error")


def test_overlap_counts_once_and_gaps_are_no_error() -> None:
    """Kernels that overlap by programmatic launches or streams, and gaps that recording widens."""
    overlapping = (("a", 0.0, 12.0), ("b", 2.0, 12.0), ("c", 4.0, 12.0))
    assert call(*overlapping).busy_us == call(*overlapping).span_us == 16.0
    assert found(claims(16.5, call(*overlapping, device_us=16.5), call(*overlapping, way="plain"))) == []
    apart = (("a", 0.0, 4.0), ("b", 10.0, 4.0))
    assert (call(*apart).busy_us, call(*apart).span_us) == (8.0, 14.0)
    assert [one for one, _ in found(claims(9.0, call(*apart, device_us=14.5), call(*apart, way="plain")))] == [
        "warning"
    ]


@pytest.mark.parametrize("made", [claims(20.0, unavailable="no CUPTI"), claims(20.0), measurement([20.0] * 9)])
def test_launches_that_cannot_be_counted_are_said(made: Measurement) -> None:
    ((severity, message),) = found(made)
    assert severity == "warning"
    assert "launches not counted: " in message
