"""Work of different streams that nothing orders: launches, torch's operators, copies, and who calls the user's code.

``driver.streams`` knows what orders work; here is what each piece of it touches, by block of memory, as far as later
work may race with it: what the host knows to be complete is dropped, and what later work of the same kind covers. A
launch is known byte by byte from what the detector saw of it; of memory that kernels must not write only that it was
read. Launches that run side by side may also wait for each other by flags in memory: one whose strong read is of what
another's strong write has set is counted as ordered behind it.

A tensor that is freed while another stream still uses it goes back to the pool of the stream that it came from. Where
that stream allocates again before it has waited, the new tensor may get the same bytes: a warning, since which block
the allocator takes is its own affair.
"""

from __future__ import annotations

import bisect
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pytest_nvfp4.driver.streams import Extent, Key, Streams, Work
from pytest_nvfp4.finding import Finding, Location, Where
from pytest_nvfp4.sim.races.findings import RACE, WARNING
from pytest_nvfp4.sim.races.launch import LaunchRaces
from pytest_nvfp4.sim.races.touched import (
    READ,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
    ExtentTouched,
    Touched,
    conflict,
    covers,
    speak,
)

if TYPE_CHECKING:
    from pytest_nvfp4.driver.launches import Launch
    from pytest_nvfp4.driver.user_line import UserLine
    from pytest_nvfp4.sim.memory.globals import GlobalMemory
    from pytest_nvfp4.sim.run.grid import Grid

__all__ = ["HostOrder"]

_SMALL = 1 << 20
"""Torch's allocator has one pool for blocks of up to so many bytes and one for larger ones."""
_STEP = 512
_REMEMBERED = 256
"""Blocks that went back to their pools in use and are looked for in new ones."""
_PREFIX = "kernel_cutlass_"
_ARGUMENTS = re.compile(r"_+(?:tensorptr|tensor0|main__|ptr[bfiu]|Tiled|CopyAtom|Ptrgmem|0$|[A-Za-z0-9]*_object_at)")
_LONGEST = 60
_FILLED = "the caller (before the call)"
_FETCHED = "the caller (after the call)"


class _Touch(NamedTuple):
    work: Work
    what: Touched


@dataclass(slots=True)
class _Block:
    """An allocation, and the work on it that later work may race with."""

    address: int
    size: int
    stream: Key
    line: UserLine | None
    pooled: bool
    touches: list[_Touch] = field(default_factory=list)
    lent: set[Key] = field(default_factory=set)


@dataclass(slots=True)
class _Gone:
    """A block that was given back to its pool while work of other streams may use it."""

    block: _Block
    users: list[Work]
    line: UserLine | None


class HostOrder:
    """The watcher of a device's streams (``driver.streams.Watcher``).

    Args:
        streams: The streams.
        memory: The device's memory, whose regions have names.

    Attributes:
        findings: What was found.
    """

    def __init__(self, streams: Streams, memory: GlobalMemory) -> None:
        self.findings: list[Finding] = []
        self._streams = streams
        self._memory = memory
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._gone: list[_Gone] = []
        self._freed: deque[tuple[int, UserLine | None]] = deque()
        self._told: set[tuple[object, ...]] = set()
        self._caller: Key = 0
        streams.watcher = self

    # ---- memory --------------------------------------------------------------------------------------------------

    def allocated(self, address: int, size: int, stream: Key, line: UserLine | None, *, pooled: bool) -> None:
        """A block begins."""
        self._settle()
        block = _Block(address, size, stream, line, pooled)
        bisect.insort(self._starts, address)
        self._blocks[address] = block
        if pooled and self._gone:
            self._reused(block)

    def freed(self, address: int, line: UserLine | None) -> None:
        """A block ends; this may come from a garbage collection in the middle of anything."""
        self._freed.append((address, line))

    def lent(self, address: int, stream: Key) -> None:
        """``record_stream``."""
        block = self._find(address)
        if block is not None:
            block.lent.add(stream)

    def block(self, address: int) -> tuple[int, int] | None:
        """Address and size of the block that holds an address."""
        self._settle()
        block = self._find(address)
        return None if block is None else (block.address, block.size)

    def _find(self, address: int) -> _Block | None:
        position = bisect.bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        block = self._blocks[self._starts[position]]
        return block if address < block.address + block.size else None

    def _settle(self) -> None:
        """Take note of what was freed."""
        while self._freed:
            address, line = self._freed.popleft()
            block = self._blocks.pop(address, None)
            if block is None:
                continue
            del self._starts[bisect.bisect_left(self._starts, address)]
            users = [
                touch.work for touch in block.touches
                if touch.work.stream != block.stream and touch.work.stream not in block.lent
            ]  # fmt: skip
            if block.pooled and (users := self._running(block, users)):
                self._gone.append(_Gone(block, users, line))

    def _running(self, block: _Block, users: Sequence[Work]) -> list[Work]:
        """The work on a block that its own stream has not waited for."""
        return [work for work in users if not self._streams.ordered(block.stream, work)]

    def _reused(self, new: _Block) -> None:
        """Whether a new block may be what another stream still uses."""
        kept: list[_Gone] = []
        for gone in self._gone:
            users = self._running(gone.block, gone.users)
            if not users:
                continue
            old = gone.block
            fits = -(-new.size // _STEP) <= -(-old.size // _STEP) and (new.size <= _SMALL) == (old.size <= _SMALL)
            if new.stream == old.stream and fits:
                self._tell_reused(gone, users[-1], new)
            else:
                kept.append(gone)
        self._gone = kept[-_REMEMBERED:]

    # ---- work ----------------------------------------------------------------------------------------------------

    def worked(self, work: Work, reads: Sequence[Extent], writes: Sequence[Extent]) -> None:
        """Work was issued."""
        self._note(work, [ExtentTouched(one, WRITE) for one in writes] + [ExtentTouched(one, READ) for one in reads])

    def launched(self, launch: Launch, grid: Grid) -> None:
        """A launch has run; its grid still knows what it touched."""
        touched = grid.unit(LaunchRaces).touched()
        self._streams.launched(f"kernel {_short(launch.kernel)}", launch.stream, lambda work: self._note(work, touched))

    @contextmanager
    def called(self, memory: Sequence[Extent], results: list[Extent]) -> Iterator[None]:
        """The user's code is called, with tensors that its caller has just filled and results that it reads afterwards.

        The caller works on the stream that is current when it calls. ``results`` may grow during the call.
        """
        streams = self._streams
        streams.synchronize_device()
        caller = streams.current
        streams.work(_FILLED, stream=caller, writes=memory)
        yield
        streams.work(_FETCHED, stream=caller, reads=results)
        streams.synchronize_device()

    def _note(self, work: Work, touched: Sequence[Touched]) -> None:
        """Compare work with what is unordered before it, and keep it."""
        self._settle()
        for what in touched:
            block = self._find(what.low) if what.high > what.low and what.kinds & STRONG_READ else None
            for old in block.touches if block is not None else ():
                if not work.after(old.work) and speak(old.what, what):
                    self._streams.order(work, old.work)
        # By stream the last one: a wait for that is the edge that is missing, and orders all before it too.
        last: dict[Key, tuple[_Touch, _Touch, int]] = {}
        for what in touched:
            block = self._find(what.low) if what.high > what.low else None
            for old in block.touches if block is not None else ():
                known = last.get(old.work.stream)
                if work.after(old.work) or (known is not None and known[0].work.tick >= old.work.tick):
                    continue
                place = conflict(old.what, what)
                if place is not None:
                    last[old.work.stream] = (old, _Touch(work, what), place)
        for old, new, place in sorted(last.values(), key=lambda found: found[0].work.tick, reverse=True):
            if not work.after(old.work):
                self._tell(old, new, place)
                self._streams.order(work, old.work)
        for what in touched:
            block = self._find(what.low) if what.high > what.low else None
            if block is not None:
                block.touches = [old for old in block.touches if self._matters(old, work, what)]
                block.touches.append(_Touch(work, what))

    def _matters(self, old: _Touch, work: Work, what: Touched) -> bool:
        """Whether later work may race with earlier work and not with new work."""
        if self._streams.done(old.work):
            return False
        return old.work is work or not work.after(old.work) or not covers(what, old.what)

    # ---- words ---------------------------------------------------------------------------------------------------

    def _tell(self, old: _Touch, new: _Touch, address: int) -> None:
        key = (old.work.what, old.work.line, new.work.what, new.work.line)
        if key in self._told:
            return
        self._told.add(key)
        first, second = self._streams.name(old.work.stream), self._streams.name(new.work.stream)
        region = self._memory.find(address)
        place = region.say(address) if region is not None else f"address {address:#x}"
        message = (
            f"{self._said(new, address)} {_verb(new, address)}s {place} while {self._said(old, address)} may still "
            f"{_verb(old, address)} it: nothing makes {second} wait for {first} in between"
        )
        self.findings.append(
            Finding(RACE, message, hint=self._hint(old.work, new.work, first, second), where=_where(new, old))
        )

    def _hint(self, old: Work, new: Work, first: str, second: str) -> str:
        short = [line and line._replace(caller=None) for line in (old.line, new.line)]
        before, then = map(_line, short if short[0] != short[1] else (old.line, new.line))
        if new.what == _FETCHED:
            return (
                f"before the call returns, make the stream that was current when it began ({second}) wait for {first}: "
                "torch.cuda.current_stream().wait_stream(...), or an event that is recorded there after "
                f"{before}; or work on torch.cuda.current_stream(). What trails behind is not timed either: "
                "the benchmark check fails it"
            )
        if old.what == _FILLED:
            return (
                f"before {then}, make {second} wait for the stream that was current when the call began "
                f"({first}): side.wait_stream(torch.cuda.current_stream()); what the caller has put there, the inputs "
                "among it, need not be complete"
            )
        return (
            f"{second} has to wait for {first} after {before} and before {then}: wait_stream, or an event "
            "that the one records and the other waits for (cudaEventRecord, cudaStreamWaitEvent); or both on one stream"
        )

    def _said(self, touch: _Touch, address: int) -> str:
        work = touch.work
        inside = touch.what.line(address)
        verb = " launched" if work.what.startswith("kernel ") else ""
        where = f"{verb} at {_line(work.line)}" if work.line is not None else verb
        return f"{work.what}{where} on {self._streams.name(work.stream)}" + (f" ({inside})" if inside else "")

    def _tell_reused(self, gone: _Gone, user: Work, new: _Block) -> None:
        key = ("reused", gone.block.line, user.line, new.line)
        if key in self._told:
            return
        self._told.add(key)
        own, other = self._streams.name(gone.block.stream), self._streams.name(user.stream)
        message = (
            f"the tensor of {gone.block.size} bytes made at {_line(gone.block.line)} is freed at {_line(gone.line)} "
            f"while {user.what} at {_line(user.line)} on {other} may still use it: its memory goes back to {own}, "
            f"which has not waited for {other}, and the tensor made at {_line(new.line)} may get it"
        )
        hint = (
            f"tensor.record_stream(...) for {other}; or keep the tensor until {own} has waited for {other} "
            "(wait_stream, an event)"
        )
        self.findings.append(Finding(WARNING, message, hint=hint, where=_at(new.line)))


def _verb(touch: _Touch, address: int) -> str:
    return "write" if int(touch.what.bytes(address, address + 1)[0]) & (WRITE | STRONG_WRITE) else "read"


def _line(line: UserLine | None) -> str:
    return str(line) if line is not None else "the caller's"


def _where(new: _Touch, old: _Touch) -> Where | None:
    return _at(new.work.line or old.work.line)


def _at(line: UserLine | None) -> Where | None:
    if line is None:
        return None
    return Where(kernel="", source=Location(line.file, line.line, function=line.function))


def _short(kernel: str) -> str:
    """What the user calls a kernel: the DSL adds a prefix, and its arguments' types."""
    name = _ARGUMENTS.split(kernel.removeprefix(_PREFIX))[0]
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
