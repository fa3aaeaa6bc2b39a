"""Print a ``.ncu-rep`` as JSON: ``python -m pytest_nvfp4.profile.readers.rep_worker REPORT [FOLDER OF ncu_report]``.

NVIDIA's library parses a file of anybody with native code, so it runs behind a wall. The result is one JSON object a
launch and line, written to the descriptor that ``NVFP4_RESULT_FD`` names.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.wall import enter_from_environment

_MOST_LAUNCHES: Final = 10_000
_MOST_LINES: Final = 2_000
_SAMPLES: Final = "smsp__pcsamp_warps_issue_stalled_"
_KINDS: Final = {"OPTIMIZATION": "optimization", "WARNING": "warning", "ERROR": "error"}


def main() -> None:
    """Enter the wall, and write every launch of the report."""
    result = int(taken(RESULT_VARIABLE))
    os.set_inheritable(result, False)
    enter_from_environment(keep=(result,))
    sys.path[:0] = sys.argv[2:]
    library: Any = importlib.import_module("ncu_report")
    report: Any = library.load_report(sys.argv[1])
    with open(result, "w", encoding="utf-8", errors="replace") as pipe:
        made = 0
        for index in range(report.num_ranges()):
            for action in report.range_by_idx(index):
                if made >= _MOST_LAUNCHES:
                    return
                made += 1
                pipe.write(json.dumps(_launch(library, action)) + "\n")


def _launch(library: Any, action: Any) -> dict[str, Any]:
    metrics: dict[str, list[Any]] = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = metric.value() if metric is not None and metric.has_value() else None
        if isinstance(value, float) and not math.isfinite(value):
            value = "nan"
        metrics[name] = [value, "" if metric is None else metric.unit() or ""]
    return {
        "name": action.name(),
        "metrics": metrics,
        "rules": list(_rules(library, action)),
        "markers": list(_markers(library, action)),
        "lines": _lines(action),
    }


def _rules(library: Any, action: Any) -> Iterator[dict[str, Any]]:
    for rule in action.rule_results_as_dicts():
        message, speedup = rule.get("rule_message") or {}, rule.get("speedup_estimation") or {}
        estimate = speedup.get("speedup")
        yield {
            "name": rule.get("rule_identifier") or rule.get("name") or "",
            "section": rule.get("section_identifier") or "",
            "kind": _kind(library, message.get("type")),
            "text": ": ".join(part for part in (message.get("title"), message.get("message")) if part),
            "speedup_pct": estimate if isinstance(estimate, float) and math.isfinite(estimate) else None,
            "scope": _named(library, "SpeedupType", speedup.get("type")).lower().replace("unknown", ""),
        }


def _markers(library: Any, action: Any) -> Iterator[dict[str, Any]]:
    for marker in action.source_markers():
        place = marker.get("source_location") or {}
        if place.get("file_name") and marker.get("message"):
            yield {
                "file": place["file_name"],
                "line": int(place.get("line") or 0),
                "text": marker["message"],
                "kind": _kind(library, marker.get("message_type")),
            }


def _lines(action: Any) -> list[dict[str, Any]]:
    """Return the samples of program counters by source line, most first."""
    counts: dict[tuple[str, int], Counter[str]] = {}
    places: dict[int, tuple[str, int] | None] = {}
    for name in action.metric_names():
        if not name.startswith(_SAMPLES) or name.endswith("_not_issued"):
            continue
        metric = action.metric_by_name(name)
        if metric is None or not metric.has_correlation_ids():
            continue
        addresses = metric.correlation_ids()
        for at in range(metric.num_instances()):
            address, value = addresses.as_uint64(at), metric.value(at)
            if address not in places:
                info = action.source_info(address)
                places[address] = (info.file_name(), int(info.line())) if info is not None else None
            place = places[address]
            if place is not None and isinstance(value, int | float) and math.isfinite(value) and value > 0:
                counts.setdefault(place, Counter())[name.removeprefix(_SAMPLES)] += int(value)
    ordered = sorted(counts.items(), key=lambda item: -item[1].total())[:_MOST_LINES]
    return [
        {"file": file, "line": line, "samples": count.total(), "stalls": dict(count.most_common())}
        for (file, line), count in ordered
    ]


def _kind(library: Any, value: Any) -> str:
    return _KINDS.get(_named(library, "MsgType", value), "message")


def _named(library: Any, enumeration: str, value: Any) -> str:
    try:
        return str(getattr(library, enumeration)(value).name)
    except (AttributeError, ValueError, TypeError):
        return ""


if __name__ == "__main__":
    main()
