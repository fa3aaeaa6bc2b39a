"""The simulator as a worker's device: it names buffers, watches outputs, and collects the findings of each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.device.job import Simulating
from pytest_nvfp4.device.worker.attributing import Attributor
from pytest_nvfp4.device.worker.buffers import Buffer, CallBuffers
from pytest_nvfp4.device.worker.call_recorder import CallRecorder, WatchedOutput
from pytest_nvfp4.device.worker.late_caller import LateCaller
from pytest_nvfp4.device.worker.later_calls import FirstCall, LaterCalls
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import Returned
from pytest_nvfp4.device.worker.sim_findings import in_order, merge_by_statement, worker_finding
from pytest_nvfp4.device.worker.tagged_inputs import tagged
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.machine.torch_effects import extent
from pytest_nvfp4.sim.memory.coverage import findings as coverage_findings
from pytest_nvfp4.sim.provenance.judge import OperandJudge
from pytest_nvfp4.sim.provenance.record import record as recorded
from pytest_nvfp4.sim.provenance.recorder import OperandRecorder
from pytest_nvfp4.sim.run.session import Session


class StreamUser(Protocol):
    """A kernel whose caller can use another stream than the default one."""

    def on_new_stream(self) -> AbstractContextManager[None]:
        """Return a context in which a new stream is torch's current one for the kernel and its caller."""


class Simulation:
    """A simulated device for one job.

    Args:
        session: The device.
        folder: Folder for recorded files.
        simulating: Settings for the record of each call; None to collect findings only.
        attributor: Attributes the outputs of calls; None if nobody asks who wrote them.
        later_calls: Makes further calls; None if nobody asks for them.
    """

    def __init__(
        self,
        session: Session,
        *,
        folder: Path,
        simulating: Simulating | None = None,
        attributor: Attributor | None = None,
        later_calls: LaterCalls | None = None,
    ) -> None:
        settings = simulating or Simulating()
        self.session = session
        self._launch_only = frozenset(settings.launch_only)
        self._sampled = settings.sampled
        self._outputs: list[WatchedOutput] = []
        self._unrecorded = 0
        self._tensors: Sequence[Tensor] = ()
        self._results: list[Extent] = []
        self._before = 0
        self._provenance = settings.provenance
        self._operands: OperandJudge | None = None
        self.attributor = attributor
        self.later_calls = later_calls
        self._recorder = None if simulating is None else CallRecorder(self.session, folder, simulating)

    def inputs(self, inputs: Any) -> Any:
        """Return the inputs of the next call: those given, or tags if the operands of MMAs are to be followed."""
        self._operands = None
        if self._provenance and (made := tagged(inputs)) is not None:
            inputs, tags = made
            self._operands = OperandJudge(OperandRecorder(tags))
        return inputs

    @contextmanager
    def call(self, slot: CallBuffers, findings: list[Finding], *, case: int = 0) -> Iterator[None]:
        """Watch a call of the kernel with the buffers of a case, and append the simulator's findings to ``findings``.

        A fault ends the call here, even if the kernel's own code has caught the exception.
        """
        self.session.launch_only = case in self._launch_only
        self._name(slot)
        if self.attributor is not None:
            self.attributor.begin(slot, self._outputs)
        with self._watched(findings), self._called(slot):
            yield

    @contextmanager
    def _called(self, slot: CallBuffers) -> Iterator[None]:
        """Order the call after the writes to its tensors, and before the reads of C and of what it returns."""
        self._results = [Extent(output.region.start, output.region.size) for output in self._outputs]
        if self.session.order is None:
            yield
            return
        with self.session.order.called(slot.extents(), self._results):
            yield

    @contextmanager
    def late_caller(self, slot: CallBuffers, memory: DeviceMemory) -> Iterator[AbstractContextManager[None]]:
        """Reschedule the launches of a call on a stream of the caller's; the value surrounds the kernel's part."""
        assert self.session.streams is not None
        late = LateCaller(
            self.session.streams,
            memory,
            inputs=[(Extent(region.address, region.size), poison) for region, poison in slot.poisoned()],
            outputs=[Extent(region.address, region.size) for region in slot.outputs],
        )
        self.session.around = late.launch
        try:
            with late.watching():
                yield late.between()
        finally:
            self.session.around = None

    @contextmanager
    def side_stream(self, kernel: StreamUser) -> Iterator[None]:
        """Make a new stream the current one of a kernel's caller, if the order of streams is checked."""
        if self.session.order is None:
            yield
            return
        assert self.session.streams is not None
        self.session.streams.synchronize_device()  # what the kernel's import did is complete
        with kernel.on_new_stream():
            yield

    def returned(self, returned: Sequence[Returned]) -> None:
        """Register what the call returned, which is read like C."""
        self._results += [extent(one.tensor) for one in returned if one.tensor is not None]
        own = {group: one.tensor for group, one in enumerate(returned) if one.tensor is not None}
        self._outputs = [output for output in self._outputs if output.group not in own]  # C itself may stay unwritten
        found = [self._own(group, tensor) for group, tensor in own.items() if self._tensors[group].size]
        self._outputs += [output for output in found if output is not None]
        self._unrecorded = found.count(None)

    def _own(self, group: int, tensor: Any) -> WatchedOutput | None:
        """Return an output that the kernel allocated itself; None if its writers are not recorded."""
        of, where = self._tensors[group], extent(tensor)
        region = self.session.machine.memory.find(where.address)
        item = tensor.element_size()
        if region is None or region.owner is None or region.owner_bytes != item:
            return None
        if (region.start, region.size) != (where.address, of.size // of.item * item):
            return None
        strides = zip(tensor.shape, tensor.stride(), of.strides, strict=True)
        if any(one != other for size, one, other in strides if size > 1):
            return None
        region.name, region.describe = of.name, of.describe
        if (described := of.describe) is not None and item != of.item:
            region.describe = lambda offset: described(offset // item * of.item)
        return WatchedOutput(group, region, of.columns)

    def recorded_first(self) -> AbstractContextManager[FirstCall | None]:
        """Return a context that records a call with which later ones are compared; None if nobody asks for them."""
        return nullcontext() if self.later_calls is None else self.later_calls.first()

    def later(self, first: FirstCall, slot: CallBuffers, call: Callable[[], Sequence[Returned]]) -> list[Finding]:
        """Call the kernel again with the inputs of its first call, and return what is wrong (see ``LaterCalls``)."""
        assert self.later_calls is not None

        def again() -> None:
            self._name(slot)
            self.returned(call())

        return self.later_calls.findings(first, again, outputs=lambda: [one.region for one in self._outputs])

    @contextmanager
    def _watched(self, findings: list[Finding]) -> Iterator[None]:
        before = self._before = len(self.session.launches)
        between = self.session.order.findings if self.session.order is not None else []
        reported = len(between)
        if self._recorder is not None:
            self._recorder.begin()
        self.session.faults.clear()
        self._unrecorded = 0
        raised: BaseException | None = None
        if self._operands is not None:
            self._operands.watch({output.group: (output.region, output.columns) for output in self._outputs})
            self.session.machine.operands = self._operands.recorder
        try:
            yield
        except BaseException as error:
            raised = error
        self.session.machine.operands = None
        faults = list(self.session.faults)
        found = [each for record in self.session.launches[before:] for each in merge_by_statement(record.findings)]
        findings += map(worker_finding, in_order([fault.finding() for fault in faults], found))
        findings += map(worker_finding, between[reported:])
        if raised is not None and not faults:
            raise raised
        whole = not self.session.launch_only and not self._sampled
        if not faults and len(self.session.launches) > before and whole:
            findings += map(worker_finding, coverage_findings(output.region for output in self._outputs))
        if not faults and self._operands is not None:
            findings += map(worker_finding, self._operands.findings())

    @property
    def stopped(self) -> bool:
        """Whether a fault ended the last call, so that its outputs are incomplete."""
        return bool(self.session.faults)

    @property
    def launched(self) -> list[str]:
        """Names of the kernels that the last call launched, in order."""
        return [record.launch.kernel for record in self.session.launches[self._before :]]

    def record(self, call: int, case: int) -> dict[str, Any] | None:
        """Return the fields of a ``SimulatedCall`` for the last call; None if the job requests no record."""
        if self._recorder is None:
            return None
        operands = None if self._operands is None else recorded(self._operands.recorder)
        return self._recorder.record(call, case, self._outputs, unrecorded=self._unrecorded, operands=operands)

    def _name(self, slot: CallBuffers) -> None:
        """Name the buffers in the simulated memory, so that findings name a matrix, row and column."""
        self._outputs = []
        self._tensors = [tensor for tensor, _ in slot.results]
        if not self._sampled:  # the kernel may return tensors of its own
            sizes = [(tensor.size // tensor.item, tensor.item) for tensor in self._tensors if tensor.size]
            rounded = {4 * count: 4 for count, item in sizes if item == 2}  # in fp32 (`returned_tensors.counts`)
            self.session.memory.watched = rounded | {count * item: item for count, item in sizes}
        for index, (_, buffer) in enumerate(slot.results):
            if buffer is not None and buffer.tensor.size:
                self._name_output(index, buffer)
        for buffer in slot.constant:
            if (tensor := buffer.tensor).size:
                region = self.session.memory.name(
                    buffer.address - buffer.offset,
                    tensor.name,
                    describe=tensor.describe,
                    start=buffer.offset + tensor.before,
                    size=tensor.size,
                    writable=False,
                )
                region.unknown = tensor.blank and self._sampled

    def _name_output(self, index: int, buffer: Buffer) -> None:
        tensor = buffer.tensor
        region = self.session.memory.name(
            buffer.address, tensor.name, describe=tensor.describe, start=tensor.before, size=tensor.size
        )
        if self._sampled:
            region.unknown = True
        elif tensor.role == "output":  # what overwrites an input may leave elements as they are
            if self.session.memory.tracks_writes:
                region.track_writes()
            region.watch(tensor.item)
            self._outputs.append(WatchedOutput(index, region, tensor.columns))
