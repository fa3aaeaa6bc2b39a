"""What the host writes of device memory whose written bytes or writers are recorded (``Region``)."""

from __future__ import annotations

from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.descent.effects import plain
from pytest_nvfp4.sim.memory.coverage import note_request
from pytest_nvfp4.sim.run.session import Session

_COPIES = frozenset({"clone", "copy", "_to_copy"})
"""Operators of torch that copy one tensor."""


class HostWrites:
    """An observer of the requests of a kernel's process (``machine.requests.Observer``)."""

    def __init__(self, session: Session) -> None:
        self._memory = session.machine.memory

    def executed(self, request: Executed) -> None:
        """Record what a request has written; a new block was not, nor was a copy of what was not."""
        if request.kind in (Kind.ALLOCATE, Kind.FREE):
            return
        copies = request.kind is Kind.COPY or plain(request.operator) in _COPIES
        source = self._memory.written(request.reads[0]) if copies and len(request.reads) == 1 else None
        for extent in request.writes:
            if (mask := self._memory.written(extent)) is not None:
                mask[...] = source if source is not None and source.shape == mask.shape else True
            region = self._memory.find(extent.address)
            if region is not None:
                note_request(region, extent)
