"""What CUPTI recorded of single calls on a GPU: plain data, which the parent judges (``bench.launches``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pytest_nvfp4.device.job import Model
from pytest_nvfp4.isolation.door.fields import Index, Microseconds

MOST_WORKS = 2000
"""Works of one call that are reported; the launches of a call with more of them are not counted."""
MOST_NAME = 400
"""Characters of a kernel's name that are reported."""
_LONGEST_NS = 10**13

WorkKind = Literal["kernel", "memcpy", "memset"]
_Nanoseconds = Annotated[int, Field(ge=0, le=_LONGEST_NS)]


class DeviceWork(Model):
    """One kernel, copy or fill on the device.

    Attributes:
        start_ns: Its start, in nanoseconds since the start of the first work of the call.
    """

    kind: WorkKind
    name: Annotated[str, Field(max_length=MOST_NAME)]
    start_ns: _Nanoseconds
    duration_ns: _Nanoseconds

    @property
    def end_ns(self) -> int:
        """Its end, on the same scale."""
        return self.start_ns + self.duration_ns


class CountedCall(Model):
    """The work of one call, ordered by its start.

    Attributes:
        way: How the kernel was called: ``timed`` as in a timed round, behind the gate and with a cold L2, or ``plain``
            as a verified call, on an idle device.
        inputs: The set of rotating inputs and its visit; the outputs of the call are judged with them.
        device_us: The time that the clock measured for this very call; None if it was plain.
    """

    way: Literal["timed", "plain"]
    inputs: tuple[Index, Index]
    device_us: Microseconds | None = None
    works: Annotated[tuple[DeviceWork, ...], Field(max_length=MOST_WORKS)]

    @property
    def kernels(self) -> tuple[DeviceWork, ...]:
        """Its kernels."""
        return tuple(work for work in self.works if work.kind == "kernel")

    @property
    def span_us(self) -> float:
        """Microseconds from the start of its first kernel to the end of its last one; 0 without kernels."""
        kernels = self.kernels
        if not kernels:
            return 0.0
        return (max(one.end_ns for one in kernels) - min(one.start_ns for one in kernels)) / 1e3

    @property
    def busy_us(self) -> float:
        """Microseconds during which at least one of its kernels ran."""
        busy, until = 0, 0
        for one in sorted(self.kernels, key=lambda work: work.start_ns):
            busy += max(0, one.end_ns - max(one.start_ns, until))
            until = max(until, one.end_ns)
        return busy / 1e3


class CountedLaunches(Model):
    """The counted calls of a case.

    Attributes:
        calls: The calls; empty if launches could not be counted.
        unavailable: Why they could not; None if they were.
    """

    calls: Annotated[tuple[CountedCall, ...], Field(max_length=16)] = ()
    unavailable: Annotated[str, Field(max_length=1000)] | None = None
