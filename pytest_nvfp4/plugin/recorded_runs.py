"""Counters and modelled times of earlier runs, from what pytest-benchmark has stored (``--benchmark-autosave``).

They are drawn, and decide nothing: a file that cannot be read is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_nvfp4.bench.mark import MODELLED_TIMER
from pytest_nvfp4.plugin.checks.counted_costs import COSTS_KEY

if TYPE_CHECKING:
    from pytest_nvfp4.report.trend import Points

_FILE = "file://"
_LAST = 30
"""Newest files that are read."""
_MOST_BYTES = 64 << 20


def recorded_runs(config: pytest.Config) -> dict[str, Points]:
    """Return the points of each item, by node id, the oldest first."""
    uri = getattr(config.option, "benchmark_storage", None)
    if not isinstance(uri, str) or ("://" in uri and not uri.startswith(_FILE)):
        return {}
    folder = Path(config.invocation_params.dir, uri.removeprefix(_FILE))
    files = sorted(folder.glob("*/[0-9]*.json"), key=lambda file: (file.stat().st_mtime, file.name))[-_LAST:]
    found: dict[str, list[tuple[str, Mapping[str, float]]]] = {}
    for data in filter(None, map(_read, files)):
        label = _label(data)
        for nodeid, numbers in _numbers(data):
            found.setdefault(nodeid, []).append((label, numbers))
    return dict(found)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(file.read_bytes()) if file.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _label(data: Mapping[str, Any]) -> str:
    """Return the commit of a run, shortened, or its time."""
    commit = data.get("commit_info")
    known = commit.get("id") if isinstance(commit, dict) else None
    return str(known)[:9] if known else str(data.get("datetime", ""))[:16]


def _numbers(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield node ids with their counters, or with their modelled time."""
    from pytest_nvfp4.bench.modelled_facts import TIME

    costs, benchmarks = data.get(COSTS_KEY), data.get("benchmarks")
    for nodeid, entry in costs.items() if isinstance(costs, dict) else ():
        counters = entry.get("counters") if isinstance(entry, dict) else None
        if isinstance(counters, dict):
            yield nodeid, {name: value for name, value in counters.items() if _is_number(value)}
    for entry in benchmarks if isinstance(benchmarks, list) else ():
        try:
            if entry["options"]["timer"] == MODELLED_TIMER:
                yield str(entry["fullname"]), {TIME: float(entry["stats"]["min"]) * 1e6}
        except (LookupError, TypeError, ValueError, OverflowError):
            continue


def _is_number(value: object) -> bool:
    """Return whether a value is a number that can be drawn."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63)
