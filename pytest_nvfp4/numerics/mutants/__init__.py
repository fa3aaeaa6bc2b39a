"""Wrong kernels: one fault each, of the kinds that block-scaled GEMM kernels are found with.

They exist to score input families: inputs that let a wrong kernel pass are not good enough. Every mutant is a
:data:`~pytest_nvfp4.numerics.kernel_model.Kernel` and differs from the right one in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_nvfp4.numerics.mutants.arithmetic import ARITHMETIC
from pytest_nvfp4.numerics.mutants.base import Mutant, Part
from pytest_nvfp4.numerics.mutants.decode import DECODE
from pytest_nvfp4.numerics.mutants.scale_place import SCALE_PLACE
from pytest_nvfp4.numerics.mutants.tile import TILE_AND_OUTSIDE

__all__ = ["MUTANTS", "Mutant", "Part"]

MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {mutant.name: mutant for mutant in (*SCALE_PLACE, *DECODE, *ARITHMETIC, *TILE_AND_OUTSIDE)}
)
"""All wrong kernels by name, in the order of tables."""
