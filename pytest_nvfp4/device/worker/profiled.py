"""Call a kernel as a profiler wants to see it: warm-up and profiled calls in NVTX ranges, on inputs that are judged.

Within the range ``profile_region`` the device runs what the kernel launches and nothing else; its buffers are filled
and its outputs are read outside. The outputs of the last profiled call are returned, and judged by the parent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_nvfp4.device import rotation
from pytest_nvfp4.device.device_work import MOST_NAME
from pytest_nvfp4.device.job import GivenInputs, Job, JobCase, Profiling
from pytest_nvfp4.device.profiling.record import MOST_WORKS
from pytest_nvfp4.device.worker.called_kernel import LocalKernel
from pytest_nvfp4.device.worker.events import Events
from pytest_nvfp4.device.worker.launch_counter import LaunchCounter, NotCountedError
from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.device.worker.returned_tensors import OutputSender

WARMUP, REGION = "warmup", "profile_region"
"""Names of the NVTX ranges."""


class _Ranges:
    """NVTX ranges through torch, whose functions are looked up before a kernel can replace them."""

    fixed: ClassVar = True  # see `isolation.seal.inventory`

    def __init__(self, torch: Any, memory: DeviceMemory, *, device: bool) -> None:
        nvtx = torch.cuda.nvtx
        self._push: Callable[[str], object] = nvtx.range_push if device else str
        self._pop: Callable[[], object] = nvtx.range_pop if device else str
        self._synchronize = memory.synchronize
        self._clock = time.perf_counter_ns

    @contextlib.contextmanager
    def range(self, name: str, times: list[float]) -> Iterator[None]:
        """Surround a block by a range that begins and ends on an idle device; append its microseconds to ``times``."""
        self._synchronize()
        self._push(name)
        start = self._clock()
        try:
            yield
            self._synchronize()
        finally:
            times.append((self._clock() - start) / 1e3)
            self._pop()


class ProfileRunner:
    """Runs a profile job. ``folder`` is for outputs, shared with the parent.

    Args:
        device: Whether the device is a GPU; else there are no NVTX ranges.
    """

    fixed: ClassVar = True  # see `isolation.seal.inventory`

    def __init__(self, torch: Any, memory: DeviceMemory, events: Events, folder: Path, *, device: bool) -> None:
        self._torch = torch
        self._memory = memory
        self._events = events
        self._sender = OutputSender(memory, events, folder, prefix="p")
        self._ranges = _Ranges(torch, memory, device=device)
        self._counter = LaunchCounter()

    def run(self, job: Job, custom_kernel: Callable[..., Any], prepare: Callable[[Any], Any] | None) -> None:
        """Profile every case."""
        assert job.profiling is not None
        kernel = LocalKernel(self._torch, self._memory, custom_kernel, prepare)
        for index, case in enumerate(job.cases):
            self._case(index, case, job.profiling, kernel, given=job.given)

    def _case(
        self, index: int, case: JobCase, profiling: Profiling, kernel: LocalKernel, *, given: Sequence[GivenInputs]
    ) -> None:
        inputs = rotation.set_inputs(case, 0, given=given)
        slot = kernel.buffers(inputs)
        if kernel.prepares:
            self._events.stage(f"compile {case.problem.name}")
            kernel.prepare(inputs.problem.sizes)
        self._events.stage(f"profile {case.problem.name}")
        returned = self._profile(
            index,
            profiling,
            lambda: kernel.call(slot),
            before=lambda: slot.fill(self._memory, inputs),
        )
        before = slot.expected_digest()
        self._sender.send(returned, slot, call=index, case=index, inputs=None)
        self._events.send(
            "case", call=index, case=index, inputs_before=before, inputs_after=slot.digest(self._memory), findings=[]
        )

    def _profile(self, index: int, profiling: Profiling, call: Callable[[], Any], *, before: Callable[[], None]) -> Any:
        """Make all calls, send what the harness measured, and return what the last call returned."""
        warmup: list[float] = []
        region: list[float] = []
        before()
        with self._ranges.range(WARMUP, warmup):
            for _ in range(profiling.warmup):
                call()
        returned: Any = None
        works: list[dict[str, Any]] = []
        unrecorded: str | None = None
        for _ in range(profiling.rounds):
            before()

            def work() -> Any:
                with self._ranges.range(REGION, region):
                    return call()

            if profiling.mode != "torch" or unrecorded is not None:
                returned = work()
                continue
            try:
                returned, made = self._counter.works(work)
            except NotCountedError as error:
                unrecorded = str(error)[:1000]
                returned = work()
            else:
                works += made
        if profiling.mode == "torch" and unrecorded is None and not works:
            unrecorded = "CUPTI recorded no work on the device"
        first = works[0]["start_ns"] if works else 0
        shown = [
            {**one, "name": one["name"][:MOST_NAME], "start_ns": one["start_ns"] - first} for one in works[:MOST_WORKS]
        ]
        self._events.send(
            "profiled",
            case=index,
            warmup_us=warmup[0],
            region_us=region,
            works=shown,
            unrecorded=unrecorded,
        )
        return returned
