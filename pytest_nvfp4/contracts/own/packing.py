"""Draws of inputs, and results, as bytes: a line of JSON, and then the elements of each array in order."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.json_values import read_json

ITEMS = {
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float4_e2m1fn_x2",), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
"""Bytes of an element by the name of its type in torch."""
_MOST_DIMENSIONS, _MOST_TEXT = 16, 200


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array: name, type (in torch), shape, row-major elements, the library it came from, and its device."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    library: str = "numpy"
    device: bool = True

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ITEMS[self.dtype]


Value = Array | int | float | str | bool | None


def pack(fields: dict[str, Any], arrays: Sequence[Array]) -> bytes:
    """Return fields (JSON values) and arrays as bytes."""
    described = [[one.name, one.dtype, one.shape, one.library, one.device] for one in arrays]
    head = json.dumps({**fields, "arrays": described}).encode()
    return b"".join([head, b"\n", *(bytes(one.data) for one in arrays)])


def unpack(data: bytes, *, source: str) -> tuple[dict[str, Any], list[Array]]:
    """Return the fields and arrays that ``pack`` wrote. Raises DoorError for anything else."""
    head, separator, _ = data.partition(b"\n")
    fields = read_json(head, source=source)
    described = fields.get("arrays") if isinstance(fields, dict) else None
    if not separator or not isinstance(described, list):
        raise DoorError(source, "lists no arrays")
    view, at, arrays = memoryview(data), len(head) + 1, []
    for one in described:
        array = _array(one, source)
        if at + array.size > len(data):
            raise DoorError(source, f"ends within {array.name}")
        arrays.append(Array(array.name, array.dtype, array.shape, view[at : at + array.size], one[3], one[4]))
        at += array.size
    if at != len(data):
        raise DoorError(source, f"has {len(data) - at} bytes behind its arrays")
    return fields, arrays


def _array(one: Any, source: str) -> Array:
    if not isinstance(one, list) or len(one) != 5 or not isinstance(one[2], list):
        raise DoorError(source, "has an array without name, type, shape, library and device")
    name, dtype, shape, library, device = one
    texts = isinstance(name, str) and 0 < len(name) <= _MOST_TEXT and library in ("numpy", "torch")
    sizes = len(shape) <= _MOST_DIMENSIONS and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
    if not texts or dtype not in ITEMS or not sizes or type(device) is not bool:
        raise DoorError(source, f"has an array {str(name)[:80]!r} of type {str(dtype)[:40]!r} that cannot be read")
    return Array(name, dtype, tuple(shape), b"", library, device)
