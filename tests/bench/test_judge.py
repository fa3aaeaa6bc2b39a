"""What a measurement says against itself."""

import pytest

from pytest_nvfp4.bench.judge import LAUNCH_AND_SYNC_US, agreement_findings, hidden_limit_us, hidden_us, timing_findings
from pytest_nvfp4.problem import GPUMODE_BENCH
from tests.bench.helpers import B200, H200, SMALL, UNKNOWN, measurement

STEADY = tuple(20 + 0.1 * (i % 7) for i in range(50))


def kinds(made, problem=SMALL, device=H200):
    return [(finding.kind, finding.severity) for finding in timing_findings(made, problem, device)]


def message(made, problem=SMALL, device=H200):
    (finding,) = timing_findings(made, problem, device)
    return finding.message


def test_honest_times_have_no_findings():
    assert kinds(measurement(STEADY)) == []


@pytest.mark.parametrize("hidden", [0.0, 10.0, LAUNCH_AND_SYNC_US - 0.5])
def test_launch_and_synchronisation_are_no_cheat(hidden):
    made = measurement(STEADY, host_us=(20.3 + 20.0 + hidden,), call_us=20.0)
    assert kinds(made) == []


def test_work_outside_the_timed_stream():
    # 20 us on the stream, 20 us in the call, and 200 us until everything has ended.
    made = measurement(STEADY, host_us=(200.0, 201.0, 199.0), call_us=20.0)
    assert kinds(made) == [("cheat", "error")]
    text = message(made)
    for part in ("small", "200.0 us on the host", "20.3 us", "20.0 us", "159.7 us", "outside the timed stream"):
        assert part in text


def test_the_limit_grows_with_the_times():
    slow = measurement([1000.0] * 12, host_us=(1300.0,), call_us=50.0)
    assert hidden_us(slow) == pytest.approx(250.0)
    assert hidden_limit_us(slow) == pytest.approx(262.5)
    assert all(kind != "cheat" for kind, _ in kinds(slow))
    assert ("cheat", "error") in kinds(measurement([1000.0] * 12, host_us=(1400.0,), call_us=50.0))


def test_a_slow_call_explains_its_own_time():
    # A kernel of many launches: the call takes 2 ms on the host and the device waits for it.
    assert kinds(measurement(STEADY, host_us=(2040.0,), call_us=2000.0)) == []


def test_one_slow_host_round_accuses_nobody():
    assert kinds(measurement(STEADY, host_us=(60.0, 60.0, 9000.0))) == []


def test_without_host_times_nothing_is_said_of_them():
    made = measurement(STEADY, host_us=())
    assert hidden_us(made) is None
    assert kinds(made) == []


def test_impossible_times():
    made = measurement([1.0 + 0.01 * (i % 5) for i in range(50)])
    assert kinds(made, GPUMODE_BENCH[0], B200) == [("cheat", "error")]
    assert "cannot be true on a B200" in message(made, GPUMODE_BENCH[0], B200)
    assert kinds(made, GPUMODE_BENCH[0], UNKNOWN) == []


def test_what_is_no_time_is_a_cheat():
    assert ("cheat", "error") in kinds(measurement((0.0, 1.0), host_us=()))


def test_no_rounds():
    assert kinds(measurement([])) == [("timing", "warning")]


@pytest.mark.parametrize(
    ("late", "expected"), [(0, []), (5, []), (6, [("timing", "warning")]), (50, [("timing", "warning")])]
)
def test_late_rounds(late, expected):
    assert kinds(measurement(STEADY, late=late)) == expected


def test_late_rounds_are_counted_in_words():
    assert "in 30 of 50 rounds the host was still enqueueing" in message(measurement(STEADY, late=30))


def test_rounds_that_were_measured_again_count_as_late():
    made = measurement(STEADY, late=2).model_copy(update={"repeated_rounds": 10})
    assert "in 12 of 60 rounds" in message(made)
    assert "10 of them were measured again" in message(made)
    assert kinds(made.model_copy(update={"repeated_rounds": 3})) == []


def test_a_wide_spread():
    made = measurement([20.0] * 25 + [40.0] * 25)
    assert kinds(made) == [("timing", "warning")]
    assert "spread from 20.00 us (p10) to 40.00 us (p90)" in message(made)


def test_times_without_any_noise():
    assert "exactly 20.0 us" in message(measurement([20.0] * 50))
    assert kinds(measurement([20.0] * 5)) == []


def test_work_of_many_calls_in_one():
    """Fifteen calls done in the first, and fourteen that return what is ready."""
    made = measurement([300.0] + [5.0 + 0.1 * (i % 3) for i in range(14)])
    assert "1 of 15 rounds hold 81 % of the device time (up to 300.0 us, against a median of 5.10 us)" in message(made)


def test_one_outlier_is_no_merged_work():
    assert kinds(measurement([*STEADY, 400.0])) == []


def test_the_gravest_comes_first():
    made = measurement([20.0] * 25 + [40.0] * 25, late=40, host_us=(900.0,))
    severities = [severity for _, severity in kinds(made)]
    assert severities == ["error", "warning", "warning"]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (20.0, []),
        (22.5, []),
        (26.0, [("timing", "warning")]),
        (15.0, [("timing", "warning")]),
        (5.0, [("cheat", "error")]),
        (40.0, [("cheat", "error")]),
    ],
)
def test_two_processes_agree_within_a_band(second: float, found: list[tuple[str, str]]) -> None:
    made = agreement_findings(measurement([20.0] * 9), measurement([second] * 9), GPUMODE_BENCH[0])
    assert [(finding.kind, finding.severity) for finding in made] == found
    assert all("20.00 us" in finding.message and f"{second:.2f} us" in finding.message for finding in made)
