"""Parameters of a Triton kernel's launch as bytes: what the C launchers that Triton builds make of its arguments.

A host-side ``TensorDescriptor`` becomes a tensor map where the kernel uses TMA, otherwise its pointer, shape and
strides; its shape and strides follow in both cases. Which parameters there are differs between releases of Triton: the
sizes that the CUBIN declares decide whether they are understood.
"""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.tensormap import TENSOR_MAP_BYTES
from pytest_nvfp4.driver.tensormap_encoding import encode_tiled

_L2_PROMOTION_128B: Final = 2
_FLOATS: Final = {"fp16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d"}
_HOST_TYPES: Final = {8: 10, 9: 8, 10: 9}
"""``CUtensorMapDataType`` by the type of ``tensormap.replace``, where they differ."""
_TF32: Final = 11


def parameters(
    types: Sequence[Any],
    values: Sequence[Any],
    maps: Sequence[Mapping[str, Any]],
    scratch: Sequence[int],
    sizes: Sequence[int],
) -> tuple[bytes, ...]:
    """Return the bytes of each parameter of a kernel.

    Args:
        types: Triton's types of the arguments; ``constexpr`` for those that are no parameters.
        values: The arguments.
        maps: How Triton's compiler describes the tensor map of each ``TensorDescriptor``; empty if it uses none.
        scratch: Addresses of the scratch memory, which follow; a kernel may take fewer.
        sizes: Sizes of the parameters in bytes, from the CUBIN.

    Raises:
        HostSideError: the arguments do not fit the kernel's parameters.
        TypeError, ValueError, OverflowError: an argument does not fit its type, as in Triton's own launcher.
    """
    made = list(_flat(types, values, iter(maps) if maps else None))
    made += [address.to_bytes(8, "little") for address in scratch][: max(0, len(sizes) - len(made))]
    packed = tuple(
        each if isinstance(each, bytes) else _integer(each, size) for each, size in zip(made, sizes, strict=False)
    )
    if len(made) != len(sizes) or any(len(each) != size for each, size in zip(packed, sizes, strict=False)):
        raise HostSideError(
            f"the arguments of a Triton kernel make parameters of {[len(each) for each in packed]} bytes, and it has "
            f"{list(sizes)}: this release of Triton passes them in another way; use Triton 3.4 to 3.9"
        )
    return packed


def address_of(value: Any, where: str) -> int:
    """Return the device address of a pointer argument: a number, None, or an object with ``data_ptr()``."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if not hasattr(value, "data_ptr"):
        raise TypeError(f"{where}: a pointer argument must be an integer or have a data_ptr method, not {type(value)}")
    address = int(value.data_ptr())
    device = getattr(value, "device", None)
    if address and getattr(device, "type", "cuda") == "cpu":
        raise ValueError(f"{where}: a pointer argument cannot be accessed from Triton (cpu tensor?)")
    return address


def _flat(
    types: Sequence[Any], values: Sequence[Any], maps: Iterator[Mapping[str, Any]] | None
) -> Iterator[bytes | int]:
    """Yield parameters: bytes, or an integer whose size the kernel states."""
    for number, (kind, value) in enumerate(zip(types, values, strict=True)):
        where = f"argument {number}"
        if isinstance(kind, tuple | list):
            yield from _flat(kind, value, maps)
        elif kind == "constexpr":
            continue
        elif kind.startswith("*"):
            yield address_of(value, where).to_bytes(8, "little")
        elif kind.startswith("tensordesc"):
            yield from _descriptor(value, None if maps is None else next(maps), where)
        elif kind == "nvTmaDesc":
            yield ctypes.string_at(value.tma_desc_cpu_ptr(), TENSOR_MAP_BYTES)
        else:
            yield _scalar(kind, value, where)


def _scalar(kind: str, value: Any, where: str) -> bytes:
    if kind in _FLOATS:
        return struct.pack(_FLOATS[kind], float(value))
    if kind == "bf16":
        return struct.pack("<f", float(value))[2:]
    if kind[0] not in "iu" or not kind[1:].isdigit():
        raise HostSideError(f"{where}: a scalar of Triton's type {kind} has no stand-in without a GPU")
    bits = int(kind[1:])
    return operator.index(value).to_bytes(max(1, bits // 8), "little", signed=kind[0] == "i" and bits > 1)


def _integer(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little", signed=True)


def _descriptor(value: Any, map_of: Mapping[str, Any] | None, where: str) -> Iterator[bytes | int]:
    shape, strides = [int(size) for size in value.shape], [int(stride) for stride in value.strides]
    if map_of is not None:
        yield _tensor_map(value, map_of, shape, strides, where)
    else:
        yield address_of(value.base, where).to_bytes(8, "little")
        yield from (*shape, *strides)
        # Later releases added these fields together with their parameters.
        yield from (int(value.padding == "nan") for _ in range(hasattr(value, "padding")))
        yield from (int(value.round_f32_to_tf32) for _ in range(hasattr(value, "round_f32_to_tf32")))
    yield from (*shape, *strides)


def _tensor_map(
    value: Any, map_of: Mapping[str, Any], shape: Sequence[int], strides: Sequence[int], where: str
) -> bytes:
    if map_of.get("is_im2col"):
        raise HostSideError(
            f"{where}: an im2col tensor map has no stand-in without a GPU; use a tiled TensorDescriptor"
        )
    kind, size = int(map_of["elem_type"]), int(map_of["elem_size"])
    dims = [*shape[:-1], shape[-1] * 2] if map_of["fp4_padded"] else shape
    return encode_tiled(
        element_type=_TF32 if getattr(value, "round_f32_to_tf32", False) else _HOST_TYPES.get(kind, kind),
        address=address_of(value.base, where),
        dims=tuple(reversed(dims)),
        strides=tuple(stride * size for stride in reversed(strides[:-1])),
        box=tuple(map(int, reversed(map_of["block_size"]))),
        swizzle=int(map_of["swizzle"]),
        l2_promotion=_L2_PROMOTION_128B,
        oob_fill=int(getattr(value, "padding", "zero") == "nan"),
    )
