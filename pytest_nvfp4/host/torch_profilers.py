"""Stand-ins for profilers that ask for CUDA: they collect nothing of a device, because no device runs.

``torch.profiler`` collects the CPU's activities as ever; a profile of CUDA activities alone is empty. NVTX ranges and
``cudaProfilerStart`` and ``Stop``, which mark a part of a program for a tool outside it, do nothing.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from pytest_nvfp4.driver.launches import HostSideError


def overrides() -> Iterator[tuple[Any, str, Any]]:
    """Yield the owner, name and value of each replacement."""
    profilers: Any = importlib.import_module("torch.autograd.profiler")
    yield profilers, "profile", _without_cuda(profilers.profile)
    yield torch.cuda, "cudart", _Cudart
    profiler: Any = importlib.import_module("torch.cuda.profiler")
    for name in ("start", "stop"):
        yield profiler, name, lambda: None
    nvtx: Any = importlib.import_module("torch.cuda.nvtx")
    numbers = itertools.count(1)
    yield (
        nvtx,
        "_nvtx",
        SimpleNamespace(
            rangePushA=lambda _message: 0,
            rangePop=lambda: 0,
            rangeStartA=lambda _message: next(numbers),
            rangeEnd=lambda _number: None,
            markA=lambda _message: None,
            deviceRangeStart=lambda _message, _stream: next(numbers),
            deviceRangeEnd=lambda _number, _stream: None,
        ),
    )


def _without_cuda(original: type[Any]) -> type[Any]:
    class Profile(original):  # type: ignore[misc]
        """``torch.autograd.profiler.profile``, without CUDA's activities."""

        def __init__(self, *args: Any, use_device: str | None = None, use_cpu: bool = True, **kwargs: Any) -> None:
            self._nvfp4_empty = use_device == "cuda" and not use_cpu
            super().__init__(
                *args,
                use_device=None if use_device == "cuda" else use_device,
                use_cpu=use_cpu or self._nvfp4_empty,  # it must collect something
                **kwargs,
            )

        def _parse_kineto_results(self, *args: Any, **kwargs: Any) -> Any:
            return [] if self._nvfp4_empty else super()._parse_kineto_results(*args, **kwargs)

    Profile.__name__ = Profile.__qualname__ = "profile"
    return Profile


class _Cudart:
    """What ``torch.cuda.cudart()`` returns."""

    def cudaProfilerStart(self) -> Any:
        real = getattr(torch._C, "_cudart", None)  # None in a build without CUDA
        return 0 if real is None else real.cudaError.success

    cudaProfilerStop = cudaProfilerStart

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise HostSideError(f"torch.cuda.cudart().{name} has no stand-in on a machine without a GPU")
