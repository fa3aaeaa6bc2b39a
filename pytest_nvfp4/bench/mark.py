"""Marker that lets a test's ``benchmark`` fixture hold device times. This module imports pytest and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

EXTRA_KEY = "nvfp4"
"""Key of the provenance in pytest-benchmark's ``extra_info``."""

TIMER_NAME = "nvfp4_device_time"
"""Name that pytest-benchmark stores as the timer of a replayed benchmark."""
MODELLED_TIMER = "nvfp4_modelled_time"
"""Name that pytest-benchmark stores as the timer of a modelled time."""


class ReplayClock:
    """A timer whose time is set, in seconds as those of pytest-benchmark."""

    def __init__(self, name: str = TIMER_NAME) -> None:
        self.now = 0.0
        self.__name__ = name  # pytest-benchmark stores the timer by this attribute

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


def replay_mark() -> pytest.MarkDecorator:
    """Return the marker that gives a test's ``benchmark`` fixture a replay clock."""
    return pytest.mark.benchmark(timer=ReplayClock())


def mark_item(item: pytest.Item, *, timer: str = TIMER_NAME) -> None:
    """Mark a test for replay; other settings of its ``benchmark`` markers still apply.

    It must be called before the fixture is made, which reads the marker then.
    """
    settings: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("benchmark"))):
        settings.update(marker.kwargs)
    item.add_marker(pytest.mark.benchmark(**{**settings, "timer": ReplayClock(timer)}), append=False)
