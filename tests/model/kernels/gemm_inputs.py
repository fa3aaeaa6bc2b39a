"""Operands of the twins that are plain GEMMs, their results in exact arithmetic, and how a twin is launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from cuda.bindings import driver
from cutlass import Int32

__all__ = ["Operands", "compile_gemm", "draw", "expected", "room"]

NAMES = ("a", "b", "sfa", "sfb")
NO_VALUES = (np.zeros((0, 0)), np.zeros((0, 0)))
GLOBAL = cute.AddressSpace.gmem

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
SF_VEC = 16
BITS = {"e2m1": 4, "fp8": 8, "fp16": 16, "bf16": 16}
TORCH = {
    cutlass.Float8E4M3FN: torch.float8_e4m3fn,
    cutlass.Float16: torch.float16,
    cutlass.BFloat16: torch.bfloat16,
    cutlass.Float32: torch.float32,
}


PLAIN = {"fp8": torch.float8_e4m3fn, "fp16": torch.float16, "bf16": torch.bfloat16}


class Gemm(Protocol):
    """What is needed of a twin: its type by name, and the DSL's types of its operands and of C."""

    kind: str
    type: Any
    c_type: Any
    scales_are_arguments: bool


@dataclass(frozen=True)
class Operands:
    """Bytes of A, B and, for e2m1, their scales in blocks of 128 rows; and their values."""

    a: torch.Tensor
    b: torch.Tensor
    sfa: torch.Tensor
    sfb: torch.Tensor
    a_values: np.ndarray
    b_values: np.ndarray

    def cuda(self) -> Operands:
        """The same in device memory."""
        return replace(self, **{name: getattr(self, name).cuda() for name in NAMES})


def blocks(scales: np.ndarray) -> np.ndarray:
    """Bytes of scales (rows, blocks of K) as 512-byte blocks of 128 rows by 4 scales, padded with ones."""
    rows, columns = scales.shape
    padded = np.full((-(-rows // 128) * 128, -(-columns // 4) * 4), 127, np.uint8)
    padded[:rows, :columns] = scales
    parts = padded.reshape(len(padded) // 128, 4, 32, padded.shape[1] // 4, 4)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 1, 4)).reshape(-1)


def draw(kind: str, m: int, n: int, k: int, seed: int = 1) -> Operands:
    """Small values, whose products and sums are exact in fp32 in any order."""
    random = np.random.default_rng(seed)
    drawn: dict[str, Any] = {}
    for key, rows in (("a", m), ("b", n)):
        if kind == "e2m1":
            codes = random.integers(0, 256, (rows, k // 2), dtype=np.uint8)
            scales = random.choice(np.array([126, 127, 128], np.uint8), (rows, k // SF_VEC))
            values = E2M1[np.stack([codes & 15, codes >> 4], axis=-1)].reshape(rows, k)
            drawn[key] = torch.from_numpy(codes)
            drawn[f"sf{key}"] = torch.from_numpy(blocks(scales))
            drawn[f"{key}_values"] = values * np.repeat(2.0 ** (scales.astype(int) - 127), SF_VEC, axis=1)
        else:
            values = random.integers(-2, 3, (rows, k)).astype(np.float32)
            drawn[key] = torch.from_numpy(values).to(PLAIN[kind]).view(torch.uint8)
            drawn[f"sf{key}"] = torch.zeros(16, dtype=torch.uint8)
            drawn[f"{key}_values"] = values.astype(np.float64)
    return Operands(**drawn)


def room(kind: str, m: int, n: int, k: int) -> Operands:
    """Operands without values, for recordings: their bytes are reserved and never written."""
    sizes = {"a": m * k * BITS[kind] // 8, "b": n * k * BITS[kind] // 8}
    scales = {f"sf{key}": -(-rows // 128) * -(-k // 64) * 512 for key, rows in (("a", m), ("b", n))}
    tensors = {key: torch.empty(size, dtype=torch.uint8, device="cuda") for key, size in (sizes | scales).items()}
    return Operands(**tensors, a_values=NO_VALUES[0], b_values=NO_VALUES[1])


def expected(gemm: Gemm, operands: Operands) -> torch.Tensor:
    """C, rounded once."""
    return torch.from_numpy(operands.a_values @ operands.b_values.T).to(TORCH[gemm.c_type])


def compile_gemm(gemm: Gemm) -> Callable[..., None]:
    """Compile a twin once for all extents, and return a function of ``(operands, c, m, n, k, clusters)``."""
    names = NAMES if gemm.scales_are_arguments else NAMES[:2]

    def arguments(operands: Operands | None, c: torch.Tensor | None) -> list[Any]:
        types = [cutlass.Float8E8M0FNU if name.startswith("sf") else gemm.type for name in names]
        tensors = [operands and getattr(operands, name) for name in names]
        return [
            cute.runtime.make_ptr(dtype, tensor.data_ptr() if tensor is not None else 0, GLOBAL, assumed_align=16)
            for dtype, tensor in zip([*types, gemm.c_type], [*tensors, c], strict=True)
        ]

    stream = driver.CUstream(0)
    compiled = cute.compile(gemm, *arguments(None, None), *[Int32(128)] * 4, stream)

    def launch(operands: Operands, c: torch.Tensor, m: int, n: int, k: int, clusters: int) -> None:
        compiled(*arguments(operands, c), m, n, k, clusters, stream)

    return launch
