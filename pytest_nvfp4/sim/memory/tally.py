"""Counters of memory accesses and their cost by the rules of the hardware; independent of the schedule.

A CTA's unit ``Tally`` counts accesses by pattern. When the CTA ends, the tally becomes these launch counters:

- ``global.load.requests``, ``global.load.bytes`` (distinct bytes per request), ``global.load.sectors`` (32-byte sectors
  touched per request) and ``global.load.sectors_least`` (sectors if those bytes were contiguous); the same for
  ``global.store``;
- ``shared.load.requests``, ``shared.load.bytes`` (distinct bytes), ``shared.load.wavefronts`` (passes through the
  banks, see ``Pattern.wavefronts``) and ``shared.load.conflicts`` (passes beyond the fewest possible); the same for
  ``shared.store``;
- ``cluster.load`` and ``cluster.store``, for a peer CTA's shared memory: requests and bytes;
- ``local.load`` and ``local.store``: requests and bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pytest_nvfp4.sim.memory.pattern import ONE_PASS, Pattern
from pytest_nvfp4.sim.run.cta import Cta

Key = tuple[str, int] | tuple[str, Pattern, int]
"""``(operation, bytes)`` of a one-address access, or ``(operation, pattern, lowest address modulo 128)``.

The operation is ``global.load``, ``shared.store`` ... Keys are plain tuples, which hash fastest.
"""


class Tally(defaultdict[Key, int]):
    """Number of accesses by key."""

    def __init__(self, cta: Cta) -> None:
        super().__init__(int)
        self.cta = cta

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def at_exit(self) -> None:
        """Add the tally to the launch's counters."""
        counters = self.cta.launch.counters
        for key, times in self.items():
            for name, each in self.counters_of(key):
                counters[name] += times * each
        self.clear()

    @staticmethod
    def counters_of(key: Key) -> Iterator[tuple[str, int]]:
        """Yield the counters of one access, and by how much they grow."""
        operation, shape = key[0], key[1]
        low = key[2] if len(key) == 3 else 0
        pattern = shape if isinstance(shape, Pattern) else None
        size = shape if isinstance(shape, int) else shape.bytes_touched
        yield f"{operation}.requests", 1
        yield f"{operation}.bytes", size
        if operation.startswith("global"):
            least = -(-size // 32)
            yield f"{operation}.sectors", least if pattern is None else pattern.sectors(low)
            yield f"{operation}.sectors_least", least
        elif operation.startswith("shared"):
            passes = ONE_PASS if pattern is None else pattern.wavefronts(low)
            yield f"{operation}.wavefronts", passes.taken
            yield f"{operation}.conflicts", passes.taken - passes.least
