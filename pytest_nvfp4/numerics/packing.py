"""Two E2M1 codes a byte: element ``2i`` of k is the low nibble of byte ``i`` and element ``2i + 1`` the high nibble.

This is the order of ``torch.float4_e2m1fn_x2`` and of the tensor map's packed FP4 type.
"""

from __future__ import annotations

import numpy as np

from pytest_nvfp4.numerics.arrays import Bytes, NumericsError, require_bytes


def pack(codes: Bytes) -> Bytes:
    """Pack codes ``[..., k]`` (one a byte) into ``[..., k // 2]``. Raises NumericsError for odd k or a code > 15."""
    require_bytes("codes", codes)
    if codes.shape[-1] % 2:
        raise NumericsError(f"k = {codes.shape[-1]} is odd; two elements share a byte")
    if codes.size and int(codes.max()) > 15:
        raise NumericsError(f"code {int(codes.max())} does not fit 4 bits")
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def unpack(packed: Bytes) -> Bytes:
    """Unpack bytes ``[..., k // 2]`` into codes ``[..., k]``."""
    require_bytes("packed", packed)
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=np.uint8)
    codes[..., 0::2] = packed & 0xF
    codes[..., 1::2] = packed >> np.uint8(4)
    return codes


def swap_nibbles(packed: Bytes) -> Bytes:
    """Swap the two elements of each packed byte."""
    require_bytes("packed", packed)
    return packed << np.uint8(4) | packed >> np.uint8(4)
