"""Lowerings of the opcodes that access memory."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.lower.emitter import Lowering
from pytest_nvfp4.sim.memory import asynccopy, atomic_forms, hints, load, matrix, store

_MODULES = (asynccopy, atomic_forms, hints, load, matrix, store)

LOWERINGS: Mapping[str, Lowering] = {name: how for module in _MODULES for name, how in module.LOWERINGS.items()}
BLOCKING = asynccopy.BLOCKING
