"""A micro-benchmark: its kernel, its launches, and the GPU that their sizes follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_nvfp4.model.calibrate import copies
from pytest_nvfp4.model.calibrate.kernel import Body

Launches = Literal["one", "plain", "programmatic", "graph"]


ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
"""Target of the kernels by compute capability."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the sizes of the benchmarks follow from.

    Attributes:
        arch: Target of the kernels, one of `ARCHITECTURES`.
        sms: Number of SMs.
        cached_bytes: Bytes of data that stay in L2, a power of two.
        data_bytes: Bytes of data that do not, a power of two.
        shared_bytes: Largest dynamic shared memory of a CTA.
        length: Factor of the number of operations; below 1 for the simulator, which has no clock.
    """

    arch: str
    sms: int
    cached_bytes: int
    data_bytes: int
    shared_bytes: int
    length: float = 1.0

    @classmethod
    def of(cls, *, capability: tuple[int, int], sms: int, l2_bytes: int, free_bytes: int, shared_bytes: int) -> Machine:
        """Return the machine of a GPU.

        Args:
            free_bytes: Bytes of its memory that are free.
            shared_bytes: Largest shared memory of a CTA, the system's part included.

        Raises:
            ValueError: There are no benchmarks for its architecture.
        """
        arch = ARCHITECTURES.get(capability)
        if arch is None:
            raise ValueError(
                f"there are no micro-benchmarks for compute capability {capability[0]}.{capability[1]}; "
                f"there are for {', '.join(f'{major}.{minor}' for major, minor in ARCHITECTURES)}"
            )
        data = 1 << 30
        while data > free_bytes // 4:
            data >>= 1
        if data < sms * copies.STORE_AREA:
            raise ValueError(f"the GPU has {free_bytes >> 20} MiB of free memory, which is too little")
        return cls(arch, sms, 1 << (max(l2_bytes, 8 << 20) // 2).bit_length() - 1, data, shared_bytes - 1024)

    def count(self, operations: int) -> int:
        """Return a number of operations for this machine."""
        return max(2, int(operations * self.length))

    @property
    def blackwell(self) -> bool:
        """Whether it has tensor memory."""
        return self.arch != "sm_90a"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of rows of 128 bytes, of 64 elements of 16 bits each, of which a map's box loads some."""

    rows: int
    pitch: int
    box_rows: int


@dataclass(frozen=True, slots=True)
class Point:
    """One launch of a benchmark's kernel.

    Attributes:
        n, a, b: The kernel's words.
        operations: Operations that thread 0 of each CTA must have counted.
    """

    n: int
    operations: int
    a: int = 0
    b: int = 0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A kernel and its launches.

    Attributes:
        points: Launches; the cycles of an operation are the slope over their numbers of operations.
        ctas: CTAs of the grid.
        samples: Words of 32 bits behind the first record that are the measurement.
        counting: One CTA of so many counts operations; the others of a pair help it.
        cold: Whether L2 is emptied before each launch.
        gaps: Whether the measurement is the cycles between two CTAs of an SM.
        launches: How ``Point.n`` empty kernels are launched; ``one`` for one launch of this kernel.
    """

    name: str
    body: Body
    points: tuple[Point, ...]
    ctas: int = 1
    threads: int = 32
    cluster: int = 1
    shared: int = 2048
    tensor: Tensor | None = None
    samples: int = 0
    counting: int = 1
    cold: bool = False
    gaps: bool = False
    launches: Launches = "one"
