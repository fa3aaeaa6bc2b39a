"""Times of day: the next one, over midnight and over changes of the clocks."""

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.loop.clock import seconds_of, seconds_until, stamp


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> None:
    # In POSIX notation, because not every machine has the data of time zones.
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield  # type: ignore[misc]
    monkeypatch.undo()
    time.tzset()


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("now", "until", "hours"),
    [
        ("2026-11-23T22:00:00+01:00", "07:00", 9),
        ("2026-11-23T06:59:00+01:00", "7:00", 1 / 60),
        ("2026-11-23T07:00:00+01:00", "07:00", 24),  # now is no time that is to come
        ("2026-11-23T23:30:00+01:00", "00:15", 0.75),
        ("2026-12-31T23:00:00+01:00", "23:00", 24),
        ("2026-03-28T22:00:00+01:00", "07:00", 8),  # an hour is left out
        ("2026-10-24T22:00:00+02:00", "07:00", 10),  # an hour occurs twice
        ("2026-03-28T22:00:00+01:00", "02:30", 4.5),  # which that day has no 02:30
    ],
)
def test_the_next_time_of_day(now: str, until: str, hours: float) -> None:
    assert seconds_until(until, _at(now)) == pytest.approx(hours * 3600)


@pytest.mark.parametrize("text", ["", "7", "24:00", "07:60", "-1:00", "07:00:00", "tomorrow", "\u0667:00"])
def test_what_is_no_time_of_day(text: str) -> None:
    with pytest.raises(ValueError, match="write it as HH:MM"):
        seconds_until(text, 0.0)


@pytest.mark.usefixtures("berlin")
def test_it_is_never_past_nor_more_than_a_day_away() -> None:
    @given(st.integers(1_700_000_000, 2_000_000_000), st.integers(0, 23), st.integers(0, 59))
    def check(now: int, hour: int, minute: int) -> None:
        assert 0 < seconds_until(f"{hour:02d}:{minute:02d}", now) <= 25 * 3600

    check()


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-23T07:00:00"])
def test_what_is_no_stamp(text: str) -> None:
    assert seconds_of(text) is None
    assert seconds_of(stamp(1_800_000_000)) == 1_800_000_000
