"""Launches of PTX modules through the driver: clusters, programmatic launch, graphs, tensor maps, occupancy.

Sources: CUDA Driver API, "Execution Control", "Occupancy", "Graph Management", "Tensor Map Object Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from pytest_nvfp4.device.worker.memory import CudaMemory, DriverError
from pytest_nvfp4.driver.launches import LaunchAttribute

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_STATIC_LIMIT = 48 << 10
"""Bytes of shared memory that a launch may use without the attribute."""
_PORTABLE_CLUSTER = 8
_STREAM_NON_BLOCKING = 1
_CAPTURE_RELAXED = 2
_UINT16 = 1  # CU_TENSOR_MAP_DATA_TYPE_UINT16
_SWIZZLE_128B = 3
_MAP_BYTES = 128
_LOG_BYTES = 1 << 12
_JIT_ERROR, _JIT_ERROR_SIZE = 5, 6


class _AttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("cluster", ctypes.c_uint * 3), ("number", ctypes.c_int))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """CTAs of the grid, threads of a CTA, CTAs of a cluster, and dynamic shared memory in bytes."""

    ctas: int
    threads: int
    cluster: int = 1
    shared: int = 0


class Kernel:
    """A kernel of a module of PTX text, loaded into the current context. Raises DriverError with the JIT's log."""

    def __init__(self, memory: CudaMemory, text: str, name: str) -> None:
        self._call = memory.driver_call
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_JIT_ERROR, _JIT_ERROR_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        try:
            self._call(
                "cuModuleLoadDataEx",
                ctypes.byref(self._module),
                ctypes.c_char_p(text.encode()),
                ctypes.c_uint(2),
                options,
                values,
            )
        except DriverError as error:
            raise DriverError(f"{error}: {log.value.decode(errors='replace').strip()[:500]}") from error
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, ctypes.c_char_p(name.encode()))

    def unload(self) -> None:
        """Unload the module."""
        self._call("cuModuleUnload", self._module)

    def _config(self, shape: Shape, stream: ctypes.c_void_p, *, programmatic: bool) -> _Config:
        if shape.shared > _STATIC_LIMIT:
            self._call(
                "cuFuncSetAttribute", self._function, ctypes.c_int(_MAX_DYNAMIC_SHARED), ctypes.c_int(shape.shared)
            )
        config = _Config()
        config.grid[:], config.block[:] = (shape.ctas, 1, 1), (shape.threads, 1, 1)
        config.shared, config.stream = shape.shared, stream
        attributes = (_Attribute * 2)()
        count = 0
        if shape.cluster > 1:
            attributes[count].id = int(LaunchAttribute.CLUSTER_DIMENSION)
            attributes[count].value.cluster[:] = (shape.cluster, 1, 1)
            count += 1
        if programmatic:
            attributes[count].id = int(LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION)
            attributes[count].value.number = 1
            count += 1
        config.attributes, config.count = attributes, count  # a structure keeps the array that it points to
        return config

    def launcher(
        self, shape: Shape, parameters: tuple[bytes, ...], stream: ctypes.c_void_p, *, programmatic: bool = False
    ) -> Callable[[], None]:
        """Return a function that launches the kernel with the bytes of its parameters, without waiting for its end."""
        kept = [ctypes.create_string_buffer(value, len(value)) for value in parameters]
        pointers = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(item) for item in kept))
        config = self._config(shape, stream, programmatic=programmatic)

        def launch() -> None:
            assert kept  # the pointers lead there
            self._call("cuLaunchKernelEx", ctypes.byref(config), self._function, pointers, None)

        return launch

    def resident_clusters(self, size: int, *, threads: int, shared: int) -> int:
        """Return how many clusters of a size are resident at once; 0 if the driver does not report it."""
        with suppress(DriverError):
            if size > _PORTABLE_CLUSTER:
                self._call("cuFuncSetAttribute", self._function, ctypes.c_int(_NON_PORTABLE_CLUSTER), ctypes.c_int(1))
            config = self._config(Shape(size, threads, size, shared), ctypes.c_void_p(), programmatic=False)
            count = ctypes.c_int()
            self._call("cuOccupancyMaxActiveClusters", ctypes.byref(count), self._function, ctypes.byref(config))
            return max(0, count.value)
        return 0


class Stream:
    """A stream of its own, with two events for times."""

    def __init__(self, memory: CudaMemory) -> None:
        self._call, self._status = memory.driver_call, memory.driver_status
        self.handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self.handle), ctypes.c_uint(_STREAM_NON_BLOCKING))
        self._events = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))

    def wait(self) -> None:
        """Wait until all of its work has ended."""
        self._call("cuStreamSynchronize", self.handle)

    def timed_ns(self, work: Callable[[], None]) -> float | None:
        """Return the nanoseconds between events before and after some work, after waiting for it.

        The stream must be held. None if it no longer was when all work was enqueued: the time includes the host's then.
        """
        start, end = self._events
        self._call("cuEventRecord", start, self.handle)
        work()
        self._call("cuEventRecord", end, self.handle)
        late = self._status("cuEventQuery", start) == 0
        self.wait()
        value = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(value), start, end)
        return None if late else value.value * 1e6

    def graph(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture work, and return a function that launches it as a graph."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", self.handle, ctypes.c_int(_CAPTURE_RELAXED))
        work()
        self._call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return lambda: self._call("cuGraphLaunch", executable, self.handle)


def encode_rows(memory: CudaMemory, address: int, *, rows: int, pitch: int, box_rows: int) -> bytes:
    """Return the tensor map of rows of 64 elements of 16 bits, with the 128-byte swizzle."""
    room = ctypes.create_string_buffer(2 * _MAP_BYTES)
    place = -(-ctypes.addressof(room) // 64) * 64
    memory.driver_call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(place),
        ctypes.c_int(_UINT16),
        ctypes.c_uint(2),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(64, rows),
        (ctypes.c_uint64 * 1)(pitch),
        (ctypes.c_uint * 2)(64, box_rows),
        (ctypes.c_uint * 2)(1, 1),
        ctypes.c_int(0),
        ctypes.c_int(_SWIZZLE_128B),
        ctypes.c_int(0),
        ctypes.c_int(0),
    )
    return ctypes.string_at(place, _MAP_BYTES)
