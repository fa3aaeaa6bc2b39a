"""A kernel with quack's tuner runs once, in the first configuration that is left."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.host import quack_tuning

AUTOTUNER = """
warmed, stored = [], []


def _gpu_warmup(duration_ms=200):
    warmed.append(duration_ms)


def _pick_l2_rotate_count(args, kwargs):
    return 400


class Autotuner:
    def __init__(self, fn, configs):
        self.fn, self.configs, self.copies = fn, configs, 0

    def _bench(self, *args, config):
        for _ in range(self.copies):
            self.fn(*args, config=config)
        return [1.0 / len(config)] * 3

    def check_disk_cache(self, key, configs, bench_fn):
        bench_fn()
        stored.append(key)

    def __call__(self, *args):
        times = {}

        def benchmark():
            _gpu_warmup()
            self.copies = _pick_l2_rotate_count(args, {})
            for config in self.configs[1:]:
                times[config] = self._bench(*args, config=config)

        self.check_disk_cache("key", self.configs, benchmark)
        return self.fn(*args, config=min(times, key=times.get))
"""
"""What quack's module has, whose tuner leaves out the first configuration and would prefer the last one."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "__init__.py").touch()
    (tmp_path / "quack" / "autotuner.py").write_text(AUTOTUNER)
    for name in [name for name in sys.modules if name.partition(".")[0] == "quack"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield []
    for name in ("quack.autotuner", "quack"):
        sys.modules.pop(name, None)


def tuned(calls: list[str]) -> Any:
    """Call a tuned kernel, and return its module."""
    from quack import autotuner

    autotuner.Autotuner(lambda *, config: calls.append(config), ["a", "bb", "ccc"])()
    return autotuner


def test_nothing_is_measured(calls: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        quack_tuning.install(stack)
        autotuner = tuned(calls)
        assert calls == ["bb"]
        assert not autotuner.warmed
        assert not autotuner.stored
    tuned(calls)
    assert len(calls) == 1 + 2 * 400 + 1, "the measurements are there again"
    assert calls[-1] == "ccc"
