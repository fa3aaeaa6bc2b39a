"""Sets of accesses to one place, by number, so that an array can say of each byte which ones may still race there.

Of each agent a set keeps the youngest strong and the youngest other access: whoever is ordered behind that is ordered
behind the agent's earlier ones. So a set is never larger than twice the number of agents, and nothing that can race is
missing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_nvfp4.sim.races.access import STRONG, Access

__all__ = ["AccessSets"]

_Key = tuple[int, int, int]
"""Cluster, agent, and whether the access is strong."""
_MANY = 4
"""From this many accesses on, whenever their number has doubled, those that the new one covers are left out."""


class AccessSets:
    """The accesses of a launch, numbered from 1, and sets of them, numbered from 0: the empty one."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self.met: list[int] = []
        """By access, how often its warp's lanes had met; 0 where that does not matter."""
        self._numbers: dict[tuple[int, int, int, int, int, int], int] = {}
        self._sets: list[dict[_Key, int]] = [{}]
        self._alone: dict[int, int] = {}
        self._with: dict[tuple[int, int], int] = {}

    def number(self, access: Access, met: int = 0) -> int:
        """The number of an access; the same for one that differs in nothing that matters."""
        key = (access[4].cluster, access[0], access[1], access[2], access[3], met)
        found = self._numbers.get(key)
        if found is None:
            self.accesses.append(access)
            self.met.append(met)
            found = self._numbers[key] = len(self.accesses)
        return found

    def access(self, number: int) -> Access:
        """The access of a number."""
        return self.accesses[number - 1]

    def members(self, number: int) -> Iterable[int]:
        """The accesses of a set."""
        return self._sets[number].values()

    def __len__(self) -> int:
        return len(self._sets)

    def alone(self, access: int) -> int:
        """The set of one access."""
        found = self._alone.get(access)
        if found is None:
            found = self._alone[access] = self._add({self._key(access): access})
        return found

    def joined(self, number: int, access: int, covers: Callable[[Access], bool]) -> int:
        """A set with an access more; ``covers`` says of an earlier one whether what races with it races with both."""
        if not number:
            return self.alone(access)
        found = self._with.get((number, access))
        if found is None:
            found = self._with[number, access] = self._join(number, access, covers)
        return found

    def _join(self, number: int, access: int, covers: Callable[[Access], bool]) -> int:
        known = self._sets[number]
        key = self._key(access)
        old = known.get(key)
        if old is not None and self._age(old) >= self._age(access):
            return number
        result = dict(known)
        result.pop(key, None)
        if len(known) >= _MANY and not len(known) & (len(known) - 1):
            result = {one: kept for one, kept in result.items() if not covers(self.accesses[kept - 1])}
        result[key] = access
        return self._add(result)

    def keep(self, used: Iterable[int]) -> dict[int, int]:
        """Forget all sets but these; their new numbers, by the old ones."""
        sets = self._sets
        self._sets, self._alone, self._with = [{}], {}, {}
        return {number: self._add(sets[number]) if number else 0 for number in used}

    def _add(self, one: dict[_Key, int]) -> int:
        self._sets.append(one)
        return len(self._sets) - 1

    def _key(self, number: int) -> _Key:
        access = self.accesses[number - 1]
        return access[4].cluster, access[0], access[2] & STRONG

    def _age(self, number: int) -> tuple[int, int]:
        return self.accesses[number - 1][1], self.met[number - 1]
