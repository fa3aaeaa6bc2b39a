"""The simulator as a worker's device: named buffers, watched outputs, and what it found in each call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.worker.buffers import CallBuffers, GroupBuffers
from pytest_nvfp4.device.worker.counted import Counted
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.sim.fault import Finding as SimFinding
from pytest_nvfp4.sim.fault import Where
from pytest_nvfp4.sim.memory.coverage import findings as coverage_findings
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.session import Session, simulate
from pytest_nvfp4.sim.run.source import statement
from pytest_nvfp4.toolchain.compiled import CompiledModules
from pytest_nvfp4.toolchain.host_tensor import HostCudaTensor
from pytest_nvfp4.toolchain.streams import Extent
from pytest_nvfp4.toolchain.torch_work import extent
from pytest_nvfp4.toolchain.worker.findings import Finding

__all__ = ["Simulation"]

_NOTES = frozenset({"exit-before-read", "own-quadrant", "race-warning", "unaligned-box", "written-twice"})
"""Kinds that are worth a word but are no error."""
_ONE_A_LINE = frozenset({"out-of-bounds", "tmem", "uninitialised"})
"""Kinds that an unrolled statement has once for each of its instructions, and that are told once."""

_PTX = 200
"""Characters of an instruction that are shown: a load of 128 registers names them all."""


class Simulation:
    """One simulated device for the length of a job.

    Args:
        arch: What the kernel is compiled for.
        folder: Where files go that the parent is to have.
        simulating: What is to be told of each call; None for nothing but findings.
        compiled: Folders of modules that need not be compiled again.
    """

    def __init__(
        self, arch: str, *, folder: Path, simulating: Simulating | None = None, compiled: Sequence[Path] = ()
    ) -> None:
        self._stack = ExitStack()
        processes = max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1))
        how = simulating or Simulating()
        self.session: Session = self._stack.enter_context(
            simulate(
                arch=arch,
                processes=processes,
                schedule=how.schedule,
                races=how.races,
                race_warnings=how.race_warnings,
                compiled=CompiledModules(compiled) if compiled else None,
            )
        )
        self._outputs: list[tuple[int, Region, int]] = []
        self._results: list[Extent] = []
        self._counted = None if simulating is None else Counted(self.session, folder, simulating)

    def close(self) -> None:
        """Put torch and the DSL back."""
        self._stack.close()

    @contextmanager
    def call(self, slot: CallBuffers, inputs: ProblemInput, found: list[Finding]) -> Iterator[None]:
        """One call of the kernel with these buffers: what the simulator finds goes to ``found``.

        A fault ends the call here, whatever the kernel's own code made of the exception.
        """
        self._name(slot, inputs)
        with self._watched(found), self._called(slot):
            yield

    @contextmanager
    def _called(self, slot: CallBuffers) -> Iterator[None]:
        """The call as seen from outside: its tensors were filled before, and C and what it returns is read after it."""
        self._results = [Extent(region.start, region.size) for _, region, _ in self._outputs]
        if self.session.order is None:
            yield
            return
        with self.session.order.called(slot.extents(), self._results):
            yield

    def returned(self, value: Any) -> None:
        """What the call returned, which is read like C."""
        several = value if isinstance(value, list | tuple) else [value]
        self._results += [extent(one.host) for one in several if isinstance(one, HostCudaTensor)]

    @contextmanager
    def exercise(self, found: list[Finding]) -> Iterator[None]:
        """The same for a call on buffers that are the kernel's own."""
        self._outputs = []
        with self._watched(found):
            yield

    @contextmanager
    def _watched(self, found: list[Finding]) -> Iterator[None]:
        before = len(self.session.launches)
        between = self.session.order.findings if self.session.order is not None else []
        told = len(between)
        if self._counted is not None:
            self._counted.begin(self._outputs)
        self.session.faults.clear()
        raised: BaseException | None = None
        try:
            yield
        except BaseException as error:
            raised = error
        faults = list(self.session.faults)
        for fault in faults:
            found.append(_told(fault.finding()))
        for record in self.session.launches[before:]:
            found.extend(_told(finding) for finding in _by_line(record.findings))
        found.extend(map(_told, between[told:]))
        if raised is not None and not faults:
            raise raised
        if not faults and len(self.session.launches) > before:
            found.extend(_told(finding) for finding in coverage_findings(region for _, region, _ in self._outputs))

    @property
    def stopped(self) -> bool:
        """Whether a fault ended the last call: its outputs are not those of the whole kernel."""
        return bool(self.session.faults)

    def told(self, call: int, case: int) -> dict[str, Any] | None:
        """What the last call did, for a job that wants to know."""
        return None if self._counted is None else self._counted.told(call, case, _told)

    def _name(self, slot: CallBuffers, inputs: ProblemInput) -> None:
        self._outputs = []
        for index, (buffers, group) in enumerate(zip(slot.groups, inputs.groups, strict=True)):
            self._name_group(index, buffers, group)

    def _name_group(self, index: int, buffers: GroupBuffers, group: GroupInput) -> None:
        memory = self.session.memory
        sizes, half = group.group, group.group.k // 2
        for name, buffer, rows in (("A", buffers.a, sizes.m), ("B", buffers.b, sizes.n)):
            if rows:
                text = f"{name} of group {index}"
                memory.name(buffer.address, text, describe=_packed(text, half), size=rows * half, writable=False)
        for name, buffer, scales in (
            ("SFA", buffers.sfa, group.sfa_reordered),
            ("SFB", buffers.sfb, group.sfb_reordered),
        ):
            text = f"{name} of group {index}"
            if scales.size:
                describe = _scales(text, scales.shape[4])
                memory.name(buffer.address, text, describe=describe, size=scales.size, writable=False)
        if sizes.m and sizes.n:
            text = f"C of group {index}"
            region = memory.name(
                buffers.c.address,
                text,
                describe=_matrix(text, sizes.n),
                start=buffers.rows_before * sizes.n * 2,
                size=sizes.m * sizes.n * 2,
            )
            region.watch(2)
            self._outputs.append((index, region, sizes.n))


def _packed(name: str, row_bytes: int) -> Callable[[int], str]:
    def say(offset: int) -> str:
        row, byte = divmod(offset, row_bytes)
        return f"{name}, row {row}, k {2 * byte}"

    return say


def _scales(name: str, rest_k: int) -> Callable[[int], str]:
    def say(offset: int) -> str:
        tile, inside = divmod(offset, 512)
        low, rest = divmod(inside, 16)
        high, block = divmod(rest, 4)
        row = tile // rest_k * 128 + high * 32 + low
        return f"{name}, row {row}, k block {tile % rest_k * 4 + block}"

    return say


def _matrix(name: str, columns: int) -> Callable[[int], str]:
    def say(offset: int) -> str:
        row, column = divmod(offset // 2, columns)
        return f"{name}, row {row}, column {column}"

    return say


def _by_line(findings: Iterable[SimFinding]) -> list[SimFinding]:
    """The findings, with those of one kind at one statement as one."""
    kept: dict[object, SimFinding] = {}
    more: Counter[object] = Counter()
    for finding in findings:
        source = finding.where.source if finding.where is not None else None
        folds = finding.kind in _ONE_A_LINE and source is not None
        key: object = (finding.kind, source.file, source.line) if folds and source is not None else id(finding)
        more[key] += key in kept
        kept.setdefault(key, finding)
    return [
        replace(finding, notes=(*finding.notes, f"and the same at {more[key]} further instructions of this statement"))
        if more[key]
        else finding
        for key, finding in kept.items()
    ]


def _told(finding: SimFinding) -> Finding:
    where = finding.where
    lines = [finding.message]
    if where is not None and (place := _place(where)):
        lines.append(f"  {place}")
    lines += [f"  {note}" for note in finding.notes]
    if finding.hint:
        lines.append(f"  look at: {finding.hint.removeprefix('look at ')}")
    source = where.source if where is not None else None
    text = statement(source.file, source.line) if source is not None else None
    return Finding(
        kind=finding.kind,
        message=f"simulated, {finding.kind}: " + "\n".join(lines),
        severity="warning" if finding.kind in _NOTES else "error",
        file=source.file if source is not None else None,
        line=source.line if source is not None else None,
        text=text or None,
    )


def _place(where: Where) -> str:
    words = []
    if where.cta is not None:
        words.append(f"CTA {where.cta}")
    if where.warp is not None:
        words.append(f"warp {where.warp}")
    if where.lanes:
        words.append("lane " + ", ".join(map(str, where.lanes[:4])) + (" ..." if len(where.lanes) > 4 else ""))
    if where.ptx_line is not None:
        text = where.text if len(where.text) <= _PTX else f"{where.text[: _PTX - 4]} ..."
        words.append(f"PTX line {where.ptx_line}: {text}")
    return ", ".join(words)
