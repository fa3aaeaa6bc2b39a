"""What a kernel launch is once it has left the compiled host code: plain bytes, no CUDA and no cutlass types.

The producer is ``host.redirect`` (it overrides the runtime calls of the compiled host code); the consumers are the
simulator and the launch checks. Only the standard library is needed to hold, pickle or print these values.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["Dim3", "HostSideError", "Launch", "LaunchAttribute", "LaunchRejectedError", "ModuleImage"]

Dim3 = tuple[int, int, int]


class HostSideError(RuntimeError):
    """Host code asked for something that has no stand-in, or the stand-ins are set up wrongly."""


class LaunchRejectedError(HostSideError):
    """A launch that a driver would refuse; the message names the CUDA error it would return."""


class LaunchAttribute(IntEnum):
    """``cudaLaunchAttributeID``: the attributes that the DSL's host code sets (CUDA runtime API, driver_types.h)."""

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


@dataclass(frozen=True, slots=True)
class ModuleImage:
    """One device module as the host code loaded it.

    ``cubin`` is the ELF image handed to ``cudaLibraryLoadData``. ``ptx`` is the text the same compile wrote to
    ``CUTE_DSL_DUMP_DIR``, or ``None`` when ``CUTE_DSL_KEEP_PTX`` was not set (the image itself holds no PTX).
    ``param_sizes`` maps each kernel symbol to the byte sizes of its parameters, in order, and ``registers`` to the
    registers that a thread has at the launch, where that is known.
    """

    cubin: bytes = field(repr=False)
    ptx: str | None = field(repr=False)
    param_sizes: Mapping[str, tuple[int, ...]]
    registers: Mapping[str, int] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Hex digest of the cubin; two modules are the same code exactly when it is equal."""
        return hashlib.sha256(self.cubin).hexdigest()


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. Sizes are in CTAs (``grid``, ``cluster``), threads (``block``) and bytes (the rest).

    ``params`` are the raw little-endian bytes of each kernel parameter, copied at the launch; a global pointer inside
    them is an address of this process. ``attributes`` maps a launch attribute id to the 64 bytes of its value union;
    an attribute the host code set to "off" is present with its zero value. ``ordinal`` counts launches from 0.
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
        """Whether the launch may overlap the one before it on its stream (``use_pdl=True``)."""
        return self._flag(LaunchAttribute.PROGRAMMATIC_STREAM_SERIALIZATION)

    @property
    def cooperative(self) -> bool:
        """Whether all CTAs must be resident at once (``cooperative=True``)."""
        return self._flag(LaunchAttribute.COOPERATIVE)

    @property
    def preferred_cluster(self) -> Dim3 | None:
        """The preferred cluster shape, where the launch names one."""
        value = self.attributes.get(LaunchAttribute.PREFERRED_CLUSTER_DIMENSION)
        if value is None:
            return None
        x, y, z = struct.unpack_from("<III", value)
        return x, y, z

    @property
    def ctas(self) -> int:
        """Number of CTAs in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Number of threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]
