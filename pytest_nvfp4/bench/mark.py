"""The marker that lets a test's ``benchmark`` fixture hold device times. It loads pytest and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

EXTRA_KEY = "nvfp4"
"""Key of what is kept beside the rounds, in pytest-benchmark's ``extra_info``."""

TIMER_NAME = "nvfp4_device_time"
"""What pytest-benchmark stores as the timer of a replayed benchmark."""


class ReplayClock:
    """A timer that stands still until it is set; in seconds, as pytest-benchmark's are."""

    def __init__(self) -> None:
        self.now = 0.0
        self.__name__ = TIMER_NAME  # what pytest-benchmark stores as the timer of a benchmark

    def __call__(self) -> float:
        """The time it was set to."""
        return self.now


def replay_mark() -> pytest.MarkDecorator:
    """The marker that gives a test's ``benchmark`` fixture a clock of its own."""
    return pytest.mark.benchmark(timer=ReplayClock())


def mark_item(item: pytest.Item) -> None:
    """Mark a test for replay; other settings of a ``benchmark`` marker it already has are kept.

    Call it while items are collected: the fixture reads the marker when it is made.
    """
    kept: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("benchmark"))):
        kept.update(marker.kwargs)
    item.add_marker(pytest.mark.benchmark(**{**kept, "timer": ReplayClock()}), append=False)
