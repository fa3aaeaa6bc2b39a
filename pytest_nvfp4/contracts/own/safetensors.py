"""One tensor of a safetensors file, read within bounds.

Format (https://huggingface.co/docs/safetensors): 8 bytes, little-endian, with the length of a header; the header, JSON
that has ``dtype``, ``shape`` and ``data_offsets`` of each tensor by name (``__metadata__`` is none); and the bytes of
the tensors, row-major, to which the offsets refer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from pytest_nvfp4.contracts.own.packing import ITEMS
from pytest_nvfp4.contracts.own.wrong import Wrong
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import read_json

MOST_BYTES: Final = 256 << 20
"""Bytes of a file that is read."""
_LENGTH: Final = 8
_TYPES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
"""Names of types in torch, by their names in the header."""


def tensor(path: Path, key: str) -> Any:
    """Return a tensor of a file as one of torch, on the CPU. Raises Wrong: it is not there, or is malformed."""
    import torch

    try:
        data = read_file(path, source=f"{path.name}:", most=MOST_BYTES)
    except (OSError, DoorError) as error:
        raise Wrong(f"{path.name} cannot be read: {error}") from error
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or end > len(data):
        raise Wrong(f"{path.name} is no safetensors file: its header of {end - _LENGTH} bytes goes beyond its end")
    try:
        header = read_json(data[_LENGTH:end], source=path.name)
    except DoorError as error:
        raise Wrong(f"the header of {error}") from error
    names = [name for name in header if name != "__metadata__"] if isinstance(header, dict) else []
    if key not in names:
        raise Wrong(f"{path.name} has no tensor {key!r}; it has {', '.join(names)[:200] or 'none'}")
    kind, shape, start, stop = _described(header[key], f"{path.name}: tensor {key!r}")
    if not 0 <= start <= stop <= len(data) - end or stop - start != math.prod(shape) * ITEMS[kind]:
        raise Wrong(f"{path.name}: tensor {key!r} is {kind} {list(shape)}, and its data are bytes [{start}, {stop})")
    raw = torch.frombuffer(bytearray(data[end + start : end + stop]) or bytearray(1), dtype=torch.uint8)
    return raw[: stop - start].view(getattr(torch, kind)).reshape(shape)


def _described(one: object, what: str) -> tuple[str, tuple[int, ...], int, int]:
    """Return type, shape and the first and last offset of an entry of a header. Raises Wrong."""
    fields = one if isinstance(one, dict) else {}
    shape, offsets = fields.get("shape"), fields.get("data_offsets")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers) or len(offsets or ()) != 2:
        raise Wrong(f"{what} has no shape and data_offsets")
    if (kind := _TYPES.get(str(fields.get("dtype")))) is None:
        raise Wrong(f"{what} has dtype {str(fields.get('dtype'))[:40]}, which is not supported: {', '.join(_TYPES)}")
    assert shape is not None
    assert offsets is not None
    return kind, tuple(shape), offsets[0], offsets[1]
