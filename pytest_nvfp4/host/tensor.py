"""Device tensors without a device: CUDA metadata over an ordinary CPU tensor.

Every operator on a ``HostCudaTensor`` is dispatched here, executed on the CPU tensors behind it, and its results are
wrapped again, so that the rules of two memories hold: moving copies, mixing devices is an error, ``numpy()`` is an
error. ``torch_cuda`` redirects ``device="cuda"`` to this class.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, Self

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import DeviceMemory, HostBlocks
from pytest_nvfp4.driver.streams import Streams
from pytest_nvfp4.host.storage import DeviceStorage
from pytest_nvfp4.machine.half_product import half_product, is_half_product
from pytest_nvfp4.machine.scaled_mm import is_block_scaled, scaled_mm, scaled_mm_v2
from pytest_nvfp4.machine.torch_effects import extent, report

_CPU: Final = torch.device("cpu")
_DL_CUDA: Final = 2
UNLIMITED: Final = 1 << 46
"""Bytes of any tensor."""

# Operators that change a tensor's shape, strides or storage in place, which a wrapper's metadata cannot follow.
_METADATA_IN_PLACE: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("as_strided_", "detach_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_"),
        *("t_", "transpose_", "unsqueeze_", "rename_", "set_data"),
    )
)
# Operators that copy between devices, and those whose indices (argument 1) may stay on the CPU.
_UNINITIALISED: Final = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
_PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm"})
_COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy"})
_INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})


class HostCudaTensor(torch.Tensor):
    """A tensor of the modelled device. ``torch_cuda.install`` may replace ``memory`` and ``streams``.

    Attributes:
        host: The CPU tensor with its elements.
        memory: Memory of the elements of new device tensors.
        streams: Receives reports of the work of operators.
        most: Largest number of bytes of a tensor that operators may read or write; larger ones have views only.
    """

    host: torch.Tensor
    memory: ClassVar[DeviceMemory] = HostBlocks()
    streams: ClassVar[Streams] = Streams()
    most: ClassVar[int] = UNLIMITED

    @staticmethod
    def __new__(cls: type[Self], host: torch.Tensor) -> Self:
        """Wrap ``host`` without copying; the wrapper sees every later change of its elements."""
        wrapper: Self = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device("cuda", 0),
            requires_grad=False,
        )
        wrapper.host = host
        return wrapper

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Replace functions whose C++ code reads the wrapper's own storage, which does not exist."""
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None:
            return replacement(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator that has a device tensor among its arguments."""
        return dispatch(func, args, kwargs or {}, generator=None)

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Export as DLPack with device kDLCUDA, sharing the elements."""
        return _cuda_capsule(self.host, kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        """Return ``(kDLCUDA, 0)``."""
        return _DL_CUDA, 0

    def record_stream(self, s: Any) -> None:
        """Record that another stream uses the memory, too. (torch's C++ code accepts only its own streams.)"""
        HostCudaTensor.streams.record_stream(self.host.data_ptr(), int(s.cuda_stream))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise HostSideError, because pickling would lose the device."""
        raise HostSideError("a cuda tensor cannot be pickled without a GPU: call .cpu() first")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{repr(_read(self))[:-1]}, device='cuda:0')"


def _is_view(func: Any) -> bool:
    """Return whether an operator returns views of its arguments and writes nothing."""
    returned = [value.alias_info for value in func._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _read(tensor: Any) -> torch.Tensor:
    """Report a read by the host, which waits for the device, and return the host tensor."""
    HostCudaTensor.streams.work("a read by the host", reads=[extent(tensor.host)], waits=True)
    return tensor.host  # type: ignore[no-any-return]


def _numpy(_tensor: torch.Tensor, **_kwargs: Any) -> Any:
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _array(_tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
    return _numpy(_tensor)


def _array_interface(tensor: Any, *_args: Any) -> dict[str, Any]:
    """Return torch's description with the address of the elements, which the wrapper lacks."""
    with torch._C.DisableTorchFunctionSubclass():
        interface: dict[str, Any] = dict(tensor.__cuda_array_interface__)
    interface["data"] = (tensor.host.data_ptr() if tensor.numel() else 0, False)
    return interface


def _storage_refused(name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise HostSideError(f"torch.Tensor.{name} of a cuda tensor has no stand-in without a GPU: use data_ptr()")

    return call


def _pinned(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("cannot pin 'torch.cuda.FloatTensor': only dense CPU tensors can be pinned")


_REPLACEMENTS: Final[dict[Any, Callable[..., Any]]] = {
    torch.Tensor.data_ptr: lambda tensor: tensor.host.data_ptr(),
    torch.Tensor.tolist: lambda tensor: _read(tensor).tolist(),
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _array,
    torch.Tensor.pin_memory: _pinned,
    torch.Tensor.is_pinned: lambda _tensor, *_: False,
    torch.Tensor.get_device: lambda _tensor: 0,
    torch.Tensor.untyped_storage: lambda tensor: DeviceStorage(tensor.host.untyped_storage(), HostCudaTensor.streams),
    torch.Tensor.storage: _storage_refused("storage"),
    torch.Tensor.share_memory_: _storage_refused("share_memory_"),
    torch.Tensor.__format__: lambda tensor, spec: (
        format(_read(tensor).item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)
    ),
    torch.Tensor.__cuda_array_interface__.__get__: _array_interface,
    torch.Tensor.__repr__: lambda tensor, **_: HostCudaTensor.__repr__(tensor),
    torch.Tensor.__deepcopy__: lambda tensor, memo: memo.setdefault(id(tensor), tensor.clone()),
}


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def check_index(device: torch.device) -> None:
    """Raise HostSideError for a device other than the simulated one, ``cuda:0``."""
    if device.index not in (None, 0):
        raise HostSideError(f"device {device} was requested, only cuda:0 is simulated")


def dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, generator: torch.Generator | None) -> Any:
    """Execute the operator ``func`` on host memory and wrap its results as its device semantics require.

    ``generator`` replaces torch's default CPU generator for random operators on the device without a generator.

    Raises:
        RuntimeError: operands on different devices, with torch's message.
        HostSideError: an operator without a stand-in.
        MemoryError: it reads or writes a tensor of more than ``HostCudaTensor.most`` bytes.
    """
    if HostCudaTensor.most < UNLIMITED and not _is_view(func):
        for each in (*args, *kwargs.values()):
            if isinstance(each, HostCudaTensor) and each.nbytes > HostCudaTensor.most:
                raise MemoryError(f"{func} on {each.nbytes} bytes; the limit is {HostCudaTensor.most}")
    name = func._schema.name
    leaves, _ = tree_flatten((args, kwargs))
    on_device = [leaf for leaf in leaves if isinstance(leaf, HostCudaTensor)]
    if on_device and name in _METADATA_IN_PLACE:
        raise HostSideError(
            f"{name} changes a cuda tensor's shape or storage in place, which has no stand-in without a GPU: "
            "use the out-of-place form"
        )
    if on_device and name not in _COPIES:
        _check_one_device(name, leaves if name not in _INDEXED else [args[0], *args[2:]])
    device = kwargs.get("device")
    devices = [leaf for leaf in leaves if _is_cuda(leaf)]
    for leaf in devices:
        check_index(leaf)

    host_args = tree_map_only(HostCudaTensor, lambda tensor: tensor.host, tuple(args))
    host_kwargs = tree_map_only(HostCudaTensor, lambda tensor: tensor.host, dict(kwargs))
    host_args = tree_map_only(torch.device, lambda d: _CPU if d.type == "cuda" else d, host_args)
    host_kwargs = tree_map_only(torch.device, lambda d: _CPU if d.type == "cuda" else d, host_kwargs)
    to_device = device.type == "cuda" if isinstance(device, torch.device) else bool(on_device or devices)
    if host_kwargs.get("pin_memory"):
        host_kwargs["pin_memory"] = False  # page-locking affects only speed
    random = torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
    if random and to_device and generator is not None:
        with _drawing_from(generator):
            result = func(*host_args, **host_kwargs)
    else:
        stand_in = _stand_in(name, host_args) if to_device and "out" not in host_kwargs else None
        result = (stand_in or func)(*host_args, **host_kwargs)

    # In-place and out= operators return one of their arguments, which must be returned with its wrapper.
    arguments = {id(leaf.host if isinstance(leaf, HostCudaTensor) else leaf): leaf for leaf in leaves}
    viewed = {tensor.host.untyped_storage().data_ptr() for tensor in on_device}

    fresh: list[torch.Tensor] = []

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in arguments:
            return arguments[id(tensor)]  # type: ignore[no-any-return]
        if not to_device:
            return tensor
        if tensor.untyped_storage().data_ptr() in viewed:
            return HostCudaTensor(tensor)
        fresh.append(_device_block(tensor, initialised=name not in _UNINITIALISED))
        return HostCudaTensor(fresh[-1])

    wrapped = tree_map_only(torch.Tensor, wrap, result)
    if HostCudaTensor.streams.watcher is not None:
        report(HostCudaTensor.streams, func, args, kwargs, fresh=fresh if name not in _UNINITIALISED else [])
    return wrapped


def _stand_in(name: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the implementation of an operator that torch's CPU backend lacks or computes in another order."""
    if name == "aten::_scaled_mm" and is_block_scaled(args[0], args[2]):
        return scaled_mm
    if name == "aten::_scaled_mm_v2" and is_block_scaled(args[0], args[2][0]):
        return scaled_mm_v2
    if name in _PRODUCTS and len(args) == 2 and is_half_product(*args):
        return half_product
    return None


def _device_block(tensor: torch.Tensor, *, initialised: bool) -> torch.Tensor:
    """Move a new result to a block of device memory, with its alignment."""
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size:
        return tensor
    memory, streams = HostCudaTensor.memory, HostCudaTensor.streams
    address = memory.allocate(size)
    buffer = (ctypes.c_char * size).from_address(address)
    weakref.finalize(buffer, _free, memory, streams, address).atexit = False
    streams.allocated(address, size, pooled=True)
    block = torch.frombuffer(buffer, dtype=torch.uint8)
    if initialised:
        ctypes.memmove(address, storage.data_ptr(), size)
    return block.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _free(memory: DeviceMemory, streams: Streams, address: int) -> None:
    streams.freed(address, pooled=True)
    memory.free(address)


def _check_one_device(name: str, operands: Sequence[Any]) -> None:
    """Raise torch's RuntimeError for CPU tensors beside device tensors, except those of zero dimensions."""
    tensors = [leaf for leaf in operands if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        if not isinstance(tensor, HostCudaTensor) and tensor.dim():
            raise RuntimeError(
                f"{name}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                f"{tensor.device}!"
            )


@contextlib.contextmanager
def _drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Let torch's default generator continue ``generator``, for operators without a generator argument."""
    default = torch.default_generator
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        yield
        generator.set_state(default.get_state())
    finally:
        default.set_state(before)


def _cuda_capsule(host: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    """Export ``host`` with kDLCUDA in the device field of its DLTensor (DLPack ABI, dlpack.h)."""
    kwargs = {name: value for name, value in kwargs.items() if name in ("max_version", "copy")}
    capsule = host.__dlpack__(**kwargs)
    api = ctypes.pythonapi
    is_valid = api.PyCapsule_IsValid
    is_valid.restype, is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    pointer = api.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    # DLManagedTensor begins with its DLTensor; DLManagedTensorVersioned with version, context, deleter and flags (32
    # bytes). The device follows the data pointer.
    for name, tensor_at in ((b"dltensor", 0), (b"dltensor_versioned", 32)):
        if is_valid(capsule, name):
            device_at = pointer(capsule, name) + tensor_at + ctypes.sizeof(ctypes.c_void_p)
            ctypes.c_int32.from_address(device_at).value = _DL_CUDA
            return capsule
    raise HostSideError("torch exported a DLPack capsule of an unknown kind: report the torch version")
