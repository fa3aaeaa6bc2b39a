"""Stand-ins for functions of torch that call the driver without going through ``torch.cuda``.

- ``torch._C._cuda_getCurrentRawStream``, which kernel libraries call to save time, and ``torch.accelerator``.
- Memory pools (``torch.cuda.MemPool``) decide what memory is used again, of which no result depends: they do nothing.
- ``torch.compile`` returns functions unchanged: its operators define the result, and run on the CPU.
- Autograd's engine requests the streams of a backward pass from CUDA in C++; ``torch_backward`` does its work then.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from pytest_nvfp4.driver.launches import HostSideError
from pytest_nvfp4.host.tensor import HostCudaTensor
from pytest_nvfp4.host.torch_backward import BackwardPasses, applying, is_on_device, set_materialize_grads
from pytest_nvfp4.host.torch_streams import TorchStreams

_ENGINE_ERROR: Final = "hasPrimaryContext"
"""Part of the error message of autograd's engine without a driver: the CUDA hook that it calls."""


def overrides(work: TorchStreams) -> Iterator[tuple[Any, str, Any]]:
    """Yield the owner, name and value of each replacement."""
    device = torch.device("cuda", 0)
    yield torch._C, "_cuda_getCurrentRawStream", lambda _device=0: work.current.cuda_stream
    yield torch, "compile", _compile
    passes = BackwardPasses()
    engine = vars(torch.autograd)["_engine_run_backward"]
    yield torch.autograd, "_engine_run_backward", _backward(engine, passes)
    for name, watched in {"register_hook": passes.register_hook, "retain_grad": passes.retain_grad}.items():
        yield HostCudaTensor, name, functools.partialmethod(_called, watched)
    context = torch.autograd.function.FunctionCtx
    yield torch.autograd.Function, "apply", applying(vars(torch.autograd.Function)["apply"])
    yield context, "set_materialize_grads", set_materialize_grads(context.set_materialize_grads)
    yield torch.cuda, "_sleep", lambda *_: None
    yield torch.cuda, "get_stream_from_external", lambda data_ptr, *_, **__: work.stream_class(stream_ptr=int(data_ptr))
    for name, value in {"MemPool": _MemPool, "use_mem_pool": _use_mem_pool}.items():
        for owner in (torch.cuda, torch.cuda.memory):
            if hasattr(owner, name):
                yield owner, name, value
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda *_, **__: device,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "current_stream": lambda *_: work.current,
        "set_stream": work.set,
        "synchronize": lambda *_, **__: work.streams.synchronize_device(),
    }.items():
        if hasattr(accelerator, name):
            yield accelerator, name, value


class _MemPool:
    """Stands for ``torch.cuda.MemPool``."""

    _ids = itertools.count(1)

    def __init__(self, allocator: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if allocator is not None:
            raise HostSideError(
                "torch.cuda.MemPool with an allocator of its own has no stand-in on a machine without a GPU: make the "
                "pool without one"
            )
        self.id = (0, next(self._ids))

    def use_count(self) -> int:
        """Return its number of owners: this object."""
        return 1


@contextlib.contextmanager
def _use_mem_pool(pool: _MemPool, device: Any = None) -> Iterator[None]:  # noqa: ARG001
    yield


def _compile(model: Any = None, **_options: Any) -> Any:
    """Replace ``torch.compile``, as a function and as a decorator with options."""
    return (lambda function: function) if model is None else model


def _called(tensor: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function with a tensor, as a method of it."""
    return function(tensor, *args)


def _backward(original: Callable[..., Any], passes: BackwardPasses) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(t_outputs, *args, **kwargs)
        except RuntimeError as error:  # before it has called a node
            if _ENGINE_ERROR not in str(error) or not is_on_device(t_outputs):
                raise
        return passes.run(t_outputs, *args, **kwargs)

    return run
