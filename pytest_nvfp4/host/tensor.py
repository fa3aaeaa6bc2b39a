"""Device tensors without a device: CUDA metadata over an ordinary CPU tensor.

Every operator on a ``HostCudaTensor`` is dispatched here and executed by the device (``device_side``), and its results
are wrapped again, so that the rules of two memories hold: moving copies, mixing devices is an error, ``numpy()`` is an
error. ``torch_cuda`` redirects ``device="cuda"`` to this class.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import numbers
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Self

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pytest_nvfp4.driver.launches import HostSideError, Launch
from pytest_nvfp4.driver.user_line import call_native
from pytest_nvfp4.host import typed_tensors
from pytest_nvfp4.host.device_side import DeviceSide, local
from pytest_nvfp4.host.storage import DeviceStorage
from pytest_nvfp4.machine.operators import is_cuda, is_view

_DL_CUDA: Final = 2
_DEVICE: Final = torch.device("cuda", 0)
_SEQUENCES: Final = (list, tuple, range)

# A torch that was built without CUDA has neither, and C++ extensions for CUDA cannot be built with it.
_with_storage: Final[Any] = getattr(torch._C, "_construct_CUDA_Tensor_From_Storage_And_Metadata", None)
_with_address: Final[Any] = getattr(torch._C, "_construct_storage_from_data_pointer", None)


def no_launches(launch: Launch) -> None:
    """Refuse a launch."""
    raise HostSideError(f"{launch.kernel} is launched where the stand-ins for launches are not installed")


class HostCudaTensor(torch.Tensor):
    """A tensor of the modelled device, which ``torch_cuda.install`` may replace.

    Attributes:
        host: A CPU tensor over the addresses of its elements. They may be those of another process: only views of it
            are made here, and nothing reads or writes it.
        side: The device.
        modes: Returns a context in which ``device="cuda"`` is redirected, for code that an operator calls: torch's
            modes are off inside their own dispatch.
        extension_operators: Names of the operators that C++ extensions define.
    """

    host: torch.Tensor
    side: ClassVar[DeviceSide] = local(no_launches)
    modes: ClassVar[Callable[[], AbstractContextManager[object]]] = contextlib.nullcontext
    extension_operators: ClassVar[Set[str]] = frozenset()

    @staticmethod
    def __new__(cls: type[Self], host: torch.Tensor) -> Self:
        """Wrap ``host`` without copying; a later change of its elements changes the wrapper's.

        C++ code, such as that of an extension, reads the address of the elements from the wrapper's own storage.
        """
        described: dict[str, Any] = {
            "size": tuple(host.size()),
            "stride": tuple(host.stride()),
            "storage_offset": host.storage_offset(),
            "dtype": host.dtype,
            "device": _DEVICE,
        }
        if _with_storage is None:
            size, strides = described.pop("size"), described.pop("stride")
            wrapper: Self = torch.Tensor._make_wrapper_subclass(cls, size, strides=strides, **described)
        else:
            storage = host.untyped_storage()
            borrowed = _with_address(storage.data_ptr(), _DEVICE, storage.nbytes())
            wrapper = torch.Tensor._make_subclass(cls, _with_storage(described, borrowed))
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
        HostCudaTensor.side.streams.record_stream(self.host.data_ptr(), int(s.cuda_stream))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise HostSideError, because pickling would lose the device."""
        raise HostSideError("a cuda tensor cannot be pickled without a GPU: call .cpu() first")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{repr(_read(self))[:-1]}, device='cuda:0')"


def _read(tensor: Any) -> torch.Tensor:
    """Return the elements for the host, which waits for the device."""
    return HostCudaTensor.side.operators.read(tensor.host)


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


def _new_tensor(tensor: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:
    given: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device, **kwargs}
    with HostCudaTensor.modes():
        return torch.tensor(data, **given)


def _new(tensor: torch.Tensor, *args: Any, **_: Any) -> torch.Tensor:
    with HostCudaTensor.modes():
        return typed_tensors.make(tensor.dtype, args)


def _indexed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``__getitem__`` or ``__setitem__`` whose lists are index tensors of the host.

    torch's C++ code makes them on the device of the indexed tensor, below the dispatcher.
    """

    def run(tensor: torch.Tensor, index: Any, *value: Any) -> Any:
        if isinstance(index, tuple):
            index = tuple(map(_index, index))
        elif isinstance(index, list) and any(isinstance(item, _SEQUENCES) for item in index):
            index = [_index(item) for item in index]  # torch takes such a list for a tuple
        else:
            index = _index(index)
        with torch._C.DisableTorchFunctionSubclass():
            return call(tensor, index, *value)

    return run


def _index(item: Any) -> Any:
    """Return the index tensor of a sequence of integers or bools, and any other index as it is."""
    if not isinstance(item, _SEQUENCES) or not _numbers(item):
        return item
    return torch.tensor(item, dtype=None if len(item) else torch.int64, device="cpu")


def _numbers(item: Any) -> bool:
    """Return whether a sequence, or one of sequences, contains integers and bools only."""
    return all(_numbers(each) if isinstance(each, _SEQUENCES) else isinstance(each, numbers.Integral) for each in item)


def _storage_refused(name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise HostSideError(f"torch.Tensor.{name} of a cuda tensor has no stand-in without a GPU: use data_ptr()")

    return call


def _pinned(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("cannot pin 'torch.cuda.FloatTensor': only dense CPU tensors can be pinned")


_REPLACEMENTS: Final[dict[Any, Callable[..., Any]]] = {
    torch.Tensor.data_ptr: lambda tensor: tensor.host.data_ptr(),
    torch.Tensor.tolist: lambda tensor: _read(tensor).tolist(),
    torch.Tensor.__getitem__: _indexed(torch.Tensor.__getitem__),
    torch.Tensor.__setitem__: _indexed(torch.Tensor.__setitem__),
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.new: _new,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _array,
    torch.Tensor.pin_memory: _pinned,
    torch.Tensor.is_pinned: lambda _tensor, *_: False,
    torch.Tensor.get_device: lambda _tensor: 0,
    torch.Tensor.untyped_storage: lambda tensor: DeviceStorage(_all_bytes(tensor)),
    torch.Tensor.storage: _storage_refused("storage"),
    torch.Tensor.share_memory_: _storage_refused("share_memory_"),
    torch.Tensor.__format__: lambda tensor, spec: (
        format(_read(tensor).item(), spec) if tensor.dim() == 0 else object.__format__(tensor, spec)
    ),
    torch.Tensor.__cuda_array_interface__.__get__: _array_interface,
    torch.Tensor.__repr__: lambda tensor, **_: HostCudaTensor.__repr__(tensor),
    torch.Tensor.__deepcopy__: lambda tensor, memo: memo.setdefault(id(tensor), tensor.clone()),
}


def _all_bytes(tensor: Any) -> HostCudaTensor:
    """Return all bytes of the storage of a device tensor."""
    whole: Any = torch.empty(0, dtype=torch.uint8, device="cpu").set_
    return HostCudaTensor(whole(tensor.host.untyped_storage()))


def dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, generator: torch.Generator | None) -> Any:
    """Execute the operator ``func`` where its operands are, and wrap its results as its device semantics require.

    Views of device tensors are made here, because they touch no element; any other operator is the device's work.

    Args:
        func: The operator.
        args, kwargs: Its arguments.
        generator: Replaces torch's default generator for random operators on the device without a generator.

    Raises:
        RuntimeError: operands on different devices, with torch's message.
        HostSideError: an operator without a stand-in.
    """
    leaves = tree_leaves((args, kwargs))
    wrappers = {id(leaf.host): leaf for leaf in leaves if isinstance(leaf, HostCudaTensor)}
    on_device = bool(wrappers) or any(map(is_cuda, leaves))
    if func.name() in HostCudaTensor.extension_operators:
        return _of_extension(func, args, kwargs, on_device=on_device)
    if not on_device:
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}  # page-locking affects only speed
        return func(*args, **kwargs)
    if _is_composite(func):  # below autograd (inference mode, another operator's implementation) it comes as it is
        with HostCudaTensor.modes(), torch._C.DisableTorchFunction():
            return func.decompose(*args, **kwargs)
    host_args = tree_map_only(HostCudaTensor, lambda tensor: tensor.host, tuple(args))
    host_kwargs = tree_map_only(HostCudaTensor, lambda tensor: tensor.host, dict(kwargs))
    if wrappers and is_view(func):
        result, on_device = func(*host_args, **host_kwargs), True
    else:
        if not func._schema.name.startswith("aten::"):
            return _custom(func, args, kwargs)
        operators = HostCudaTensor.side.operators
        result, on_device = operators.run(func, host_args, host_kwargs, on_device=wrappers.keys(), generator=generator)
    # In-place and out= operators return one of their arguments, which must be returned with its wrapper.
    arguments = {id(leaf) for leaf in leaves}

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in wrappers:
            return wrappers[id(tensor)]
        return HostCudaTensor(tensor) if on_device and id(tensor) not in arguments else tensor

    return tree_map_only(torch.Tensor, wrap, result)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Return whether an operator is made of others, on every device."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _of_extension(func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, on_device: bool) -> Any:
    """Call an extension's kernel of its own operator with the device tensors themselves, or raise torch's error."""
    device, name = "CUDA" if on_device else "CPU", func.name()
    for key in (device, "CompositeExplicitAutograd", "CompositeImplicitAutograd"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            with HostCudaTensor.modes(), torch._C.DisableTorchFunction():
                return call_native(func._op_dk, getattr(torch._C.DispatchKey, key), *args, **kwargs)
    raise NotImplementedError(f"Could not run '{name}' with arguments from the '{device}' backend")


def _custom(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call the implementation of an operator that the user's code defines (``torch.library.custom_op``)."""
    name = func._schema.name
    defined = importlib.import_module("torch._library.custom_ops").OPDEFS.get(name)
    backends = getattr(defined, "_backend_fns", {})
    implementation = backends.get("cuda") or backends.get(None)
    if implementation is None:
        raise HostSideError(f"the operator {name} has no stand-in without a GPU: it is none of torch's own")
    with torch._C._EnableTorchFunction(), HostCudaTensor.modes():
        return implementation(*args, **kwargs)


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
