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
from pytest_nvfp4.device.worker.returned_tensors import Returned, inspect_returned

_LATE_CYCLES = 50_000_000
"""Clock cycles by which the inputs are late: about 25 ms, far longer than a launch takes."""


class SideStreamCall:
    """One call on the buffers ``slot``, which are filled, with a new stream as the current one."""

    def __init__(self, torch: Any, memory: DeviceMemory, slot: CallBuffers) -> None:
        self._torch = torch
        self._memory = memory
        self._slot = slot

    def __call__(self, custom_kernel: Callable[..., Any], *, between: AbstractContextManager[Any]) -> list[Returned]:
        """Return what the kernel returned, with the outputs as the caller's stream found them.

        ``between`` surrounds the kernel's own part.
        """
        torch, memory = self._torch, self._memory
        inputs, outputs = self._slot.inputs, self._slot.outputs
        staged = [region.owner.clone() for region in inputs]
        taken = [torch.empty_like(region.owner) for region in outputs]
        arguments, given = self._slot.arguments()
        memory.synchronize()
        self._slot.poison_inputs(memory)
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(_LATE_CYCLES)
            for region, tensor in zip(inputs, staged, strict=True):
                region.owner.copy_(tensor)
            with between:
                returned = custom_kernel(*arguments)
            for copy, region in zip(taken, outputs, strict=True):
                copy.copy_(region.owner)
            shown = inspect_returned(torch, returned, given, returns=self._slot.returns)
            own = [Returned(one.description, None if one.tensor is None else torch.clone(one.tensor)) for one in shown]
        memory.synchronize()
        for copy, region in zip(taken, outputs, strict=True):
            memory.write(region.address, memory.read(int(copy.data_ptr()), region.size))
        return own
