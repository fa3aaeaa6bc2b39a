from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.problem import GPUMODE
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import Entry, TraceRequest
from pytest_nvfp4.toolchain.trace import Trace
from pytest_nvfp4.toolchain.tracer import Limits, Tracer

TraceIt = Callable[..., Trace]


@pytest.fixture(scope="session")
def trace_cache(tmp_path_factory: pytest.TempPathFactory) -> TraceCache:
    return TraceCache(tmp_path_factory.mktemp("traces"))


@pytest.fixture
def trace_it(tmp_path: Path, trace_cache: TraceCache) -> TraceIt:
    """``trace_it(source, entry=...)`` writes a kernel file and traces it; the entry is its own unless it says else."""

    def trace(
        source: str,
        *,
        entry: str | Entry | None = "build",
        name: str = "kernel.py",
        limits: Limits | None = None,
        **changes: object,
    ) -> Trace:
        path = tmp_path / name
        path.write_text(source)
        request = TraceRequest(path, GPUMODE[0], Entry(path, entry) if isinstance(entry, str) else entry)
        tracer = Tracer(root=tmp_path, cache=trace_cache, limits=limits or Limits(deadline_s=900))
        return tracer.trace(replace(request, **changes))  # type: ignore[arg-type]

    return trace
