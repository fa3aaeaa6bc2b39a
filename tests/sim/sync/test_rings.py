"""Rings of mbarriers are recovered from the operations of one run, for any depth and number of iterations."""

from __future__ import annotations

import pytest

from pytest_nvfp4.sim.sync.rings import rings
from tests.sim.sync.pipeline import logged, pipeline


@pytest.mark.parametrize(("stages", "iterations"), [(1, 4), (2, 2), (3, 9), (4, 3), (4, 11)])
def test_each_direction_is_one_ring(stages: int, iterations: int):
    """The barriers follow each other in memory, one statement initialises all, and their counts are equal."""
    full, empty = pipeline(stages=stages, iterations=iterations)
    assert full.barriers == tuple(range(0, 8 * stages, 8))
    assert empty.barriers == tuple(range(8 * stages, 16 * stages, 8))
    for ring in (full, empty):
        expected = tuple((iterations - stage + stages - 1) // stages for stage in range(stages))
        assert ring.phases == expected
        assert ring.iterations == iterations
        assert ring.refills == min(expected) - 1
        assert (ring.stages, ring.count, ring.arrivals) == (stages, 1, 1)
    assert (full.bytes, empty.bytes) == (16, 0)


def test_users_are_named_with_their_first_parity():
    full, empty = pipeline(stages=2, iterations=5)
    assert [(user.warp, user.times, user.first) for user in full.waiters] == [(1, 5, 0)]
    assert [(user.warp, user.times, user.first) for user in empty.waiters] == [(0, 5, 1)]
    assert [(user.kind, user.first) for user in full.users] == [
        ("expect", 16),
        ("arrive", 1),
        ("copy", 16),
        ("wait", 0),
    ]
    assert [(user.kind, user.warp) for user in empty.users] == [("wait", 0), ("arrive", 1)]


def test_a_barrier_that_nothing_reached_joins_the_ring_before_it():
    full, empty = pipeline(stages=3, iterations=1)
    assert full.phases == empty.phases == (1, 0, 0)
    assert full.refills == -1


def test_nothing_is_logged_without_a_log():
    assert logged(stages=2, iterations=2, limit=None) is None


def test_a_log_has_a_limit():
    log = logged(stages=2, iterations=4, limit=5)
    assert log is not None
    assert log.truncated
    assert len(log.events) == 5
    assert [ring.refills for ring in rings(log)] == [-1, -1]
