"""The CUDA driver's functions of a calibration, on the simulator: arguments are read as the driver reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from pytest_nvfp4.device.worker.clock import GATE_NAME
from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.driver.launches import LaunchAttribute
from pytest_nvfp4.driver.tensormap import ElementType
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.machine import Machine
from pytest_nvfp4.sim.run.parallel import run_grid
from pytest_nvfp4.sim.run.programs import Programs
from tests.sim.tma.maps import Geometry

ARCH = "sm_90a"
ATTRIBUTES = {16: 2, 38: 1 << 20, 75: 9, 76: 0, 97: 232_448}
PARAMETERS = (8, 8, 8, 4, 4, 4)
"""Bytes of the parameters of the kernels of a calibration."""
ELAPSED_MS = 0.5


class SimulatedDriver:
    """In place of ``CudaMemory``; each launch runs to its end in the simulator.

    Attributes:
        launched: Number of launches, those of the gate not counted.
        programmatic: Number of those with programmatic stream serialization.
        queries: Number of queries of an event.
        late: Number of queries, the first ones, that find that the gate has opened.
    """

    def __init__(self) -> None:
        self._regions: list[tuple[Any, int, int]] = []
        self._texts: list[str] = []
        self._functions: list[tuple[str, str]] = []
        self._captured: list[Callable[[], None]] | None = None
        self._graphs: list[list[Callable[[], None]]] = []
        self.launched = 0
        self.programmatic = 0
        self.queries = self.late = 0

    def driver_status(self, name: str, *arguments: Any) -> int:
        """Only ``cuEventQuery``: CUDA_ERROR_NOT_READY while the gate holds the stream."""
        assert name == "cuEventQuery"
        assert arguments[0].value
        self.queries += 1
        return 0 if self.queries <= self.late else 600

    def driver_call(self, name: str, *arguments: Any) -> None:
        getattr(self, f"_{name}")(*arguments)

    def text_of(self, function: Any) -> str:
        """Text of the module of a function."""
        return self._functions[function.value - 1][0]

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def _cuDeviceGet(self, device: Any, number: Any) -> None:
        device._obj.value = number.value

    def _cuDeviceGetAttribute(self, value: Any, number: Any, device: Any) -> None:
        assert device.value == 0
        value._obj.value = ATTRIBUTES[number.value]

    def _cuDeviceGetName(self, name: Any, size: Any, device: Any) -> None:
        assert (size.value, device.value) == (len(name), 0)
        name.value = b"NVIDIA H200"

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = 1 << 20, 2 << 20

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        buffer = ctypes.create_string_buffer(size.value + 512)
        start = -(-ctypes.addressof(buffer) // 256) * 256
        self._regions.append((buffer, start, size.value))
        address._obj.value = start

    def _cuMemsetD32Async(self, address: Any, word: Any, count: Any, stream: Any) -> None:
        assert stream.value
        self.write(address.value, word.value.to_bytes(4, "little") * count.value)

    def _cuMemcpyDtoD_v2(self, to: Any, source: Any, size: Any) -> None:
        self.write(to.value, self.read(source.value, size.value))

    def _cuStreamCreate(self, stream: Any, flags: Any) -> None:
        assert flags.value == 1
        stream._obj.value = 1

    def _cuStreamSynchronize(self, stream: Any) -> None:
        assert stream.value == 1

    def _cuEventCreate(self, event: Any, flags: Any) -> None:
        event._obj.value = 1 + flags.value

    def _cuEventRecord(self, event: Any, stream: Any) -> None:
        assert event.value
        assert stream.value

    def _cuEventElapsedTime(self, value: Any, start: Any, end: Any) -> None:
        assert start.value
        assert end.value
        value._obj.value = ELAPSED_MS

    def _cuModuleLoadDataEx(self, module: Any, text: Any, count: Any, options: Any, values: Any) -> None:
        assert count.value == len(options) == len(values)
        self._texts.append(text.value.decode())
        module._obj.value = len(self._texts)

    def _cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> None:
        self._functions.append((self._texts[module.value - 1], name.value.decode()))
        function._obj.value = len(self._functions)

    def _cuModuleUnload(self, module: Any) -> None:
        assert module.value

    def _cuFuncSetAttribute(self, function: Any, attribute: Any, value: Any) -> None:
        assert function.value
        assert (attribute.value, value.value > 48 << 10) in ((8, True), (14, False))

    def _cuOccupancyMaxActiveClusters(self, count: Any, function: Any, config: Any) -> None:
        assert function.value
        count._obj.value = 2 // self._cluster(config._obj)[0]

    def _cluster(self, config: Any) -> tuple[int, int, int]:
        for index in range(config.count):
            if config.attributes[index].id == LaunchAttribute.CLUSTER_DIMENSION:
                return tuple(config.attributes[index].value.cluster)  # type: ignore[return-value]
        return (1, 1, 1)

    def _cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> None:
        assert extra is None
        text, name = self._functions[function.value - 1]
        if name == GATE_NAME:
            return
        config = config._obj
        assert config.stream == 1
        ids = [config.attributes[index].id for index in range(config.count)]
        self.programmatic += LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION in ids
        values = tuple(ctypes.string_at(at, size) for at, size in zip(parameters, PARAMETERS, strict=True))
        grid, block, shared = tuple(config.grid), tuple(config.block), config.shared
        cluster = self._cluster(config)

        def run() -> None:
            self.launched += 1
            machine = Machine(model=for_arch(ARCH))
            for number, (_, start, size) in enumerate(self._regions):
                machine.memory.add(Region(f"allocation {number}", start, size, True))
            launch = Grid(
                machine, Programs().get(text, name), shape=grid, block=block, cluster=cluster,
                dynamic_shared=shared, parameters=values,
            )  # fmt: skip
            try:
                run_grid(launch, processes=1)
            finally:
                launch.close()
            assert not launch.findings, [finding.message for finding in launch.findings]

        if self._captured is None:
            run()
        else:
            self._captured.append(run)

    def _cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> None:
        assert (stream.value, mode.value) == (1, 2)
        self._captured = []

    def _cuStreamEndCapture(self, stream: Any, graph: Any) -> None:
        assert stream.value == 1
        assert self._captured is not None
        self._graphs.append(self._captured)
        self._captured = None
        graph._obj.value = len(self._graphs)

    def _cuGraphInstantiateWithFlags(self, executable: Any, graph: Any, flags: Any) -> None:
        assert flags.value == 0
        executable._obj.value = graph.value

    def _cuGraphLaunch(self, executable: Any, stream: Any) -> None:
        assert stream.value == 1
        for run in self._graphs[executable.value - 1]:
            run()

    def _cuTensorMapEncodeTiled(self, place: Any, kind: Any, rank: Any, address: Any, *rest: Any) -> None:
        dims, strides, box, steps, interleave, swizzle, promotion, fill = rest
        assert (kind.value, rank.value, place.value % 64) == (1, 2, 0)
        assert (list(steps), interleave.value, promotion.value, fill.value) == ([1, 1], 0, 0, 0)
        geometry = Geometry(ElementType.U16, tuple(dims), tuple(strides), tuple(box), swizzle=swizzle.value)
        self.write(place.value, geometry.encode(address.value))
