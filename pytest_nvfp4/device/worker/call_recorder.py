"""Record the calls of a simulation: launches with their counters, and the writers of the outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.worker.launch_detail import corners, detail_fields, written_tiles
from pytest_nvfp4.device.worker.sim_findings import worker_finding
from pytest_nvfp4.sim.memory.coverage import FIRST_REQUEST, NOBODY
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.session import LaunchRecord, Session
from pytest_nvfp4.sim.run.source import place_of, quoted
from pytest_nvfp4.sim.run.trace import Trace
from pytest_nvfp4.sim.sync.barrier_log import BarrierLog
from pytest_nvfp4.sim.sync.protocol_log import ProtocolLog
from pytest_nvfp4.sim.sync.rings import Ring, rings


class WatchedOutput(NamedTuple):
    """The C of a group whose writes are recorded: index of the group, memory region, number of columns."""

    group: int
    region: Region
    columns: int


_PRINTED_CHARACTERS = 100_000
_MOST_TILES = 8_000
"""Rectangles of all outputs of a call that are listed."""


@dataclass(frozen=True, slots=True)
class _StartedLaunch:
    """A launch at its start; ``bases`` holds, for each watched region, the owner number of the launch's first CTA."""

    grid: Grid
    bases: dict[Region, int]

    def base(self, region: Region) -> int:
        """Return that number; one below every owner if the region was allocated later."""
        return self.bases.get(region, NOBODY)


class CallRecorder:
    """Records the calls of a session, whose ``prepare`` hook it uses; timelines are written to ``folder``."""

    def __init__(self, session: Session, folder: Path, simulating: Simulating) -> None:
        self._session = session
        self._folder = folder
        self._sources = str(folder / "source")
        self._simulating = simulating
        self._started: list[_StartedLaunch] = []
        self._first = 0
        self._trace: Trace | None = None
        self._schedule = session.machine.asynchronous
        session.prepare = self._prepare

    def begin(self) -> None:
        """Begin the record of a call."""
        self._started = []
        self._first = len(self._session.launches)
        if self._simulating.trace_ctas:
            self._session.machine.asynchronous = self._schedule
            self._trace = Trace(ctas=self._simulating.trace_ctas)
            self._trace.attach(self._session.machine)

    def _prepare(self, grid: Grid) -> None:
        grid.counting = not self._simulating.sampled
        watched = (region for region in self._session.machine.memory if region.owner is not None)
        self._started.append(_StartedLaunch(grid, {region: region.launch_base for region in watched}))

    def record(
        self,
        call: int,
        case: int,
        outputs: Sequence[WatchedOutput],
        *,
        unrecorded: int = 0,
        operands: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the fields of a ``SimulatedCall``.

        Args:
            outputs: The outputs whose writers are recorded.
            unrecorded: Number of the others.
            operands: What the MMAs read.
        """
        model = self._session.machine.model
        records = self._session.launches[self._first :]
        writers = self._writers(outputs)
        return {
            "call": call,
            "case": case,
            "model": model.name,
            "sms": model.sm_count,
            "launches": [
                self._launch(record, started.grid, wrote)
                for record, started, wrote in zip(records, self._started, writers, strict=False)
            ],
            "outputs": [self._output(output, len(outputs)) for output in outputs],
            "unrecorded": unrecorded,
            "trace": self._write_trace(call),
            "protocol": self._write_protocol(call),
            "recording": self._write_recording(call),
            "operands": None if operands is None else self._write(f"operands-{call}.json", operands),
        }

    def _launch(self, record: LaunchRecord, grid: Grid, writers: int) -> dict[str, Any]:
        return {
            **launch_facts(record, grid),
            "writers": writers or None,
            "printed": record.output[-_PRINTED_CHARACTERS:],
            "findings": [worker_finding(finding).to_dict() for finding in record.findings],
            "rings": [] if record.barriers is None else _rings(record.barriers),
            "detail": None if grid.detail is None else detail_fields(grid.detail, grid, below=self._sources),
        }

    def _output(self, output: WatchedOutput, count: int) -> dict[str, Any]:
        """Return the fields of an ``OutputWrites``, one of ``count``."""
        assert output.region.owner is not None
        fields: dict[str, Any] = _writes(*output)
        if self._simulating.detailed:
            owner = output.region.owner.reshape(-1, output.columns)
            bases = [started.base(output.region) for started in self._started]
            tiles = written_tiles(owner, bases, most=_MOST_TILES // count)
            fields |= {"written": tiles, "size": owner.shape}
        return fields

    def _writers(self, outputs: Sequence[WatchedOutput]) -> list[int]:
        """Return, for each launch, the number of CTAs that wrote the final value of an output element.

        An owner number counts CTAs over all launches, so a sorted search among the launches' first numbers finds the
        launch.
        """
        ctas_of: list[set[int]] = [set() for _ in self._started]
        for _, region, _ in outputs:
            if region.owner is None or not self._started:
                continue
            owners = np.unique(region.owner)
            owners = owners[owners >= 0]
            bases = np.array([started.base(region) for started in self._started])
            launches = np.searchsorted(bases, owners, side="right") - 1
            for launch, owner in zip(launches.tolist(), owners.tolist(), strict=True):
                ctas_of[launch].add(owner - int(bases[launch]))
        return [len(ctas) for ctas in ctas_of]

    def _write_trace(self, call: int) -> dict[str, Any] | None:
        if self._trace is None:
            return None
        return self._write(f"trace-{call}.json", self._trace.to_json())

    def _write_protocol(self, call: int) -> dict[str, Any] | None:
        monitor: object = self._session.machine.monitor
        if not isinstance(monitor, ProtocolLog):
            return None
        content = {"stopped": bool(self._session.faults), "launches": monitor.recordings()}
        return self._write(f"protocol-{call}.json", content)

    def _write_recording(self, call: int) -> dict[str, Any] | None:
        if not self._simulating.recording:
            return None
        from pytest_nvfp4.model import storage
        from pytest_nvfp4.model.recorder import Recorder

        monitor = self._session.machine.monitor
        assert isinstance(monitor, Recorder)
        return self._write_bytes(f"recording-{call}.npz", storage.dumps(monitor.recordings(below=self._sources)))

    def _write(self, name: str, content: Any) -> dict[str, Any]:
        """Write JSON to a file and return the fields of its ``Blob``."""
        return self._write_bytes(name, json.dumps(content, separators=(",", ":")).encode())

    def _write_bytes(self, name: str, data: bytes) -> dict[str, Any]:
        (self._folder / name).write_bytes(data)
        return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "file": name}


def _rings(log: BarrierLog) -> list[dict[str, Any]]:
    """Return the fields of a ``SimulatedRing`` for each ring; of one in several CTAs, where it was refilled most."""
    most: dict[object, Ring] = {}
    for ring in rings(log):
        key = ring.made, ring.barriers
        if key not in most or (ring.refills, ring.iterations) > (most[key].refills, most[key].iterations):
            most[key] = ring
    return [
        {
            "made": "" if ring.made is None else quoted(ring.made),
            "waiters": sorted({place_of(log.grid.kernel.instructions[waiter.at]) for waiter in ring.waiters}),
            "cta": ring.cta,
            "barriers": ring.barriers,
            "count": ring.count,
            "bytes": ring.bytes,
            "phases": ring.phases,
        }
        for ring in most.values()
    ]


def _writes(group: int, region: Region, columns: int) -> dict[str, int]:
    """Return the fields of an ``OutputWrites``."""
    assert region.owner is not None
    assert region.coverage is not None
    owner = region.owner.reshape(-1, columns)
    counts = region.coverage.counts
    return {
        "group": group,
        "elements": int(owner.size),
        "never": int(np.count_nonzero(owner == NOBODY)),
        "host": int(np.count_nonzero(owner <= FIRST_REQUEST)),
        "by_two": sum(count for (before, now, _), count in counts.items() if before != now),
        "twice": sum(count for (before, now, _), count in counts.items() if before == now),
        "ctas": int(np.unique(owner[owner >= 0]).size),
        "tiles": int(np.count_nonzero(corners(owner))),
    }


def launch_facts(record: LaunchRecord, grid: Grid) -> dict[str, Any]:
    """Return what a launch was, and its counters, as values of JSON."""
    return {
        "kernel": record.launch.kernel,
        "grid": record.launch.grid,
        "block": record.launch.block,
        "cluster": record.launch.cluster,
        "shared_bytes": grid.shared_bytes,
        "ctas_per_sm": grid.ctas_per_sm,
        "counters": {name: int(count) for name, count in sorted(record.counters.items())},
    }
