"""What the host writes of device memory whose written bytes are recorded (``Region.initialised``)."""

from __future__ import annotations

from numpy.lib.stride_tricks import as_strided

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.run.session import Session


class HostWrites:
    """An observer of the requests of a kernel's process (``machine.requests.Observer``)."""

    def __init__(self, session: Session) -> None:
        self._memory = session.machine.memory

    def executed(self, request: Executed) -> None:
        """Record what a request has written; a new block was not."""
        if request.kind not in (Kind.ALLOCATE, Kind.FREE):
            for extent in request.writes:
                self._wrote(extent)

    def _wrote(self, extent: Extent) -> None:
        if 0 in extent.shape or (region := self._memory.find(extent.address)) is None or region.initialised is None:
            return
        written = region.initialised[extent.address - region.start :]
        last = sum((count - 1) * stride for count, stride in zip(extent.shape, extent.strides, strict=True))
        if min(extent.strides, default=0) < 0 or last + extent.size > written.size:
            written[:] = True  # part of it is outside; what is taken for written is not reported
            return
        as_strided(written, (*extent.shape, extent.size), (*extent.strides, 1))[...] = True
