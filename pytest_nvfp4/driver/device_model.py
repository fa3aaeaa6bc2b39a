"""The numbers that host code asks of a device: what a B200 or an H200 answers, without one.

Values are those of the CUDA C++ programming guide's table of compute capabilities and of the parts' device queries;
none of them is a measurement made here. They feed ``cuDeviceGetAttribute``, ``HardwareInfo`` and ``torch.cuda``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ["B200", "H200", "DeviceModel", "for_arch"]


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """One device. Sizes are bytes, clocks kHz.

    ``max_active_clusters`` maps a cluster size to the number of clusters resident at once with one CTA an SM. Sizes it
    does not name are answered with ``sm_count // size``, which is an upper bound: a cluster stays inside one GPC, and
    how many SMs a GPC of a given part has is not published.
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
    threads_per_sm: int = 2048
    threads_per_block: int = 1024
    blocks_per_sm: int = 32
    warp_size: int = 32
    max_cluster_ctas: int = 16
    max_active_clusters: Mapping[int, int] = field(default_factory=dict)

    def clusters(self, size: int) -> int:
        """Clusters of ``size`` CTAs that fit at once (an upper bound unless the model names the size)."""
        return self.max_active_clusters.get(size, self.sm_count // size)

    def attributes(self) -> dict[str, int]:
        """Answers of ``cuDeviceGetAttribute``, by the enumerator's name without its ``CU_DEVICE_ATTRIBUTE_``."""
        return {
            "MAX_THREADS_PER_BLOCK": self.threads_per_block,
            "MAX_BLOCK_DIM_X": 1024,
            "MAX_BLOCK_DIM_Y": 1024,
            "MAX_BLOCK_DIM_Z": 64,
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MAX_GRID_DIM_Y": 65535,
            "MAX_GRID_DIM_Z": 65535,
            "MAX_SHARED_MEMORY_PER_BLOCK": self.smem_per_block,
            "TOTAL_CONSTANT_MEMORY": 65536,
            "WARP_SIZE": self.warp_size,
            "MAX_REGISTERS_PER_BLOCK": self.registers_per_sm,
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

_KIB = 1024
_SMEM_PER_BLOCK = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (12, 0): 99, (12, 1): 99}
"""KiB of shared memory that a block may ask for, by compute capability, where it is not 227."""


def for_arch(arch: str) -> DeviceModel:
    """The device that a kernel compiled for ``arch`` meets.

    ``sm_100a`` meets a B200 and ``sm_90a`` an H200. Any other meets a device without a product's name: its compute
    capability and shared memory are those of the architecture, the rest is the B200's.
    """
    digits = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if digits is None:
        return B200
    capability = (int(digits[1]), int(digits[2]))
    for known in (B200, H200):
        if known.capability == capability:
            return known
    smem = _SMEM_PER_BLOCK.get(capability, 227) * _KIB
    return replace(
        B200,
        name=f"a GPU of compute capability {capability[0]}.{capability[1]}",
        capability=capability,
        smem_per_block_optin=smem,
        smem_per_sm=smem + B200.smem_reserved_per_block,
    )
