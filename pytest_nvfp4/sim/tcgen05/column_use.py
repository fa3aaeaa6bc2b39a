"""What each TMEM column of a CTA holds, and who uses it: scale factors and accumulators that overlap are found.

A column may hold one thing after another, so that not the ranges of statements are compared, but what is read with what
was written. Reported as ``tmem-overlap``:

- scale factors that one copy brought, read as SFA by an MMA and as SFB by an MMA;
- scale factors read from columns where an accumulator was written since;
- an accumulator that is added to, or loaded, after a copy of scale factors or an overlapping accumulator was written to
  some of its columns. Accumulators of 64 rows in the two halves of the same columns' lanes do not overlap.

An MMA whose A and B are the same matrix may use one copy as both SFA and SFB. Copies of the shapes ``.32x128b`` and
``.64x128b``, which replicate, are those of scale factors (PTX ISA, "tcgen05.cp"); others may bring initial accumulators
or A, as ``tcgen05.st`` does.
"""

from __future__ import annotations

from typing import TypeAlias

from pytest_nvfp4.sim.run.cta import Cta
from pytest_nvfp4.sim.run.warp import Warp
from pytest_nvfp4.sim.tcgen05.tmem import COLUMNS

_Extent: TypeAlias = tuple[int, int, int | None]
"""An accumulator: its first column, the one after the last, and its half of the lanes; None: all lanes."""
_NONE = [-1] * COLUMNS
_SCALES, _OTHER, _ACCUMULATOR, _READ, _BURIED = 1, 2, 3, 4, 5
"""What a column holds: scale factors, other data, an accumulator that nothing has loaded, one that was loaded, scale
factors over an accumulator that nothing had loaded."""
_LOADED = bytes(_READ if kind == _ACCUMULATOR else kind for kind in range(256))
_BURYING = bytes(_BURIED if kind in (_ACCUMULATOR, _BURIED) else _SCALES for kind in range(256))
_HINT = "the column offsets of the accumulator, SFA and SFB: each begins where the one before it ends"


class ColumnUse:
    """Use of one CTA's TMEM: ``cta.unit(ColumnUse)``. A statement is the index of an instruction in the kernel."""

    def __init__(self, cta: Cta) -> None:
        self._cta = cta
        self._holds = bytearray(COLUMNS)
        self._roles = bytearray(COLUMNS)
        """As which operands scale factors have been read: bit 2 id is SFA, 2 id + 1 is SFB with this SF id."""
        self._by = [-1] * COLUMNS
        """The statement that wrote a column."""
        self._over = [-1] * COLUMNS
        """The statement whose scale factors a copy replaced before they were read; that of a buried accumulator."""
        self._readers = [-1] * COLUMNS
        """The MMA that read a column as scale factors last."""
        self._extents: list[_Extent] = [(0, 0, None)] * COLUMNS
        """The accumulator that a column is part of."""
        self._whole: set[_Extent] = set()
        """Accumulators that nothing has disturbed since their last MMA."""

    def dissolve(self) -> None:
        """Drop the reference back to the CTA."""
        del self._cta

    def copied(self, column: int, count: int, at: int, *, scales: bool) -> None:
        """Record a ``tcgen05.cp`` or ``tcgen05.st``; ``scales`` if its shape is that of scale factors."""
        end = column + count
        held = self._holds[column:end]
        buries = held.find(_ACCUMULATOR) >= 0
        if not scales:
            self._holds[column:end] = bytes([_OTHER]) * count
        elif held.count(_SCALES) == count:
            # What has been read may be replaced.
            unread = self._roles.count(0, column, end) == count and self._by[column] != at
            self._over[column:end] = self._by[column:end] if unread else _NONE[:count]
        else:
            self._holds[column:end] = held.translate(_BURYING)
            for each, kind in enumerate(held, column):
                if kind != _BURIED:
                    self._over[each] = self._by[each] if kind == _ACCUMULATOR else -1
        if buries:
            self._whole.clear()
        self._roles[column:end] = bytes(count)
        self._by[column:end] = [at] * count

    def scaled(self, w: Warp, at: int, name: str, column: int, count: int, sf_id: int, *, same: bool) -> None:
        """Record that an MMA reads scale factors; ``same`` if its A and B are the same matrix."""
        end = column + count
        own = 1 << 2 * sf_id + (name == "SFB")
        if self._roles.count(own, column, end) == count:
            return
        other = own << 1 if name == "SFA" else own >> 1
        if self._holds.find(_ACCUMULATOR, column, end) >= 0 or self._holds.find(_READ, column, end) >= 0:
            self._report_accumulator(w, at, name, column, end)
        if self._roles.count(0, column, end) == count:
            self._roles[column:end] = bytes([own]) * count
            self._readers[column:end] = [at] * count
            return
        shared = [] if same else [c for c in range(column, end) if self._roles[c] & other]
        if shared:
            self._report_shared(w, at, name, shared)
        self._readers[column:end] = [at] * count
        for each in range(column, end):
            self._roles[each] |= own

    def accumulated(self, w: Warp, at: int, column: int, count: int, *, adds: bool, half: int | None = None) -> None:
        """Record an MMA's accumulator; ``adds`` if it is added to, ``half`` its half of the lanes in layout F."""
        end = column + count
        key = column, end, half
        if key in self._whole:
            return
        if adds:
            self._check_sum(w, at, key)
        else:
            self._whole = {each for each in self._whole if each[1] <= column or end <= each[0]}
            self._extents[column:end] = [key] * count
        self._holds[column:end] = bytes([_ACCUMULATOR]) * count
        self._roles[column:end] = bytes(count)
        self._by[column:end] = [at] * count
        self._whole.add(key)

    def loaded(self, w: Warp, at: int, column: int, count: int) -> None:
        """Record a ``tcgen05.ld``."""
        end = column + count
        held = self._holds[column:end]
        if held.find(_ACCUMULATOR) >= 0:
            self._holds[column:end] = held.translate(_LOADED)
            self._whole.clear()
        elif held.find(_BURIED) < 0:
            return
        buried = [c for c in range(column, end) if held[c - column] == _BURIED]
        if buried:
            first = buried[0]
            self._report(
                w,
                self._by[first],
                f"{self._place(self._by[first])} copies scale factors to TMEM columns {_range(buried)}, over the "
                f"accumulator of the MMA at {self._place(self._over[first])}, which {self._place(at)} loads afterwards",
            )

    def _check_sum(self, w: Warp, at: int, accumulator: _Extent) -> None:
        """Report columns of an accumulator that hold something else by now."""
        column, end, _ = accumulator
        lost = [c for c in range(column, end) if self._holds[c] in (_SCALES, _BURIED)]
        what = "scale factors"
        if not lost:
            lost = [
                c
                for c in range(column, end)
                if self._holds[c] in (_ACCUMULATOR, _READ) and _cross(self._extents[c], accumulator)
            ]
            what = "another accumulator"
        if lost:
            self._report(
                w,
                self._by[lost[0]],
                f"the MMA at {self._place(at)} adds to its accumulator in TMEM columns [{column}, {end}), but "
                f"{self._place(self._by[lost[0]])} has written {what} to columns {_range(lost)} of it",
            )

    def _report_accumulator(self, w: Warp, at: int, name: str, column: int, end: int) -> None:
        columns = [c for c in range(column, end) if self._holds[c] in (_ACCUMULATOR, _READ)]
        self._report(
            w,
            at,
            f"the MMA at {self._place(at)} reads TMEM columns {_range(columns)} as {name}, where the MMA at "
            f"{self._place(self._by[columns[0]])} has written its accumulator",
        )

    def _report_shared(self, w: Warp, at: int, name: str, columns: list[int]) -> None:
        first = columns[0]
        copy, reader = self._by[first], self._readers[first]
        over = self._over[first] if self._holds[first] == _SCALES else -1
        other = "SFB" if name == "SFA" else "SFA"
        found = f"TMEM columns {_range(columns)} are the {name} operand of the MMA at {self._place(at)}"
        found += " and its " if reader == at else f" and, of the MMA at {self._place(reader)}, the "
        found += f"{other} operand: {self._place(copy)} copied them"
        if over >= 0:
            found += f" over what {self._place(over)} had copied there and no MMA had read"
        self._report(w, copy if over >= 0 else at, found)

    def _report(self, w: Warp, at: int, message: str) -> None:
        launch = self._cta.launch
        launch.report("tmem-overlap", message, hint=_HINT, where=launch.where(w, at))

    def _place(self, at: int) -> str:
        return self._cta.launch.place(at).partition(" (")[0]


def _cross(one: _Extent, other: _Extent) -> bool:
    """Return whether two accumulators overlap and neither contains the other."""
    if one[2] != other[2] and None not in (one[2], other[2]):
        return False
    if one[0] <= other[0]:
        return other[0] < one[1] < other[1] and one[0] < other[0]
    return one[0] < other[1] < one[1]


def _range(columns: list[int]) -> str:
    return f"[{min(columns)}, {max(columns) + 1})"
