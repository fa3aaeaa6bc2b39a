"""Execution of torch's operators on device memory, with CPU tensors over it.

``run`` is the one implementation: the machine's ``server`` calls it for requests of a kernel's process, and the
stand-ins of ``host`` call it where host code and device share a process.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.driver.memory import SPARSE
from pytest_nvfp4.machine.half_product import half_product, is_half_product, typed_product, typed_sum
from pytest_nvfp4.machine.heap import without_old_bytes
from pytest_nvfp4.machine.known_operators import is_known
from pytest_nvfp4.machine.scaled_grouped_mm import scaled_grouped_mm, scaled_grouped_mm_v2
from pytest_nvfp4.machine.scaled_mm import is_block_scaled, scaled_mm, scaled_mm_v2
from pytest_nvfp4.machine.torch_effects import Effects, effects
from pytest_nvfp4.machine.values import zero

_CPU: Final = torch.device("cpu")
_META: Final = torch.device("meta")
UNLIMITED: Final = 1 << 46
"""Bytes of any tensor."""

# Operators that change a tensor's shape, strides or storage in place, which a handle's metadata cannot follow.
_METADATA_IN_PLACE: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("as_strided_", "detach_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_"),
        *("t_", "transpose_", "unsqueeze_", "rename_", "set_data"),
    )
)
_UNINITIALISED: Final = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
_ZEROS: Final = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros"})
_PRODUCTS: Final = frozenset({"aten::mm", "aten::bmm"})
_SUMS: Final = frozenset({"aten::addmm", "aten::baddbmm"})
# Operators that copy between devices, and those whose indices (argument 1) may stay on the CPU.
_COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy"})
_INDEXED: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
_NAME: Final = re.compile(r"aten::([A-Za-z_][A-Za-z0-9_]{0,80})")
_OVERLOAD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}|")


class Ran(NamedTuple):
    """An executed operator.

    Attributes:
        result: Its result, with CPU tensors: arguments themselves, views of them, or new ones.
        on_device: Whether the tensors of the result are on the device.
        effects: What it did on the device; None for nothing.
    """

    result: Any
    on_device: bool
    effects: Effects | None


def operator(name: str, overload: str) -> Any:
    """Return an operator of ``aten`` that may be requested. Raises HostSideError."""
    found = _NAME.fullmatch(name)
    if found is None or _OVERLOAD.fullmatch(overload) is None or not is_known(found[1]):
        raise HostSideError(
            f"{name[:100]} has no stand-in without a GPU: it is not among the operators of torch that host code of "
            "kernels uses (backward passes are not); call it on CPU tensors, or run the kernel on a GPU"
        )
    packet = getattr(torch.ops.aten, found[1], None)
    result = getattr(packet, overload or "default", None)
    if not isinstance(result, torch._ops.OpOverload) or result._schema.name != name:
        raise HostSideError(f"torch {torch.__version__} has no operator {name}.{overload}")
    return result


def is_view(func: Any) -> bool:
    """Return whether an operator returns views of its arguments and writes nothing."""
    returned = [value.alias_info for value in func._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def is_random(func: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operator draws from the default generator."""
    return torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None


def is_cuda(value: Any) -> bool:
    """Return whether a value is the device of CUDA."""
    return isinstance(value, torch.device) and value.type == "cuda"


def check_index(device: torch.device) -> None:
    """Raise HostSideError for a device other than the simulated one, ``cuda:0``."""
    if device.index not in (None, 0):
        raise HostSideError(f"device {device} was requested, only cuda:0 is simulated")


def run(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    on_device: Collection[int],
    place: Callable[[torch.Tensor, bool], torch.Tensor],
    generator: torch.Generator | None = None,
    most: int = UNLIMITED,
) -> Ran:
    """Execute an operator on the device.

    Args:
        func: The operator.
        args, kwargs: Its arguments, with CPU tensors over device memory in place of device tensors.
        on_device: Identities of those tensors.
        place: Returns a new result in device memory, given a CPU tensor and whether its elements are initialised; one
            on the meta device, if initialised, is of zeros.
        generator: Replaces torch's default generator for random operators on the device without one of their own.
        most: Largest number of bytes of a tensor on the device that it may read or write.

    Raises:
        RuntimeError: operands on different devices, with torch's message.
        HostSideError: an operator without a stand-in.
        MemoryError: it reads or writes a tensor of more than ``most`` bytes.
    """
    name = func._schema.name
    leaves = tree_leaves((args, kwargs))
    operands = [leaf for leaf in leaves if id(leaf) in on_device]
    devices = [leaf for leaf in leaves if is_cuda(leaf)]
    _check(func, args, leaves, operands, devices, on_device=on_device, most=most)
    device = kwargs.get("device")
    to_device = device.type == "cuda" if isinstance(device, torch.device) else bool(operands or devices)
    host_args = tree_map_only(torch.device, lambda d: _CPU if d.type == "cuda" else d, tuple(args))
    host_kwargs = tree_map_only(torch.device, lambda d: _CPU if d.type == "cuda" else d, dict(kwargs))
    if host_kwargs.get("pin_memory"):
        host_kwargs["pin_memory"] = False  # page-locking affects only speed
    if name in _UNINITIALISED and to_device and "out" not in kwargs:
        host_kwargs["device"] = _META  # shape and strides are enough; the memory may be address space only
    elif name in _ZEROS and to_device and "out" not in kwargs:
        of_zeros = {**host_kwargs, "device": _META}
        if func(*host_args, **of_zeros).nbytes >= SPARSE:
            host_kwargs = of_zeros
    if to_device and generator is not None and is_random(func, kwargs):
        with _drawing_from(generator):
            result = func(*host_args, **host_kwargs)
    else:
        stand_in = _stand_in(name, host_args) if to_device else None
        with without_old_bytes(), _known_by_name(name):
            result = (stand_in or func)(*host_args, **host_kwargs)
        if name in _UNINITIALISED and not to_device and isinstance(result, torch.Tensor):
            zero(result)

    # In-place and out= operators return one of their arguments.
    arguments = {id(leaf) for leaf in leaves}
    viewed = {tensor.untyped_storage().data_ptr() for tensor in operands}
    fresh: list[torch.Tensor] = []

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        if not to_device or id(tensor) in arguments:
            return tensor
        if tensor.layout is not torch.strided:
            raise HostSideError(
                f"{name} makes a tensor of the layout {tensor.layout}, which has no stand-in without a GPU: "
                "call .cpu() first, or run the kernel on a GPU"
            )
        if tensor.device != _META and tensor.untyped_storage().data_ptr() in viewed:
            return tensor
        fresh.append(place(tensor, name not in _UNINITIALISED))
        return fresh[-1]

    result = tree_map_only(torch.Tensor, placed, result)
    initialised = fresh if name not in _UNINITIALISED else []
    return Ran(result, to_device, effects(func, args, kwargs, on_device=on_device, fresh=initialised))


def _check(
    func: Any,
    args: Sequence[Any],
    leaves: Sequence[Any],
    operands: Sequence[torch.Tensor],
    devices: Sequence[torch.device],
    *,
    on_device: Collection[int],
    most: int,
) -> None:
    name = func._schema.name
    if most < UNLIMITED and not is_view(func):
        for each in operands:
            if each.nbytes > most:
                raise MemoryError(f"{func} on {each.nbytes} bytes; the limit is {most}")
    if operands and name in _METADATA_IN_PLACE:
        raise HostSideError(
            f"{name} changes a cuda tensor's shape or storage in place, which has no stand-in without a GPU: "
            "use the out-of-place form"
        )
    if operands and name not in _COPIES:
        for leaf in leaves if name not in _INDEXED else tree_leaves([args[0], *args[2:]]):
            # torch accepts CPU tensors of zero dimensions beside device tensors.
            if isinstance(leaf, torch.Tensor) and id(leaf) not in on_device and leaf.dim():
                raise RuntimeError(
                    f"{name}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
                    f"and {leaf.device}!"
                )
    if name == "aten::_index_put_impl_" and any(args[4:]):
        raise HostSideError(f"{name} without a check of its indices has no stand-in without a GPU")
    for device in devices:
        check_index(device)


def _stand_in(name: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return the implementation of an operator that torch's CPU backend lacks or computes in another order."""
    if name == "aten::_scaled_grouped_mm":
        return scaled_grouped_mm
    if name == "aten::_scaled_grouped_mm_v2":
        return _with_out(scaled_grouped_mm_v2)
    if name == "aten::_scaled_mm" and is_block_scaled(args[0], args[2]):
        return _with_out(scaled_mm)
    if name == "aten::_scaled_mm_v2" and is_block_scaled(args[0], args[2][0]):
        return _with_out(scaled_mm_v2)
    if name in _PRODUCTS and len(args) == 2 and is_half_product(*args):
        return _with_out(half_product)
    if name in _PRODUCTS and len(args) == 3:
        return _with_out(typed_product)
    if name in _SUMS and len(args) == 4:
        return _with_out(typed_sum)
    if name == "aten::cudnn_batch_norm":
        return _cudnn_batch_norm
    return None


def _cudnn_batch_norm(*args: Any) -> tuple[torch.Tensor, ...]:
    """Compute what cuDNN's batch norm returns: the last result is reserved for the backward pass."""
    return (*torch.native_batch_norm(*args), torch.empty(0, dtype=torch.uint8))


@contextlib.contextmanager
def _known_by_name(name: str) -> Iterator[None]:
    """Name an operator that torch has for GPUs only, in place of a list of its backends."""
    try:
        yield
    except NotImplementedError as error:
        if not str(error).startswith(f"Could not run '{name}"):
            raise
        raise HostSideError(
            f"{name} has no stand-in without a GPU: torch computes it on GPUs only; call another operator, or run the "
            "kernel on a GPU"
        ) from None


def _with_out(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function with the argument ``out`` of torch's operators, whose type is that of the result."""

    def call(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        given = inspect.signature(function).bind(*args, **kwargs)
        if out is not None and "out_dtype" in given.signature.parameters:
            given.arguments["out_dtype"] = given.arguments.get("out_dtype") or out.dtype
        result = function(*given.args, **given.kwargs)
        if out is None:
            return result
        if out.shape != result.shape:
            raise RuntimeError(f"out has the shape {list(out.shape)}, and the result {list(result.shape)}")
        return out.copy_(result)

    return call


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
