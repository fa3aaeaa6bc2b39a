"""Find the objects of the DSL that may be read: those of the running compile.

An object of the DSL refers to a value of the IR. The compile's passes erase that value, so reading the object
afterwards reads freed memory and crashes the process. Kernel objects hold such objects as attributes
(``self.tiled_mma``) after the compile and during a second one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Holder:
    """User object, the compile it was last seen in, and the objects it held when that compile began."""

    value: object  # a strong reference, because the id of a deleted object may be reused
    context: object
    before: dict[int, object]


class Liveness:
    """Record of the user's objects over successive compiles."""

    def __init__(self) -> None:
        self._holders: dict[int, _Holder] = {}
        self._contexts: Any = None

    def context(self) -> object | None:
        """Return the MLIR context of the compile running in this thread, or None."""
        if self._contexts is None:
            self._contexts = importlib.import_module("cutlass._mlir.ir").Context
        try:
            current: object = self._contexts.current
        except ValueError:
            return None
        return current

    def outdated(
        self, holder: object, held: Callable[[], Iterable[tuple[str, object]]], context: object | None
    ) -> dict[int, object]:
        """Return the objects that ``holder`` held before the running compile, by id.

        Args:
            holder: Instance of a user class.
            held: Returns its current objects of the DSL with their names.
            context: The running compile; without one, all of its objects are outdated.
        """
        known = self._holders.get(id(holder))
        if known is None:
            before = {} if context is not None else {id(value): value for _, value in held()}
            known = self._holders[id(holder)] = _Holder(holder, context, before)
        elif context is None or known.context is not context:
            known.context, known.before = context, {id(value): value for _, value in held()}
        return known.before
