"""Counters of earlier runs, from pytest-benchmark's files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_nvfp4.bench.mark import MODELLED_TIMER
from pytest_nvfp4.plugin.recorded_runs import recorded_runs


def runs(folder: Path, uri: str = "file://./kept") -> dict[str, Any]:
    config: Any = SimpleNamespace(
        option=SimpleNamespace(benchmark_storage=uri), invocation_params=SimpleNamespace(dir=folder)
    )
    return recorded_runs(config)


def stored(folder: Path, number: int, content: object) -> None:
    file = folder / "kept" / "counted" / f"{number:04d}_x.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(file, (number, number))


def test_points_of_each_item_the_oldest_first(tmp_path: Path) -> None:
    def costs(value: object) -> dict[str, object]:
        return {"k.py::cost[p]": {"is_a_time": False, "counters": {"ctas": value, "kernel": "fill"}}}

    modelled = {"fullname": "k.py::model[p]", "options": {"timer": MODELLED_TIMER}, "stats": {"min": 2e-6}}
    measured = {"fullname": "k.py::benchmark[p]", "options": {"timer": "x"}, "stats": {"min": 1.0}}
    first = {"nvfp4_costs": costs(3), "commit_info": {"id": "0123456789abcdef"}, "benchmarks": []}
    second = {"nvfp4_costs": costs(4), "datetime": "2026-01-02T03:04:05.678", "benchmarks": [measured, modelled, 7]}
    stored(tmp_path, 2, second)
    stored(tmp_path, 1, first)
    for number, damaged in enumerate(("{", "[]", {"nvfp4_costs": 1, "benchmarks": {}}, {"nvfp4_costs": {"a": 1}}), 3):
        stored(tmp_path, number, damaged)
    assert runs(tmp_path) == {
        "k.py::cost[p]": [("012345678", {"ctas": 3.0}), ("2026-01-02T03:04", {"ctas": 4.0})],
        "k.py::model[p]": [("2026-01-02T03:04", {"modelled_us": 2.0})],
    }


def test_another_storage_has_none(tmp_path: Path) -> None:
    assert runs(tmp_path) == {}
    stored(tmp_path, 1, {"nvfp4_costs": {"k": {"counters": {"ctas": 1}}}})
    assert runs(tmp_path)
    assert runs(tmp_path, "elasticsearch+http://host") == {}
