"""Messages on a byte stream: a kind, a small header as JSON, and bytes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

PROTOCOL = 1
"""Version of what the two ends say to each other."""

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"nvf4"
_MOST_HEADER = 16 << 20
_MOST_PAYLOAD = 2 << 30


class FrameError(ValueError):
    """What came over the line is no message."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    kind: str
    header: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""


def send(stream: BinaryIO, message: Message) -> None:
    """Write a message and flush it. Raises OSError and ValueError (a closed stream)."""
    header = json.dumps({"kind": message.kind, **message.header}, separators=(",", ":")).encode()
    stream.write(_HEAD.pack(_MAGIC, len(header), len(message.payload)) + header)
    stream.write(message.payload)
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """Read a message; None where the stream ends, also in the middle of one.

    Raises:
        FrameError: something else is on the line.
    """
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, header_size, payload_size = _HEAD.unpack(head)
    if magic != _MAGIC or header_size > _MOST_HEADER or payload_size > _MOST_PAYLOAD:
        raise FrameError(f"no message begins with {head[:16]!r}")
    text = stream.read(header_size)
    payload = stream.read(payload_size)
    if len(text) < header_size or len(payload) < payload_size:
        return None
    try:
        header = json.loads(text)
        return Message(str(header.pop("kind")), header, payload)
    except (ValueError, KeyError, AttributeError) as error:
        raise FrameError(f"a message's header cannot be read: {error}") from error
