"""Programs that attack the caches while they are compiled: nothing that they do is taken for the harness's own work."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
from pytest_nvfp4.device.result_cache import SimulationCache, VerdictCache
from pytest_nvfp4.problem import GPUMODE, parse_shape
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import TraceRequest
from pytest_nvfp4.toolchain.trace import Trace
from pytest_nvfp4.toolchain.tracer import Tracer

from .running import SECRET, SHARED, Bait, Program, left_processes, programs

pytest.importorskip("cutlass")

_CASE = JobCase(problem=ProblemSpec.of(parse_shape("3x128x64")), family="pow2_exact")
_VICTIMS = ("1" * 32, "2" * 32)
_LATE_S = 3
"""Seconds for a process that was left behind to do what it was left for."""
_FAST = {"caches/reads_the_key"}


class Cache:
    """A cache with the traces and a verdict of other kernels."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.traces = TraceCache(root)
        self._folder = folder
        for number, key in enumerate(_VICTIMS):
            made = folder / f"made-{number}"
            made.mkdir(parents=True)
            self.traces.store(key, _trace(number), made)
        self.known = {path: path.read_bytes() for path in self.traces.sealed.folder.rglob("*") if path.is_file()}

    def is_whole(self) -> bool:
        """Return whether every file is as it was, and the victims' traces are read."""
        found = [self.traces.load(key, session=None) for key in _VICTIMS]
        same = all(path.is_file() and path.read_bytes() == data for path, data in self.known.items())
        return same and None not in found and not self.traces.sealed.refused


def _trace(number: int) -> Trace:
    return Trace(
        kernel=f"/other{number}.py", entry=None, problem="gpumode-0", problem_sizes=tuple(GPUMODE[0].sizes),
        arch="sm_100a", options=(), dsl_version="4.8.1", python="3.12", ok=True, values=(), launches=(),
        launch_count=number, code=(), artifacts=(), findings=(), dependencies={}, stages={}, seconds=1.0, session=None,
        bundle=None,
    )  # fmt: skip


@pytest.fixture
def cache(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cache, Bait]]:
    """A cache and its user's files."""
    bait = Bait(user, 0, f"nvfp4-mark-{uuid.uuid4().hex}")
    monkeypatch.setenv("NVFP4_CACHE_DIR", str(bait.folder / "cache"))
    files = bait.lay()
    yield Cache(bait.folder / "cache", tmp_path / "stored"), bait
    assert {path: path.read_bytes() if path.is_file() else None for path in files} == files


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.name, marks=[] if program.name in _FAST else [pytest.mark.slow])
        for program in programs("caches")
    ],
)
def test_what_a_compile_writes_is_no_entry(program: Program, cache: tuple[Cache, Bait]) -> None:
    stored, bait = cache
    sources = bait.folder / "repository/kernels"
    shutil.copytree(SHARED, sources, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = Path(shutil.copy(program.path, sources))
    (sources / "bait.py").write_text(bait.source(os.getpid()), encoding="utf-8")
    before = {path.name for path in sources.iterdir()}
    tracer = Tracer(root=bait.folder / "repository", cache=stored.traces)
    trace = tracer.trace(TraceRequest(kernel, parse_shape("3x128x64")))
    said = "\n".join(map(str, trace.findings))
    if "late" in program.name:
        time.sleep(_LATE_S)
    assert not left_processes(bait.mark)
    assert stored.is_whole()
    assert {path.name for path in sources.iterdir()} == before, "it left files in the user's repository"
    assert SECRET not in trace.model_dump_json()
    for artifact in trace.artifacts:
        assert SECRET.encode() not in (Path(trace.folder or "") / artifact.name).read_bytes()
    spec, _ = KernelSpec.from_files(kernel, others=sources.glob("*.py"), arch="sm_100a")
    assert not VerdictCache(stored.traces.sealed).has(spec, _CASE)
    assert SimulationCache(stored.traces.sealed).get(spec, _CASE) is None
    assert trace.ok or said, "a compile that is refused has a finding"
    assert "BREACH" not in said


def test_all_programs_compile_or_say_why() -> None:
    assert len(programs("caches")) >= 8
