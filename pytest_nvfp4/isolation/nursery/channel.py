"""Messages between a nursery and those who ask it, with descriptors: JSON, each behind its length."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_DESCRIPTORS = 8


class ClosedError(ConnectionError):
    """The other side is gone."""


def send(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, and duplicates of descriptors with it. Raises OSError where the other side is gone."""
    data = json.dumps(message).encode()
    header = _LENGTH.pack(len(data))
    if descriptors:
        sent = socket.send_fds(channel, [header], descriptors)
        header = header[sent:]
    channel.sendall(header + data)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors. Raises ClosedError at the end, OSError where it is damaged."""
    header, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, _MOST_DESCRIPTORS)
    header += _exactly(channel, _LENGTH.size - len(header), began=bool(header))
    (size,) = _LENGTH.unpack(header)
    message: dict[str, Any] = json.loads(_exactly(channel, size, began=True))
    return message, list(descriptors)


def _exactly(channel: socket.socket, size: int, *, began: bool) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(size - len(data)) if began or data else b""
        if not chunk:
            raise ClosedError("the other side is gone")
        data += chunk
    return bytes(data)
