"""Who wrote the outputs of a call, and what they descend from.

The ledger sees every executed request. Copies and operators are known byte by byte, a launch by the allocations that
it read and wrote: what it wrote descends from all that it read. Elements of C have an exact writer
(``Region.owner``: a CTA of a launch, or ``FIRST_REQUEST - n`` for the n-th copy or operator).

Whatever the host sends after it has read bytes that descend from inputs (bytes, scalars, parameters, code) may depend
on what it read, so it is named in the origins of what it is written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.machine.requests import Executed, Kind
from pytest_nvfp4.sim.descent.effects import Operand, effect, is_copy, result, updates
from pytest_nvfp4.sim.descent.origins import ANY_SIZE, NOTHING, Held, HostRead, HostWrite, Origins, Writer, union
from pytest_nvfp4.sim.descent.ranges import Ranges, span
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.coverage import FIRST_REQUEST, NOBODY, note_request
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.session import Session


class _Launched(NamedTuple):
    """A launch of this call: its writer, its origins, and the owner number of its first CTA in each output."""

    writer: Writer
    origins: Origins
    bases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The elements of an output that one request wrote last.

    Attributes:
        writer: Who wrote them; None for nobody.
        origins: What they descend from.
        elements: Their indices, in row-major order of the output; None if only the allocation is known.
    """

    writer: Writer | None
    origins: Origins
    elements: np.ndarray[tuple[int], np.dtype[np.intp]] | None


class Ledger:
    """The observer of executed requests (``machine.requests.Observer``) that knows who wrote what.

    Args:
        session: The simulated device; its last launch is that of a request of ``Kind.LAUNCH``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ranges = Ranges()
        self._outputs: Sequence[Region] = ()
        self._launched: list[_Launched] = []
        self._first = len(session.launches)
        """Number of the first launch of this call."""
        self._requested: list[Written] = []
        self._read: HostRead | None = None
        self._fault: Fault | None = None
        self._count = 0

    def begin(self, *, given: Sequence[Extent], outputs: Sequence[Region]) -> None:
        """Begin a call, whose inputs the judge has just written to ``given``.

        ``outputs`` are the regions of C that it has poisoned; their owners are recorded (``Region.watch``).
        """
        self._outputs = outputs
        self._launched, self._requested = [], []
        self._first = len(self._session.launches)
        # Launches and conversions of earlier calls did none of this call's work.
        self._ranges.change(
            lambda held: replace(held, origins=replace(held.origins, launches=frozenset(), conversions=0))
        )
        for extent in given:
            low, high, _ = span(extent)
            self._ranges.set(low, high, Held(Origins(inputs=True, unit=extent.size)))
        for region in outputs:
            self._ranges.clear(region.start, region.end)

    def executed(self, request: Executed) -> None:
        """See ``machine.requests.Observer``."""
        self._count += 1
        match request.kind:
            case Kind.ALLOCATE | Kind.FREE:
                for extent in request.writes:
                    low, high, _ = span(extent)
                    self._ranges.clear(low, high)
            case Kind.LAUNCH:
                self._launch(request)
            case _:
                self._wrote(request)
        faulted = request.kind is Kind.LAUNCH and self._session.faults and self._session.faults[-1] is not self._fault
        if faulted:  # which the kernel's process is told
            self._fault = self._session.faults[-1]
            self._read = HostRead(f"the error of {short_kernel(request.what)}", request.line)
        if request.to_host and any(held.origins.inputs for held in self._held(request.reads)):
            self._read = HostRead(request.what, request.line)

    # ---- requests ------------------------------------------------------------------------------------------------

    def _sent(self, request: Executed) -> Origins:
        """Return the origins of what the host sends with a request, which may depend on all that it has read."""
        if self._read is None:
            return NOTHING
        what = f"the launch of {short_kernel(request.what)}" if request.kind is Kind.LAUNCH else request.what
        return Origins(host=frozenset({HostWrite(what, request.line, self._read, self._count)}))

    def _wrote(self, request: Executed) -> None:
        if not request.writes:
            return
        values = len(request.reads) - request.selects
        operands = [self._operand(extent, selects=at >= values) for at, extent in enumerate(request.reads)]
        if request.kind is Kind.OPERATOR and updates(request.operator):
            operands += [self._operand(extent) for extent in request.writes]
        on_device = request.kind in (Kind.OPERATOR, Kind.FILL) and not (
            is_copy(request.operator) and not request.reads and request.from_host
        )
        on_device |= request.kind is Kind.COPY and bool(request.reads)
        writer = Writer("operator" if on_device else "copy", request.what, request.line)
        if request.kind is Kind.OPERATOR:
            done = effect(request.operator, operands, converts=request.converts, accumulates=_accumulates(request))
            size = min(extent.size for extent in request.writes)
            origins = result(request.operator, operands, done, size=size, writer=writer)
        else:
            origins = union(operand.origins for operand in operands)
            if origins.inputs:
                origins = replace(origins, unit=min(origins.unit, _aligned(request)))
        origins |= self._sent(request)
        held = Held(origins, frozenset({writer}))
        number = FIRST_REQUEST - len(self._requested)
        self._requested.append(Written(writer, origins, None))
        for extent in request.writes:
            low, high, dense = span(extent)
            if dense:
                self._ranges.set(low, high, held)
            else:
                self._ranges.mix(low, high, held)
            for region in self._outputs:
                if low < region.end and region.start < high:
                    note_request(region, extent, number)

    def _launch(self, request: Executed) -> None:
        number = len(self._session.launches) - 1
        if number < self._first + len(self._launched):
            return  # it was refused before it ran
        touched = self._session.launches[number].touched
        read = [Extent(region.start, region.size) for region in touched.reads]
        writer = Writer("launch", request.what, request.line, number)
        sources = [held.origins for held in self._held(read)]
        origins = union([*sources, self._sent(request), Origins(launches=frozenset({number}))])
        origins = replace(origins, unit=ANY_SIZE, laid=origins.inputs)
        held = Held(origins, frozenset({writer}))
        for region in touched.writes:
            self._ranges.mix(region.start, region.end, held)
        self._launched.append(_Launched(writer, origins, tuple(region.launch_base for region in self._outputs)))

    def _operand(self, extent: Extent, *, selects: bool = False) -> Operand:
        return Operand(union(held.origins for held in self._held([extent])), extent.size, selects)

    def _held(self, extents: Sequence[Extent]) -> list[Held]:
        return [held for extent in extents for held in self._ranges.over(*span(extent)[:2])]

    # ---- answers -------------------------------------------------------------------------------------------------

    def written(self, output: int) -> list[Written]:
        """Return who wrote the elements of an output of this call, by its position in ``begin``."""
        owner = self._outputs[output].owner
        assert owner is not None
        if not owner.size:
            return []
        bases = np.array([launched.bases[output] for launched in self._launched], np.int64)
        lowest, highest = (int(np.searchsorted(bases, end, side="right")) - 1 for end in (owner.min(), owner.max()))
        if lowest == highest >= 0:  # one launch wrote all of it, as nearly always
            launched = self._launched[lowest]
            return [Written(launched.writer, launched.origins, np.arange(owner.size))]
        result = []
        if (nobody := np.flatnonzero(owner == NOBODY)).size:
            result.append(Written(None, NOTHING, nobody))
        for number in np.unique(owner[owner <= FIRST_REQUEST]).tolist():
            result.append(replace(self._requested[FIRST_REQUEST - number], elements=np.flatnonzero(owner == number)))
        launch = np.searchsorted(bases, owner, side="right") - 1
        for index in np.unique(launch[owner >= 0]).tolist():
            launched = self._launched[index]
            elements = np.flatnonzero((owner >= 0) & (launch == index))
            result.append(Written(launched.writer, launched.origins, elements))
        return result

    def written_to(self, extent: Extent) -> list[Written]:
        """Return who may have written any byte of a tensor of the kernel's own."""
        held = self._held([extent])
        origins = union(one.origins for one in held)
        writers = sorted({writer for one in held for writer in one.writers}, key=repr)
        return [Written(writer, origins, None) for writer in writers] or [Written(None, NOTHING, None)]

    def multiply_adds(self, launches: frozenset[int]) -> int:
        """Return the multiply-adds of some launches of this session."""
        return sum(self._session.launches[number].multiply_adds for number in launches)


def _accumulates(request: Executed) -> bool:
    """Return whether ``index_put`` adds to what its tensor holds; True if that is unknown."""
    if request.message is None:
        return False
    args, kwargs = request.message.fields.get("args"), request.message.fields.get("kwargs")
    given = isinstance(args, list) and len(args) > 3 and args[3] is not False
    return given or (isinstance(kwargs, dict) and kwargs.get("accumulate", False) is not False)


def _aligned(request: Executed) -> int:
    """Return the largest size of the elements that a copy of bytes, which knows no elements, leaves whole."""
    ends = 0
    for extent in (*request.reads, *request.writes):
        ends |= extent.address | extent.size
    return ends & -ends
