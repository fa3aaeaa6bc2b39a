"""Races between work of different streams: launches, torch's operators, copies, and the caller of the user's code.

``driver.streams`` determines the order of work (CUDA C++ Programming Guide, "Streams", "Events"). This module records
for each block of memory the work that later work may race with. Work that the host has waited for, and work that later
work covers, is dropped. A launch is known byte by byte from the detector; of memory that kernels must not write, only
reads are recorded. Concurrent launches may also synchronise by flags in memory: a launch with a strong read of bytes
that another launch has set by a strong write counts as ordered behind it.

A tensor that is freed while another stream still uses it returns to the pool of its own stream. If that stream
allocates before it has waited, the new tensor may get the same bytes. That is a warning only, because the choice of
the block is up to the allocator.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.launches import Launch
from pytest_nvfp4.driver.streams import ALLOCATES, LEGACY, Extent, Key, Streams, Work
from pytest_nvfp4.driver.user_line import UserLine
from pytest_nvfp4.finding import Finding, Location, Where
from pytest_nvfp4.sim.memory.globals import GlobalMemory
from pytest_nvfp4.sim.races.access_pair import RACE, WARNING
from pytest_nvfp4.sim.races.launch import LaunchRaces
from pytest_nvfp4.sim.races.touched import (
    READ,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
    TouchedBytes,
    TouchedExtent,
    conflict,
    covers,
    synchronises,
)
from pytest_nvfp4.sim.run.grid import Grid

_SMALL = 1 << 20
"""Largest block of torch's pool of small blocks, in bytes (c10/cuda/CUDACachingAllocator, kSmallSize)."""
_STEP = 512
"""Torch rounds sizes up to multiples of this (kMinBlockSize)."""
_REMEMBERED = 256
"""Freed blocks in use that new blocks are compared with."""
_LAUNCH = "kernel "
"""Beginning of the description of a launch."""
"""A name of C++ that lies in no namespace, by the Itanium C++ ABI: its length comes before it."""
_FILLED = "the caller (before the call)"
_FETCHED = "the caller (after the call)"


class _Use(NamedTuple):
    """Bytes of a block that a piece of work touches."""

    work: Work
    touched: TouchedBytes


class _Race(NamedTuple):
    """Two uses that race, and the lowest address in question."""

    old: _Use
    new: _Use
    address: int


@dataclass(slots=True)
class _Block:
    """An allocation, the uses that later work may race with, and the streams of ``record_stream``."""

    address: int
    size: int
    stream: Key
    line: UserLine | None
    pooled: bool
    uses: list[_Use] = field(default_factory=list)
    recorded: set[Key] = field(default_factory=set)


@dataclass(slots=True)
class _FreedBlock:
    """A block that returned to its pool while work of other streams may use it."""

    block: _Block
    users: list[Work]
    line: UserLine | None


class HostOrder:
    """The observer of a device's streams (``driver.streams.Watcher``).

    Args:
        streams: The streams.
        memory: The device's memory.

    Attributes:
        findings: Its findings.
    """

    def __init__(self, streams: Streams, memory: GlobalMemory) -> None:
        self.findings: list[Finding] = []
        self._streams = streams
        self._memory = memory
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._freed_blocks: list[_FreedBlock] = []
        self._freed: deque[tuple[int, UserLine | None]] = deque()
        self._reported: set[tuple[object, ...]] = set()
        streams.watcher = self

    # ---- memory --------------------------------------------------------------------------------------------------

    def allocated(self, address: int, size: int, stream: Key, line: UserLine | None, *, pooled: bool) -> None:
        """See ``Watcher``."""
        self._settle()
        block = _Block(address, size, stream, line, pooled)
        bisect.insort(self._starts, address)
        self._blocks[address] = block
        if pooled and self._freed_blocks:
            self._check_reuse(block)

    def freed(self, address: int, line: UserLine | None) -> None:
        """See ``Watcher``. The block is only queued: a garbage collection may call this inside any other method."""
        self._freed.append((address, line))

    def recorded(self, address: int, stream: Key) -> None:
        """See ``Watcher``."""
        block = self._find(address)
        if block is not None:
            block.recorded.add(stream)

    def block(self, address: int) -> Extent | None:
        """See ``Watcher``."""
        self._settle()
        block = self._find(address)
        return None if block is None else Extent(block.address, block.size)

    def _find(self, address: int) -> _Block | None:
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        block = self._blocks[self._starts[position]]
        return block if address < block.address + block.size else None

    def _settle(self) -> None:
        """Remove the blocks that were freed."""
        while self._freed:
            address, line = self._freed.popleft()
            block = self._blocks.pop(address, None)
            if block is None:
                continue
            del self._starts[bisect.bisect_left(self._starts, address)]
            streams = {block.stream, *block.recorded}
            users = [use.work for use in block.uses if use.work.stream not in streams]
            if block.pooled and (users := self._running(block, users)):
                self._freed_blocks.append(_FreedBlock(block, users, line))

    def _running(self, block: _Block, users: Sequence[Work]) -> list[Work]:
        """Return the work on a block that the block's own stream has not waited for."""
        return [work for work in users if not self._streams.ordered(block.stream, work)]

    def _check_reuse(self, new: _Block) -> None:
        """Report freed blocks in use that a new block may get: of the same stream and pool, and large enough."""
        remaining: list[_FreedBlock] = []
        for freed in self._freed_blocks:
            users = self._running(freed.block, freed.users)
            if not users:
                continue
            old = freed.block
            fits = -(-new.size // _STEP) <= -(-old.size // _STEP) and (new.size <= _SMALL) == (old.size <= _SMALL)
            if new.stream == old.stream and fits:
                self._report_reuse(freed, users[-1], new)
            else:
                remaining.append(freed)
        self._freed_blocks = remaining[-_REMEMBERED:]

    # ---- work ----------------------------------------------------------------------------------------------------

    def worked(self, work: Work, reads: Sequence[Extent], writes: Sequence[Extent]) -> None:
        """See ``Watcher``. What is written counts so where that is recorded (``Region.initialised``)."""
        for extent in writes if work.what != ALLOCATES else ():
            self._memory.wrote(extent)
        touched = [
            TouchedExtent(extent, kind) for extents, kind in ((writes, WRITE), (reads, READ)) for extent in extents
        ]
        self._add(work, touched)

    def launched(self, launch: Launch, grid: Grid) -> None:
        """Add a launch that has run. Memory whose bytes were all written needs no record of that any more."""
        for region in grid.machine.memory:
            region.forget_writes()
        touched = grid.unit(LaunchRaces).touched()
        what = f"{_LAUNCH}{short_kernel(launch.kernel)}"
        self._streams.launched(what, launch.stream, lambda work: self._add(work, touched))

    @contextmanager
    def called(self, memory: Sequence[Extent], results: list[Extent]) -> Iterator[None]:
        """Surround a call of the user's code by its caller's work: filling ``memory`` and reading ``results``.

        The caller works on the stream that is current when it calls. ``results`` may grow during the call.
        """
        streams = self._streams
        streams.synchronize_device()
        caller = streams.current
        streams.work(_FILLED, stream=caller, writes=memory)
        yield
        streams.work(_FETCHED, stream=caller, reads=results)
        streams.synchronize_device()

    def _add(self, work: Work, touched: Sequence[TouchedBytes]) -> None:
        """Compare work with unordered work before it, and record it."""
        self._settle()
        uses = [
            (block, _Use(work, bytes_))
            for bytes_ in touched
            if bytes_.high > bytes_.low and (block := self._find(bytes_.low)) is not None
        ]
        for block, new in uses:
            for old in block.uses if new.touched.kinds & STRONG_READ else ():
                if not work.after(old.work) and synchronises(old.touched, new.touched):
                    self._streams.order(work, old.work)
        # Of each stream only the last racing work: the missing edge is a wait for that, which orders all before it too.
        last: dict[Key, _Race] = {}
        for block, new in uses:
            for old in block.uses:
                known = last.get(old.work.stream)
                if work.after(old.work) or (known is not None and known.old.work.tick >= old.work.tick):
                    continue
                address = conflict(old.touched, new.touched)
                if address is not None:
                    last[old.work.stream] = _Race(old, new, address)
        for race in sorted(last.values(), key=lambda race: race.old.work.tick, reverse=True):
            if not work.after(race.old.work):
                self._report(race)
                self._streams.order(work, race.old.work)
        for block, new in uses:
            block.uses = [old for old in block.uses if self._matters(old, new)]
            block.uses.append(new)

    def _matters(self, old: _Use, new: _Use) -> bool:
        """Return whether later work may race with the old use and not with the new one."""
        if self._streams.done(old.work):
            return False
        return old.work is new.work or not new.work.after(old.work) or not covers(new.touched, old.touched)

    # ---- messages ------------------------------------------------------------------------------------------------

    def _report(self, race: _Race) -> None:
        if (launch := self._misplaced(race)) is not None:
            self._report_misplaced(race, launch)
            return
        old, new, address = race
        key = (old.work.what, old.work.line, new.work.what, new.work.line)
        if key in self._reported:
            return
        self._reported.add(key)
        first, second = self._streams.name(old.work.stream), self._streams.name(new.work.stream)
        region = self._memory.find(address)
        place = region.place(address) if region is not None else f"address {address:#x}"
        message = (
            f"{self._describe(new, address)} {_verb(new, address)}s {place} while {self._describe(old, address)} may "
            f"still {_verb(old, address)} it: nothing makes {second} wait for {first} in between"
        )
        where = _at(new.work.line or old.work.line)
        hint = self._hint(old.work, new.work, first, second)
        self.findings.append(Finding(RACE, message, hint=hint, where=where))

    def _misplaced(self, race: _Race) -> _Use | None:
        """Return the launch of a race that is on the default stream while the other work's stream is current."""
        current = self._streams.current_key
        for launch, other in ((race.new, race.old), (race.old, race.new)):
            on_default = launch.work.what.startswith(_LAUNCH) and launch.work.stream == LEGACY
            if on_default and other.work.stream == current != LEGACY:
                return launch
        return None

    def _report_misplaced(self, race: _Race, launch: _Use) -> None:
        key = ("default stream", launch.work.what, launch.work.line)
        if key in self._reported:
            return
        self._reported.add(key)
        other = race.old if launch is race.new else race.new
        address = race.address
        region = self._memory.find(address)
        place = region.place(address) if region is not None else f"address {address:#x}"
        message = (
            f"{launch.work.what} is launched on the default stream while {self._streams.name(other.work.stream)} is "
            f"torch's current stream: it {_verb(launch, address)}s {place} ({launch.touched.line(address)}), and "
            f"nothing orders it with {self._describe(other, address)}, which {_verb(other, address)}s the same bytes"
        )
        hint = (
            "launch on the current stream: kernel(...).launch(..., stream=stream) with "
            "stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream), computed for each call"
        )
        self.findings.append(Finding(RACE, message, hint=hint, where=_at(launch.work.line)))

    def _hint(self, old: Work, new: Work, first: str, second: str) -> str:
        short = [line and line._replace(caller=None) for line in (old.line, new.line)]
        before, then = map(_line, short if short[0] != short[1] else (old.line, new.line))
        if before == then:  # both are in one call of an extension in C++, or in a loop
            before, then = f"{old.what} ({before})", f"{new.what} ({then})"
        if new.what == _FETCHED:
            return (
                f"before the call returns, make the stream that was current when it began ({second}) wait for {first}: "
                "torch.cuda.current_stream().wait_stream(...), or an event that is recorded there after "
                f"{before}; or work on torch.cuda.current_stream(). Work that outlasts the call is not timed: "
                "the benchmark check fails it"
            )
        if old.what == _FILLED:
            return (
                f"before {then}, make {second} wait for the stream that was current when the call began "
                f"({first}): side.wait_stream(torch.cuda.current_stream()); the caller's work there, such as filling "
                "the inputs, may be incomplete"
            )
        return (
            f"make {second} wait for {first} after {before} and before {then}: wait_stream, or an event that the one "
            "records and the other waits for (cudaEventRecord, cudaStreamWaitEvent); or use one stream for both"
        )

    def _describe(self, use: _Use, address: int) -> str:
        work = use.work
        inside = use.touched.line(address)
        verb = " launched" if work.what.startswith(_LAUNCH) else ""
        where = f"{verb} at {_line(work.line)}" if work.line is not None else verb
        return f"{work.what}{where} on {self._streams.name(work.stream)}" + (f" ({inside})" if inside else "")

    def _report_reuse(self, freed: _FreedBlock, user: Work, new: _Block) -> None:
        key = ("reused", freed.block.line, user.line, new.line)
        if key in self._reported:
            return
        self._reported.add(key)
        own, other = self._streams.name(freed.block.stream), self._streams.name(user.stream)
        message = (
            f"the tensor of {freed.block.size} bytes made at {_line(freed.block.line)} is freed at {_line(freed.line)} "
            f"while {user.what} at {_line(user.line)} on {other} may still use it: its memory returns to the pool of "
            f"{own}, which has not waited for {other}, and the tensor made at {_line(new.line)} may get it"
        )
        hint = (
            f"tensor.record_stream(...) for {other}; or keep the tensor until {own} has waited for {other} "
            "(wait_stream, an event)"
        )
        self.findings.append(Finding(WARNING, message, hint=hint, where=_at(new.line)))


def _verb(use: _Use, address: int) -> str:
    return "write" if int(use.touched.bytes(address, address + 1)[0]) & (WRITE | STRONG_WRITE) else "read"


def _line(line: UserLine | None) -> str:
    return str(line) if line is not None else "the caller's code"


def _at(line: UserLine | None) -> Where | None:
    if line is None:
        return None
    return Where(kernel="", source=Location(line.file, line.line, function=line.function))
