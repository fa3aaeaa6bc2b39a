"""The CUDA driver through ctypes: JIT of PTX text, buffers between redzones, tensor maps, launches.

Needs libcuda and numpy, and nothing else, so that a machine with a GPU and a bare Python can record. One `Gpu` holds
the primary context of one device. An error after which the context is lost (`CudaError.lost`) leaves the process good
for nothing more: whoever runs many kernels does so in child processes (`tests.silicon.record`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Allocation", "CudaError", "Gpu", "Launch", "Overrun", "TensorMapSpec"]

REDZONE = 1024
"""Bytes before and after each buffer; a multiple of every alignment a tensor map can ask for."""
POISON = 0xA5

_DATA_TYPES = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 10, 9: 8, 10: 9}
"""``CUtensorMapDataType`` by the hardware's code of the element type (`driver.tensormap.ElementType`)."""
_TFLOAT32 = 11
_JIT_INFO, _JIT_INFO_SIZE, _JIT_ERROR, _JIT_ERROR_SIZE = 3, 4, 5, 6
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_SURVIVED = frozenset({1, 2, 98, 209, 218, 221, 222, 223, 500, 701})
"""Errors that leave the context usable: invalid value, memory, no binary, bad PTX, unsupported PTX, not found, ..."""


class CudaError(RuntimeError):
    """A driver call failed.

    Attributes:
        code: The ``CUresult``.
        lost: Whether the context can no longer be used, so that the process has to end.
    """

    def __init__(self, call: str, code: int, name: str, detail: str = "") -> None:
        super().__init__(f"{call} failed: {name} ({code})" + (f"\n{detail}" if detail else ""))
        self.code = code
        self.lost = code not in _SURVIVED


class Overrun(RuntimeError):
    """A kernel wrote to the redzone of a buffer."""


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """The arguments of ``cuTensorMapEncodeTiled``: sizes in elements, strides in bytes from dimension 1 on.

    ``element`` is the hardware's code; swizzle 0 to 3 (none, 32, 64, 128 bytes); fill 1 reads NaN out of bounds.
    """

    element: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    fill: int = 0
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """A buffer on the device: ``start`` is the first byte after the redzone."""

    name: str
    base: int
    start: int
    data: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """Grid in CTAs, block in threads, cluster in CTAs, dynamic shared memory in bytes."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0


class _AttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("cluster", ctypes.c_uint * 3))


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


class Gpu:
    """One device's primary context.

    Raises:
        OSError: there is no libcuda.
        CudaError: the driver has no such device.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    @property
    def name(self) -> str:
        """The device's name."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode()

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability."""
        return self._attribute(75), self._attribute(76)

    @property
    def driver(self) -> int:
        """The newest CUDA version that the driver supports, 1000 * major + 10 * minor."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def load(self, ptx: str, kernel: str) -> ctypes.c_void_p:
        """JIT-compile a module and find its kernel. The exception holds the compiler's log."""
        info, errors = ctypes.create_string_buffer(1 << 14), ctypes.create_string_buffer(1 << 14)
        options = (ctypes.c_int * 4)(_JIT_INFO, _JIT_INFO_SIZE, _JIT_ERROR, _JIT_ERROR_SIZE)
        values = (ctypes.c_void_p * 4)(
            ctypes.addressof(info), ctypes.sizeof(info), ctypes.addressof(errors), ctypes.sizeof(errors)
        )
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        code = self._cuda.cuModuleLoadDataEx(
            ctypes.byref(module), ctypes.c_char_p(ptx.encode()), ctypes.c_uint(4), options, values
        )
        if code:
            log = errors.value.decode(errors="replace").strip() or info.value.decode(errors="replace").strip()
            raise CudaError("cuModuleLoadDataEx", code, self._error(code), log)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(kernel.encode()))
        return function

    def allocate(self, name: str, data: NDArray[Any]) -> Allocation:
        """A buffer with a copy of the data, between poisoned redzones."""
        base = ctypes.c_uint64()
        size = data.nbytes + 2 * REDZONE
        self._call("cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", base, ctypes.c_ubyte(POISON), ctypes.c_size_t(size))
        made = Allocation(name, base.value, base.value + REDZONE, data)
        self.write(made.start, np.ascontiguousarray(data).tobytes())
        return made

    def write(self, address: int, data: bytes) -> None:
        """Copy bytes to the device."""
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, allocation: Allocation) -> NDArray[Any]:
        """The buffer's data now.

        Raises:
            Overrun: a byte before or after the buffer has changed.
        """
        size = allocation.data.nbytes + 2 * REDZONE
        raw = np.empty(size, np.uint8)
        self._call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(raw.ctypes.data),
            ctypes.c_uint64(allocation.base),
            ctypes.c_size_t(size),
        )
        zones = np.concatenate([raw[:REDZONE], raw[size - REDZONE :]])
        wrong = np.flatnonzero(zones != POISON)
        if wrong.size:
            first = int(wrong[0])
            where = first - REDZONE if first < REDZONE else allocation.data.nbytes + first - REDZONE
            raise Overrun(f"the kernel wrote {wrong.size} bytes outside {allocation.name}, the first at byte {where}")
        data = raw[REDZONE : size - REDZONE].view(allocation.data.dtype)
        return data.reshape(allocation.data.shape).copy()

    def free(self, allocation: Allocation) -> None:
        """Give a buffer back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(allocation.base))

    def encode(self, spec: TensorMapSpec, address: int) -> bytes:
        """The 128 bytes of a tiled tensor map over a buffer."""
        rank = len(spec.dims)
        room = ctypes.create_string_buffer(256)
        place = -(-ctypes.addressof(room) // 64) * 64
        kind = _TFLOAT32 if spec.tf32 else _DATA_TYPES[spec.element]
        self._call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(place),
            ctypes.c_int(kind),
            ctypes.c_uint(rank),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 5)(*spec.dims),
            (ctypes.c_uint64 * 5)(*spec.strides),
            (ctypes.c_uint * 5)(*spec.box),
            (ctypes.c_uint * 5)(*spec.steps),
            ctypes.c_int(spec.interleave),
            ctypes.c_int(spec.swizzle),
            ctypes.c_int(0),
            ctypes.c_int(spec.fill),
        )
        return ctypes.string_at(place, 128)

    def launch(self, function: ctypes.c_void_p, parameters: Sequence[bytes], launch: Launch) -> None:
        """Run a kernel to its end. ``parameters`` are the bytes of each parameter."""
        if launch.shared > 48 * 1024:
            self._call("cuFuncSetAttribute", function, ctypes.c_int(_MAX_DYNAMIC_SHARED), ctypes.c_int(launch.shared))
        kept = [ctypes.create_string_buffer(value, len(value)) for value in parameters]
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(item) for item in kept))
        config = _Config()
        config.grid[:], config.block[:], config.shared = launch.grid, launch.block, launch.shared
        attribute = _Attribute()
        if launch.cluster != (1, 1, 1):
            attribute.id = _CLUSTER_DIMENSION
            attribute.value.cluster[:] = launch.cluster
            config.attributes, config.count = ctypes.pointer(attribute), 1
        self._call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        self._call("cuCtxSynchronize")

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise CudaError(name, code, self._error(code))

    def _error(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._cuda.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return "unknown error"
        return text.value.decode()
