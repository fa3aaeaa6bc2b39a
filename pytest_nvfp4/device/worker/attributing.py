"""Who wrote the outputs of each call and what they descend from, in the form of a report (``device.attribution``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_nvfp4.contracts.call import Tensor
from pytest_nvfp4.device.attribution import MOST
from pytest_nvfp4.device.worker.buffers import Buffer, CallBuffers
from pytest_nvfp4.device.worker.call_recorder import WatchedOutput
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import Returned, read_tensor
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.user_line import UserLine
from pytest_nvfp4.machine.request_log import Observers, RequestLog
from pytest_nvfp4.machine.server import Server
from pytest_nvfp4.machine.torch_effects import extent
from pytest_nvfp4.sim.descent.ledger import Ledger, Written
from pytest_nvfp4.sim.run.session import Session

_CHARACTERS, _PATH_CHARACTERS = 300, 4096


class Attributor:
    """Attributes the outputs of calls to the requests of the kernel's process.

    Args:
        session: The device.
        server: Executes the requests.
    """

    def __init__(self, session: Session, server: Server) -> None:
        self._session = session
        self._ledger = Ledger(session)
        self._log = RequestLog(server)
        self._outputs: Sequence[WatchedOutput] = ()
        self._results: Sequence[Tensor] = ()
        server.observer = Observers([server.observer, self._ledger, self._log])

    def begin(self, slot: CallBuffers, outputs: Sequence[WatchedOutput]) -> None:
        """Begin a call, behind the writes of its inputs, with outputs whose owners are recorded."""
        self._outputs = outputs
        self._results = [tensor for tensor, _ in slot.results]
        inputs = [extent(region.owner) for region in slot.inputs]
        self._ledger.begin(given=inputs, outputs=[output.region for output in outputs])
        self._log.begin()

    def attribution(self, returned: Sequence[Returned]) -> dict[str, Any]:
        """Return the fields of the ``CallAttribution`` of the last call, given what it returned for each group."""
        groups, launches = [], frozenset[int]()
        for position, output in enumerate(self._outputs):
            assert output.region.owner is not None
            tensor = returned[output.group].tensor
            written = self._ledger.written(position) if tensor is None else self._ledger.written_to(extent(tensor))
            launches |= frozenset().union(*(one.origins.launches for one in written))
            groups.append(_group(output.group, int(output.region.owner.size), output.columns, written))
        watched = {output.group for output in self._outputs}
        for index, (of, one) in enumerate(zip(self._results, returned, strict=True)):
            if index not in watched and one.tensor is not None and of.size:
                written = self._ledger.written_to(extent(one.tensor))
                launches |= frozenset().union(*(each.origins.launches for each in written))
                groups.append(_group(index, of.size // of.item, of.columns, written))
        return {
            "groups": groups,
            "kernels": len(launches),
            "multiply_adds": self._ledger.multiply_adds(launches),
            "not_replayed": "",
        }

    def replayed(
        self, slot: CallBuffers, inputs: Any, returned: Sequence[Returned], memory: DeviceMemory
    ) -> tuple[str, list[bytes]]:
        """Repeat the requests of the last call on other inputs, and restore its memory.

        Returns:
            Why they were not repeated, empty if they were; and the bytes of each output, in the order of its memory.
        """
        if self._log.incomplete:
            return self._log.incomplete, []
        launches, faults = len(self._session.launches), len(self._session.faults)
        before = [(block, memory.read(block.address, block.size)) for block in slot.extents()]
        try:
            slot.overwrite(memory, inputs)
            with self._log.repeated():
                if len(self._session.faults) > faults:
                    fault = self._session.faults[faults]
                    return f"they stop with a fault on other inputs: {fault.message}"[:1000], []
                return "", [
                    _elements(memory, tensor, buffer, one.tensor)
                    for (tensor, buffer), one in zip(slot.results, returned, strict=True)
                ]
        finally:
            del self._session.launches[launches:], self._session.faults[faults:]
            for block, data in before:
                memory.write(block.address, data)

    def end(self) -> None:
        """Drop what was kept of the last call."""
        self._log.end()


def _elements(memory: DeviceMemory, tensor: Tensor, buffer: Buffer | None, own: Any | None) -> bytes:
    """Return the elements of an output; ``own`` is the kernel's own tensor if it returned one. Without either: none."""
    if own is not None:
        return read_tensor(memory, own, tensor)
    return b"" if buffer is None else buffer.bits(memory)


def _group(index: int, elements: int, columns: int, written: Sequence[Written]) -> dict[str, Any]:
    by = sorted((one for one in written if one.writer is not None), key=lambda one: one.writer.kind)  # type: ignore[union-attr]
    latest = sorted({write for one in written for write in one.origins.host}, key=lambda write: -write.at)
    sent = list({(write.what, write.line): write for write in reversed(latest)}.values())[::-1][:MOST]
    computed = sorted({writer for one in written for writer in one.origins.computed}, key=repr)[:MOST]
    return {
        "group": index,
        "elements": elements,
        "written": [_written_by(one, columns) for one in by[:MOST]],
        "computed": [_request(writer.name, writer.line) for writer in computed],
        "host": [
            {"sent": _request(write.what, write.line), "read": _request(write.after.what, write.after.line)}
            for write in sent
        ],
    }


def _written_by(written: Written, columns: int) -> dict[str, Any]:
    assert written.writer is not None
    elements = written.elements
    writer = written.writer
    name = short_kernel(writer.name) if writer.kind == "launch" else writer.name
    fields: dict[str, Any] = {"kind": writer.kind, **_request(name, writer.line)}
    if elements is None:
        return fields
    first, last = (tuple(map(int, np.divmod(elements[at], columns))) for at in (0, -1))
    return fields | {"elements": int(elements.size), "first": first, "last": last}


def _request(what: str, line: UserLine | None) -> dict[str, Any]:
    place = {} if line is None else {"file": line.file[:_PATH_CHARACTERS], "line": min(max(0, line.line), 1 << 31)}
    return {"what": what[:_CHARACTERS], **place}
