"""Formatting by the C library and by the simulator."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from pytest_nvfp4.sim.sync.callout import format_c

LIBC = ctypes.CDLL(None)


def c_printf(pattern: str, *arguments: Any) -> str:
    """Format by the C library."""
    buffer = ctypes.create_string_buffer(4096)
    LIBC.snprintf(buffer, 4096, pattern.encode(), *arguments)
    return buffer.value.decode("latin-1")


def simulated_printf(pattern: str, *values: Any) -> tuple[str, int]:
    """Format by the simulator."""
    left = list(values)
    return format_c(pattern, lambda kind: _as(kind, left.pop(0)), lambda address: f"<{address}>")


def _as(kind: str, value: Any) -> Any:
    if kind == "d":
        return value
    size = struct.calcsize(kind)
    return struct.unpack("<" + kind, (value & ((1 << 8 * size) - 1)).to_bytes(size, "little"))[0]
