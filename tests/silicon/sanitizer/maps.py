"""The tensor maps that the programs get: ``x`` and ``y`` as 32 rows of 32 words, in boxes of 8 rows."""

from __future__ import annotations

from tests.silicon.driver import TensorMapSpec

__all__ = ["MAPS"]

_SPEC = TensorMapSpec(element=2, dims=(32, 32), strides=(128,), box=(32, 8), steps=(1, 1))
MAPS = (("x", _SPEC), ("y", _SPEC))
"""Buffer and map, in the order in which they lie in ``maps``."""
