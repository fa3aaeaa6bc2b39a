"""When each verdict is given, by hand and by property."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.bench.regression import GEOMEAN, Policy, ShapeRounds, compare
from pytest_nvfp4.bench.stats import RoundsError
from tests.bench.rounds import alternating, only, rounds, shape


@pytest.mark.parametrize(("factor", "state"), [(1.03, "slower"), (0.97, "faster"), (1.0, "same"), (1.005, "ambiguous")])
def test_the_four_states(factor, state):
    found = only(shape(factor=factor, count=300, sigma=0.003))
    assert found.state == state
    assert found.ratio == pytest.approx(factor, abs=0.003)
    assert found.low <= found.ratio <= found.high
    assert found.low <= found.same_low <= found.same_high <= found.high
    assert found.baseline_outdated == (state == "faster")


def test_equal_rounds_are_the_same():
    times = rounds(3, sigma=0.0)
    found = only(ShapeRounds("a", times, times, noise=0.0))
    assert (found.state, found.ratio, found.low, found.high) == ("same", 1.0, 1.0, 1.0)


def test_ambiguous_says_how_many_rounds_would_tell():
    found = only(shape(sigma=0.03, count=40, seed=2))
    assert found.state == "ambiguous"
    assert found.needed is not None
    assert 40 < found.needed <= 4000
    enough = only(shape(sigma=0.03, count=4 * found.needed, seed=2))
    assert enough.state == "same"
    assert f"about {found.needed} rounds" in str(found)


def test_a_change_at_the_threshold_has_no_number_that_would_tell():
    times = np.array(rounds(1, sigma=0.02))
    found = only(ShapeRounds("a", tuple(times), tuple(times * 1.005), noise=0.0))
    assert (found.state, found.needed) == ("ambiguous", None)


def test_the_threshold_is_the_larger_of_what_is_asked_and_what_noise_can_fake():
    slowdown = {"factor": 1.03, "count": 200}
    assert only(shape(**slowdown)).threshold == 0.005
    assert only(shape(threshold=0.02, **slowdown)).threshold == 0.02
    noisy = only(shape(noise=0.05, threshold=0.02, **slowdown))
    assert (noisy.threshold, noisy.state) == (0.05, "same")
    assert any("measured noise between sessions, 5 %" in note for note in noisy.notes)


def test_noise_that_nobody_measured_is_assumed_and_said():
    found = only(shape(noise=None, count=200))
    assert found.threshold == 0.01
    assert found.notes == ("the noise between sessions was not measured on this device: 1 % is assumed",)


def test_interleaved_rounds_need_no_allowance():
    found = only(shape(noise=0.05, interleaved=True, factor=1.03, count=100))
    assert (found.threshold, found.state, found.notes) == (0.005, "slower", ())


def test_pairs_survive_what_would_ruin_two_sessions():
    ramp = np.exp(np.linspace(0, 0.2, 100))
    one, other = np.array(rounds(1, count=100, sigma=0.002)) * ramp, np.array(rounds(2, count=100, sigma=0.002)) * ramp
    paired = only(ShapeRounds("a", tuple(one), tuple(other * 1.03), interleaved=True))
    apart = only(ShapeRounds("a", tuple(one), tuple(other * 1.03), noise=0.0))
    assert paired.state == "slower"
    assert apart.state == "ambiguous"
    assert any("the rounds drift" in note for note in apart.notes)
    assert apart.needed is None


def test_a_gross_slowdown_is_seen_through_drift():
    ramp = np.exp(np.linspace(0, 0.05, 100))
    one, other = np.array(rounds(1, count=100, sigma=0.002)) * ramp, np.array(rounds(2, count=100, sigma=0.002)) * ramp
    assert only(ShapeRounds("a", tuple(one), tuple(other * 1.5), noise=0.0)).state == "slower"


def test_too_few_rounds():
    found = only(shape(factor=2.0, count=19))
    assert (found.state, found.needed) == ("ambiguous", 20)
    assert found.notes == ("19 rounds are too few for a verdict: at least 20 a side are needed",)
    assert only(shape(factor=2.0, count=20)).state == "slower"


def test_clocks_that_changed():
    # 5 % slower in microseconds at a clock 5 % lower: the same number of cycles, so nobody knows.
    found = only(shape(factor=1.05, clocks_mhz=(1980.0, 1886.0), count=200))
    assert found.state == "ambiguous"
    assert any("1980 MHz for the baseline and is 1886 MHz now" in note for note in found.notes)
    assert only(shape(factor=1.05, clocks_mhz=(1980.0, 1980.0), count=200)).state == "slower"
    # 30 % slower is slower in either unit.
    assert only(shape(factor=1.3, clocks_mhz=(1980.0, 1886.0), count=200)).state == "slower"
    # A clock that went up can hide a slowdown.
    assert only(shape(factor=1.0, clocks_mhz=(1886.0, 1980.0), count=400)).state == "ambiguous"
    # Pairs share their clock.
    assert only(shape(factor=1.05, clocks_mhz=(1980.0, 1886.0), count=200, interleaved=True)).state == "slower"


def test_several_shapes_share_the_error_rate():
    shapes = [shape(f"s{i}", seed=i) for i in range(4)]
    family, alone = compare(shapes), compare(shapes[:1])
    assert (family.hypotheses, alone.hypotheses) == (5, 1)
    assert alone.geomean is None
    assert family.geomean is not None
    wide, narrow = family.shapes[0], alone.shapes[0]
    assert wide.high - wide.low > narrow.high - narrow.low


def test_the_geometric_mean():
    factors = (1.04, 0.98, 1.02, 1.0)
    shapes = [shape(f"s{i}", seed=i, factor=f, count=300, sigma=0.003) for i, f in enumerate(factors)]
    verdict = compare(shapes)
    assert verdict.geomean is not None
    ratios = [one.ratio for one in verdict.shapes]
    assert verdict.geomean.ratio == pytest.approx(math.prod(ratios) ** 0.25)
    assert verdict.geomean.state == "slower"
    # Four independent shapes: half the width of one.
    widths = [one.high - one.low for one in verdict.shapes]
    assert verdict.geomean.high - verdict.geomean.low == pytest.approx(np.mean(widths) / 2, rel=0.25)
    assert [one.state for one in verdict.shapes] == ["slower", "faster", "slower", "same"]
    assert verdict.state == "slower"
    assert [one.name for one in verdict.everything if one.state == "slower"] == ["s0", "s2", GEOMEAN]


def test_the_worst_state_counts():
    same, faster = shape("a", count=400, sigma=0.002), shape("b", seed=9, factor=0.9, count=400, sigma=0.002)
    assert compare([same]).state == "same"
    assert compare([same, faster]).state == "faster"
    assert compare([same, faster, shape("c", sigma=0.05)]).state == "ambiguous"
    assert compare([same, faster, shape("c", factor=1.5)]).state == "slower"


def test_a_drifting_shape_widens_the_geometric_mean():
    ramp = np.exp(np.linspace(0, 0.3, 60))
    calm = shape("a")
    wild = ShapeRounds("b", tuple(np.array(rounds(5)) * ramp), tuple(np.array(rounds(6)) * ramp), noise=0.0)
    verdict = compare([calm, wild])
    assert verdict.geomean is not None
    assert verdict.geomean.state == "ambiguous"
    assert verdict.geomean.low < 0.9 < 1.1 < verdict.geomean.high


def test_words():
    found = only(shape(factor=1.03, count=300, sigma=0.002))
    assert str(found).startswith("slower +3.")
    assert " % (+2." in str(found)


@pytest.mark.parametrize("names", [["a", "a"], [GEOMEAN], []])
def test_names_must_tell_shapes_apart(names):
    with pytest.raises(RoundsError, match=r"unique name|nothing to compare"):
        compare([shape(name) for name in names])


def test_missing_rounds_are_named():
    with pytest.raises(RoundsError, match="the baseline of gpumode-0 has no rounds"):
        compare([ShapeRounds("gpumode-0", (), (1.0,))])


@pytest.mark.parametrize(
    "wrong",
    [{"threshold": -0.1}, {"threshold": 1.0}, {"alpha": 0.0}, {"alpha": 0.5}, {"same_alpha": 1}, {"least_rounds": 0}],
)
def test_policies_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="must"):
        Policy(**wrong)


def test_a_shape_threshold_that_makes_no_sense():
    with pytest.raises(ValueError, match=r"a: threshold = 2 must be a share"):
        compare([shape(threshold=2)])


# Properties

FACTORS = st.floats(0.8, 1.25)
SEEDS = st.integers(0, 10_000)


@given(FACTORS, SEEDS)
@settings(max_examples=40, deadline=None)
def test_units_do_not_matter(factor, seed):
    base, now = rounds(seed), rounds(seed + 1, factor=factor)
    micro = only(ShapeRounds("a", base, now, noise=0.0))
    nano = only(ShapeRounds("a", tuple(1000 * t for t in base), tuple(1000 * t for t in now), noise=0.0))
    assert nano.state == micro.state
    assert nano.ratio == pytest.approx(micro.ratio, rel=1e-9)
    assert (nano.low, nano.high) == pytest.approx((micro.low, micro.high), rel=1e-9)


@given(FACTORS, SEEDS)
@settings(max_examples=40, deadline=None)
def test_the_same_rounds_give_the_same_verdict(factor, seed):
    one = shape(factor=factor, seed=seed)
    assert compare([one]) == compare([one])


@given(FACTORS, SEEDS)
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_company_changes_a_ratio(factor, seed):
    one, other = shape("a", factor=factor, seed=seed), shape("b", seed=seed + 7)
    forth, back = compare([one, other]), compare([other, one])
    assert forth.shapes == back.shapes[::-1]
    assert compare([one]).shapes[0].ratio == forth.shapes[0].ratio


@given(FACTORS, SEEDS)
@settings(max_examples=40, deadline=None)
def test_swapping_the_sides_swaps_the_verdict(factor, seed):
    base, now = rounds(seed), rounds(seed + 1, factor=factor)
    forth = only(ShapeRounds("a", base, now, interleaved=True))
    back = only(ShapeRounds("a", now, base, interleaved=True))
    assert back.ratio == pytest.approx(1 / forth.ratio)
    opposite = {"slower": "faster", "faster": "slower", "same": "same", "ambiguous": "ambiguous"}
    # The bootstrap draws other resamples, so an interval's end may lie on the other side of a threshold.
    ends = (forth.low, forth.high, forth.same_low, forth.same_high)
    if min(abs(abs(math.log(end)) - math.log1p(forth.threshold)) for end in ends) > 1e-3:
        assert back.state == opposite[forth.state]


@given(FACTORS, SEEDS, st.floats(0, 0.2), st.floats(0, 0.2))
@settings(max_examples=60, deadline=None)
def test_a_higher_threshold_never_makes_a_change_of_nothing(factor, seed, one, other):
    low, high = sorted((one, other))
    strict = only(shape(factor=factor, seed=seed, threshold=low))
    loose = only(shape(factor=factor, seed=seed, threshold=high))
    if strict.state == "same":
        assert loose.state == "same"
    if loose.state in ("slower", "faster"):
        assert strict.state == loose.state


@given(st.floats(1.1, 3.0), SEEDS)
@settings(max_examples=40, deadline=None)
def test_large_changes_are_always_seen(factor, seed):
    assert only(shape(factor=factor, seed=seed)).state == "slower"
    assert only(shape(factor=1 / factor, seed=seed)).state == "faster"


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=40), st.lists(st.floats(0.1, 1e5), min_size=1, max_size=40))
@settings(max_examples=80, deadline=None)
def test_any_times_get_a_verdict(base, now):
    found = only(ShapeRounds("a", tuple(base), tuple(now)))
    assert found.state in ("slower", "faster", "same", "ambiguous")
    assert found.low <= found.ratio <= found.high
    assert math.isfinite(found.low)
    assert math.isfinite(found.high)
    if min(len(base), len(now)) < 20:
        assert found.state == "ambiguous"


def test_rounds_that_alternate_are_no_drift():
    same = ShapeRounds("a", alternating(19.0, rounds=120, seed=1), alternating(19.0, rounds=120, seed=2), noise=0.01)
    assert compare([same]).state == "same"
    slower = ShapeRounds("a", alternating(19.0, rounds=120, seed=1), alternating(19.6, rounds=120, seed=2), noise=0.01)
    assert compare([slower]).state == "slower"


def test_few_rounds_are_taken_one_by_one():
    verdict = compare([ShapeRounds("a", alternating(19.0, rounds=79, seed=1), alternating(19.0, rounds=79, seed=2))])
    assert verdict.state == "ambiguous", "the same rounds without the means: this is what they are for"
