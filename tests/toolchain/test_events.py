"""A worker's answer is whole, or refused: the last event says what came before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_nvfp4.toolchain.events import Events

VALUE = ["k.sA", "!cute.ptr<f16, gmem>", "/k.py", 1]


def said(*events: dict[str, Any], sent: dict[str, int] | None = None) -> list[str]:
    """The messages of the findings in an answer of these events and an end."""
    end = {"event": "end", "ok": True, "sent": {event["event"]: 1 for event in events} if sent is None else sent}
    data = b"".join(json.dumps(event).encode() + b"\n" for event in (*events, end))
    return [finding.message for finding in Events.parse(data).findings]


def values(*, captured: int = 2) -> dict[str, Any]:
    return {"event": "values", "values": [VALUE, VALUE], "captured": captured, "launches": 0}


def test_a_whole_answer_is_read() -> None:
    assert said(values(), {"event": "stage", "name": "done", "seconds": 1.0}) == []


@pytest.mark.parametrize(
    ("events", "sent", "message"),
    [
        ((), {"values": 1}, "1 of kind 'values' and not 0"),
        ((values(), values()), {"values": 1}, "1 of kind 'values' and not 2"),
        ((values(),), {"values": 1, "launch": 3}, "3 of kind 'launch' and not 0"),
        ((values(captured=5),), {"values": 1}, "follows 2 values, and 5 were recorded"),
    ],
    ids=["dropped", "added", "launches dropped", "layouts dropped"],
)
def test_an_answer_with_events_missing_or_added_is_refused(
    events: tuple[dict[str, Any], ...], sent: dict[str, int], message: str
) -> None:
    (found,) = said(*events, sent=sent)
    assert message in found
