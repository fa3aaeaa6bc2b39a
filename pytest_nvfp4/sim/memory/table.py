"""The lowerings of everything that moves data to and from memory, merged."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.lower.emitter import Lowering
from pytest_nvfp4.sim.memory import asynccopy, atomic_forms, hints, load, matrix, store

__all__ = ["BLOCKING", "LOWERINGS"]

LOWERINGS: Mapping[str, Lowering] = {
    **load.LOWERINGS,
    **store.LOWERINGS,
    **atomic_forms.LOWERINGS,
    **matrix.LOWERINGS,
    **asynccopy.LOWERINGS,
    **hints.LOWERINGS,
}
BLOCKING: frozenset[str] = asynccopy.BLOCKING
"""Prefixes of instructions that may have to wait."""
