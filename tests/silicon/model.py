"""A case: PTX text, its inputs, and which of its outputs the PTX ISA defines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.sim.ptx_case import kernel_text
from tests.sim.tma.maps import Geometry

__all__ = ["ARCH", "Approximate", "Bits", "Case", "Part", "Reported", "Rule", "case", "noise"]

ARCH = "sm_90a"
KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Bits:
    """The ISA defines every bit."""


@dataclass(frozen=True, slots=True)
class Approximate:
    """The ISA bounds the error only: the two may differ by ``ulps`` of the larger, or by ``absolute``."""

    kind: str
    ulps: float
    reason: str
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Reported:
    """The ISA leaves the value open: recorded and shown, and never a failure."""

    reason: str


Rule = Bits | Approximate | Reported
BITS = Bits()


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an output buffer that one rule holds for: elements ``start`` to ``stop`` of the flat buffer."""

    name: str
    buffer: str
    start: int
    stop: int
    rule: Rule = BITS


@dataclass(frozen=True)
class Case:
    """One launch of one kernel called ``kernel``.

    Attributes:
        name: ``family.what``.
        ptx: A whole module for `ARCH`.
        buffers: Initial contents by name; each is a 64-bit pointer parameter, in order.
        values: 32-bit parameters, after the pointers.
        outputs: The buffers that are kept.
        parts: What is compared how; a buffer of ``outputs`` without a part is compared bit for bit.
        maps: By the name of a 128-byte buffer: the tensor map to write there and the buffer it describes.
        chunked: Kept as digests of chunks, because the outputs are many.
        refused: A pattern of the simulator's message, for what it refuses: a probe, recorded to learn what silicon does
            there.
    """

    name: str
    ptx: str
    buffers: Mapping[str, NDArray[Any]]
    outputs: tuple[str, ...]
    values: tuple[int, ...] = ()
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    parts: tuple[Part, ...] = ()
    maps: Mapping[str, tuple[Geometry, str]] = field(default_factory=dict)
    chunked: bool = False
    refused: str = ""

    @property
    def ptx_sha256(self) -> str:
        """Of the PTX text."""
        return hashlib.sha256(self.ptx.encode()).hexdigest()

    @property
    def inputs_sha256(self) -> str:
        """Of everything else that the outputs follow from."""
        digest = hashlib.sha256()
        for name, data in self.buffers.items():
            digest.update(f"{name} {data.dtype.str} {data.shape} ".encode())
            digest.update(np.ascontiguousarray(data).tobytes())
        digest.update(repr((self.values, self.grid, self.block, self.cluster, self.shared, self.outputs)).encode())
        digest.update(repr(dict(self.maps)).encode())
        return digest.hexdigest()

    def compared(self) -> tuple[Part, ...]:
        """The parts, those of whole buffers included."""
        named = {part.buffer for part in self.parts}
        whole = [Part(name, name, 0, self.buffers[name].size) for name in self.outputs if name not in named]
        return (*self.parts, *whole)


def case(name: str, body: str, buffers: Mapping[str, NDArray[Any]], outputs: tuple[str, ...], **more: Any) -> Case:
    """A case of a body as `tests.sim.ptx_case.run_ptx` takes it; ``more`` are the fields of `Case`."""
    text = kernel_text(body, buffers=len(buffers), values=len(more.get("values", ())), arch=ARCH)
    return Case(name, text, buffers, outputs, **more)


def noise(size: int, seed: int, dtype: Any = np.uint8) -> NDArray[Any]:
    """Any bits."""
    made: NDArray[Any] = np.random.default_rng(seed).integers(0, 256, size * np.dtype(dtype).itemsize, np.uint8)
    return made.view(dtype)
