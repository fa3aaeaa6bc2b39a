"""Messages on a byte stream: a kind, a small header as JSON, and bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json

PROTOCOL = 1
"""Version of the messages between the two sides."""

_HEAD = struct.Struct(">4sIQ")
_MAGIC = b"nvf4"
_HEADER = Bounds(size=16 << 20, depth=16)
MAX_PAYLOAD_BYTES = 2 << 30
_CHUNK_BYTES = 1 << 20


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


def receive(stream: BinaryIO, *, most: Callable[[], int] = lambda: MAX_PAYLOAD_BYTES) -> Message | None:
    """Read a message; return None at the end of the stream, also in the middle of a message.

    Args:
        stream: The stream.
        most: Returns the largest number of bytes that are expected now.

    Raises:
        FrameError: The stream contains something else, or announces more bytes.
    """
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, header_size, payload_size = _HEAD.unpack(head)
    if magic != _MAGIC or header_size > _HEADER.size:
        raise FrameError(f"{head[:16]!r} does not start a message")
    if payload_size > most():
        raise FrameError(f"a message announces {payload_size} bytes, and at most {most()} are expected")
    text, payload = _read(stream, header_size), _read(stream, payload_size)
    if text is None or payload is None:
        return None
    try:
        header = read_json(text, source="the header of a message", bounds=_HEADER)
    except DoorError as error:
        raise FrameError(str(error)) from error
    if not isinstance(header, dict) or not isinstance(kind := header.pop("kind", None), str):
        raise FrameError("the header of a message has no kind")
    return Message(kind, header, payload)


def _read(stream: BinaryIO, size: int) -> bytes | None:
    """Read so many bytes, in memory that grows with what arrives; return None if there are fewer."""
    data = bytearray()
    while len(data) < size:
        chunk = stream.read(min(_CHUNK_BYTES, size - len(data)))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
