"""A host with streams and tensors, and the order of its work by definition."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_nvfp4.driver.streams import Extent, Streams
from pytest_nvfp4.sim.memory.globals import GlobalMemory, Region
from pytest_nvfp4.sim.races.host_order import HostOrder

SIZE = 64
MAIN = 0


class Host:
    """A host with two streams that wait for none, one that blocks, two events, and three tensors."""

    def __init__(self) -> None:
        self.streams = Streams()
        self.memory = GlobalMemory()
        self.order = HostOrder(self.streams, self.memory)
        self.a = self.streams.add(0x5C01, blocking=False)
        self.b = self.streams.add(0x5C02, blocking=False)
        self.blocking = self.streams.add(0x5C03, blocking=True)
        self.e, self.f = self.streams.new_event(), self.streams.new_event()
        self.kept: list[object] = []
        self.x, self.y, self.z = (self.tensor(name) for name in "xyz")

    def tensor(self, name: str, size: int = SIZE) -> int:
        memory = ctypes.create_string_buffer(size)
        self.kept.append(memory)
        address = ctypes.addressof(memory)
        self.memory.add(Region(name, address, size))
        self.streams.allocated(address, size, pooled=True)
        return address

    def write(self, stream: int, address: int, size: int = SIZE) -> None:
        self.streams.work("a write", stream=stream, writes=[Extent(address, size)])

    def read(self, stream: int, address: int, size: int = SIZE) -> None:
        self.streams.work("a read", stream=stream, reads=[Extent(address, size)])

    def after(self, stream: int, other: int) -> None:
        """``wait_stream``."""
        event = self.streams.new_event()
        self.streams.record(event, other)
        self.streams.wait(event, stream)

    @property
    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.order.findings]


@dataclass
class Definition:
    """The work ordered before each stream, event and the host, as plain sets."""

    streams: dict[str, set[int]] = field(
        default_factory=lambda: {name: set() for name in ("main", "a", "b", "blocking")}
    )
    events: dict[int, set[int]] = field(default_factory=dict)
    host: set[int] = field(default_factory=set)

    def before(self, stream: str) -> set[int]:
        mine = self.streams[stream]
        mine |= self.host
        if stream == "main":
            mine |= self.streams["blocking"]
        if stream == "blocking":
            mine |= self.streams["main"]
        return mine


def by_definition(program: Sequence[tuple[Any, ...]]) -> int | None:
    """Return the index of the first work that races, by definition; None for no race."""
    order = Definition()
    done: list[tuple[int, set[int], bool]] = []
    for index, step in enumerate(program):
        if step[0] == "work":
            _, stream, start, size, writes = step
            touched = set(range(start, start + size))
            known = order.before(stream)
            if any((writes or wrote) and touched & bytes_ and old not in known for old, bytes_, wrote in done):
                return index
            done.append((index, touched, writes))
            known.add(index)
        elif step[0] == "record":
            order.events[step[2]] = set(order.before(step[1]))
        elif step[0] == "wait":
            known = order.before(step[1])
            known |= order.events.get(step[2], set())
        elif step[0] == "synchronize":
            order.host |= order.before(step[1])
        else:
            order.host |= order.events.get(step[1], set())
    return None


def by_order(program: Sequence[tuple[Any, ...]]) -> int | None:
    """Return the index of the first work that races, by ``HostOrder``; None for no race."""
    host = Host()
    names = {"main": MAIN, "a": host.a, "b": host.b, "blocking": host.blocking}
    events = [host.e, host.f]
    for index, step in enumerate(program):
        if step[0] == "work":
            _, stream, start, size, writes = step
            (host.write if writes else host.read)(names[stream], host.x + start, size)
            if host.kinds:
                return index
        elif step[0] == "record":
            host.streams.record(events[step[2]], names[step[1]])
        elif step[0] == "wait":
            host.streams.wait(events[step[2]], names[step[1]])
        elif step[0] == "synchronize":
            host.streams.synchronize(names[step[1]])
        else:
            host.streams.synchronize_event(events[step[1]])
    return None
