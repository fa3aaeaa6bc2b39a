"""A finding: one defect or remark about a kernel, in workers, in traces and in results.

Standard library only: workers build findings before pydantic can be imported, and pydantic validates standard
dataclasses as fields of its models.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from pytest_nvfp4.text import clip

_MOST_CHARACTERS = 30_000
"""Characters of each text of a finding that are kept; a worker's own limits are lower."""
_MOST_NOTES = 200
_MOST_PATH = 4096
UNWRITTEN = "unwritten"
"""Kind of the finding that explains a wrong result by a use of device memory that nothing had written. Unlike
``uninitialised``, which a simulation reports by itself, it may have nothing to do with the order of work."""
UNWRITTEN_SOURCE = "unwritten-source"
"""Kind of the finding of an asynchronous copy of device memory that nothing had written; it may be padding."""
OUTSIDE = "outside-box"
"""Kind of the finding of a tensor copy whose box lies wholly outside its tensor, as boxes at the edge of a problem may.
It is made on request (``Machine.reports_outside``)."""
CALL_GOES_ON = frozenset(
    {"race", "proxy", "tensormap", "uninitialised", UNWRITTEN_SOURCE, "tmem-overlap", "written-by-two"}
)
"""Kinds of errors behind which a simulated call may go on, so that its results, their origin and later calls are judged
all the same. A call that such an error ends has no results."""
_FIGURES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's source (PTX ``.loc``). ``inlined_at`` is the call that inlined the line, if any."""

    file: str
    line: int
    column: int = 0
    function: str = ""
    inlined_at: Location | None = None


@dataclass(frozen=True, slots=True)
class Where:
    """Place of a simulated finding: kernel, CTA coordinates, warp of the CTA, active lanes, instruction."""

    kernel: str
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    lanes: tuple[int, ...] = ()
    at: int | None = None
    """Index of the instruction in its kernel."""
    ptx_line: int | None = None
    text: str = ""
    """The instruction as written in the PTX."""
    source: Location | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect or remark, with the user's own line where it is known.

    Attributes:
        kind: Stable identifier: ``import``, ``compile``, ``run``, ``contract``, ``entry``, ``exit``, ``no-compile``,
            ``poisoned``, ``memory``, ``capture``, ``options``, ``environment``, ``autotune``, ``crash``, ``timeout``,
            ``vanished`` or ``internal`` from the toolchain; ``answer`` if data from outside was refused
            (``isolation.door``), and ``more`` for findings that were left out; ``out-of-bounds``, ``tmem``,
            ``deadlock``, ``race``, ... from the simulator.
        message: What happened and why it is wrong, with values and addresses.
        severity: ``error`` fails the trace or check, ``warning`` does not.
        file: The user's file.
        line: Line of ``file``.
        text: Source text of that line.
        detail: Complete traceback or diagnostic.
        hint: What to change or inspect.
        notes: Further facts, one a line.
        where: Place in the simulated kernel.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    """A worker is not trusted: a field that is not declared here fails the validation of its event."""

    kind: str
    message: str
    severity: Literal["error", "warning"] = "error"
    file: str | None = None
    line: int | None = None
    text: str | None = None
    detail: str = ""
    hint: str = ""
    notes: tuple[str, ...] = ()
    where: Where | None = None

    @property
    def identity(self) -> str:
        """What findings of one defect have in common: their line, else kind and first line without figures."""
        if self.file is not None and self.line is not None:
            return f"{self.file}:{self.line}"
        return f"{self.kind}: {self.first_line}"

    @property
    def first_line(self) -> str:
        """The first line of the message without figures, which depend on the problem."""
        return _FIGURES.sub("#", self.message.partition("\n")[0])

    @property
    def ends_judgement(self) -> bool:
        """Whether nothing behind it is judged: it is an error that is not one of ``CALL_GOES_ON``."""
        return self.severity == "error" and self.kind not in CALL_GOES_ON

    def bounded(self) -> Finding:
        """Return the finding with clipped texts, for one from outside. Raises ValueError for an impossible line."""
        if self.line is not None and not 0 <= self.line < 1 << 31:
            raise ValueError("the line of a finding is out of range")
        if self.file is not None and (len(self.file) > _MOST_PATH or "\0" in self.file):
            raise ValueError("the file of a finding has a name that no file can have")
        notes = tuple(clip(note, _MOST_CHARACTERS) for note in self.notes[:_MOST_NOTES])
        if len(self.notes) > _MOST_NOTES:
            notes += (f"and {len(self.notes) - _MOST_NOTES} more notes",)
        return replace(
            self,
            kind=clip(self.kind, 100),
            message=clip(self.message, _MOST_CHARACTERS),
            text=None if self.text is None else clip(self.text, _MOST_CHARACTERS),
            detail=clip(self.detail, _MOST_CHARACTERS),
            hint=clip(self.hint, _MOST_CHARACTERS),
            notes=notes,
        )

    def __str__(self) -> str:
        place = ""
        if self.file is not None:
            place = f"{self.file}:{self.line}: " if self.line is not None else f"{self.file}: "
        source = f"\n    {self.text}" if self.text else ""
        return f"{place}{self.message}{source}"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values; ``hint``, ``notes`` and ``where`` only if set."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value or name not in ("hint", "notes", "where")}
