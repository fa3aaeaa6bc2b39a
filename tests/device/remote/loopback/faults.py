"""Faults by RPC: an error status, silence, delay, a closed connection, or an answer of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from grpclib import GRPCError, Status
from modal_proto import api_pb2

Kind = Literal["error", "hang", "delay", "close", "answer"]


@dataclass
class Fault:
    """What goes wrong with one RPC.

    Attributes:
        rpc: Its name.
        kind: ``error`` refuses it with a status, ``hang`` never answers, ``delay`` answers late, ``close`` drops every
            connection and takes no new ones, ``answer`` passes its answer through ``change``.
        after: How many calls go well before.
        times: How many calls it hits.
        status: For ``error``.
        message: For ``error``.
        seconds: For ``delay``.
        change: For ``answer``.
        worker: It hits calls of containers, not of clients.
        retry_after_s: For ``error``: the client is asked to try again after so many seconds.
    """

    rpc: str
    kind: Kind
    after: int = 0
    times: int = 1_000_000
    status: Status = Status.INTERNAL
    message: str = "injected"
    seconds: float = 0.0
    change: Callable[[Any], Any] | None = None
    worker: bool = False
    retry_after_s: float | None = None
    seen: int = field(default=0, init=False)

    def hits(self) -> bool:
        self.seen += 1
        return self.after < self.seen <= self.after + self.times

    def error(self) -> GRPCError:
        again = self.retry_after_s
        details = None if again is None else [api_pb2.RPCRetryPolicy(retry_after_secs=again)]
        return GRPCError(self.status, self.message, details)


class Faults:
    """The faults of a server."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, *faults: Fault) -> None:
        self._faults += faults

    def clear(self) -> None:
        self._faults.clear()

    def of(self, rpc: str, *, worker: bool) -> Fault | None:
        for fault in self._faults:
            if fault.rpc == rpc and fault.worker == worker and fault.hits():
                return fault
        return None
