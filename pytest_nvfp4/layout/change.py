"""Parts of a layout diff: severities, deltas, changes, and the diff of a whole listing.

:mod:`pytest_nvfp4.layout.diff` computes these values and :mod:`pytest_nvfp4.report` renders them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Literal

from pytest_nvfp4.layout.listing import Record

Kind = Literal["added", "removed", "changed", "renamed"]
Method = Literal["text", "canonical", "enumerated", "not provable"]
Value = str | int | None


class Severity(IntEnum):
    """Severity of a change, mildest first; :mod:`pytest_nvfp4.layout.diff` has the table of grades."""

    IDENTICAL = 0
    COSMETIC = 1
    RENESTED = 2
    SAME_FUNCTION = 3
    PERMUTED = 4
    DIFFERENT = 5

    @property
    def label(self) -> str:
        """Name in reports: ``same function``."""
        return self.name.lower().replace("_", " ")

    @property
    def meaning(self) -> str:
        """One-line definition of the severity."""
        return _MEANING[self]

    @classmethod
    def parse(cls, text: str) -> Severity:
        """Return the severity named ``text`` (any case; space, ``-`` or ``_`` between words).

        Raises:
            ValueError: unknown name; the message lists the names.
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
    Severity.SAME_FUNCTION: "the same 1-D function, split into other modes: code that indexes by mode may break",
    Severity.PERMUTED: "the same modes in another order: the same elements at other coordinates",
    Severity.DIFFERENT: "other addresses, or a property that the hardware depends on changed",
}


@dataclass(frozen=True, slots=True)
class Delta:
    """One property of a layout before and after.

    Attributes:
        field: name of the property, for example ``align`` or ``tmem_columns``.
        old: the value before; ``None`` if the type does not state it or it is unknown.
        new: the value after.
        unit: unit of both values, or ``""``.
        severity: severity of this delta alone; ``IDENTICAL`` for a measure that only informs.
        note: one sentence on its consequence, or ``""``.
    """

    field: str
    old: Value
    new: Value
    unit: str
    severity: Severity
    note: str = ""

    @property
    def label(self) -> str:
        """Field name for reports: ``tmem columns``; the path to an argument of a type is unchanged."""
        return self.field.replace("_", " ") if self.field.isidentifier() else self.field

    def text(self) -> str:
        """Format as ``align 1024 -> 128 B``; a missing value is ``none``."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.label} {_shown(self.old)} -> {_shown(self.new)}{unit}"


def _shown(value: Value) -> str:
    return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class ModeChange:
    """One mode that differs.

    Attributes:
        path: its position; ``(2,)`` is the third top-level mode, ``(0, 1)`` the second part of the first.
        role: role of the mode (``MMA_K``), or ``None`` if no rule applies.
        old: the mode before, ``4:64``; ``None`` if it is new.
        new: the mode after; ``None`` if it was removed.
    """

    path: tuple[int, ...]
    role: str | None
    old: str | None
    new: str | None

    def text(self) -> str:
        """Format as ``MMA_K (mode 2): 4:64 -> (4,2):(64,32768)``."""
        where = "mode " + ".".join(str(step) for step in self.path) if self.path else "the whole layout"
        label = f"{self.role} ({where})" if self.role else where
        return f"{label}: {self.old or 'absent'} -> {self.new or 'absent'}"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first coordinate, in 1-D (colexicographic) order, that two layouts map to different offsets.

    ``coord`` is the natural coordinate in the old shape. Offsets are in elements, or basis vectors for
    coordinate tensors; one is ``None`` if that layout has no such coordinate.
    """

    index: int
    coord: str
    old: str | None
    new: str | None

    def text(self) -> str:
        """Format as ``at (0,0,1,0) [index 8192]: offset 64 -> 128``."""
        gone = "no such coordinate"
        return f"at {self.coord} [index {self.index}]: offset {self.old or gone} -> {self.new or gone}"


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one named layout.

    Attributes:
        name: ``scope.name`` in the new listing (in the old one for a removed layout).
        kind: added, removed, changed, or renamed.
        old: the record before, ``None`` when added.
        new: the record after, ``None`` when removed.
        severity: the worst of the layout function and of all deltas.
        method: method of comparing the layout functions.
        unproven: whether the functions could be proved neither equal nor different; ``severity`` assumes the worst.
        error: message of a hard error, for example a poisoned layout.
        reasons: reasons for the severity, worst first.
        modes: the modes that differ.
        roles: the roles of the top-level modes, empty if no rule applies.
        role_source: source of these roles.
        first: the first coordinate that moved.
        deltas: changes of properties other than the layout function.
        protected: whether the user protects this layout against unnoticed changes.
        old_name: the name before, for a renamed layout.
        sure: how sure it is that the two records are of the same thing: ``sure``, or a word of `layout.pairing`.
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
    sure: str = "sure"

    @property
    def old_raw(self) -> str | None:
        """Old type as the DSL printed it."""
        return None if self.old is None else self.old.raw

    @property
    def new_raw(self) -> str | None:
        """New type as the DSL printed it."""
        return None if self.new is None else self.new.raw

    @property
    def role(self) -> str | None:
        """Roles of the modes that differ, ``MMA_K, STAGE``; ``None`` if no rule applies."""
        known = dict.fromkeys(mode.role for mode in self.modes if mode.role)
        return ", ".join(known) if known else None

    @property
    def why(self) -> tuple[str, ...]:
        """Reasons for the severity in short sentences, for compact reports."""
        first = () if self.first is None else (f"First difference {self.first.text()}",)
        grave = tuple(delta.text() for delta in self.deltas if delta.severity is self.severity)
        return (*((self.error,) if self.error else ()), *self.reasons, *first, *grave)

    @property
    def flags(self) -> tuple[str, ...]:
        """Remarks besides the severity, for reports."""
        flags = {"error": bool(self.error), "protected": self.protected, "not provable": self.unproven}
        return tuple(flag for flag, on in flags.items() if on)

    def delta(self, name: str) -> Delta | None:
        """Return the delta of one field, or ``None`` if that property did not change."""
        return next((item for item in self.deltas if item.field == name), None)

    def to_json(self) -> dict[str, object]:
        """Return the change as JSON-ready values."""
        return {
            "name": self.name,
            "sure": self.sure,
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
            "modes": [asdict(mode) for mode in self.modes],
            "first": None if self.first is None else asdict(self.first),
            "deltas": [asdict(delta) | {"severity": delta.severity.name.lower()} for delta in self.deltas],
        }


@dataclass(frozen=True, slots=True)
class HeaderChange:
    """Changed line of the listing's header; it never fails a run, because a header holds no layout."""

    key: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class ListingDiff:
    """Two listings compared by meaning.

    Attributes:
        changes: changes, worst first, then by name; identical layouts are only counted.
        identical: number of identical layouts.
        dsl_version: the DSL versions, if they differ.
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
    def headers(self) -> tuple[HeaderChange, ...]:
        """All header lines that differ, the DSL version first."""
        return (*((self.dsl_version,) if self.dsl_version else ()), *self.header)

    @property
    def counts(self) -> dict[Severity, int]:
        """Number of layouts of each severity; every severity is a key."""
        return {severity: self._counts[severity] for severity in Severity}

    @property
    def worst(self) -> Severity:
        """Severity of the worst change; ``IDENTICAL`` without changes."""
        return max((change.severity for change in self.changes), default=Severity.IDENTICAL)

    @property
    def errors(self) -> list[Change]:
        """Changes that are hard errors at any threshold."""
        return [change for change in self.changes if change.error]

    def gate(self, threshold: Severity = Severity.PERMUTED) -> list[Change]:
        """Return the changes that must fail a run, worst first.

        A change fails at ``threshold`` and worse, a protected layout at ``COSMETIC`` and worse, and a hard error
        always, so no threshold can hide them.
        """
        return [change for change in self.changes if gates(change, threshold)]

    def to_json(self) -> dict[str, object]:
        """Return the diff as JSON-ready values, ``changes`` in the order of this object."""
        return {
            "worst": self.worst.name.lower(),
            "counts": {severity.name.lower(): count for severity, count in self.counts.items()},
            "dsl_version": None if self.dsl_version is None else asdict(self.dsl_version),
            "header": [asdict(item) for item in self.header],
            "changes": [change.to_json() for change in self.changes],
        }


def gates(change: Change, threshold: Severity) -> bool:
    """Return whether one change must fail a run at this threshold (see :meth:`ListingDiff.gate`)."""
    if change.error is not None or change.severity >= threshold:
        return True
    return change.protected and change.severity >= Severity.COSMETIC


def worst_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the changes by decreasing severity, hard errors and protected layouts first among equals, then by name."""
    return tuple(sorted(changes, key=lambda item: (-item.severity, item.error is None, not item.protected, item.name)))
