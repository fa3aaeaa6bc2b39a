"""A worker's answer is whole, or refused: the last event says what came before it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from pytest_nvfp4.toolchain.events import Events

VALUE = ["k.sA", "!cute.ptr<f16, gmem>", "/k.py", 1]


def said(*events: dict[str, Any], lost: int = 0) -> list[str]:
    """The messages of the findings in an answer of these events and an end, without the first ``lost`` events."""
    lines = [json.dumps(event).encode() + b"\n" for event in events]
    end = {"event": "end", "ok": True, "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    data = b"".join(lines[lost:]) + json.dumps(end).encode() + b"\n"
    return [finding.message for finding in Events.parse(data).findings]


def values(*, captured: int = 2) -> dict[str, Any]:
    return {"event": "values", "values": [VALUE, VALUE], "captured": captured, "launches": 0}


def test_a_whole_answer_is_read() -> None:
    assert said(values(), {"event": "stage", "name": "done", "seconds": 1.0}) == []


@pytest.mark.parametrize(
    ("events", "lost", "message"),
    [
        ((values(), values()), 1, "does not have the hash"),
        ((values(captured=5),), 0, "follows 2 values, and 5 were recorded"),
    ],
    ids=["dropped", "layouts dropped"],
)
def test_an_answer_with_events_missing_is_refused(events: tuple[dict[str, Any], ...], lost: int, message: str) -> None:
    (found,) = said(*events, lost=lost)
    assert message in found
