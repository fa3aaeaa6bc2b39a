"""What a layout diff is made of: severities, deltas, changes, and the diff of a whole listing.

The values here are plain and frozen; :mod:`pytest_nvfp4.layout.diff` computes them and
:mod:`pytest_nvfp4.report` shows them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_nvfp4.layout.listing import Record

Kind = Literal["added", "removed", "changed", "renamed"]
Method = Literal["text", "canonical", "enumerated", "not provable"]
Value = str | int | None


class Severity(IntEnum):
    """How much a change matters, mildest first. :mod:`pytest_nvfp4.layout.diff` has the table of what is graded how."""

    IDENTICAL = 0
    COSMETIC = 1
    RENESTED = 2
    SAME_FUNCTION = 3
    PERMUTED = 4
    DIFFERENT = 5

    @property
    def label(self) -> str:
        """The name as reports write it: ``same function``."""
        return self.name.lower().replace("_", " ")

    @property
    def meaning(self) -> str:
        """One line that says what the severity claims."""
        return _MEANING[self]

    @classmethod
    def parse(cls, text: str) -> Severity:
        """The severity called ``text`` (any case; space, ``-`` or ``_`` between words).

        Raises:
            ValueError: no severity has that name; the message lists them.
        """
        key = text.strip().upper().replace(" ", "_").replace("-", "_")
        try:
            return cls[key]
        except KeyError:
            known = ", ".join(item.name.lower() for item in cls)
            raise ValueError(f"unknown layout severity {text!r}; use one of: {known}") from None


_MEANING: Mapping[Severity, str] = {
    Severity.IDENTICAL: "the same type, character by character",
    Severity.COSMETIC: "written differently; no coordinate, address or guarantee is lost",
    Severity.RENESTED: "every mode is the same function; only the nesting inside the modes moved",
    Severity.SAME_FUNCTION: "the same 1-D function, cut into other modes: code that indexes by mode may break",
    Severity.PERMUTED: "the same modes in another order: the same elements at other coordinates",
    Severity.DIFFERENT: "other addresses, or a property that the hardware depends on changed",
}


@dataclass(frozen=True, slots=True)
class Delta:
    """One property of a layout before and after.

    Attributes:
        field: what it is, for example ``align`` or ``tmem_columns``.
        old: the value before; ``None`` when the type does not state it or it cannot be known.
        new: the value after.
        unit: of both values, ``""`` when they have none.
        severity: what this delta alone is worth; ``IDENTICAL`` for a measure that only informs.
        note: why it matters, in one sentence, or ``""``.
    """

    field: str
    old: Value
    new: Value
    unit: str
    severity: Severity
    note: str = ""

    @property
    def label(self) -> str:
        """The field for people: ``tmem columns``. The path to an argument of a type stays as the type writes it."""
        return self.field.replace("_", " ") if self.field.isidentifier() else self.field

    def text(self) -> str:
        """``align 1024 -> 128 B``; a value that is not stated or not known is written ``none``."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.label} {_shown(self.old)} -> {_shown(self.new)}{unit}"


def _shown(value: Value) -> str:
    return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class ModeChange:
    """One mode that differs.

    Attributes:
        path: where it is; ``(2,)`` is the third top-level mode, ``(0, 1)`` the second part of the first.
        role: what the mode stands for (``MMA_K``), or ``None`` when no rule knows.
        old: the mode before, ``4:64``; ``None`` when it did not exist.
        new: the mode after; ``None`` when it is gone.
    """

    path: tuple[int, ...]
    role: str | None
    old: str | None
    new: str | None

    def text(self) -> str:
        """``MMA_K (mode 2): 4:64 -> (4,2):(64,32768)``."""
        where = "mode " + ".".join(str(step) for step in self.path) if self.path else "the whole layout"
        label = f"{self.role} ({where})" if self.role else where
        return f"{label}: {self.old or 'absent'} -> {self.new or 'absent'}"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first coordinate, in 1-D (colexicographic) order, that two layouts send to different places.

    ``coord`` is the natural coordinate in the old shape. Offsets are in elements, or basis vectors for
    coordinate tensors; one is ``None`` when that layout has no such coordinate.
    """

    index: int
    coord: str
    old: str | None
    new: str | None

    def text(self) -> str:
        """``at (0,0,1,0) [index 8192]: offset 64 -> 128``."""
        gone = "no such coordinate"
        return f"at {self.coord} [index {self.index}]: offset {self.old or gone} -> {self.new or gone}"


@dataclass(frozen=True, slots=True)
class Change:
    """One named layout that is not what it was.

    Attributes:
        name: ``scope.name`` in the new listing (in the old one for a removed layout).
        kind: added, removed, changed, or renamed.
        old: the record before, ``None`` when added.
        new: the record after, ``None`` when removed.
        severity: the worst of the layout function and of all deltas.
        method: how the grade of the layout function was reached.
        unproven: the two functions could not be proved equal or different; ``severity`` then assumes the worst.
        error: a hard error, for example a poisoned layout; what was found, why it is wrong, what to do.
        reasons: why the severity is what it is, worst first.
        modes: the modes that differ.
        roles: the roles of the top-level modes, empty when no rule knows them.
        role_source: where these roles come from.
        first: the first coordinate that moved.
        deltas: properties other than the layout function.
        protected: the user asked that this layout never change unnoticed.
        old_name: the name before, for a renamed layout.
    """

    name: str
    kind: Kind
    old: Record | None
    new: Record | None
    severity: Severity
    method: Method = "text"
    unproven: bool = False
    error: str | None = None
    reasons: tuple[str, ...] = ()
    modes: tuple[ModeChange, ...] = ()
    roles: tuple[str, ...] = ()
    role_source: str = ""
    first: FirstDifference | None = None
    deltas: tuple[Delta, ...] = ()
    protected: bool = False
    old_name: str | None = None

    @property
    def old_raw(self) -> str | None:
        """The old type as the DSL wrote it."""
        return None if self.old is None else self.old.raw

    @property
    def new_raw(self) -> str | None:
        """The new type as the DSL wrote it."""
        return None if self.new is None else self.new.raw

    @property
    def role(self) -> str | None:
        """The roles of the modes that differ, ``MMA_K, STAGE``; ``None`` when no rule knows one of them."""
        known = dict.fromkeys(mode.role for mode in self.modes if mode.role)
        return ", ".join(known) if known else None

    @property
    def why(self) -> tuple[str, ...]:
        """All that makes the severity what it is, in short sentences: for places with room for few lines."""
        first = () if self.first is None else (f"First difference {self.first.text()}",)
        grave = tuple(delta.text() for delta in self.deltas if delta.severity is self.severity)
        return (*((self.error,) if self.error else ()), *self.reasons, *first, *grave)

    def delta(self, name: str) -> Delta | None:
        """The delta of one field, or ``None`` when that property did not change."""
        return next((item for item in self.deltas if item.field == name), None)

    def to_json(self) -> dict[str, object]:
        """The change as JSON-ready values."""
        return {
            "name": self.name,
            "old_name": self.old_name,
            "kind": self.kind,
            "severity": self.severity.name.lower(),
            "method": self.method,
            "unproven": self.unproven,
            "protected": self.protected,
            "error": self.error,
            "reasons": list(self.reasons),
            "old": self.old_raw,
            "new": self.new_raw,
            "roles": list(self.roles),
            "role_source": self.role_source,
            "modes": [
                {"path": list(mode.path), "role": mode.role, "old": mode.old, "new": mode.new} for mode in self.modes
            ],
            "first": None
            if self.first is None
            else {
                "index": self.first.index,
                "coord": self.first.coord,
                "old": self.first.old,
                "new": self.first.new,
            },
            "deltas": [
                {
                    "field": item.field,
                    "old": item.old,
                    "new": item.new,
                    "unit": item.unit,
                    "severity": item.severity.name.lower(),
                    "note": item.note,
                }
                for item in self.deltas
            ],
        }


@dataclass(frozen=True, slots=True)
class HeaderChange:
    """One line of the listing's header that differs; it never gates, since a header holds no layout."""

    key: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class ListingDiff:
    """Two listings compared by meaning.

    Attributes:
        changes: worst first, then by name. Layouts that are the same are counted, not listed.
        identical: how many layouts are the same in both.
        dsl_version: the DSL versions, when they differ.
        header: the other header lines that differ.
    """

    changes: tuple[Change, ...]
    identical: int = 0
    dsl_version: HeaderChange | None = None
    header: tuple[HeaderChange, ...] = ()
    _counts: Counter[Severity] = field(default_factory=Counter, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._counts.update(change.severity for change in self.changes)
        self._counts[Severity.IDENTICAL] += self.identical

    def __bool__(self) -> bool:
        """Whether anything differs, the header included."""
        return bool(self.changes or self.header or self.dsl_version)

    @property
    def counts(self) -> dict[Severity, int]:
        """How many layouts have each severity; every severity is a key."""
        return {severity: self._counts[severity] for severity in Severity}

    @property
    def worst(self) -> Severity:
        """The severity of the worst change; ``IDENTICAL`` when there is none."""
        return max((change.severity for change in self.changes), default=Severity.IDENTICAL)

    @property
    def errors(self) -> list[Change]:
        """The changes that are hard errors whatever the threshold."""
        return [change for change in self.changes if change.error]

    def gate(self, threshold: Severity = Severity.PERMUTED) -> list[Change]:
        """The changes that must fail a run, worst first.

        A change gates at ``threshold`` and worse. A protected layout gates at ``COSMETIC`` and worse, and a
        hard error gates always, so that no threshold can hide either.
        """
        return [change for change in self.changes if gates(change, threshold)]

    def to_json(self) -> dict[str, object]:
        """The diff as JSON-ready values, ``changes`` in the order of this object."""
        return {
            "worst": self.worst.name.lower(),
            "counts": {severity.name.lower(): count for severity, count in self.counts.items()},
            "dsl_version": _header_json(self.dsl_version),
            "header": [_header_json(item) for item in self.header],
            "changes": [change.to_json() for change in self.changes],
        }


def gates(change: Change, threshold: Severity) -> bool:
    """Whether one change must fail a run at this threshold (see :meth:`ListingDiff.gate`)."""
    if change.error is not None or change.severity >= threshold:
        return True
    return change.protected and change.severity >= Severity.COSMETIC


def worst_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    """The changes by falling severity, hard errors and protected layouts first among equals, then by name."""
    return tuple(sorted(changes, key=lambda item: (-item.severity, item.error is None, not item.protected, item.name)))


def _header_json(change: HeaderChange | None) -> dict[str, object] | None:
    return None if change is None else {"key": change.key, "old": change.old, "new": change.new}
