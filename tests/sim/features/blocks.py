"""Kernels of a few blocks with one input and one output tensor, of which many features are one body."""

from __future__ import annotations

from collections.abc import Callable

import cutlass.cute as cute
import numpy as np
import torch
from cutlass.cute.runtime import from_dlpack

from .feature import Feature, Tensors, on_device

Shape = tuple[int, ...]


class Blocks:
    """``body(x, y)`` in every thread of a grid."""

    def __init__(self, body: Callable[..., None], *, grid: Shape, block: Shape, cluster: Shape) -> None:
        self.body = body
        self.grid = grid
        self.block = block
        self.cluster = cluster

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor) -> None:
        self.kernel(x, y).launch(grid=self.grid, block=self.block, cluster=self.cluster)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        self.body(x, y)


def block_feature(
    name: str,
    body: Callable[..., None],
    reference: Callable[[np.ndarray], np.ndarray],
    *,
    shape: Shape,
    out_shape: Shape | None = None,
    dtype: type = np.int32,
    out_dtype: type | None = None,
    draw: Callable[[np.random.Generator, Shape], np.ndarray] | None = None,
    fill: int | None = 0,
    grid: Shape = (1, 1, 1),
    block: Shape = (128, 1, 1),
    cluster: Shape = (1, 1, 1),
    opcodes: tuple[str, ...],
    needs: tuple[str, ...] = (),
    prints: tuple[str, ...] = (),
    tolerance: float = 0.0,
    options: str = "",
) -> Feature:
    """The feature whose kernel is ``body(x, y)``.

    :param draw: of a generator and a shape: the input; small integers where it is not given.
    :param options: command-line options of ``cute.compile``.
    :param fill: what the output holds before the launch; ``None`` leaves it uninitialised.
    """

    def kernel_inputs(seed: int) -> Tensors:
        random = np.random.default_rng(seed)
        drawn = random.integers(-1000, 1000, shape) if draw is None else draw(random, shape)
        return {"x": torch.from_numpy(drawn.astype(dtype))}

    def run(inputs: Tensors) -> Tensors:
        y_type = torch.from_numpy(np.zeros(1, out_dtype or dtype)).dtype
        empty = torch.empty(out_shape or shape, dtype=y_type, device="cuda")
        y = empty if fill is None else empty.fill_(fill)
        x = on_device(inputs)["x"]
        kernel = Blocks(body, grid=grid, block=block, cluster=cluster)
        arguments = (from_dlpack(x, assumed_align=16), from_dlpack(y, assumed_align=16))
        cute.compile(kernel, *arguments, options=options)(*arguments) if options else kernel(*arguments)
        return {"y": y}

    def expected(inputs: Tensors) -> Tensors:
        computed = np.asarray(reference(inputs["x"].numpy())).astype(out_dtype or dtype)
        return {"y": torch.from_numpy(np.ascontiguousarray(computed.reshape(out_shape or shape)))}

    return Feature(name, kernel_inputs, run, expected, opcodes, needs=needs, prints=prints, tolerance=tolerance)
