"""Numbered sets of accesses to one place, so that an integer array can record for each byte which may still race there.

A set has the youngest strong and the youngest weak access of each agent: an access that is ordered behind these is
ordered behind the agent's earlier ones. So a set has at most twice as many accesses as there are agents, and nothing
that can race is missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pytest_nvfp4.sim.races.access import STRONG, Access
from pytest_nvfp4.sim.races.memo import Memo

_PRUNED_SIZE = 4
"""A set is pruned of accesses that the new one covers at this size, and whenever it has doubled since."""


class _Key(NamedTuple):
    cluster: int
    agent: int
    strong: int


class AccessSets:
    """The accesses of a launch, numbered from 1, and sets of them, numbered from 0, the empty set.

    Attributes:
        sync_counts: By access, how often its warp's lanes had been synchronised; 0 if it is no access of lanes.
        singletons: By access, the set of it alone.
    """

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self.sync_counts: list[int] = []
        self._numbers: dict[tuple[int, int, int, int, int, int], int] = {}
        self._sets: list[dict[_Key, int]] = [{}]
        self.singletons = Memo[int, int](lambda access: self._add({self._key(access): access}))
        self._unions: dict[tuple[int, int], int] = {}
        self._strong: dict[int, bool] = {}

    def number(self, access: Access, sync_count: int = 0) -> int:
        """Return the number of an access, which equivalent accesses share."""
        key = (access[4].cluster, access[0], access[1], access[2], access[3], sync_count)
        number = self._numbers.get(key)
        if number is None:
            self.accesses.append(access)
            self.sync_counts.append(sync_count)
            number = self._numbers[key] = len(self.accesses)
        return number

    def access(self, number: int) -> Access:
        """Return the access with a number."""
        return self.accesses[number - 1]

    def members(self, number: int) -> Iterable[int]:
        """Return the numbers of the accesses in a set."""
        return self._sets[number].values()

    def only_strong(self, number: int) -> bool:
        """Return whether all accesses in a set are strong."""
        known = self._strong.get(number)
        if known is None:
            known = self._strong[number] = all(key.strong for key in self._sets[number])
        return known

    def __len__(self) -> int:
        return len(self._sets)

    def joined(self, number: int, access: int, covers: Callable[[Access], bool], *, settled: bool = False) -> int:
        """Return a set with one access more.

        ``covers`` returns whether everything that races with an earlier access also races with the new one. With
        ``settled`` the lanes are synchronised behind the access, whose number of synchronisations is not needed then.
        """
        if not number:
            return self.singletons[access]
        union = self._unions.get((number, access))
        if union is None:
            union = self._unions[number, access] = self._join(number, access, covers, settled=settled)
        return union

    def _join(self, number: int, access: int, covers: Callable[[Access], bool], *, settled: bool) -> int:
        known = self._sets[number]
        key = self._key(access)
        old = known.get(key)
        if old is not None and (
            self._age(old) >= self._age(access)
            or (settled and self.accesses[old - 1][:4] == self.accesses[access - 1][:4])
        ):
            return number
        result = dict(known)
        result.pop(key, None)
        # Where it grows from a power of two
        if old is None and len(known) >= _PRUNED_SIZE and not len(known) & (len(known) - 1):
            result = {other: member for other, member in result.items() if not covers(self.accesses[member - 1])}
        result[key] = access
        made = self._add(result)
        if key.strong and self._strong.get(number):
            self._strong[made] = True
        return made

    def retain(self, used: Iterable[int]) -> dict[int, int]:
        """Drop all sets but these, and return their new numbers by the old ones."""
        sets = self._sets
        self._sets, self._unions, self._strong = [{}], {}, {}
        self.singletons.clear()
        return {number: self._add(sets[number]) if number else 0 for number in used}

    def _add(self, members: dict[_Key, int]) -> int:
        self._sets.append(members)
        return len(self._sets) - 1

    def _key(self, number: int) -> _Key:
        access = self.accesses[number - 1]
        return _Key(access[4].cluster, access[0], access[2] & STRONG)

    def _age(self, number: int) -> tuple[int, int]:
        return self.accesses[number - 1][1], self.sync_counts[number - 1]
