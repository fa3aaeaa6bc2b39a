"""The names of all features by module, so that tests can be collected without importing the DSL."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .feature import Feature

__all__ = ["MODULES", "NAMES", "SLOW", "load"]

MODULES: Final[dict[str, tuple[str, ...]]] = {
    "mma_kinds": (
        "mma_f16",
        "mma_f16_ragged",
        "mma_f16_f16_accumulator",
        "mma_f16_m64",
        "mma_bf16",
        "mma_tf32",
        "mma_f8",
        "mma_f8_mixed",
        "mma_i8",
    ),
    "clusters": (
        "multicast_2x1",
        "multicast_1x2",
        "multicast_2x2",
        "multicast_2x4",
        "two_cta_256_2x1",
        "two_cta_128_2x1",
        "two_cta_256_4x2",
    ),
    "block_scaled": (
        "mma_mxf8",
        "mma_mxf8_mixed",
        "mma_mxf8_two_cta",
        "mma_mxf4",
        "mma_nvf4",
        "mma_nvf4_ue8m0",
        "mma_nvf4_two_cta",
    ),
    "collectives": (
        "vote",
        "shuffle",
        "redux",
        "redux_float",
        "match_and_masks",
    ),
    "arithmetic": (
        "packed_f32x2",
        "convert_f16",
        "convert_bf16",
        "convert_e4m3",
        "convert_e5m2",
        "convert_narrow_pairs",
        "integers",
        "transcendental",
    ),
    "control_flow": (
        "collatz",
        "nested_divergence",
        "early_end",
        "spin_within_warp",
        "register_heavy",
    ),
    "messages": (
        "printf",
        "assertion",
    ),
    "barriers": (
        "mbarrier_ping_pong",
        "async_pipeline",
        "named_barriers",
        "shared_atomics",
    ),
    "launching": (
        "dependent_launch",
        "setmaxnreg",
        "coordinates",
    ),
    "async_copy": (
        "cp_async_groups",
        "cp_async_mbarrier",
        "cp_async_zero_fill",
        "bulk_copy",
    ),
    "matrices": (
        "ldmatrix_x1",
        "ldmatrix_x1_trans",
        "ldmatrix_x2",
        "ldmatrix_x2_trans",
        "ldmatrix_x4",
        "ldmatrix_x4_trans",
        "stmatrix_x1",
        "stmatrix_x1_trans",
        "stmatrix_x2",
        "stmatrix_x2_trans",
        "stmatrix_x4",
        "stmatrix_x4_trans",
        "matrix_atoms",
    ),
    "persistent": (
        "persistent_static",
        "persistent_static_two_cta",
        "persistent_dynamic",
        "persistent_dynamic_two_cta",
        "split_k_tma_reduce",
    ),
    "tmem": (
        "tmem_32x32b_x1",
        "tmem_32x32b_x2",
        "tmem_32x32b_x4",
        "tmem_32x32b_x8",
        "tmem_32x32b_x16",
        "tmem_32x32b_x32",
        "tmem_32x32b_x64",
        "tmem_32x32b_x128",
        "tmem_16x64b",
        "tmem_16x128b",
        "tmem_16x256b",
        "tmem_16x32bx2",
        "tmem_16x32bx2_load",
        "mma_a_from_tmem",
    ),
    "cross_cta": (
        "split_k_atomics",
        "global_atomics",
        "stream_k_flags",
        "stream_k_flags_backwards",
        "grid_barrier",
        "last_block_sum",
    ),
    "tensormaps": (
        "tensormap_in_shared",
        "tensormap_in_global",
    ),
    "operands": (
        "operand_swizzle_64b",
        "operand_swizzle_32b",
        "operand_n16",
        "operand_n256",
        "operand_mn_major",
        "operand_mn_major_narrow",
        "operand_mn_major_two_cta",
    ),
    "tmem_copies": (
        "cp_128x256b",
        "cp_128x128b",
        "cp_32x128b_warpx4",
        "cp_64x128b_02_13",
        "cp_64x128b_01_23",
    ),
    "bulk_tensor": (
        "tma_swizzle_none",
        "tma_swizzle_128b",
        "tma_swizzle_64b",
        "tma_swizzle_32b",
        "tma_multicast_reduce",
        "tma_reduce_add_float16",
        "tma_reduce_add_int32",
        "tma_reduce_min_int32",
        "tma_reduce_max_int32",
        "tma_reduce_and_int32",
        "tma_reduce_or_int32",
        "tma_reduce_xor_int32",
    ),
    "work_queue": (
        "clc_queries",
        "warp_mma",
    ),
    "dsmem": (
        "dsmem",
        "remote_arrive",
        "st_async",
        "st_async_v4",
        "bulk_dsmem",
    ),
}

NAMES: Final = tuple(name for names in MODULES.values() for name in names)

SLOW: Final = frozenset(
    {
        *("mma_f16_f16_accumulator", "mma_bf16", "mma_f8", "mma_mxf8_mixed", "mma_mxf8_two_cta", "mma_nvf4_ue8m0"),
        *("multicast_1x2", "multicast_2x2", "two_cta_128_2x1", "operand_swizzle_64b", "operand_mn_major_narrow"),
        *("operand_n16", "operand_mn_major_two_cta", "persistent_static_two_cta", "persistent_dynamic_two_cta"),
        *(f"tmem_32x32b_x{n}" for n in (1, 2, 4, 8, 16, 64)),
        *(f"tma_reduce_{kind}_int32" for kind in ("min", "max", "or", "xor")),
        *("ldmatrix_x1", "ldmatrix_x1_trans", "ldmatrix_x2", "stmatrix_x1", "stmatrix_x1_trans", "stmatrix_x2"),
    }
)
"""Variants of others, which the quick tests leave out: every feature costs a compile and a run of a few tenths."""


def load() -> dict[str, Feature]:
    """Import every module and return its features by name; cutlass has to be importable and its environment set.

    :raises ValueError: a module's features are not those listed here.
    """
    found: dict[str, Feature] = {}
    for module, names in MODULES.items():
        features = importlib.import_module(f"{__package__}.{module}").FEATURES
        if (there := tuple(feature.name for feature in features)) != names:
            raise ValueError(f"{module}.py has the features {there}; the catalogue lists {names}")
        found |= {feature.name: feature for feature in features}
    return found
