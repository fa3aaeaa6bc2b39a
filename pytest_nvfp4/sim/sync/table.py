"""Lowerings of the opcodes of synchronisation."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_nvfp4.sim.lower.emitter import Lowering
from pytest_nvfp4.sim.sync import callout, clc, cluster, collective_forms, control, fences, mbarrier_forms, named

_MODULES = (callout, clc, cluster, collective_forms, control, fences, mbarrier_forms, named)

LOWERINGS: Mapping[str, Lowering] = {name: how for module in _MODULES for name, how in module.LOWERINGS.items()}
BLOCKING: frozenset[str] = cluster.BLOCKING | control.BLOCKING | mbarrier_forms.BLOCKING | named.BLOCKING
