"""Tell which objects of the DSL may be read: those that the running compile made.

An object of the DSL stands for a value of the IR. The compile's passes erase that value, so whoever reads the object
afterwards reads freed memory: the process ends by a signal. Kernel objects keep such objects as attributes
(``self.tiled_mma``), before the host function that compiled them goes on and while they are compiled a second time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Holder:
    """An object of the user's, the compile it was last seen in, and what it held when that compile began."""

    value: object  # kept, since the id of an object that is gone may be given to another
    context: object
    before: dict[int, object]


class Liveness:
    """Follows the user's objects through one compile after the other."""

    def __init__(self) -> None:
        self._holders: dict[int, _Holder] = {}
        self._contexts: Any = None

    def context(self) -> object | None:
        """The MLIR context of the compile that runs in this thread, None outside of any."""
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
        """What ``holder`` has kept from before the running compile, by id.

        Args:
            holder: An object of a class of the user's.
            held: Gives the objects of the DSL that it holds now, each with its name.
            context: The running compile; outside of any, everything that is held is outdated.
        """
        known = self._holders.get(id(holder))
        if known is None:
            before = {} if context is not None else {id(value): value for _, value in held()}
            known = self._holders[id(holder)] = _Holder(holder, context, before)
        elif context is None or known.context is not context:
            known.context, known.before = context, {id(value): value for _, value in held()}
        return known.before
