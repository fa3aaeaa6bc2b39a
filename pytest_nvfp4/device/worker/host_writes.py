"""What the host writes of device memory whose written bytes are recorded (``Region.initialised``)."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.descent.effects import plain
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
        source = self._mask(request.reads[0]) if copies and len(request.reads) == 1 else None
        for extent in request.writes:
            if (mask := self._mask(extent)) is not None:
                mask[...] = source if source is not None and source.shape == mask.shape else True

    def _mask(self, extent: Extent) -> NDArray[np.bool_] | None:
        """Return whether each byte was written, by element; None if that is not recorded.

        Of an extent that is partly outside: that of all bytes from its first on.
        """
        if 0 in extent.shape or (region := self._memory.find(extent.address)) is None or region.initialised is None:
            return None
        written = region.initialised[extent.address - region.start :]
        last = sum((count - 1) * stride for count, stride in zip(extent.shape, extent.strides, strict=True))
        if min(extent.strides, default=0) < 0 or last + extent.size > written.size:
            return written
        return as_strided(written, (*extent.shape, extent.size), (*extent.strides, 1))
