"""What the MMAs of a simulated call read (``sim.provenance.record``): rows of tensors, TMEM columns, and lines."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

OUTSIDE, UNKNOWN = -1, -2
"""In place of a tensor: outside of its tensor (zeros, padding), or not followed."""
NAMES = ("A", "B", "SFA", "SFB")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Run(NamedTuple):
    """Consecutive rows of a tile: index of the tensor, its first row, the first k, and the number of rows."""

    tensor: int
    row: int
    k: int
    rows: int


class OperandRead(_Model):
    """What one operand read; ``load`` and ``copy`` are the places of the statements that brought it, if known."""

    runs: tuple[Run, ...] = Field(min_length=1)
    columns: tuple[int, int] | None
    load: str
    copied: str = Field(alias="copy")


class MmaRead(_Model):
    """One MMA in one CTA: its place, whether it adds to D, D's TMEM columns, and its operands."""

    launch: int
    cta: tuple[int, int, int]
    place: str
    adds: bool
    columns: tuple[int, int]
    operands: dict[str, OperandRead]


class OperandRecord(_Model):
    """The MMAs of a call, in order of issue in each CTA.

    Attributes:
        tensors: Name and group of each tensor.
        unfollowed: Number of MMAs of a form that is not followed.
        truncated: Whether MMAs were left out.
    """

    tensors: tuple[tuple[str, int], ...]
    unfollowed: int
    truncated: bool
    mmas: tuple[MmaRead, ...]

    @property
    def not_followed(self) -> str:
        """Why the record does not show all addresses; empty if it does."""
        if self.truncated:
            return "the call has too many MMAs"
        if self.unfollowed:
            return f"{self.unfollowed} MMAs are not of kind::mxf4nvf4 with 4 factors a row and K-major operands"
        if not self.mmas:
            return "the call executes no MMA that can be followed"
        for mma in self.mmas:
            for name, read in mma.operands.items():
                if any(run.tensor == UNKNOWN for run in read.runs):
                    return f"operand {name} of the MMA at {mma.place} reads data that are no copy of an input"
        return ""


def parse(text: bytes) -> OperandRecord:
    """Return a record. Raises ValueError (pydantic's) for another format."""
    made = OperandRecord.model_validate_json(text)
    for mma in made.mmas:
        if tuple(sorted(mma.operands)) != NAMES:
            raise ValueError(f"the MMA at {mma.place} has operands {', '.join(mma.operands)}")
        if any(run.tensor >= len(made.tensors) for read in mma.operands.values() for run in read.runs):
            raise ValueError(f"the MMA at {mma.place} reads a tensor that does not exist")
    return made
