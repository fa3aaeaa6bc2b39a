"""The uses of one tensor map in writable global memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_nvfp4.sim.races.access import Access
from pytest_nvfp4.sim.races.names import WarpId

MAP_BYTES = 128
"""Size of a tensor map."""


class MapAccesses(NamedTuple):
    """The last write and the last use of a map in one process, and the map's address."""

    address: int
    write: Access | None
    use: Access | None


class MapUses:
    """The uses of one tensor map.

    Attributes:
        since: By cluster and agent, the last use since the map's last write. The TMA reads the maps of a warp's copies
            in the order of their issue (``map_hooks``), so that the last one is enough.
        checked: The warps whose use was checked against the last write: what is ordered stays ordered.
        use, write: The last use and the last write of all.
    """

    __slots__ = ("checked", "since", "use", "write")

    def __init__(self) -> None:
        self.since: dict[tuple[int, int], Access] = {}
        self.checked: set[WarpId] = set()
        self.use: Access | None = None
        self.write: Access | None = None

    def add(self, access: Access) -> None:
        """Record a use."""
        self.since[access[4].cluster, access[0]] = self.use = access

    def overwrite(self, access: Access) -> Sequence[Access]:
        """Record a write, and return the uses of what it overwrites."""
        uses = list(self.since.values())
        self.since.clear()
        self.checked.clear()
        self.write = access
        return uses
