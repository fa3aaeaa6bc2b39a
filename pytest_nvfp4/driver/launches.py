"""Kernel launches as plain data, without CUDA or cutlass types.

``host.redirect`` makes them from the runtime calls of compiled host code, for the simulator and the launch checks. Only
the standard library is needed to store, pickle or print them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

Dim3 = tuple[int, int, int]


class HostSideError(RuntimeError):
    """Host code used a function without a stand-in, or the stand-ins are set up incorrectly."""


class NoCompilerError(HostSideError):
    """A compiler is not installed, which is not an error of the kernel."""


class LaunchRejectedError(HostSideError):
    """A launch that a driver would refuse. The message begins with the driver's CUDA error."""


class LaunchAttribute(IntEnum):
    """``cudaLaunchAttributeID``: attributes that the DSL's host code sets (CUDA runtime API, driver_types.h)."""

    ACCESS_POLICY_WINDOW = 1
    COOPERATIVE = 2
    SYNCHRONIZATION_POLICY = 3
    CLUSTER_DIMENSION = 4
    CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5
    PROGRAMMATIC_STREAM_SERIALIZATION = 6
    PROGRAMMATIC_EVENT = 7
    PRIORITY = 8
    MEM_SYNC_DOMAIN_MAP = 9
    MEM_SYNC_DOMAIN = 10
    PREFERRED_CLUSTER_DIMENSION = 11
    LAUNCH_COMPLETION_EVENT = 12
    DEVICE_UPDATABLE_KERNEL_NODE = 13
    PREFERRED_SHARED_MEMORY_CARVEOUT = 14


ATTRIBUTE_BYTES: Final[Mapping[int, int]] = {
    **dict.fromkeys(LaunchAttribute, 4),
    LaunchAttribute.ACCESS_POLICY_WINDOW: 32,
    LaunchAttribute.CLUSTER_DIMENSION: 12,
    LaunchAttribute.PROGRAMMATIC_EVENT: 16,
    LaunchAttribute.MEM_SYNC_DOMAIN_MAP: 2,
    LaunchAttribute.PREFERRED_CLUSTER_DIMENSION: 12,
    LaunchAttribute.LAUNCH_COMPLETION_EVENT: 12,
    LaunchAttribute.DEVICE_UPDATABLE_KERNEL_NODE: 16,
}
"""Size of an attribute's member of the union ``cudaLaunchAttributeValue`` (64 bytes); host code writes no others."""


@dataclass(frozen=True, slots=True)
class ModuleImage:
    """A device module that host code has loaded.

    Attributes:
        cubin: The ELF image passed to ``cudaLibraryLoadData``; empty for a module that was loaded as PTX.
        ptx: The text that the same compile wrote to ``CUTE_DSL_DUMP_DIR``, or that was loaded; None if
            ``CUTE_DSL_KEEP_PTX`` was not set (the image has no PTX).
        param_sizes: By kernel symbol, the sizes of its parameters in bytes, in order.
        registers: By symbol, the registers per thread at the launch of the kernels whose CUBIN has ``setmaxnreg``.
    """

    cubin: bytes = field(repr=False)
    ptx: str | None = field(repr=False)
    param_sizes: Mapping[str, tuple[int, ...]]
    registers: Mapping[str, int] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Hex digest of the CUBIN, or else of the PTX; equal for modules with the same code."""
        return hashlib.sha256(self.cubin or (self.ptx or "").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch. Sizes are in CTAs (``grid``, ``cluster``), threads (``block``) and bytes (the rest).

    Attributes:
        params: The little-endian bytes of each kernel parameter, copied at the launch. A global pointer in them is an
            address of this process.
        attributes: By launch attribute id, the 64 bytes of its value union; zeros for an attribute set to "off".
        ordinal: Number of the launch, from 0.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_smem: int
    stream: int
    params: tuple[bytes, ...] = field(repr=False)
    attributes: Mapping[int, bytes] = field(repr=False)
    module: ModuleImage = field(repr=False)
    ordinal: int

    def _flag(self, attribute: LaunchAttribute) -> bool:
        value = self.attributes.get(attribute)
        return value is not None and bool(struct.unpack_from("<i", value)[0])

    @property
    def programmatic_dependent_launch(self) -> bool:
        """Whether the launch may overlap the previous one on its stream (``use_pdl=True``)."""
        return self._flag(LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION)

    @property
    def cooperative(self) -> bool:
        """Whether all CTAs must be resident at once (``cooperative=True``)."""
        return self._flag(LaunchAttribute.COOPERATIVE)

    @property
    def ctas(self) -> int:
        """Number of CTAs in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Number of threads in a CTA."""
        return self.block[0] * self.block[1] * self.block[2]
