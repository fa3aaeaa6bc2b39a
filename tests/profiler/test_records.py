"""Records of regions: decoding, times, pairing, statistics, and what is said of missing ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profiler.clocks import Clocks
from pytest_nvfp4.profiler.exchange import FORMAT, as_data, from_text, read
from pytest_nvfp4.profiler.records import KernelRecord, Kind, buffer_words, decode
from pytest_nvfp4.profiler.spans import Moment, Pairing, Timeline, timeline_of
from tests.profiler.buffers import Events, buffer, decoded

BEGIN, END, MARK = Kind.BEGIN, Kind.END, Kind.MARK
SPAN: Events = [(100.0, BEGIN, 0), (5_100.0, END, 0)]


def timeline(words: list[int], **options: int) -> Timeline:
    return timeline_of([decoded(words, **options)], source="test")


def test_durations_are_those_of_the_clock_and_places_those_of_the_timer() -> None:
    """SM 1's clock is a billion cycles ahead, and the timer advances in steps of 32 ns."""
    events = [(10.0 + 61.0 * n, BEGIN if n % 2 else END, 0) for n in range(1, 400)]
    found = timeline(buffer({0: (0, 7.0, events), 2: (1, 1007.0, events)}, events=400), events=400)
    assert found.unit == "ns"
    assert not found.problems or "ended" in found.problems[0] or "began" in found.problems[0]
    first = [span.begin for span in found.spans if span.cta == 0]
    second = [span.begin for span in found.spans if span.cta == 1]
    assert all(span.time == pytest.approx(61.0, abs=0.1) for span in found.spans)
    # The rate comes from 24 us of a timer of 32 ns, and the offset from 400 readings of it.
    assert [b - a for a, b in zip(first, second, strict=True)] == pytest.approx([1000.0] * len(first), abs=2.0)


@given(st.floats(0, 40e9), st.floats(0.2, 2.1e9))
def test_wraps_of_32_bits_do_not_matter(start: float, time: float) -> None:
    """Clocks wrap every 2 s, and the low half of the timer every 4 s; a warp's events are closer than that."""
    words = buffer({0: (0, 0.0, SPAN), 1: (0, start, [(0.0, BEGIN, 1), (time, END, 1)])})
    spans = {span.name: span for span in timeline(words).spans}
    assert spans["b"].time == pytest.approx(time, rel=0.01, abs=1)
    assert spans["b"].begin == pytest.approx(start, rel=0.02, abs=200)


def test_without_a_high_half_of_the_timer_times_are_steps() -> None:
    found = timeline(buffer({0: (0, 50.0, SPAN)}, epoch_ns=0))
    assert found.unit == "steps"
    assert [span.time for span in found.spans] == [10_000.0]


def test_short_records_assume_a_rate_and_say_so() -> None:
    found = timeline(buffer({0: (0, 0.0, [(1.0, BEGIN, 0), (100.0, END, 0)])}))
    assert "assumed" in found.problems[0]


def test_lost_events_launches_and_warps_are_said() -> None:
    many = [(float(n), BEGIN if n % 2 else END, 0) for n in range(1, 8)]
    record = decoded(buffer({0: (0, 0.0, SPAN), 1: (0, 0.0, many)}, launches=2, grid=9))
    assert record.warps[1].lost == 3
    assert record.not_recorded == 18 - 8
    text = "\n".join(timeline_of([record], source="test").problems)
    assert "3 events found no room: give 7 events a warp" in text
    assert "2 launches" in text
    assert "10 warps had no slice" in text
    whole = timeline(buffer({0: (0, 0.0, SPAN)}))
    assert not whole.problems


def test_two_elected_lanes_of_a_warp_are_found() -> None:
    words = buffer({8: (0, 0.0, SPAN), 0: (0, 0.0, [])})
    assert not timeline(words).problems
    words[16 + 8 * 24 + 8 + 4 + 2] |= 5 << 25
    assert "different lanes (0, 5 ...)" in timeline(words).problems[0]


@pytest.mark.parametrize("tagged", [0, 1 << 30 | 7])
def test_what_no_kernel_writes_is_damaged(tagged: int) -> None:
    words = buffer({0: (0, 0.0, SPAN)})
    words[16 + 8 + 2] = tagged
    assert decoded(words).damaged == 1
    assert "something wrote over them" in timeline(words).problems[0]


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="no buffer"):
        decode([0] * (buffer_words(2, 2) - 1), kernel="k", regions=("a",), slices=2, events=2)


def spans(*moments: tuple[Kind, str, float], whole: bool = True) -> tuple[list[tuple[str, float, int]], list[str]]:
    pairing = Pairing()
    made = (Moment(kind, name, at) for kind, name, at in moments)
    found = [(span.name, span.time, span.depth) for span in pairing.spans(made, kernel="k", cta=0, warp=0, whole=whole)]
    return found, pairing.problems()


def test_regions_may_cross_and_nest_in_themselves() -> None:
    crossing = ((BEGIN, "a", 0.0), (BEGIN, "b", 1.0), (END, "a", 3.0), (END, "b", 7.0))
    assert spans(*crossing) == ([("a", 3.0, 0), ("b", 6.0, 1)], [])
    nested = ((BEGIN, "a", 0.0), (BEGIN, "a", 1.0), (END, "", 3.0), (END, "a", 7.0))
    assert spans(*nested) == ([("a", 2.0, 1), ("a", 7.0, 0)], [])


def test_what_does_not_pair_is_said_unless_events_are_missing() -> None:
    assert spans((BEGIN, "a", 0.0), (END, "b", 1.0)) == (
        [],
        [
            "region 'a' began 1 time without an end: end it in every branch",
            "region 'b' ended 1 time without a begin",
        ],
    )
    assert spans((BEGIN, "a", 0.0), whole=False) == ([], [])


def test_pairing_takes_time_in_proportion_to_the_moments() -> None:
    count = 30_000  # minutes, if each end looked at every begin
    begins = [(BEGIN, "a", 0.0)] * count
    found, problems = spans(*begins, *[(END, "b", 1.0)] * count, *[(END, "a", 2.0), (END, "", 2.0)] * (count // 2))
    assert [depth for _, _, depth in found] == list(reversed(range(count)))
    assert problems == [f"region 'b' ended {count} times without a begin"]


def test_statistics_are_over_all_warps() -> None:
    events: Events = [(0.0, BEGIN, 0), (3_000.0, END, 0)]
    found = timeline(buffer({0: (0, 0.0, events), 1: (0, 0.0, [(0.0, BEGIN, 0), (5_000.0, END, 0)])}))
    (a,) = found.statistics()
    assert (a.name, a.count, a.warps) == ("a", 2, 2)
    assert [a.total, a.mean, a.least, a.median, a.p90, a.most] == pytest.approx(
        [8_000, 4_000, 3_000, 4_000, 5_000, 5_000], rel=0.02
    )
    assert found.extent == pytest.approx(5_000, rel=0.02)


def test_a_name_that_several_kernels_have_is_said() -> None:
    events: Events = [(0.0, BEGIN, 0), (3_000.0, END, 0)]
    one = decoded(buffer({0: (0, 0.0, events)}))
    assert not timeline_of([one], source="a GPU").problems
    (problem,) = timeline_of([one, replace(one, kernel="other")], source="a GPU").problems
    assert problem.startswith(f"several kernels have regions {one.regions[0]!r}: the figures are over all")


def test_records_survive_a_file() -> None:
    record = replace(decoded(buffer({0: (0, 5.0, SPAN), 9: (3, 9.0, SPAN)})), not_recorded=3)
    assert from_text(json.dumps(as_data([record])).encode(), source="x") == [record]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), "pytest-nvfp4 regions 2"),
        (("kernels",), 7),
        (("kernels", 0, "regions"), [3]),
        (("kernels", 0, "grid"), [1, 1]),
        (("kernels", 0, "launches"), -1),
        (("kernels", 0, "launches"), True),
        (("kernels", 0, "warps", 0, 0, 0), 2),
        (("kernels", 0, "warps", 0, 0, 2), 2),
        (("kernels", 0, "warps", 0, 1, 4), 2),
        (("kernels", 0, "warps", 0, 1, 5), "5"),
        (("kernels", 0, "warps", 0, 1, 2), 0),
        (("kernels", 0, "warps", 0, 1), [1]),
    ],
)
def test_values_out_of_range_are_refused(place: tuple[str | int, ...], value: object) -> None:
    data = as_data([decoded(buffer({0: (0, 5.0, SPAN)}))])
    target = json.loads(json.dumps(data))
    assert target["format"] == FORMAT
    inner = target
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(DoorError, match="holds no records of regions"):
        from_text(json.dumps(target).encode(), source="x")


MEASURED = Path(__file__).parent / "data" / "h200_sm90_gpumode_9.json"
"""The first 6 CTAs of the shipped kernel for Hopper with regions, on gpumode-9, as an H200 recorded them."""


def apart_ns(record: KernelRecord) -> list[float]:
    """How far apart the CTAs of each cluster leave their last barrier."""
    left: dict[int, float] = {}
    for span in timeline_of([record], source="measured on an H200").spans:
        if span.name == "wait for cluster":
            left[span.cta] = max(left.get(span.cta, 0.0), span.end)
    return [abs(left[cta] - left[cta + 1]) for cta in (0, 2, 4)]


def skewed(record: KernelRecord, cta: int, *, cycles: int = 0, ns: int = 0) -> KernelRecord:
    """The record of a GPU on which the clock or the timer of a CTA's SM is ahead."""
    warps = []
    for warp in record.warps:
        own = warp
        if warp.cta == cta:
            events = tuple(
                replace(event, clock=(event.clock + cycles) % 2**32, timer_ns=(event.timer_ns + ns) % 2**32)
                for event in warp.events
            )
            own = replace(warp, clock=(warp.clock + cycles) % 2**32, timer_ns=warp.timer_ns + ns, events=events)
        warps.append(own)
    return replace(record, warps=tuple(warps))


def test_two_ctas_of_a_cluster_leave_their_barrier_at_one_time_on_a_gpu() -> None:
    """Each CTA has an SM of its own, so that this holds only if the clocks of SMs are placed rightly."""
    (record,) = read(MEASURED)
    found = timeline_of([record], source="measured on an H200")
    assert found.unit == "ns"
    assert not found.problems
    assert 1.2 < Clocks([record]).ghz < 2.0
    assert len({span.sm for span in found.spans}) == 6
    assert max(apart_ns(record)) < 5.0
    # The clock of an SM may start anywhere; the timer is common.
    assert max(apart_ns(skewed(record, 3, cycles=3_000_000_000))) < 5.0
    assert apart_ns(skewed(record, 3, ns=1000))[1] == pytest.approx(1000, abs=10)
