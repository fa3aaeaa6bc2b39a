"""Kernels in which every thread computes some words from some words, of which many features are one body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import numpy as np
import torch
from cutlass._mlir.dialects import llvm
from cutlass.cute.runtime import from_dlpack
from cutlass.cutlass_dsl import T, dsl_user_op

from .feature import Feature, Tensors, on_device

Reference = Callable[[np.ndarray], np.ndarray]


class PerThread:
    """``body(row of a thread's words, row of its results)`` in every thread of every block."""

    def __init__(self, body: Callable[..., None], threads: int) -> None:
        self.body = body
        self.threads = threads

    @cute.jit
    def __call__(self, words_in: cute.Tensor, words_out: cute.Tensor) -> None:
        self.kernel(words_in, words_out).launch(
            grid=(cute.size(words_in, mode=[0]) // self.threads, 1, 1), block=(self.threads, 1, 1)
        )

    @cute.kernel
    def kernel(self, words_in: cute.Tensor, words_out: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = block * self.threads + thread
        self.body(words_in[row, None], words_out[row, None])


@dsl_user_op
def ptx32(code: str, *values: Any, loc: Any = None, ip: Any = None) -> cutlass.Int32:
    """One 32-bit result ``$0`` of PTX text with 32-bit operands ``$1``, ``$2`` ..., as users write instructions."""
    operands = [cutlass.Int32(value).ir_value(loc=loc, ip=ip) for value in values]
    constraints = ",".join(["=r", *["r"] * len(operands)])
    result = llvm.inline_asm(
        T.i32(),
        operands,
        code,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
    return cutlass.Int32(result)


def thread_feature(
    name: str,
    body: Callable[..., None],
    reference: Reference,
    *,
    words: int = 1,
    results: int = 1,
    rows: int = 64,
    threads: int = 32,
    dtype: type = np.int32,
    out_dtype: type | None = None,
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray] | None = None,
    opcodes: tuple[str, ...],
    needs: tuple[str, ...] = (),
    tolerance: float = 0.0,
    prints: tuple[str, ...] = (),
) -> Feature:
    """``rows`` threads, in blocks of ``threads``, each with ``words`` values in and ``results`` values out.

    :param reference: of the array (rows, words): the array (rows, results).
    :param draw: of a generator and a shape: the input; all 32 bits random where it is not given.
    """

    def kernel_inputs(seed: int) -> Tensors:
        random = np.random.default_rng(seed)
        if draw is not None:
            return {"x": torch.from_numpy(draw(random, (rows, words)).astype(dtype))}
        return {"x": torch.from_numpy(random.integers(-(2**31), 2**31, (rows, words)).astype(dtype))}

    def run(inputs: Tensors) -> Tensors:
        x = on_device(inputs)["x"]
        y_type = torch.from_numpy(np.zeros(1, out_dtype or dtype)).dtype
        y = torch.empty((rows, results), dtype=y_type, device="cuda")
        PerThread(body, threads)(from_dlpack(x), from_dlpack(y))
        return {"y": y}

    def expected(inputs: Tensors) -> Tensors:
        computed = reference(inputs["x"].numpy())
        return {"y": torch.from_numpy(np.ascontiguousarray(computed.astype(out_dtype or dtype)))}

    return Feature(name, kernel_inputs, run, expected, opcodes, needs=needs, tolerance=tolerance, prints=prints)
