"""Numbered sets of accesses to one place, so that an integer array can record for each byte which may still race there.

A set has the youngest strong and the youngest weak access of each agent: an access that is ordered behind these is
ordered behind the agent's earlier ones. So a set has at most twice as many accesses as there are agents, and nothing
that can race is missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_nvfp4.sim.races.access import STRONG, Access

_PRUNED_SIZE = 4
"""A set is pruned of accesses that the new one covers at this size, and whenever it has doubled since."""


_MOST_UNIONS = 1 << 17
"""Unions that are remembered."""
_Key = tuple[int, int, int]
"""Cluster and agent of an access, and whether it is strong."""
_NONE: tuple[int, dict[tuple[int, int, int], int]] = (-1, {})


class AccessSets:
    """The accesses of a launch, numbered from 1, and sets of them.

    The number of a set is even for that of one access, twice the access's, and odd for one of several, which is stored.
    Most sets are the first kind, which needs no memory. 0 is the empty set.

    Attributes:
        accesses: The accesses.
        sync_counts: By access, how often its warp's lanes had been synchronised; 0 if it is no access of lanes.
    """

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self.sync_counts: list[int] = []
        self._numbers: dict[tuple[int, int], tuple[int, dict[tuple[int, int, int], int]]] = {}
        """By cluster and agent, its tick, and the numbers of its accesses in it."""
        self._sets: list[dict[_Key, int]] = []
        self._unions: dict[tuple[int, int], int] = {}
        self._strong: dict[int, bool] = {}

    def number(self, access: Access, sync_count: int = 0) -> int:
        """Return the number of an access, which equivalent accesses of one tick share."""
        agent = access[4].cluster, access[0]
        tick, numbers = self._numbers.get(agent, _NONE)
        if tick != access[1]:
            numbers = {}
            self._numbers[agent] = access[1], numbers
        key = access[2], access[3], sync_count
        number = numbers.get(key)
        if number is None:
            self.accesses.append(access)
            self.sync_counts.append(sync_count)
            number = numbers[key] = len(self.accesses)
        return number

    def access(self, number: int) -> Access:
        """Return the access with a number."""
        return self.accesses[number - 1]

    def members(self, number: int) -> Iterable[int]:
        """Return the numbers of the accesses in a set."""
        if number & 1:
            return self._sets[number >> 1].values()
        return (number >> 1,) if number else ()

    def only_strong(self, number: int) -> bool:
        """Return whether all accesses in a set are strong."""
        if not number & 1:
            return not number or bool(self.accesses[(number >> 1) - 1][2] & STRONG)
        known = self._strong.get(number)
        if known is None:
            known = self._strong[number] = all(strong for _, _, strong in self._sets[number >> 1])
        return known

    @property
    def end(self) -> int:
        """A number above those of all sets."""
        return 2 * max(len(self.accesses), len(self._sets)) + 2

    def __len__(self) -> int:
        """Return the number of stored sets."""
        return len(self._sets)

    def joined(self, number: int, access: int, covers: Callable[[Access], bool]) -> int:
        """Return a set with one access more.

        ``covers`` returns whether everything that races with an earlier access also races with the new one.
        """
        if not number:
            return access << 1
        union = self._unions.get((number, access))
        if union is None:
            if len(self._unions) >= _MOST_UNIONS:
                self._unions.clear()
            union = self._unions[number, access] = self._join(number, access, covers)
        return union

    def _join(self, number: int, access: int, covers: Callable[[Access], bool]) -> int:
        known = self._sets[number >> 1] if number & 1 else {self._key(number >> 1): number >> 1}
        key = self._key(access)
        old = known.get(key)
        if old is not None and self._age(old) >= self._age(access):
            return number
        result = dict(known)
        result.pop(key, None)
        # Where it grows from a power of two
        if old is None and len(known) >= _PRUNED_SIZE and not len(known) & (len(known) - 1):
            result = {other: member for other, member in result.items() if not covers(self.accesses[member - 1])}
        result[key] = access
        if len(result) == 1:
            return access << 1
        made = self._add(result)
        if key[2] and self.only_strong(number):
            self._strong[made] = True
        return made

    def retain(self, used: Iterable[int]) -> dict[int, int]:
        """Drop all stored sets but these (odd numbers), and return their new numbers by the old ones."""
        sets = self._sets
        self._sets, self._unions, self._strong = [], {}, {}
        return {number: self._add(sets[number >> 1]) for number in used}

    def _add(self, members: dict[_Key, int]) -> int:
        self._sets.append(members)
        return len(self._sets) - 1 << 1 | 1

    def _key(self, number: int) -> _Key:
        access = self.accesses[number - 1]
        return access[4].cluster, access[0], access[2] & STRONG

    def _age(self, number: int) -> tuple[int, int]:
        return self.accesses[number - 1][1], self.sync_counts[number - 1]
