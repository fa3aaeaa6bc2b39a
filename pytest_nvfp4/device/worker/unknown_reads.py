"""What the host does with device memory of unknown content, in a simulation without data.

An operator of torch, or a copy, from unknown bytes makes the bytes unknown that it writes. What the host reads may
decide what it launches, so that unknown bytes that it reads end the simulation: the call needs data.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.machine.requests import Executed
from pytest_nvfp4.sim.fault import needs_data
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.session import Session


class UnknownReads:
    """An observer of the requests of a kernel's process (``machine.requests.Observer``)."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def executed(self, request: Executed) -> None:
        """Follow unknown content."""
        unknown = [region for region in self._regions(request.reads) if region.unknown]
        if not unknown:
            return
        if request.to_host:
            line = "" if request.line is None else f" at {request.line}"
            self._session.faults.append(needs_data(f"the host reads {unknown[0].name} by {request.what}{line}"))
        for region in self._regions(request.writes):
            region.unknown = True

    def _regions(self, extents: Iterable[Extent]) -> Iterable[Region]:
        for extent in extents:
            steps = [(count - 1) * stride for count, stride in zip(extent.shape, extent.strides, strict=True)]
            low = extent.address + sum(min(0, step) for step in steps)
            high = extent.address + extent.size + sum(max(0, step) for step in steps)
            for region in self._session.machine.memory:
                if region.start < high and low < region.end:
                    yield region
