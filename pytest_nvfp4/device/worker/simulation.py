"""The simulator as a worker's device: named buffers, watched outputs, and what it found in each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pytest_nvfp4.cores import cores
from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.worker.buffers import CallBuffers, GroupBuffers
from pytest_nvfp4.device.worker.call_recorder import CallRecorder
from pytest_nvfp4.device.worker.sim_findings import merge_by_statement, worker_finding
from pytest_nvfp4.device.worker.simulator import simulate
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host.compiled import CompiledModules
from pytest_nvfp4.host.tensor import HostCudaTensor
from pytest_nvfp4.host.torch_work import extent
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput
from pytest_nvfp4.sim.memory.coverage import findings as coverage_findings
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.session import Session

__all__ = ["Simulation"]


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
        processes = min(4, cores())
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
        self._counted = None if simulating is None else CallRecorder(self.session, folder, simulating)

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
            found.append(worker_finding(fault.finding()))
        for record in self.session.launches[before:]:
            found.extend(worker_finding(finding) for finding in merge_by_statement(record.findings))
        found.extend(map(worker_finding, between[told:]))
        if raised is not None and not faults:
            raise raised
        if not faults and len(self.session.launches) > before:
            found.extend(
                worker_finding(finding) for finding in coverage_findings(region for _, region, _ in self._outputs)
            )

    @property
    def stopped(self) -> bool:
        """Whether a fault ended the last call: its outputs are not those of the whole kernel."""
        return bool(self.session.faults)

    def told(self, call: int, case: int) -> dict[str, Any] | None:
        """What the last call did, for a job that wants to know."""
        return None if self._counted is None else self._counted.told(call, case, worker_finding)

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
