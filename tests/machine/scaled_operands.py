"""Block-scaled operands and their values."""

from __future__ import annotations

import numpy as np
import torch

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def blocked(scales: torch.Tensor) -> torch.Tensor:
    """Scales ``[rows, columns]`` in tiles of 128 x 4, element by element."""
    rows, columns = scales.shape
    tiles, groups = -(-rows // 128), -(-columns // 4)
    out = torch.zeros(tiles * groups * 512, dtype=torch.uint8)
    plain = scales.view(torch.uint8)
    for r in range(rows):
        for c in range(columns):
            tile = r // 128 * groups + c // 4
            out[512 * tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4] = plain[r, c]
    return out.view(scales.dtype)


def operand(rows: int, k: int, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Elements, blocked scales, and the values in float64."""
    rng = np.random.default_rng(seed)
    if kind == "mxfp8":
        elements = torch.from_numpy(rng.integers(0, 0x50, (rows, k), dtype=np.uint8)).view(torch.float8_e4m3fn)
        values = elements.to(torch.float64).numpy()
    else:
        codes = rng.integers(0, 16, (rows, k), dtype=np.uint8)
        elements = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.float4_e2m1fn_x2)
        values = E2M1[codes]
    block = 16 if kind == "nvfp4" else 32
    columns = -(-k // block)
    if kind == "nvfp4":
        sizes = rng.integers(0x28, 0x48, (rows, columns), dtype=np.uint8)
        factors = torch.from_numpy(sizes).view(torch.float8_e4m3fn).to(torch.float64).numpy()
        signs = rng.integers(0, 2, (rows, columns), dtype=np.uint8) << 7  # UE4M3 has none
        scales = torch.from_numpy(sizes | signs).view(torch.float8_e4m3fn)
    else:
        scales = torch.from_numpy(rng.integers(124, 131, (rows, columns), dtype=np.uint8)).view(torch.float8_e8m0fnu)
        factors = 2.0 ** (scales.view(torch.uint8).numpy().astype(np.float64) - 127)
    return elements, blocked(scales), values * np.repeat(factors, block, axis=1)[:, :k]
