"""A kernel as its caller sees it, wherever its code runs: in this process, or in one of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import Returned, inspect_returned
from pytest_nvfp4.device.worker.side_stream import SideStreamCall

_REST_S = 0.05
"""Seconds for a thread of the kernel to write an output after its return."""
Sizes = Sequence[tuple[int, int, int, int]]


class CalledKernel(Protocol):
    """A kernel under a contract. What its code raises is raised by every method that runs it."""

    @property
    def prepares(self) -> bool:
        """Whether the kernel has a function that compiles it for a problem."""

    def buffers(self, inputs: Any, *, offset: bool = False) -> CallBuffers:
        """Return new buffers for calls with inputs of these sizes."""

    def prepare(self, sizes: Sizes) -> None:
        """Compile the kernel for a problem."""

    def call(self, slot: CallBuffers) -> list[Returned]:
        """Call the kernel on buffers that are filled."""

    def call_late(self, slot: CallBuffers, *, between: AbstractContextManager[Any]) -> list[Returned]:
        """Call the kernel between the caller's own work on a new stream (``side_stream``).

        ``between`` surrounds the kernel's own part.
        """

    def on_new_stream(self) -> AbstractContextManager[None]:
        """Return a context in which a new stream is torch's current one for the kernel and its caller."""

    def settle(self) -> None:
        """Wait so long that what a thread of the kernel still does shows."""


class LocalKernel:
    """A kernel whose code runs in this process."""

    def __init__(
        self,
        torch: Any,
        memory: DeviceMemory,
        custom_kernel: Callable[..., Any],
        prepare: Callable[[Any], Any] | None,
    ) -> None:
        self._torch = torch
        self._memory = memory
        self._custom_kernel = custom_kernel
        self._prepare = prepare

    @property
    def prepares(self) -> bool:
        """See ``CalledKernel``."""
        return self._prepare is not None

    def buffers(self, inputs: Any, *, offset: bool = False) -> CallBuffers:
        """See ``CalledKernel``."""
        return CallBuffers(self._torch, inputs, offset=offset)

    def prepare(self, sizes: Sizes) -> None:
        """See ``CalledKernel``."""
        assert self._prepare is not None
        self._prepare(sizes)

    def call(self, slot: CallBuffers) -> list[Returned]:
        """See ``CalledKernel``."""
        arguments, given = slot.arguments()
        return inspect_returned(self._torch, self._custom_kernel(*arguments), given, returns=slot.returns)

    def call_late(self, slot: CallBuffers, *, between: AbstractContextManager[Any]) -> list[Returned]:
        """See ``CalledKernel``."""
        return SideStreamCall(self._torch, self._memory, slot)(self._custom_kernel, between=between)

    def on_new_stream(self) -> AbstractContextManager[None]:
        """See ``CalledKernel``; nothing checks the order of streams here."""
        return contextlib.nullcontext()

    def settle(self) -> None:
        """See ``CalledKernel``."""
        time.sleep(_REST_S)
