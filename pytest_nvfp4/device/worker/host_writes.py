"""What the host writes of device memory whose written bytes are recorded (``Region.initialised``)."""

from __future__ import annotations

import numpy as np

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
        places = np.full(1, extent.address - region.start)
        for count, stride in zip(extent.shape, extent.strides, strict=True):
            places = (places[:, None] + stride * np.arange(count)).ravel()
        region.initialised[places[:, None] + np.arange(extent.size)] = True
