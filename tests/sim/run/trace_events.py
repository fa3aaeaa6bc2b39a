"""Checks of trace events."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def check_trace(data: dict[str, Any]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Assert that the events are well formed; return them by process and thread name."""
    assert json.loads(json.dumps(data)) == data
    names: dict[tuple[int, int], str] = {}
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    depth: dict[tuple[int, int], int] = defaultdict(int)
    under_way: dict[tuple[str, int], int] = {}
    last = 0
    for event in data["traceEvents"]:
        assert {"ph", "pid", "name"} <= set(event) or event["ph"] == "E"
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names[event["pid"], event["tid"]] = event["args"]["name"]
            continue
        assert event["ts"] >= last, "the steps are in order"
        last = event["ts"]
        track = (event["pid"], event["tid"])
        found[event["pid"], names[track]].append(event)
        if event["ph"] == "B":
            depth[track] += 1
            assert depth[track] == 1, "slices of a track do not overlap"
        elif event["ph"] == "E":
            depth[track] -= 1
            assert depth[track] == 0
        elif event["ph"] == "b":
            under_way[event["cat"], event["id"]] = event["ts"]
        else:
            assert event["ph"] == "e"
            assert event["ts"] > under_way.pop((event["cat"], event["id"])), "work has a width"
    assert not any(depth.values()), "what begins ends"
    assert not under_way
    return found
