"""What every kernel file of this folder exports: features, each one kernel with inputs, a reference and its opcodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Feature", "Tensors", "integers", "on_device"]

Tensors = Mapping[str, torch.Tensor]
"""Named tensors: CPU tensors as inputs and references, "cuda" tensors as outputs of a kernel."""


@dataclass(frozen=True)
class Feature:
    """One feature of the hardware, as one small kernel uses it.

    ``kernel_inputs(seed)`` draws CPU tensors; ``run(inputs)`` moves them to the device, launches and returns the output
    tensors; ``reference(inputs)`` computes the same outputs on the CPU without the DSL. Outputs have to be equal bit by
    bit unless ``tolerance`` (relative and absolute) says otherwise.

    ``opcodes`` are regular expressions that the PTX of all launches together must match: the kernel *has* the feature.
    ``needs`` names attributes below ``cutlass`` without which this DSL version cannot compile the feature.
    ``prints`` is text that a run must write to stdout, and ``launches`` how many launches one run makes.
    """

    name: str
    kernel_inputs: Callable[[int], Tensors]
    run: Callable[[Tensors], Tensors]
    reference: Callable[[Tensors], Tensors]
    opcodes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    tolerance: float = 0.0
    launches: int = 1
    prints: tuple[str, ...] = ()

    def lost(self, ptx: str) -> list[str]:
        """The opcodes that ``ptx`` does not have, though this feature is about them."""
        return [opcode for opcode in self.opcodes if re.search(opcode, ptx) is None]


def integers(seed: int, shape: tuple[int, ...], *, low: int = -3, high: int = 4, stream: int = 0) -> torch.Tensor:
    """Small integers as float32, ``low <= x < high``: sums of their products are exact in float32 in any order."""
    drawn = np.random.default_rng([seed, stream]).integers(low, high, size=shape)
    return torch.from_numpy(drawn.astype(np.float32))


def on_device(inputs: Tensors) -> dict[str, torch.Tensor]:
    """The same tensors in device memory."""
    return {name: tensor.cuda() for name, tensor in inputs.items()}
