"""The tensors of one call under GPU MODE's contract, inside larger buffers with guard regions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_nvfp4.device.worker.memory import DeviceMemory
from pytest_nvfp4.driver.streams import Extent
from pytest_nvfp4.numerics.inputs import GroupInput, ProblemInput

NAN_SCALE = 0x7F
"""NaN as a scale factor (E4M3)."""
_OFFSETS = (1536, 2560, 512, 3584)
"""Storage offsets of A, B, SFA and SFB in bytes: all different, and multiples of 512 like the addresses of whole
tensors (c10/cuda/CUDACachingAllocator, kMinBlockSize), so that a kernel may rely on the same alignment."""


@dataclass(slots=True)
class Region:
    """A device buffer, recorded before any kernel runs.

    Attributes:
        owner: The tensor of its bytes, a view if the buffer begins at a storage offset.
        address: Its address.
        size: Its size in bytes.
        offset: Bytes of the same storage before it.
    """

    owner: Any
    address: int
    size: int
    offset: int = 0


Allocate = Callable[[int], Any]
"""Returns a new tensor of as many bytes in device memory."""


class GroupBuffers:
    """The device buffers of one group, of which a kernel receives views.

    ``a [m, k//2, 1]`` and ``b [n, k//2, 1]`` are float4_e2m1fn_x2, ``c [m, n, 1]`` is float16, plain scales are
    ``[rows, k//16, 1]`` float8_e4m3fn on the CPU, reordered scales ``[32, 4, rest, 4, rest_k, 1]`` on the device. C is
    always at a storage offset, because of its guard rows; A, B, SFA and SFB with ``offset``.
    """

    def __init__(self, torch: Any, group: GroupInput, *, allocate: Allocate, offset: bool = False) -> None:
        self._torch = torch

        def region(size: int, *, offset: int = 0) -> Region:
            owner = allocate(offset + max(size, 1))[offset:]
            return Region(owner, int(owner.data_ptr()), size, offset)

        sizes, guard = group.group, group.guard
        half = sizes.k // 2
        a, b, sfa, sfb = _OFFSETS if offset else (0,) * len(_OFFSETS)
        self.a = region((sizes.m + guard.packed_rows_after) * half, offset=a)
        self.b = region((sizes.n + guard.packed_rows_after) * half, offset=b)
        self.sfa = region(group.sfa_flat(guarded=True).size, offset=sfa)
        self.sfb = region(group.sfb_flat(guarded=True).size, offset=sfb)
        self.rows = guard.c_rows_before + sizes.m + guard.c_rows_after
        self.c = region(self.rows * sizes.n * 2)
        self.rows_before = guard.c_rows_before
        self.has_rows = sizes.m > 0
        self.columns = sizes.n
        self._group = group

    def fill_scales(self, memory: DeviceMemory, group: GroupInput) -> None:
        """Write a group's reordered scale factors only."""
        for region, flat in ((self.sfa, group.sfa_flat()), (self.sfb, group.sfb_flat())):
            memory.write(region.address, flat.tobytes())

    def fill(self, memory: DeviceMemory, group: GroupInput) -> None:
        """Write a group's inputs and poison C. The sizes must be those of the buffers."""
        self._group = group
        guard = group.guard
        before = (guard.packed_byte, guard.packed_byte, guard.scale_byte, guard.scale_byte)
        for (region, data), byte in zip(self._inputs(), before, strict=True):
            memory.write(region.address - region.offset, bytes([byte]) * region.offset + data)
        memory.write(self.c.address, group.c_buffer().tobytes())

    def overwrite(self, memory: DeviceMemory, group: GroupInput) -> None:
        """Write other inputs of the same sizes and poison C; the inputs of the call remain known."""
        own = self._group
        self.fill(memory, group)
        self._group = own

    def c_bits(self, memory: DeviceMemory) -> bytes:
        """Return the fp16 bits of C without its guard rows, row-major."""
        top, size = self.rows_before * self.columns * 2, self._group.group.m * self.columns * 2
        return self.read_c(memory)[top : top + size]

    @property
    def inputs(self) -> tuple[Region, ...]:
        """The buffers of A, B, SFA and SFB."""
        return self.a, self.b, self.sfa, self.sfb

    def poisoned(self) -> list[tuple[Region, bytes]]:
        """Return the input buffers with bytes that spoil every output that is computed from them."""
        guard = self._group.guard
        packed, scale = bytes([guard.packed_byte]), bytes([NAN_SCALE])
        content = (packed, packed, scale, scale)
        return [(region, byte * region.size) for region, byte in zip(self.inputs, content, strict=True)]

    def _inputs(self) -> list[tuple[Region, bytes]]:
        group, guard = self._group, self._group.guard
        half = group.group.k // 2
        tail = np.full(guard.packed_rows_after * half, guard.packed_byte, dtype=np.uint8).tobytes()
        return [
            (self.a, group.a.tobytes() + tail),
            (self.b, group.b.tobytes() + tail),
            (self.sfa, group.sfa_flat(guarded=True).tobytes()),
            (self.sfb, group.sfb_flat(guarded=True).tobytes()),
        ]

    def expected_digest(self) -> str:
        """Return the hash of the bytes with which the input buffers were filled."""
        return hashlib.sha256(b"".join(data for _, data in self._inputs())).hexdigest()

    def digest(self, memory: DeviceMemory) -> str:
        """Return the hash of the current content of the input buffers."""
        data = (memory.read(region.address, region.size) for region in self.inputs)
        return hashlib.sha256(b"".join(data)).hexdigest()

    def read_c(self, memory: DeviceMemory) -> bytes:
        """Return the fp16 bits of C with its guard rows, row-major."""
        return memory.read(self.c.address, self.c.size)

    def tensors(self) -> tuple[Any, Any, Any, tuple[Any, Any], tuple[Any, Any]]:
        """Return ``(a, b, c, plain scales, reordered scales)`` as new tensor objects over the buffers."""
        torch, group = self._torch, self._group
        m, n, k = group.group.m, group.group.n, group.group.k
        half = k // 2

        def packed(region: Region, rows: int) -> Any:
            view = region.owner[: rows * half].view(1, rows, half) if rows else region.owner[:0].view(1, 0, half)
            return view.view(torch.float4_e2m1fn_x2).permute(1, 2, 0)

        def plain(scales: np.ndarray[Any, Any]) -> Any:
            return torch.from_numpy(scales.copy()).view(torch.float8_e4m3fn).unsqueeze(0).permute(1, 2, 0)

        def reordered(region: Region, scales: np.ndarray[Any, Any]) -> Any:
            _, _, rest, _, rest_k, _ = scales.shape
            shape = (1, rest, rest_k, 32, 4, 4)
            count = rest * rest_k * 512
            return region.owner[:count].view(torch.float8_e4m3fn).view(shape).permute(3, 4, 1, 5, 2, 0)

        top = group.guard.c_rows_before
        whole = self.c.owner.view(torch.float16).view(self.rows, n) if self.c.size else None
        c = whole[top : top + m].view(1, m, n).permute(1, 2, 0) if whole is not None else None
        return (
            packed(self.a, m),
            packed(self.b, n),
            c,
            (plain(group.sfa), plain(group.sfb)),
            (reordered(self.sfa, group.sfa_reordered), reordered(self.sfb, group.sfb_reordered)),
        )


class CallBuffers:
    """The buffers of all groups of a call; see ``GroupBuffers`` for ``offset``.

    ``allocate`` is torch's on the device by default.
    """

    def __init__(
        self, torch: Any, inputs: ProblemInput, *, offset: bool = False, allocate: Allocate | None = None
    ) -> None:
        def empty(size: int) -> Any:
            return torch.empty(size, dtype=torch.uint8, device="cuda")

        self.groups = [GroupBuffers(torch, group, allocate=allocate or empty, offset=offset) for group in inputs.groups]

    def fill(self, memory: DeviceMemory, inputs: ProblemInput, *, blank: bool = False) -> None:
        """Write the inputs and poison every C; if ``blank``, write the scale factors only."""
        for buffers, group in zip(self.groups, inputs.groups, strict=True):
            if blank:
                buffers.fill_scales(memory, group)
            else:
                buffers.fill(memory, group)

    def poison_inputs(self, memory: DeviceMemory) -> None:
        """Overwrite all inputs by bytes that spoil every output."""
        for buffers in self.groups:
            for region, data in buffers.poisoned():
                memory.write(region.address, data)

    def extents(self) -> list[Extent]:
        """Return the extents of all buffers."""
        return [
            Extent(region.address, region.size)
            for group in self.groups
            for region in (group.a, group.b, group.sfa, group.sfb, group.c)
            if region.size
        ]

    def data(self, sizes: list[tuple[int, int, int, int]]) -> tuple[Any, list[Any]]:
        """Return the argument of ``custom_kernel``, and the list of C in it."""
        views = [buffers.tensors() for buffers in self.groups]
        outputs = [view[2] for view in views]
        data = ([(a, b, c) for a, b, c, _, _ in views], [view[3] for view in views], [view[4] for view in views], sizes)
        return data, outputs

    def expected_digest(self) -> str:
        """Return the hash of the bytes with which all inputs were filled."""
        return hashlib.sha256("".join(buffers.expected_digest() for buffers in self.groups).encode()).hexdigest()

    def digest(self, memory: DeviceMemory) -> str:
        """Return the hash of the current content of all inputs."""
        return hashlib.sha256("".join(buffers.digest(memory) for buffers in self.groups).encode()).hexdigest()
