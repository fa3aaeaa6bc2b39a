"""Trace of a kernel: the results of compiling it on one problem, as validated data."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, TypeAdapter

from pytest_nvfp4.finding import Finding
from pytest_nvfp4.isolation.door.fields import STRICT, Index, Name, Sentence, Sha256, Size

SCHEMA: Literal[1] = 1
"""Version of the stored format; traces of other versions are recompiled."""

MOST_FINDINGS = 1000
"""Findings of one list that are kept; the rest is counted."""
_OWN_FINDINGS = 8
"""Findings that this process adds to those of a worker: how it ended, and how many were left out."""

Dim3 = tuple[Index, Index, Index]


class _Model(BaseModel):
    model_config = STRICT


def _few(findings: Any) -> Any:
    """Return a list of findings, of which only the first are kept if there are too many.

    The finding that counts the rest is an error if one of the rest may be: nothing turns green by being too long.
    """
    if not isinstance(findings, list | tuple) or len(findings) <= MOST_FINDINGS + _OWN_FINDINGS:
        return findings
    rest = findings[MOST_FINDINGS:]
    warnings = all(
        (one.get("severity") if isinstance(one, dict) else getattr(one, "severity", None)) == "warning" for one in rest
    )
    return [*findings[:MOST_FINDINGS], more_findings(len(rest), severity="warning" if warnings else "error")]


def more_findings(count: int, *, severity: Literal["error", "warning"]) -> Finding:
    """Return the finding that stands for ``count`` findings that are left out."""
    return Finding("more", f"and {count} more findings, which are left out", severity=severity)


ReportedFinding = Annotated[Finding, AfterValidator(Finding.bounded), PlainSerializer(Finding.to_dict)]
"""A finding as a field of a model: validated and bounded on the way in, without empty fields on the way out."""

ReportedFindings = Annotated[tuple[ReportedFinding, ...], BeforeValidator(_few)]
"""The findings of a model: the first `MOST_FINDINGS`, and the number of the others."""

FINDING: TypeAdapter[Finding] = TypeAdapter(ReportedFinding)
"""Validator of a worker's ``finding`` event."""


class Value(_Model):
    """A named value of the kernel's own functions and the text of its IR type; ``name`` includes its scope."""

    name: Name
    type: Sentence
    file: Name
    line: Index


class TensorMapView(_Model):
    """TMA descriptor in a launch parameter: index of the parameter, byte offset, and description."""

    parameter: Index
    offset: Index
    text: Sentence


class LaunchFact(_Model):
    """One launch of the kernel's host code. Sizes in CTAs (grid, cluster), threads (block) and bytes."""

    problem: Name
    kernel: Name
    grid: Dim3
    block: Dim3
    cluster: Dim3
    smem_bytes: Size
    cooperative: bool
    pdl: bool
    parameter_bytes: Annotated[tuple[Index, ...], Field(max_length=10_000)]
    tensormaps: Annotated[tuple[TensorMapView, ...], Field(max_length=10_000)]


class Code(_Model):
    """Resources and instructions of one kernel's machine code.

    Attributes:
        symbol: Mangled name.
        source_name: Function of the user's files that the symbol belongs to, if known.
        library: Whether it is a kernel of the DSL itself (``cute.testing.convert``, ``HardwareInfo``).
        registers: Registers per thread (cuobjdump); None without cuobjdump.
        stack_bytes: Stack frame per thread in bytes.
        local_bytes: Local memory per thread in bytes; spills are in the stack frame or here.
        spill_stores: Instructions that store to local memory (STL), from the SASS; None without nvdisasm.
        spill_loads: Instructions that load from local memory (LDL).
        static_smem_bytes: Shared memory declared in the PTX.
        tmem_columns: Columns of each tcgen05.alloc in the order of the PTX; None for a run-time value.
        max_threads: Product of ``.maxntid`` or ``.reqntid``, if present.
        ptx_mix: Instructions by opcode (without type suffixes) in the PTX.
        sass_mix: Instructions by opcode in the SASS.
    """

    symbol: str
    source_name: str | None
    library: bool = False
    registers: int | None
    stack_bytes: int | None
    local_bytes: int | None
    spill_stores: int | None
    spill_loads: int | None
    static_smem_bytes: int
    tmem_columns: tuple[int | None, ...]
    max_threads: int | None
    ptx_mix: dict[str, int]
    sass_mix: dict[str, int] = Field(default_factory=dict)


class Artifact(_Model):
    """Compiled file: kind, name in the trace's folder, and SHA-256."""

    kind: Literal["ptx", "cubin", "sass", "mlir"]
    name: Name
    sha256: Sha256


class Trace(_Model):
    """Results of compiling one kernel on one problem.

    ``ok`` is whether it compiled, which checks of layouts and launches require; ``findings`` may contain warnings even
    then.
    """

    schema_version: Literal[1] = SCHEMA
    kernel: str
    entry: str | None
    problem: str
    problem_sizes: tuple[tuple[int, int, int, int], ...]
    arch: str
    options: tuple[str, ...]
    dsl_version: str
    python: str
    ok: bool
    values: tuple[Value, ...]
    launches: tuple[LaunchFact, ...]
    launch_count: int
    code: tuple[Code, ...]
    artifacts: tuple[Artifact, ...]
    findings: ReportedFindings
    dependencies: dict[str, str]
    others: dict[str, str] = Field(default_factory=dict)
    stages: dict[str, float]
    seconds: float
    session: str | None = None
    bundle: str | None = None
    folder: str | None = None

    @property
    def others_sha256(self) -> str:
        """Hash of what it depends on besides modules; empty for nothing."""
        present = sorted((Path(place).name, stamp) for place, stamp in self.others.items() if stamp)
        return hashlib.sha256(repr(present).encode()).hexdigest() if present else ""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that make the trace fail."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def artifact_paths(self, kind: Literal["ptx", "cubin", "sass", "mlir"]) -> list[Path]:
        """Return the files of one kind in compilation order."""
        folder = Path(self.folder or ".")
        return [folder / artifact.name for artifact in self.artifacts if artifact.kind == kind]
