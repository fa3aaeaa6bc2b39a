"""Messages on a byte stream: a kind, a small header as JSON, and bytes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO

PROTOCOL = 1
"""Version of the messages between the two sides."""

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"nvf4"
_MAX_HEADER_BYTES = 16 << 20
_MAX_PAYLOAD_BYTES = 2 << 30


class FrameError(ValueError):
    """The bytes on the stream are not a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Its header must not use the name ``kind``."""

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
    """Read a message; return None at the end of the stream, also in the middle of a message.

    Raises:
        FrameError: The stream contains something else.
    """
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, header_size, payload_size = _HEAD.unpack(head)
    if magic != _MAGIC or header_size > _MAX_HEADER_BYTES or payload_size > _MAX_PAYLOAD_BYTES:
        raise FrameError(f"{head[:16]!r} does not start a message")
    text = stream.read(header_size)
    payload = stream.read(payload_size)
    if len(text) < header_size or len(payload) < payload_size:
        return None
    try:
        header = json.loads(text)
        return Message(str(header.pop("kind")), header, payload)
    except (ValueError, KeyError, AttributeError) as error:
        raise FrameError(f"the header of a message cannot be read: {error}") from error
