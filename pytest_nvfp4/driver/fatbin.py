"""PTX and CUBINs of the fat binaries that nvcc embeds in host code.

Source: NVIDIA's ``fatbinary_section.h`` (the wrapper) and ``fatBinaryCtl.h``, which the CUDA toolkit has.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final, NamedTuple

_WRAPPER_MAGIC: Final = 0x466243B1
_MAGIC: Final = 0xBA55ED50
_PTX: Final = 1
_ELF: Final = 2
_COMPRESSED: Final = 0x2000 | 0x8000  # LZ4, and zstd since CUDA 12.8
_MOST_BYTES: Final = 1 << 31


class FatbinError(ValueError):
    """A fat binary that cannot be read."""


class Code(NamedTuple):
    """The code for one device: its PTX and, if there is one, the CUBIN of this PTX."""

    ptx: str
    cubin: bytes


def read(wrapper: int) -> Code:
    """Return the code of the fat binary whose wrapper lies at an address of this process.

    Raises:
        FatbinError: it is damaged or compressed, or has not exactly one PTX.
    """
    magic, _, data = struct.unpack("<IIQ", ctypes.string_at(wrapper, 16))
    if magic != _WRAPPER_MAGIC:
        raise FatbinError(f"no fat binary is at {wrapper:#x}")
    magic, _, header, size = struct.unpack("<IHHQ", ctypes.string_at(data, 16))
    if magic != _MAGIC or size > _MOST_BYTES:
        raise FatbinError("a fat binary has an unknown header")
    body = ctypes.string_at(data + header, size)
    texts, images = list[bytes](), list[bytes]()
    at = 0
    while at + 64 <= len(body):
        kind, _, head, payload = struct.unpack_from("<HHIQ", body, at)
        (flags,) = struct.unpack_from("<Q", body, at + 40)
        if head < 64 or at + head + payload > len(body):
            raise FatbinError(f"a fat binary is damaged at byte {at}")
        if flags & _COMPRESSED:
            raise FatbinError("a fat binary is compressed")
        if kind in (_PTX, _ELF):
            (texts if kind == _PTX else images).append(body[at + head : at + head + payload])
        at += head + payload
    if len(texts) != 1 or len(images) > 1:
        raise FatbinError(f"a fat binary has {len(texts)} PTX texts and {len(images)} CUBINs, expected one of each")
    return Code(texts[0].rstrip(b"\0").decode("utf-8", errors="replace"), images[0] if images else b"")
