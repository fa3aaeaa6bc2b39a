"""Trace of a kernel: the results of compiling it on one problem, as validated data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, TypeAdapter

from pytest_nvfp4.finding import Finding

SCHEMA = 1
"""Version of the stored format; traces of other versions are recompiled."""

Dim3 = tuple[int, int, int]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


ReportedFinding = Annotated[Finding, PlainSerializer(Finding.to_dict)]
"""A finding as a field of a model: validated on the way in, without empty fields on the way out."""

FINDING: TypeAdapter[Finding] = TypeAdapter(Finding)
"""Validator of a worker's ``finding`` event."""


class Value(_Model):
    """A named value of the kernel's own functions and the text of its IR type; ``name`` includes its scope."""

    name: str
    type: str
    file: str
    line: int


class TensorMapView(_Model):
    """TMA descriptor in a launch parameter: index of the parameter, byte offset, and description."""

    parameter: int
    offset: int
    text: str


class LaunchFact(_Model):
    """One launch of the kernel's host code. Sizes in CTAs (grid, cluster), threads (block) and bytes."""

    problem: str
    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    smem_bytes: int
    cooperative: bool
    pdl: bool
    parameter_bytes: tuple[int, ...]
    tensormaps: tuple[TensorMapView, ...]


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
    name: str
    sha256: str


class Trace(_Model):
    """Results of compiling one kernel on one problem.

    ``ok`` is whether it compiled, which checks of layouts and launches require; ``findings`` may contain warnings even
    then.
    """

    schema_version: int = SCHEMA
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
    findings: tuple[ReportedFinding, ...]
    dependencies: dict[str, str]
    stages: dict[str, float]
    seconds: float
    session: str | None = None
    bundle: str | None = None
    folder: str | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that make the trace fail."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def artifact_paths(self, kind: Literal["ptx", "cubin", "sass", "mlir"]) -> list[Path]:
        """Return the files of one kind in compilation order."""
        folder = Path(self.folder or ".")
        return [folder / artifact.name for artifact in self.artifacts if artifact.kind == kind]
