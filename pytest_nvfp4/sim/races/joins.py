"""Joins of copies of ticks and of snapshots in a launch, which are made once and kept."""

from __future__ import annotations

from pytest_nvfp4.sim.races.ticks import Change, Snapshot, Ticks, joined, relaxed, relaxed_covered

_MOST_JOINS = 4096
"""Joins that are remembered, a few kilobytes each."""
_MOST_SNAPSHOTS = 512
"""The same for snapshots, a hundred bytes a cluster each."""
_MOST_STEPS = 128
"""Steps from a snapshot to a later one that are followed."""


class Joins:
    """Joins of copies of ticks in a launch. All CTAs that meet learn the same, so that few of their joins differ."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Ticks, Ticks, Ticks]] = {}
        self._snapshots: dict[tuple[int, int], tuple[Snapshot, Snapshot, Snapshot]] = {}
        self._wholes: dict[int, tuple[Snapshot, Snapshot]] = {}
        """By identity, a snapshot and a later one that has all of it."""
        self._of_ticks: dict[tuple[int, Change], tuple[Ticks, Ticks | None]] = {}
        self._of_snapshot: dict[tuple[int, Change], tuple[Snapshot, Snapshot]] = {}

    def of_snapshots(self, first: Snapshot, second: Snapshot) -> Snapshot:
        """Return the join of two snapshots, which never change. It is one of them if that has all of the other."""
        if self._within(first, second):
            return second
        key = id(first), id(second)
        known = self._snapshots.get(key)
        if known is None:
            if len(self._snapshots) >= _MOST_SNAPSHOTS:
                self._snapshots.clear()
            known = self._snapshots[key] = first, second, self._joined(first, second)
        return known[2]

    def extended(self, first: Snapshot, second: Snapshot, base: Snapshot | None, own: int) -> Snapshot:
        """Return the join of two snapshots.

        If ``base`` is given, it is all of the second but for the ticks of the cluster ``own``.
        """
        if base is None or not self._within(base, first):
            result = self.of_snapshots(first, second)
        else:
            known = first.get(own)
            new = second[own] if known is None else self.of(second[own], known)
            result = first if new is known else {**first, own: new}
        for part in (first, base):
            if part is not None and part is not result:
                self._record(part, result)
        return result

    def _record(self, part: Snapshot, whole: Snapshot) -> None:
        if len(self._wholes) >= _MOST_SNAPSHOTS:
            self._wholes.clear()
        self._wholes[id(part)] = part, whole

    def _within(self, part: Snapshot, whole: Snapshot) -> bool:
        """Return whether a snapshot is known to be in another one, which was made from it, perhaps in steps."""
        at = part
        for steps in range(_MOST_STEPS):
            if at is whole:
                if steps > 1:
                    self._record(part, whole)
                return True
            step = self._wholes.get(id(at))
            if step is None:
                return False
            at = step[1]
        return False

    def _joined(self, first: Snapshot, second: Snapshot) -> Snapshot:
        changed: Snapshot | None = None
        all_second = True
        for number, ticks in second.items():
            known = first.get(number)
            if known is not ticks:
                # Of equal copies the second is taken: whoever joins the same snapshot again has the same object then.
                new = ticks if known is None else self.of(ticks, known)
                if new is not known:
                    if changed is None:
                        changed = first.copy()
                    changed[number] = new
                all_second &= new is ticks
        if changed is None:
            return first
        return second if all_second and len(changed) == len(second) else changed

    def of(self, first: Ticks, second: Ticks) -> Ticks:
        """Return the join of two copies, which never change."""
        key = id(first), id(second)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_JOINS:
                self._known.clear()
            known = self._known[key] = first, second, joined(first, second)  # the references keep identities unique
        return known[2]

    def relaxed_part(self, snapshot: Snapshot, *, covered: bool = True) -> Snapshot:
        """Return the part of a snapshot that a relaxed access passes on.

        This is what a ``fence.sc`` has covered (if ``covered``), which takes effect behind another ``fence.sc``, and
        the tcgen05 work ordered before a synchronisation of threads, for which a relaxed access is enough
        (``tensor_order``).
        """
        return self.changed(snapshot, relaxed_covered if covered else relaxed)

    def changed(self, snapshot: Snapshot, change: Change) -> Snapshot:
        """Return a snapshot with its ticks changed, the same object for the same snapshot or ticks."""
        before = self._of_snapshot.get((id(snapshot), change))
        if before is not None:
            return before[1]
        result: Snapshot = {}
        same = True
        for number, ticks in snapshot.items():
            made = self._changed_ticks(ticks, change)
            same &= made is ticks
            if made is not None:
                result[number] = made
        if same:
            result = snapshot
        if len(self._of_snapshot) >= _MOST_SNAPSHOTS:
            self._of_snapshot.clear()
        self._of_snapshot[id(snapshot), change] = snapshot, result
        return result

    def relaxed_ticks(self, ticks: Ticks) -> Ticks | None:
        """Return the part of the ticks of one cluster that a relaxed access passes on; None for nothing."""
        return self._changed_ticks(ticks, relaxed_covered)

    def _changed_ticks(self, ticks: Ticks, change: Change) -> Ticks | None:
        known = self._of_ticks.get((id(ticks), change))
        if known is None:
            if len(self._of_ticks) >= _MOST_JOINS:
                self._of_ticks.clear()
            known = self._of_ticks[id(ticks), change] = ticks, change(ticks)
        return known[1]
