"""What the product's commands write about a kernel, as far as the judge reads it.

Their processes are trusted, the texts in their answers are not: a kernel's name, its source lines and messages of its
compile are written by its author.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.models import parsed

_MOST_BYTES = 64 << 20


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


A = TypeVar("A", bound=_Answer)


class FindingAnswer(_Answer):
    """A finding (`finding.Finding`)."""

    kind: str
    message: str
    severity: str = "error"
    file: str | None = None
    line: int | None = None
    text: str | None = None
    hint: str = ""


class LayoutChange(_Answer):
    """A layout that differs from its snapshot (`layout.change.Change`)."""

    name: str
    old_name: str | None = None
    kind: str
    severity: str
    protected: bool
    error: str | None = None
    old: str | None = None
    new: str | None = None


class LayoutDiff(_Answer):
    """All layouts against the snapshot (`layout.change.ListingDiff`)."""

    changes: tuple[LayoutChange, ...]


class CheckAnswer(_Answer):
    """One check of the JSON report (`report.model.CheckReport`)."""

    kernel: str
    check: str
    outcome: str
    message: str = ""
    file: str | None = None
    line: int | None = None
    findings: tuple[FindingAnswer, ...] = ()
    values: dict[str, str] = {}
    diff: LayoutDiff | None = None

    @property
    def gate(self) -> str:
        """Name of the check without its problem."""
        return self.check.partition("[")[0]


class RemoteAnswer(_Answer):
    """What a run of pytest used of a remote."""

    usd: float | None = None
    failure: str | None = None


class ReportAnswer(_Answer):
    """The JSON report of pytest (``--nvfp4-json``)."""

    checks: tuple[CheckAnswer, ...]
    remote: RemoteAnswer | None = None


class CostProblem(_Answer):
    """The counters of a problem (``nvfp4 cost --json``)."""

    problem: str
    status: str
    findings: tuple[FindingAnswer, ...] = ()
    facts: dict[str, int | float | str] = {}


class CostAnswer(_Answer):
    """The answer of ``nvfp4 cost --json``."""

    problems: tuple[CostProblem, ...]


class PathAnswer(_Answer):
    """Time on the critical path of a launch (`device.modelled.PathPart`)."""

    role: str
    source: str
    cause: str
    us: float


class LaunchAnswer(_Answer):
    """The modelled time of a launch (`device.modelled.ModelledLaunch`)."""

    path: tuple[PathAnswer, ...] = ()


class BandAnswer(_Answer):
    """How far modelled times lie from measured ones (`model.bands.Band`)."""

    p90: float


class ModelProblem(_Answer):
    """The modelled time of a problem (``nvfp4 model --json``)."""

    problem: str
    status: str
    findings: tuple[FindingAnswer, ...] = ()
    device: str = ""
    table: str = ""
    model: str = ""
    conditions: str = ""
    kind: str = ""
    modelled_us: Annotated[float, Field(gt=0, le=1e13)] | None = None
    band: BandAnswer | None = None
    launches: tuple[LaunchAnswer, ...] = ()
    refused: tuple[str, ...] = ()


class ModelAnswer(_Answer):
    """The answer of ``nvfp4 model --json``."""

    problems: tuple[ModelProblem, ...]


def read_answer(file: Path, model: type[A]) -> A | None:
    """Return the answer in a file; None if there is none that can be read."""
    try:
        return parsed(model, read_file(file, source=file.name, most=_MOST_BYTES), source=file.name)
    except (OSError, DoorError):
        return None
