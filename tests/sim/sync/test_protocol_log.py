"""``sim.sync.protocol_log``: it takes every event that the race detector takes, with the same arguments.

``ProtocolLog`` ignores the events that it does not define, so a changed argument shows at run time only.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pytest_nvfp4.sim.races.detector import Detector
from pytest_nvfp4.sim.sync.protocol_log import ProtocolLog

HOOKS = [
    name
    for name, value in vars(ProtocolLog).items()
    if inspect.isfunction(value) and not name.startswith("_") and hasattr(Detector, name)
]


def calls(hook: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return the arguments by which a hook is called: name and kind."""
    return [(each.name, each.kind) for each in inspect.signature(hook).parameters.values()]


@pytest.mark.parametrize("name", HOOKS)
def test_it_takes_the_arguments_of_the_race_detectors_event(name: str) -> None:
    assert calls(getattr(ProtocolLog, name)) == calls(getattr(Detector, name))


def test_the_events_are_found() -> None:
    """A control: the comparison is not empty."""
    assert {"launched", "shared_accessed", "tensor_issued", "copy_in", "bulk_wait"} <= set(HOOKS)
