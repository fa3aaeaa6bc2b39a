"""A call between the caller's own work on a stream: copies that fill the inputs late, and copies that take the outputs.

A kernel that is not ordered with torch's current stream reads inputs that are poison, or its outputs are taken before
it has written them. Streams of torch do not wait for the default stream (CUDA C++ Programming Guide, "Default Stream").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pytest_nvfp4.device.worker.buffers import CallBuffers
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import inspect_returned

_LATE_CYCLES = 50_000_000
"""Clock cycles by which the inputs are late: about 25 ms, far longer than a launch takes."""


class SideStreamCall:
    """One call on the buffers ``slot``, which are filled, with a new stream as the current one."""

    def __init__(self, torch: Any, memory: DeviceMemory, slot: CallBuffers) -> None:
        self._torch = torch
        self._memory = memory
        self._slot = slot

    def __call__(
        self, custom_kernel: Callable[[Any], Any], data: Any, given: list[Any], *, between: AbstractContextManager[Any]
    ) -> Any:
        """Return what the kernel returned, with the outputs as the caller's stream found them.

        ``between`` surrounds the kernel's own part.
        """
        torch, memory = self._torch, self._memory
        inputs = [region for group in self._slot.groups for region in group.inputs]
        staged = [region.owner.clone() for region in inputs]
        taken = [torch.empty_like(group.c.owner) for group in self._slot.groups]
        memory.synchronize()
        self._slot.poison_inputs(memory)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(_LATE_CYCLES)
            for region, tensor in zip(inputs, staged, strict=True):
                region.owner.copy_(tensor)
            with between:
                returned = custom_kernel(data)
            for copy, group in zip(taken, self._slot.groups, strict=True):
                copy.copy_(group.c.owner)
            own = [
                torch.clone(one.tensor) if one.tensor is not None else None for one in self._inspect(returned, given)
            ]
        memory.synchronize()
        for copy, group in zip(taken, self._slot.groups, strict=True):
            memory.write(group.c.address, memory.read(int(copy.data_ptr()), group.c.size))
        if not isinstance(returned, list | tuple) or len(returned) != len(own):
            return returned
        return [value if tensor is None else tensor for value, tensor in zip(returned, own, strict=True)]

    def _inspect(self, returned: Any, given: list[Any]) -> list[Any]:
        return inspect_returned(self._torch, returned, given)
