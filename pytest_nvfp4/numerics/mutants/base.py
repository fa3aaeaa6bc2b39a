"""What a wrong kernel is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_nvfp4.numerics.kernel_model import Kernel

Part: TypeAlias = Literal["scale place", "decode", "accumulate", "convert", "tile", "outside"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong kernel with one fault.

    Attributes:
        name: short, for tables.
        part: which part of a kernel is wrong.
        description: what it does wrong.
        kernel: runs it on one group.
        elements: what element codes 0..15 mean to it, where that is the fault; else None.
        scales: what scale codes 0..255 mean to it, where that is the fault; else None.
    """

    name: str
    part: Part
    description: str
    kernel: Kernel
    elements: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
