"""Device attributes of a B200, a B300 and an H200, for host code that queries them without a device.

The values are from the CUDA C++ Programming Guide's table of compute capabilities and from device queries of the
products; none was measured by this package. ``cuDeviceGetAttribute``, ``HardwareInfo`` and ``torch.cuda`` return them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A device model. Sizes are in bytes, clocks in kHz.

    ``max_active_clusters`` maps a cluster size to the number of resident clusters with one CTA per SM. For other sizes
    the model returns ``sm_count // size``, an upper bound: a cluster is inside one GPC, and the number of SMs per GPC
    of a product is not published.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    smem_per_block_optin: int
    smem_per_sm: int
    l2_bytes: int
    memory_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    driver_version: int = 13000
    smem_per_block: int = 49152
    smem_reserved_per_block: int = 1024
    registers_per_sm: int = 65536
    schedulers_per_sm: int = 4
    registers_per_allocation: int = 256
    """Registers are allocated to warps in multiples of it."""
    threads_per_sm: int = 2048
    threads_per_block: int = 1024
    blocks_per_sm: int = 32
    warp_size: int = 32
    max_cluster_ctas: int = 16
    max_active_clusters: Mapping[int, int] = field(default_factory=dict)

    def clusters(self, size: int) -> int:
        """Return the number of resident clusters of ``size`` CTAs (an upper bound unless the model has the size)."""
        return self.max_active_clusters.get(size, self.sm_count // size)

    def attributes(self) -> dict[str, int]:
        """Return the values of ``cuDeviceGetAttribute``, by enumerator without ``CU_DEVICE_ATTRIBUTE_``."""
        return {
            "MAX_THREADS_PER_BLOCK": self.threads_per_block,
            "MAX_BLOCK_DIM_X": 1024,
            "MAX_BLOCK_DIM_Y": 1024,
            "MAX_BLOCK_DIM_Z": 64,
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MAX_GRID_DIM_Y": 65535,
            "MAX_GRID_DIM_Z": 65535,
            "MAX_SHARED_MEMORY_PER_BLOCK": self.smem_per_block,
            "SHARED_MEMORY_PER_BLOCK": self.smem_per_block,  # the older name of the same number
            "TOTAL_CONSTANT_MEMORY": 65536,
            "WARP_SIZE": self.warp_size,
            "MAX_REGISTERS_PER_BLOCK": self.registers_per_sm,
            "REGISTERS_PER_BLOCK": self.registers_per_sm,
            "CLOCK_RATE": self.clock_khz,
            "GPU_OVERLAP": 1,
            "MULTIPROCESSOR_COUNT": self.sm_count,
            "INTEGRATED": 0,
            "CAN_MAP_HOST_MEMORY": 1,
            "COMPUTE_MODE": 0,
            "CONCURRENT_KERNELS": 1,
            "ECC_ENABLED": 1,
            "MEMORY_CLOCK_RATE": self.memory_clock_khz,
            "GLOBAL_MEMORY_BUS_WIDTH": self.memory_bus_bits,
            "L2_CACHE_SIZE": self.l2_bytes,
            "MAX_THREADS_PER_MULTIPROCESSOR": self.threads_per_sm,
            "UNIFIED_ADDRESSING": 1,
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "STREAM_PRIORITIES_SUPPORTED": 1,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": self.smem_per_sm,
            "MAX_REGISTERS_PER_MULTIPROCESSOR": self.registers_per_sm,
            "MANAGED_MEMORY": 1,
            "COOPERATIVE_LAUNCH": 1,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self.smem_per_block_optin,
            "MAX_BLOCKS_PER_MULTIPROCESSOR": self.blocks_per_sm,
            "RESERVED_SHARED_MEMORY_PER_BLOCK": self.smem_reserved_per_block,
            "MEMORY_POOLS_SUPPORTED": 1,
            "CLUSTER_LAUNCH": 1,
            "TENSOR_MAP_ACCESS_SUPPORTED": 1,
        }


B200 = DeviceModel(
    name="NVIDIA B200",
    capability=(10, 0),
    sm_count=148,
    smem_per_block_optin=232448,
    smem_per_sm=233472,
    l2_bytes=132644864,
    memory_bytes=192_264_110_080,
    clock_khz=1_965_000,
    memory_clock_khz=3_996_000,
    memory_bus_bits=8192,
)

H200 = DeviceModel(
    name="NVIDIA H200",
    capability=(9, 0),
    sm_count=132,
    smem_per_block_optin=232448,
    smem_per_sm=233472,
    l2_bytes=62914560,
    memory_bytes=150_121_480_192,
    clock_khz=1_980_000,
    memory_clock_khz=3_201_000,
    memory_bus_bits=6144,
)

B300 = replace(B200, name="NVIDIA B300", capability=(10, 3), memory_bytes=288_000_000_000)

_KIB = 1024
_SMEM_PER_BLOCK = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (12, 0): 99, (12, 1): 99}
"""Largest shared memory of a block in KiB, by compute capability, where it is not 227."""
_RESIDENT = {(8, 6): (1536, 16), (8, 9): (1536, 24), (12, 0): (1536, 24), (12, 1): (1536, 24)}
"""Resident threads and CTAs of an SM, where they are not 2,048 and 32."""


def for_arch(arch: str) -> DeviceModel:
    """Return the device model for kernels compiled for ``arch``.

    That is a B200 for ``sm_100a``, a B300 for ``sm_103a`` and an H200 for ``sm_90a``. Any other is a device without a
    product's name, with the compute capability and limits of the architecture and the B200's other attributes.
    """
    digits = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if digits is None:
        return B200
    capability = (int(digits[1]), int(digits[2]))
    for known in (B200, B300, H200):
        if known.capability == capability:
            return known
    smem = _SMEM_PER_BLOCK.get(capability, 227) * _KIB
    threads, blocks = _RESIDENT.get(capability, (2048, 32))
    return replace(
        B200,
        name=f"a GPU of compute capability {capability[0]}.{capability[1]}",
        capability=capability,
        smem_per_block_optin=smem,
        smem_per_sm=smem + B200.smem_reserved_per_block,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
    )
