"""Frames on the sockets between the kernel's process and the machine: a JSON header and raw blobs.

A frame is two little-endian 64-bit sizes (of the header; of all blobs), the header, and the blobs. The header is a JSON
object ``{"kind": ..., "blobs": [sizes], ...}``. Both sides read with the same limits, and what breaks one raises
``WireError``, whoever sent it: sizes, and what the strict door refuses (``isolation.door.json_values``).
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json

_SIZES: Final = struct.Struct("<QQ")
MOST_HEADER: Final = 16 << 20
"""Bytes of a header."""
MOST_BYTES: Final = 8 << 30
"""Bytes of the blobs of a frame."""
_MOST_BLOBS: Final = 65_536
_HEADER: Final = Bounds(size=MOST_HEADER, depth=24)
_PIECE: Final = 1 << 20

Blob = bytes | bytearray | memoryview
Answer = tuple[dict[str, Any], list[Blob]]
"""The fields and blobs of an answer."""


class WireError(Exception):
    """A frame that breaks the protocol; the message says how."""


class HungUpError(Exception):
    """The other side has closed the socket, or its process has ended."""


@dataclass(frozen=True, slots=True)
class Message:
    """A frame: its kind, the other fields of its header, and its blobs."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    blobs: Sequence[Blob] = ()


def parse(data: bytes) -> dict[str, Any]:
    """Parse a header. Raises WireError."""
    try:
        values = read_json(data, source="a header", bounds=_HEADER)
    except DoorError as error:
        raise WireError(str(error)) from None
    if not isinstance(values, dict):
        raise WireError(f"a header is {type(values).__name__}, not an object")
    return values


class Channel:
    """Frames over one socket. Nothing here locks: one thread at a time sends, and one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, for polling."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, kind: str, fields: Mapping[str, Any] | None = None, blobs: Sequence[Blob] = ()) -> None:
        """Send a frame.

        Raises:
            WireError: it is larger than the other side accepts.
            HungUpError: the other side is gone.
        """
        parts = [memoryview(blob).cast("B") if len(blob) else memoryview(b"") for blob in blobs]
        sizes = [len(part) for part in parts]
        values = {"kind": kind, **(fields or {})}
        if sizes:
            values["blobs"] = sizes
        text = json.dumps(values, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        header = text.encode("utf-8", "replace")  # a lone surrogate, in the name of a file, is no JSON
        if len(header) > MOST_HEADER or sum(sizes) > MOST_BYTES or len(sizes) > _MOST_BLOBS:
            raise WireError(f"a request of {len(header)} + {sum(sizes)} bytes is too large")
        try:
            self._socket.sendall(_SIZES.pack(len(header), sum(sizes)) + header)
            for part in parts:
                if part:
                    self._socket.sendall(part)
        except OSError:
            raise HungUpError from None

    def receive(self) -> Message:
        """Receive a frame.

        Raises:
            WireError: it breaks the protocol.
            HungUpError: the other side is gone, perhaps in the middle of a frame.
        """
        header_size, total = _SIZES.unpack(self._read(_SIZES.size))
        if not 2 <= header_size <= MOST_HEADER or total > MOST_BYTES:
            raise WireError(f"a frame claims {header_size} + {total} bytes")
        values = parse(bytes(self._read(header_size)))
        kind, sizes = values.pop("kind", None), values.pop("blobs", [])
        if not isinstance(kind, str) or not isinstance(sizes, list) or len(sizes) > _MOST_BLOBS:
            raise WireError("a header has no kind, or no list of sizes")
        if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) != total:
            raise WireError("the sizes of a frame's blobs do not add up")
        return Message(kind, values, [self._read(size) for size in sizes])

    def _read(self, size: int) -> bytearray:
        """Read bytes; memory is taken as they arrive, not as they are claimed."""
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(min(size - len(data), _PIECE))
            except OSError:
                raise HungUpError from None
            if not piece:
                raise HungUpError
            data += piece
        return data
