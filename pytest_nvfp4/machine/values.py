"""Arguments and results of torch's operators as JSON values and blobs.

Numbers, strings, None and lists are themselves; anything else is an object with one field that names its kind:

- ``float``: a number that JSON has no word for, as Python's ``float.hex`` writes it; ``complex``: two of them.
- ``dtype``, ``device``, ``layout``, ``format`` (``torch.memory_format``): their names.
- ``tensor``: on the device: address of its allocation, type, sizes, strides, offset in elements.
- ``host``: in host memory: type, sizes, strides, and the number of the blob with its bytes, None for one that the
  operator only writes.
- ``generator``: the number of the blob with its state.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from pytest_nvfp4.machine.blocks import DTYPES
from pytest_nvfp4.machine.wire import Blob, WireError

_LAYOUTS: Final = {"strided": torch.strided}
_FORMATS: Final = {
    str(value).removeprefix("torch."): value
    for value in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}
_DEVICES: Final = ("cpu", "cuda", "meta")
_LARGEST: Final = 1 << 62
_MOST_DIMENSIONS: Final = 64


def device_fields(tensor: torch.Tensor) -> list[Any]:
    """Return the description of a tensor over device memory."""
    storage = tensor.untyped_storage()
    base = storage.data_ptr() if storage.nbytes() else 0
    name = str(tensor.dtype).removeprefix("torch.")
    return [base, name, list(tensor.size()), list(tensor.stride()), tensor.storage_offset() if base else 0]


def host_bytes(tensor: torch.Tensor) -> tuple[list[Any], bytes]:
    """Return type, sizes and strides of a CPU tensor, and its bytes in the order of its strides."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        tensor = torch.empty_like(tensor, device="cpu").copy_(tensor)  # keeps the order of its dimensions
    size = tensor.numel() * tensor.element_size()
    data = ctypes.string_at(tensor.data_ptr(), size) if size else b""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.size()), list(tensor.stride())], data


def host_tensor(fields: Any, data: Blob | None) -> torch.Tensor:
    """Return a new CPU tensor; without ``data``, its elements are zero. Raises WireError."""
    if not isinstance(fields, list) or len(fields) != 3:
        raise WireError("a host tensor needs a type, sizes and strides")
    name, sizes, strides = fields
    kind = DTYPES.get(name) if isinstance(name, str) else None
    if kind is None or not _are_sizes(sizes) or not _are_sizes(strides) or len(sizes) != len(strides):
        raise WireError("a host tensor has no type or sizes that can be")
    count = math.prod(sizes)
    reach = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) if count else 0
    if count > _LARGEST or reach > max(count, 0) or (data is not None and len(data) != count * kind.itemsize):
        raise WireError("the bytes of a host tensor do not fit its sizes and strides")
    tensor = torch.empty_strided(sizes, strides, dtype=kind, device="cpu")
    if data is None:
        zero(tensor)
    elif count:
        write_bytes(tensor, data)
    return tensor


def zero(tensor: torch.Tensor) -> None:
    """Write zeros to the whole storage of a CPU tensor."""
    storage = tensor.untyped_storage()
    if storage.nbytes():
        ctypes.memset(storage.data_ptr(), 0, storage.nbytes())


def write_bytes(tensor: torch.Tensor, data: Blob) -> None:
    """Write the bytes of a dense CPU tensor, in the order of its strides."""
    view = memoryview(data).cast("B")
    if len(view):
        ctypes.memmove(tensor.data_ptr(), (ctypes.c_char * len(view)).from_buffer_copy(view), len(view))


def _are_sizes(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= _MOST_DIMENSIONS
        and all(type(value) is int and 0 <= value < _LARGEST for value in values)
    )


class Encoder:
    """Encodes values.

    Args:
        device: Returns whether a tensor is one over device memory.
        describe: Returns the description of such a tensor.

    Attributes:
        blobs: The blobs so far.
    """

    def __init__(
        self,
        device: Callable[[torch.Tensor], bool],
        describe: Callable[[torch.Tensor], list[Any]] = device_fields,
    ) -> None:
        self._device = device
        self._describe = describe
        self.blobs: list[Blob] = []
        self.tensors: list[torch.Tensor] = []
        """The tensors among the values, in order."""
        self.hosts: list[torch.Tensor] = []
        """Those in host memory."""

    def encode(self, value: Any, *, written: bool = False) -> Any:
        """Return a value as JSON. ``written``: CPU tensors in it are only written."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, written=written)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": float(value).hex()}
        if isinstance(value, complex):
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, list | tuple):
            return [self.encode(each, written=written) for each in value]
        if isinstance(value, torch.Generator):
            self.blobs.append(host_bytes(value.get_state())[1])
            return {"generator": len(self.blobs) - 1}
        for name, kind in (
            ("dtype", torch.dtype),
            ("device", torch.device),
            ("layout", torch.layout),
            ("format", torch.memory_format),
        ):
            if isinstance(value, kind):
                return {name: str(value).removeprefix("torch.")}
        raise WireError(f"an operator's argument is a {type(value).__name__}, which has no stand-in without a GPU")

    def _tensor(self, value: torch.Tensor, *, written: bool) -> dict[str, Any]:
        self.tensors.append(value)
        if self._device(value):
            return {"tensor": self._describe(value)}
        self.hosts.append(value)
        fields, data = host_bytes(value)
        if written:
            return {"host": [*fields, None]}
        self.blobs.append(data)
        return {"host": [*fields, len(self.blobs) - 1]}


class Decoder:
    """Decodes values; ``device`` makes a tensor of the fields of one on the device.

    Attributes:
        tensors: The tensors among the values, in order: those on the device, and those in host memory.
    """

    def __init__(self, blobs: Sequence[Blob], device: Callable[..., torch.Tensor]) -> None:
        self._blobs = blobs
        self._device = device
        self.tensors: list[torch.Tensor] = []
        self.on_device: set[int] = set()
        self.hosts: list[torch.Tensor] = []
        self.generators: list[torch.Generator] = []

    def decode(self, value: Any) -> Any:
        """Return the value of JSON. Raises WireError."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.decode(each) for each in value]
        if len(value) != 1:
            raise WireError("an operator's argument has several kinds")
        ((kind, content),) = value.items()
        decoders = {
            "tensor": self._tensor,
            "host": self._host,
            "generator": self._generator,
            "float": _float,
            "complex": lambda parts: complex(_float(parts[0]), _float(parts[1])),
            "device": _device,
            "dtype": DTYPES.__getitem__,
            "layout": _LAYOUTS.__getitem__,
            "format": _FORMATS.__getitem__,
        }
        try:
            return decoders[kind](content)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise WireError(f"an operator's argument of kind {kind[:20]} cannot be read: {error}") from None

    def blob(self, number: Any) -> Blob:
        """Return a blob. Raises WireError."""
        if type(number) is not int or not 0 <= number < len(self._blobs):
            raise WireError(f"there is no blob {str(number)[:20]}")
        return self._blobs[number]

    def _tensor(self, fields: Any) -> torch.Tensor:
        if not isinstance(fields, list) or len(fields) != 5:
            raise WireError("a device tensor needs five fields")
        base, dtype, sizes, strides, offset = fields
        if type(base) is not int or not isinstance(dtype, str) or not _are_sizes(sizes) or not _are_sizes(strides):
            raise WireError("a device tensor has fields of other types")
        tensor = self._device(base, dtype, sizes, strides, offset)
        self.tensors.append(tensor)
        self.on_device.add(id(tensor))
        return tensor

    def _host(self, fields: Any) -> torch.Tensor:
        *shape, number = fields
        tensor = host_tensor(shape, None if number is None else self.blob(number))
        self.tensors.append(tensor)
        self.hosts.append(tensor)
        return tensor

    def _generator(self, number: Any) -> torch.Generator:
        generator = torch.Generator()
        generator.set_state(host_tensor(["uint8", [len(self.blob(number))], [1]], self.blob(number)))
        self.generators.append(generator)
        return generator


def _float(text: Any) -> float:
    if not isinstance(text, str) or len(text) > 40:
        raise WireError("a float is text of at most 40 characters")
    return float.fromhex(text)


def _device(name: Any) -> torch.device:
    kind, _, index = name.partition(":")
    if kind not in _DEVICES or (index and not index.isdecimal()):
        raise WireError(f"device {name[:40]}")
    return torch.device(kind, int(index[:3])) if index else torch.device(kind)
