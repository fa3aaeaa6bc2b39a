from __future__ import annotations

import numpy as np

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.job import JobCase, ProblemSpec
from pytest_nvfp4.problem import parse_shape

CASE = JobCase(problem=ProblemSpec.of(parse_shape("40x128x256,0x128x256,3x128x512")), family="gpumode")


def test_each_visit_changes_one_row_of_each_group() -> None:
    before = rotation.inputs_at(CASE, index=1, visit=3, key=5)
    after = rotation.inputs_at(CASE, index=1, visit=4, key=5)
    for old, new in zip(before.groups, after.groups, strict=True):
        assert int((old.a != new.a).any(axis=1).sum()) <= 1
        assert np.array_equal(old.b, new.b)
        assert old.digest() == new.digest() or (old.a != new.a).any()


def test_a_change_changes_the_result() -> None:
    """Rolled rows could in principle agree; over many visits nearly all of them must not."""
    base = rotation.set_inputs(CASE, 0)
    exact = base.groups[0].exact().rounded()
    changed = 0
    for visit in range(20):
        (change, *_) = rotation.changes(base, index=0, visit=visit, key=5)
        a = base.groups[0].a.copy()
        a[change.row] = np.frombuffer(change.data, dtype=np.uint8)
        import dataclasses

        changed += not np.array_equal(dataclasses.replace(base.groups[0], a=a).exact().rounded(), exact)
    assert changed >= 19


def test_sets_differ_and_are_repeatable() -> None:
    digests = {rotation.set_inputs(CASE, index).digest() for index in range(4)}
    assert len(digests) == 4
    assert (
        rotation.inputs_at(CASE, index=2, visit=5, key=5).digest()
        == rotation.inputs_at(CASE, index=2, visit=5, key=5).digest()
    )


def test_groups_without_rows_stay_as_they_are() -> None:
    changes = rotation.changes(rotation.set_inputs(CASE, 0), index=0, visit=0, key=5)
    assert 1 not in [change.group for change in changes]


def test_who_does_not_know_the_key_does_not_know_the_row() -> None:
    base = rotation.set_inputs(CASE, 0)
    seen = {
        (change.row, change.data)
        for key in range(20)
        for change in rotation.changes(base, index=0, visit=0, key=key)[:1]
    }
    assert len(seen) >= 18
    assert rotation.changes(base, index=0, visit=0, key=3) == rotation.changes(base, index=0, visit=0, key=3)
