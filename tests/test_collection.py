"""The frequency of garbage collection."""

from __future__ import annotations

import gc

import pytest

from pytest_nvfp4.collection import rare_collection


def test_thresholds_come_back() -> None:
    before = gc.get_threshold()

    def fail() -> None:
        with rare_collection():
            assert gc.get_threshold()[0] > before[0]
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_collector_that_is_off_is_left_alone() -> None:
    before = gc.get_threshold()
    gc.disable()
    try:
        with rare_collection():
            assert gc.get_threshold() == before
    finally:
        gc.enable()
