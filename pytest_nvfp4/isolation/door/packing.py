"""Compressed bytes from outside: their plain size is known before they are decompressed."""

from __future__ import annotations

import base64
import binascii
import zlib

from pytest_nvfp4.isolation.door.error import DoorError

_RATIO = 1032
"""Largest ratio of plain to compressed size of deflate (zlib's technical details)."""


def inflate(data: bytes, *, size: int, source: str) -> bytes:
    """Return the ``size`` plain bytes of some zlib data.

    Memory grows with the bytes that are there, not with the announced size.

    Raises:
        DoorError: The data is damaged, or its plain bytes are not ``size``.
    """
    if size < 0 or size > _RATIO * len(data) + 64:
        raise DoorError(source, f"announces {size} bytes, which {len(data)} compressed bytes cannot hold")
    plain = inflate_at_most(data, size=size, source=source)
    if len(plain) != size:
        raise DoorError(source, f"has {len(plain)} bytes, and announces {size}")
    return plain


def inflate_at_most(data: bytes, *, size: int, source: str) -> bytes:
    """Return the plain bytes of some zlib data, at most ``size``. Raises DoorError."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise DoorError(source, f"is damaged: {error}") from None
    if len(plain) > size or inflater.unconsumed_tail:
        raise DoorError(source, f"has more than {size} bytes")
    if not inflater.eof:
        raise DoorError(source, "is damaged: the compressed data is incomplete")
    if inflater.unused_data:
        raise DoorError(source, "is damaged: it is followed by other bytes")
    return plain


def from_base64(text: str | bytes, *, source: str) -> bytes:
    """Return the bytes of some base64 text. Raises DoorError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DoorError(source, f"is not base64: {error}") from None
