"""Messages between a process that requests a child and a fork server.

A request is a datagram of one byte with six descriptors: an anonymous file that holds the request as JSON, which may be
larger than a datagram, and those that the child takes over. Reports about the child (``started=PID``,
``refused=REASON``, ``ended=STATUS``) are JSON datagrams on a socket of its own; closing that socket ends the child.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json

_REPORT = Bounds(size=1 << 16, depth=2, values=16)
_RANGES = {"started": range(1, 1 << 31), "ended": range(-255, 256)}
"""Process numbers, and exit statuses with negative signals."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What a forked child receives besides its worker; ``stdin`` and ``result`` are descriptors."""

    cwd: Path
    environ: Mapping[str, str]
    stdin: int
    result: int


class Descriptors(NamedTuple):
    """Descriptors that a child takes over: its standard streams, its result, and the socket for reports about it."""

    stdin: int
    stdout: int
    stderr: int
    result: int
    reports: int


def send_report(reports: socket.socket, **report: int | str) -> None:
    """Send a report, unless its receiver has ended."""
    with contextlib.suppress(OSError):
        reports.send(json.dumps(report).encode())


def receive_report(reports: socket.socket, *, timeout_s: float) -> dict[str, Any] | None:
    """Return the next report: None if none came in time, an empty one if the other side has ended or is no server."""
    reports.settimeout(timeout_s)
    try:
        data = reports.recv(1 << 16)
    except (TimeoutError, BlockingIOError):  # the latter for a timeout of 0
        return None
    except ConnectionError:
        return {}
    try:
        report = read_json(data, source="a report of the fork server", bounds=_REPORT) if data else {}
    except DoorError:
        return {}
    return report if isinstance(report, dict) and all(map(_is_valid, report.items())) else {}


def _is_valid(field: tuple[str, object]) -> bool:
    """Return whether a field of a report has its type and range."""
    name, value = field
    if name == "refused":
        return isinstance(value, str)
    number = isinstance(value, int) and not isinstance(value, bool)
    return number and name in _RANGES and value in _RANGES[name]
