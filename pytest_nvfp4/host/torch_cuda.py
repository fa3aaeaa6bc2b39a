"""torch's ``device="cuda"`` on a machine without a GPU: device semantics over host memory.

A "device" tensor is a ``tensor.HostCudaTensor``: a wrapper with the device ``cuda:0`` whose bytes are in an ordinary
CPU tensor. The rules of two memories hold: ``.cpu()`` and ``.cuda()`` copy, mixing devices is an error, ``numpy()`` of
a device tensor is an error. ``data_ptr()`` is a host address that a simulated kernel can read, aligned as by torch's
CUDA allocator, and DLPack reports a CUDA device, from which the DSL derives global instead of generic memory.
Uninitialised device memory (``torch.empty``) is filled with 0xFF, so that code that relies on zeros fails.

``torch.cuda`` describes the modelled device. Functions without an equivalent (clock rates, IPC) raise ``HostSideError``
with their name; elapsed times are NaN. "Device" generators use torch's CPU algorithm, so their random numbers are
reproducible but differ from those of a GPU with the same seed.

The overrides are process-wide, except that factory functions (``torch.empty(..., device="cuda")``) are redirected only
in the thread that called ``install``, because torch's dispatch modes are per thread.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_nvfp4.driver.device_model import B200, DeviceModel
from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host import (
    graphs,
    torch_driver,
    torch_files,
    torch_memory,
    torch_profilers,
    torch_streams,
    typed_tensors,
)
from pytest_nvfp4.host.after_import import after_import
from pytest_nvfp4.host.device_side import DeviceSide, local
from pytest_nvfp4.host.tensor import HostCudaTensor, dispatch, no_launches
from pytest_nvfp4.machine.operators import check_index

_CPU: Final = torch.device("cpu")


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Redirects operators with a CUDA device and no device tensor: factories and ``.to("cuda")``."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **(kwargs or {}))  # torch calls the mode of tensors without data behind all others
        return dispatch(func, args, kwargs or {}, generator=self._generator)


# torch wraps a mode's __torch_dispatch__ so that the first call imports torch._dynamo, which takes seconds and is only
# needed for compiled graphs. The wrapped function is enough here.
if hasattr(_DispatchMode.__torch_dispatch__, "__wrapped__"):
    setattr(_DispatchMode, "__torch_dispatch__", _DispatchMode.__torch_dispatch__.__wrapped__)  # noqa: B010


def _run_wrapped_kernels(wrap: ModuleType) -> None:
    """Let a kernel of ``torch.library.wrap_triton`` run as one that is called directly.

    Args:
        wrap: The module of torch that defines the operator as which such a kernel is called.
    """
    operator = wrap.triton_kernel_wrapper_mutation
    if _DispatchMode in operator.python_key_table:  # by an earlier redirection of this process
        return
    call = operator.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]

    def run(**kwargs: Any) -> None:
        with torch._C._EnableTorchFunction(), HostCudaTensor.modes():  # both are off inside torch's dispatch
            call(**kwargs)

    operator.py_impl(_DispatchMode)(lambda _mode, **kwargs: run(**kwargs))
    operator.py_impl(HostCudaTensor)(run)


class _FunctionMode(TorchFunctionMode):
    """Redirects the functions whose C++ code moves data to the device below the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor, torch.asarray):
            device = kwargs.pop("device", None)
            if device is None and func is not torch.tensor and args and isinstance(args[0], torch.Tensor):
                device = args[0].device
            device = torch.empty(0).device if device is None else torch.device(device)
            if device.type == "cuda":
                check_index(device)
                source = args[0] if args else kwargs.get("data")
                if isinstance(source, HostCudaTensor):
                    moved = source.clone() if func is torch.tensor or kwargs.get("copy") else source
                    return moved if kwargs.get("dtype") is None else moved.to(kwargs["dtype"])
                kwargs.pop("pin_memory", None)
                return func(*args, device=_CPU, **kwargs).to(device)
            if func is torch.tensor:
                kwargs.pop("pin_memory", None)
            kwargs["device"] = device
        elif func is torch.Tensor.type and (made := typed_tensors.converted(*args, **kwargs)) is not NotImplemented:
            return made
        elif func is torch.Tensor.pin_memory and not isinstance(args[0], HostCudaTensor):
            return args[0].clone()  # pinned memory is host memory; only its transfer speed differs
        elif func is torch.nn.functional.scaled_dot_product_attention and any(
            isinstance(each, HostCudaTensor) for each in (*args, *kwargs.values())
        ):
            with _math_attention():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextlib.contextmanager
def _math_attention() -> Iterator[None]:
    """Let attention be computed by its formula, also where the program has chosen kernels of torch for GPUs."""
    before = torch.backends.cuda.math_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_math_sdp(True)
    try:
        yield
    finally:
        torch.backends.cuda.enable_math_sdp(before)


def _from_dlpack(original: Callable[..., Any]) -> Callable[..., Any]:
    def from_dlpack(ext_tensor: Any, **kwargs: Any) -> Any:
        if isinstance(ext_tensor, HostCudaTensor):
            return HostCudaTensor(ext_tensor.host.view(ext_tensor.shape))
        return original(ext_tensor, **kwargs)

    return from_dlpack


def _without_dynamo(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch._disable_dynamo`` without the import of torch._dynamo, which takes seconds.

    The first call of each custom operator imports it, to keep graphs from being compiled. Without the import, nothing
    compiles a graph.
    """

    @functools.wraps(original)
    def disable(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Callable[..., Any]:
        if fn is None:
            return functools.partial(disable, recursive=recursive)
        function, disabled = fn, original(fn, recursive)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

        return call

    return disable


_TorchGenerator: Final = torch.Generator


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]
    """Keeps ``isinstance(torch.default_generator, torch.Generator)`` true while ``torch.Generator`` is replaced."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchGenerator)


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    """``torch.Generator`` that accepts ``device="cuda"``."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> Self:
        requested = torch.device(device)
        is_cuda = requested.type == "cuda"
        generator: Self = super().__new__(cls, device=_CPU if is_cuda else requested)  # type: ignore[call-arg]
        generator._device = torch.device("cuda", 0) if is_cuda else requested
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device


def install(*, device: DeviceModel = B200, side: DeviceSide | None = None) -> TorchCuda:
    """Redirect ``device="cuda"``; the result is a context manager that ends it.

    Args:
        device: The device that ``torch.cuda`` describes.
        side: The device, that of ``redirect.HostSide``; by default one whose memory is the heap, and without launches,
            so that CUDA graphs raise.

    Raises:
        HostSideError: the redirection is already installed, or torch has a real GPU.
    """
    cuda = TorchCuda(device, side)
    cuda.start()
    return cuda


class TorchCuda(contextlib.AbstractContextManager["TorchCuda"]):
    """The installed redirection, made by ``install``."""

    def __init__(self, device: DeviceModel, side: DeviceSide | None = None) -> None:
        self._device = device
        self._launches = None if side is None else side.launches
        self._side = local(no_launches) if side is None else side
        self._work = torch_streams.TorchStreams(self._side.streams)
        self._stack = contextlib.ExitStack()
        self._generator = torch.Generator()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """See ``install``."""
        if getattr(torch.cuda, "_nvfp4_redirected", False):
            raise HostSideError("torch's cuda redirection is already installed in this process: close it first")
        if torch.cuda.is_available() and torch.cuda.device_count():  # the first alone may be true without a device
            raise HostSideError("torch has a real GPU: run the kernel on it instead of simulating one beside it")
        # Without a device, torch's CUDA guard in C++ fails; this replaces it by a guard that does nothing.
        torch._C._ensureCUDADeviceGuardSet()
        for name, value in self._cuda_table().items():
            self._patch(torch.cuda, name, value)
        for owner, name, value in (
            *torch_driver.overrides(self._work),
            *torch_profilers.overrides(),
            *torch_memory.overrides(self._side.operators.held, self._device),
        ):
            self._patch(owner, name, value)
        for name in torch_memory.REFUSED:
            for module in (torch.cuda, torch.cuda.memory):
                if hasattr(module, name):
                    self._patch(module, name, _no_stand_in(f"torch.cuda.{name}"))
        self._patch(torch, "set_default_tensor_type", typed_tensors.setting_default(torch.set_default_tensor_type))
        self._patch(HostCudaTensor, "side", self._side)
        self._patch(HostCudaTensor, "modes", staticmethod(self._modes))
        self._patch(torch, "_disable_dynamo", _without_dynamo(vars(torch)["_disable_dynamo"]))
        self._patch(torch, "Generator", _Generator)
        self._patch(torch, "from_dlpack", _from_dlpack(vars(torch)["from_dlpack"]))
        self._patch(torch, "load", torch_files.loading(torch.load))
        _register_with_dsl()
        self._stack.callback(after_import("torch._higher_order_ops.triton_kernel_wrap", _run_wrapped_kernels))
        # Module.cuda() must make new parameters, because the data of a CPU parameter cannot become a device tensor.
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        self._stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrites)
        self._stack.enter_context(self._modes())

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        with _FunctionMode(), _DispatchMode(self._generator):
            yield

    def close(self) -> None:
        """Restore torch; existing device tensors stay usable."""
        self._stack.close()

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        before = getattr(owner, name, missing)
        setattr(owner, name, value)
        if before is missing:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, before)

    def _cuda_table(self) -> dict[str, Any]:
        model = self._device
        properties = SimpleNamespace(
            name=model.name,
            major=model.capability[0],
            minor=model.capability[1],
            total_memory=model.memory_bytes,
            multi_processor_count=model.sm_count,
            is_integrated=0,
            is_multi_gpu_board=0,
            max_threads_per_multi_processor=model.threads_per_sm,
            max_threads_per_block=model.threads_per_block,
            regs_per_multiprocessor=model.registers_per_sm,
            shared_memory_per_block=model.smem_per_block,
            shared_memory_per_block_optin=model.smem_per_block_optin,
            shared_memory_per_multiprocessor=model.smem_per_sm,
            clock_rate=model.clock_khz,
            memory_clock_rate=model.memory_clock_khz,
            memory_bus_width=model.memory_bus_bits,
            pci_domain_id=0,
            pci_bus_id=0,
            pci_device_id=0,
            uuid=uuid.uuid5(uuid.NAMESPACE_DNS, model.name),
            L2_cache_size=model.l2_bytes,
            warp_size=model.warp_size,
            gcnArchName=model.name,
        )

        def nothing(*_args: Any, **_kwargs: Any) -> None: ...

        table: dict[str, Any] = {
            "_nvfp4_redirected": True,
            "_lazy_init": nothing,
            "init": nothing,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "is_bf16_supported": lambda *_, **__: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": self._set_device,
            "_exchange_device": self._exchange_device,  # torch.cuda.device and device_of call both
            "_maybe_exchange_device": self._exchange_device,
            "get_device_capability": lambda *_: model.capability,
            "get_device_name": lambda *_: model.name,
            "get_device_properties": lambda *_: properties,
            "get_arch_list": lambda: [f"sm_{model.capability[0]}{model.capability[1]}"],
            "manual_seed": self._seed,
            "manual_seed_all": self._seed,
            "seed": self._generator.seed,
            "seed_all": self._generator.seed,
            **self._work.table(),
            **typed_tensors.device_types(),
            "initial_seed": self._generator.initial_seed,
            "get_rng_state": lambda *_: self._generator.get_state(),
            "set_rng_state": lambda state, *_: self._generator.set_state(state),
            "get_rng_state_all": lambda: [self._generator.get_state()],
            "set_rng_state_all": lambda states: self._generator.set_state(next(iter(states))),
            "default_generators": (self._generator,),
        }
        for name in (
            *("CUDAGraph", "graph", "graph_pool_handle", "make_graphed_callables", "current_blas_handle"),
            *("utilization", "clock_rate", "power_draw", "temperature", "can_device_access_peer"),
            *("device_memory_used", "memory_usage"),
        ):
            table[name] = _no_stand_in(f"torch.cuda.{name}")
        if self._launches is not None:
            table |= graphs.torch_table(self._launches, self._work.context_class)
        return table

    def _seed(self, seed: int) -> None:
        self._generator.manual_seed(int(seed))

    def _set_device(self, device: Any) -> None:
        check_index(torch.device("cuda", device) if isinstance(device, int) else torch.device(device))

    @staticmethod
    def _exchange_device(index: int) -> int:
        """Return the device that was current; a negative index leaves it, and is returned, as torch does."""
        if index < 0:
            return -1
        check_index(torch.device("cuda", index))
        return 0


def _register_with_dsl() -> None:
    """Let DSL functions take device tensors directly. DSL 4.4 looks up the exact type of an argument."""
    if importlib.util.find_spec("cutlass") is None:
        return
    registry = importlib.import_module("cutlass.base_dsl.runtime.jit_arg_adapters").JitArgAdapterRegistry
    adapter = importlib.import_module("cutlass.cute.runtime").TensorAdapter
    registry.jit_arg_adapter_registry[HostCudaTensor] = adapter


def _no_stand_in(name: str) -> Callable[..., Any]:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise HostSideError(f"{name} has no stand-in on a machine without a GPU: run this check on a real device")

    return call
