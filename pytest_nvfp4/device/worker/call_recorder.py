"""What a call did in the simulator, told to the parent: launches with their counters, and who wrote the outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.session import LaunchRecord, Session
from pytest_nvfp4.sim.run.trace import Trace

__all__ = ["CallRecorder"]

Output = tuple[int, Region, int]
"""A group's index, its C, and the number of C's columns."""

_TMEM_COLUMNS = 512
_PRINTED = 100_000


@dataclass(frozen=True, slots=True)
class _Begun:
    """What is known of a launch when it begins; ``bases`` is each output's first owner number of the launch."""

    grid: Grid
    bases: tuple[int, ...]


class CallRecorder:
    """Counts the calls of a session.

    Args:
        session: The session; its ``prepare`` is taken.
        folder: Where timelines are written.
        simulating: What is wanted.
    """

    def __init__(self, session: Session, folder: Path, simulating: Simulating) -> None:
        self._session = session
        self._folder = folder
        self._simulating = simulating
        self._outputs: Sequence[Output] = ()
        self._begun: list[_Begun] = []
        self._first = 0
        self._trace: Trace | None = None
        self._schedule = session.machine.asynchronous
        session.prepare = self._prepare

    def begin(self, outputs: Sequence[Output]) -> None:
        """A call begins."""
        self._outputs = outputs
        self._begun = []
        self._first = len(self._session.launches)
        if self._simulating.trace_ctas:
            self._session.machine.asynchronous = self._schedule
            self._trace = Trace(ctas=self._simulating.trace_ctas)
            self._trace.attach(self._session.machine)

    def _prepare(self, grid: Grid) -> None:
        grid.counting = True
        self._begun.append(_Begun(grid, tuple(region.launch_base for _, region, _ in self._outputs)))

    def told(self, call: int, case: int, say: Callable[[Finding], Finding]) -> dict[str, Any]:
        """The call as a ``SimulatedCall``."""
        model = self._session.machine.model
        records = self._session.launches[self._first :]
        writers = self._writers()
        return {
            "call": call,
            "case": case,
            "model": model.name,
            "sms": model.sm_count,
            "launches": [
                self._launch(record, begun.grid, wrote, say)
                for record, begun, wrote in zip(records, self._begun, writers, strict=False)
            ],
            "outputs": [_writes(*output) for output in self._outputs],
            "trace": self._write_trace(call),
        }

    def _launch(
        self, record: LaunchRecord, grid: Grid, writers: int, say: Callable[[Finding], Finding]
    ) -> dict[str, Any]:
        return {
            "kernel": record.launch.kernel,
            "grid": record.launch.grid,
            "block": record.launch.block,
            "cluster": record.launch.cluster,
            "shared_bytes": grid.shared_bytes,
            "ctas_per_sm": _ctas_per_sm(grid),
            "counters": {name: int(count) for name, count in sorted(record.counters.items())},
            "writers": writers or None,
            "printed": record.output[-_PRINTED:],
            "findings": [say(finding).to_dict() for finding in record.findings],
        }

    def _writers(self) -> list[int]:
        """By launch, the CTAs whose value an output element has in the end."""
        found: list[set[int]] = [set() for _ in self._begun]
        for place, (_, region, _) in enumerate(self._outputs):
            if region.owner is None or not self._begun:
                continue
            owners = np.unique(region.owner)
            owners = owners[owners >= 0]
            bases = np.array([begun.bases[place] for begun in self._begun])
            launches = np.searchsorted(bases, owners, side="right") - 1
            for launch, owner in zip(launches.tolist(), owners.tolist(), strict=True):
                found[launch].add(owner - int(bases[launch]))
        return [len(ctas) for ctas in found]

    def _write_trace(self, call: int) -> dict[str, Any] | None:
        if self._trace is None:
            return None
        data = json.dumps(self._trace.to_json(), separators=(",", ":")).encode()
        name = f"trace-{call}.json"
        (self._folder / name).write_bytes(data)
        return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "file": name}


def _ctas_per_sm(grid: Grid) -> int:
    """CTAs that an SM holds, by shared memory, threads, and the TMEM columns that a CTA allocates."""
    most = grid.capacity // grid.machine.model.sm_count
    ctas = grid.counters["ctas"]
    columns = -(-grid.counters["tmem.columns"] // ctas) if ctas else 0
    return max(1, min(most, _TMEM_COLUMNS // columns)) if columns else most


def _writes(group: int, region: Region, columns: int) -> dict[str, int]:
    """An ``OutputWrites``."""
    assert region.owner is not None
    assert region.coverage is not None
    owner = region.owner.reshape(-1, columns)
    corner = owner >= 0
    corner[1:] &= owner[1:] != owner[:-1]
    corner[:, 1:] &= owner[:, 1:] != owner[:, :-1]
    counts = region.coverage.counts
    return {
        "group": group,
        "elements": int(owner.size),
        "never": int(np.count_nonzero(owner < 0)),
        "by_two": sum(count for (before, now, _), count in counts.items() if before != now),
        "twice": sum(count for (before, now, _), count in counts.items() if before == now),
        "ctas": int(np.unique(owner[owner >= 0]).size),
        "tiles": int(np.count_nonzero(corner)),
    }
