"""Resampling against brute force, theory and definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.bench.stats import (
    RoundsError,
    aa_noise,
    as_rounds,
    block_length,
    bootstrap_medians,
    generator,
    log_ratio,
)
from tests.bench.noise_models import LogNormal, TwoClocks, Wander


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("rounds", [1, 2, 7, 8, 50, 51])
def test_the_direct_bootstrap_is_the_bootstrap(rounds):
    """Medians drawn through Beta order statistics against medians of resamples that are really made."""
    values = rng(rounds).lognormal(0, 0.1, rounds)
    direct = bootstrap_medians(values, resamples=100_000, rng=rng(1))
    made = np.median(values[rng(2).integers(rounds, size=(100_000, rounds))], axis=1)
    assert direct.mean() == pytest.approx(made.mean(), abs=4 * made.std() / 300 + 1e-12)
    for share in (0.02, 0.1, 0.5, 0.9, 0.98):
        below = np.mean(made <= np.quantile(direct, share))
        assert below >= share - 0.01
        assert np.mean(made < np.quantile(direct, share)) <= share + 0.01


def test_the_direct_bootstrap_for_two_values_by_hand():
    # Two draws of two values: both the first 1/4, both the second 1/4, one of each 1/2.
    medians = bootstrap_medians(np.array([1.0, 2.0]), resamples=40_000, rng=rng())
    shares = [float(np.mean(medians == value)) for value in (1.0, 1.5, 2.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_the_bootstrap_has_the_spread_that_theory_gives():
    # The median of n normal values has the standard deviation sqrt(pi / 2 / n) of theirs.
    spreads = [
        bootstrap_medians(rng(seed).normal(5, 1, 400), resamples=2000, rng=rng(seed)).std() for seed in range(40)
    ]
    assert np.mean(spreads) == pytest.approx(math.sqrt(math.pi / 2 / 400), rel=0.1)


def test_blocks_keep_neighbours_together():
    # A block as long as the rounds is the rounds themselves, turned: its median never changes.
    values = np.arange(1.0, 13.0)
    medians = bootstrap_medians(values, resamples=200, rng=rng(), block=12)
    assert set(medians.tolist()) == {6.5}
    assert len(set(bootstrap_medians(values, resamples=200, rng=rng(), block=3).tolist())) > 3


def test_chunks_change_nothing(monkeypatch):
    values = rng(3).lognormal(0, 0.1, 40)
    whole = bootstrap_medians(values, resamples=300, rng=rng(5), block=4)
    monkeypatch.setattr("pytest_nvfp4.bench.stats._CHUNK", 1000)
    assert np.array_equal(whole, bootstrap_medians(values, resamples=300, rng=rng(5), block=4))


def test_independent_rounds_have_blocks_of_one():
    lengths = [block_length(LogNormal(0.02).session(rng(seed), 100)) for seed in range(200)]
    assert np.mean(np.array(lengths) == 1) > 0.9


def test_blocks_grow_with_memory():
    means = [
        np.mean([block_length(Wander(memory, own=0.001).session(rng(seed), 200)) for seed in range(60)])
        for memory in (0.0, 0.5, 0.8, 0.95)
    ]
    assert means == sorted(means)
    assert means[0] < 2
    assert means[-1] > 15


@given(st.lists(st.floats(1, 100), min_size=1, max_size=60))
@settings(max_examples=60)
def test_a_block_is_never_longer_than_the_rounds(values):
    assert 1 <= block_length(np.array(values)) <= max(1, len(values))


def test_constant_rounds_do_not_depend_on_each_other():
    assert block_length(np.full(50, 7.0)) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "no rounds"),
        ([[1.0]], "no rounds"),
        ([1.0, float("nan")], "round 1 is nan"),
        ([3, 0], "round 1"),
        ([float("inf")], "round 0"),
        ([-1.0], "round 0"),
    ],
)
def test_what_is_no_time_is_refused(values, words):
    with pytest.raises(RoundsError, match=words):
        as_rounds(values, what="the baseline")


def test_random_numbers_belong_to_a_name():
    assert generator(1, "a").random() == generator(1, "a").random()
    assert generator(1, "a").random() != generator(1, "b").random()
    assert generator(1, "a").random() != generator(2, "a").random()


def coverage(model, *, rounds, interleaved, trials, level=0.95):
    """How often the interval of a log ratio holds the true one, 0."""
    draw = rng(11)
    hits = 0
    for _ in range(trials):
        if interleaved:
            before, after = model.interleaved(draw, rounds)
        else:
            before, after = model.session(draw, rounds), model.session(draw, rounds)
        low, high = log_ratio(before, after, interleaved=interleaved, resamples=1000, rng=draw).interval(level)
        hits += low <= 0 <= high
    return hits / trials


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rounds", [20, 50])
def test_intervals_hold_the_truth_as_often_as_they_say(rounds, interleaved):
    # 400 trials of a true 95 % have a standard deviation of 1.1 %.
    assert 0.92 <= coverage(LogNormal(0.02), rounds=rounds, interleaved=interleaved, trials=400) <= 0.99


def test_pairs_cancel_what_both_sides_share():
    draw = rng(2)
    before, after = Wander(0.95, 0.03, 0.001).interleaved(draw, 100)
    paired = log_ratio(before, after, interleaved=True, resamples=1000, rng=draw)
    alone = log_ratio(before, after, interleaved=False, resamples=1000, rng=draw)
    widths = [np.diff(one.interval(0.99))[0] for one in (paired, alone)]
    assert widths[0] < widths[1] / 3


def test_few_blocks_widen_the_interval():
    draw = rng(9)
    for seed in range(30):
        values = Wander(0.6, 0.02, 0.001).session(rng(seed), 100)
        found = log_ratio(values, values, interleaved=False, resamples=1000, rng=draw)
        if found.draws is not None and found.block > 1:
            assert found.freedom < 100 / found.block
            assert found.interval(0.99)[1] > 1.02 * np.quantile(found.draws, 0.995)
            return
    raise AssertionError("no session had blocks")


def test_a_session_that_drifts_has_a_hull():
    ramp = 20 * np.exp(np.linspace(0, 0.1, 60)) * rng().lognormal(0, 0.001, 60)
    found = log_ratio(ramp, ramp, interleaved=False, resamples=1000, rng=rng())
    assert found.draws is None
    assert found.hull is not None
    assert found.hull[0] < -0.1
    assert found.hull[1] > 0.1
    assert found.swing > 0.05
    assert found.interval(0.5) == found.hull


def test_pairs_must_pair():
    with pytest.raises(RoundsError, match="must come in pairs: 3 of the baseline, 2"):
        log_ratio(np.ones(3), np.ones(2), interleaved=True, resamples=10, rng=rng())


def test_noise_between_sessions_covers_two_sessions():
    """Of 300 noises, each from 6 sessions, at least 98 % cover the ratio of two further sessions."""
    model, draw, covered = TwoClocks(stay=60), rng(4), 0
    for _ in range(300):
        noise = aa_noise([model.session(draw, 30).tolist() for _ in range(6)])
        one, other = (np.median(model.session(draw, 30)) for _ in range(2))
        covered += abs(math.log(one / other)) <= math.log1p(noise.limit)
    assert covered >= 0.98 * 300


def test_noise_by_hand():
    # Medians e^0, e^0.01, e^0.02: deviation 0.01, t(2, 0.995) = 9.925.
    noise = aa_noise([[1.0], [math.exp(0.01)], [math.exp(0.02)]])
    assert noise.deviation == pytest.approx(0.01)
    assert noise.limit == pytest.approx(math.expm1(9.925 * math.sqrt(2) * 0.01), rel=1e-4)


def test_more_sessions_make_the_noise_smaller():
    draw = rng(6)
    sessions = [(20 * draw.lognormal(0, 0.002, 1)).tolist() for _ in range(12)]
    few = [aa_noise(sessions[i : i + 3]).limit for i in range(0, 12, 3)]
    assert aa_noise(sessions).limit < np.mean(few)


def test_two_sessions_do_not_measure_a_noise():
    with pytest.raises(RoundsError, match=r"2 sessions are too few.*at least 3"):
        aa_noise([[1.0], [1.0]])
