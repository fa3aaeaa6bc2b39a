"""The cases by family. Each module has ``cases() -> Iterator[Case]``."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from tests.silicon.model import Case

__all__ = ["FAMILIES", "every_case"]

FAMILIES = (
    "arithmetic",
    "conversions",
    "memory",
    "matrices",
    "atomics",
    "collectives",
    "barriers",
    "clusters",
    "copies",
    "tensors",
    "products",
)


@lru_cache(maxsize=1)
def every_case() -> tuple[Case, ...]:
    """All cases; names are unique."""
    found = [case for family in FAMILIES for case in import_module(f"{__name__}.{family}").cases()]
    names = [case.name for case in found]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)
    return tuple(found)
