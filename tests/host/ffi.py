"""Stand-ins for compiled parameters and tensors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace


def bytes_of(argument: object, size: int) -> bytes:
    (address,) = argument.__c_pointers__()  # type: ignore[attr-defined]
    return ctypes.string_at(address, size)


@dataclass
class Compiled:
    """What a tensor parameter was compiled for: extents and strides, None where they are dynamic."""

    shape: tuple[object, ...]
    stride: tuple[object, ...]
    bits: int = 32

    @property
    def dynamic_shapes_mask(self) -> tuple[int, ...]:
        return tuple(int(not isinstance(one, int)) for one in self.shape)

    @property
    def dynamic_strides_mask(self) -> tuple[int, ...]:
        return tuple(int(not isinstance(one, int)) for one in self.stride)

    @property
    def element_type(self) -> SimpleNamespace:
        return SimpleNamespace(width=self.bits)


@dataclass
class Tensor:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int = 4

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return 0x1122334455667788

    def element_size(self) -> int:
        return self.size


def packed(*numbers: tuple[int, int]) -> bytes:
    return (0x1122334455667788).to_bytes(8, "little") + b"".join(n.to_bytes(size, "little") for n, size in numbers)
