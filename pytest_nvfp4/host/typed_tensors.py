"""torch's older ways to make and convert tensors by type: ``torch.cuda.FloatTensor``, ``Tensor.new``, ``Tensor.type``.

Their C++ code initialises CUDA. The stand-ins call functions that ``torch_cuda`` redirects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

_DTYPES: Final = MappingProxyType(
    {
        "BFloat16Tensor": torch.bfloat16,
        "BoolTensor": torch.bool,
        "ByteTensor": torch.uint8,
        "CharTensor": torch.int8,
        "DoubleTensor": torch.float64,
        "FloatTensor": torch.float32,
        "HalfTensor": torch.float16,
        "IntTensor": torch.int32,
        "LongTensor": torch.int64,
        "ShortTensor": torch.int16,
    }
)
_PREFIX: Final = "torch.cuda."


class _DeviceType(type):
    """The class of ``torch.cuda.FloatTensor`` and its relatives, which no tensor is an instance of in Python."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, **_: Any) -> torch.Tensor:
        return make(cls.dtype, args)


def device_types() -> dict[str, type]:
    """Return the classes that replace torch's, by their names in ``torch.cuda``."""
    return {
        name: _DeviceType(name, (), {"dtype": dtype, "__module__": "torch.cuda"}) for name, dtype in _DTYPES.items()
    }


def make(dtype: torch.dtype, args: Sequence[Any]) -> torch.Tensor:
    """Return what a constructor of device tensors makes of its arguments: sizes, a tensor, or data."""
    if len(args) == 1 and isinstance(args[0], torch.Tensor):
        return args[0].detach().to("cuda", dtype)
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return torch.tensor(args[0], dtype=dtype, device="cuda")
    return torch.empty(*(args or (0,)), dtype=dtype, device="cuda")


def converted(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Replace ``Tensor.type`` where it names a device type; for others the result is NotImplemented."""
    if isinstance(dtype, str) and dtype.startswith(_PREFIX):
        target = _DTYPES.get(dtype.removeprefix(_PREFIX))
    else:
        target = dtype.dtype if isinstance(dtype, _DeviceType) else None
    return NotImplemented if target is None else tensor.to("cuda", target, non_blocking=non_blocking)


def setting_default(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return ``torch.set_default_tensor_type`` for device types as well."""

    def set_default_tensor_type(t: Any) -> None:
        name = t.removeprefix(_PREFIX) if isinstance(t, str) and t.startswith(_PREFIX) else None
        dtype = _DTYPES.get(name) if name else t.dtype if isinstance(t, _DeviceType) else None
        if dtype is None:
            original(t)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda")

    return set_default_tensor_type
