"""Results of jobs, as JSON. They contain outputs, which the parent process judges, and no verdict to be trusted.

The fields ``case``, ``call``, ``group`` and ``row`` are indices: of a case in the job, a call, a group, and a row of C.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.device.attribution import CallAttribution
from pytest_nvfp4.device.blob import Blob
from pytest_nvfp4.device.detail import MOST, LaunchDetail, WrittenTile
from pytest_nvfp4.device.device_work import CountedLaunches
from pytest_nvfp4.device.job import SCHEMA, Model
from pytest_nvfp4.device.profiling.record import ProfileRecord
from pytest_nvfp4.isolation.door.fields import (
    MOST_EVENTS,
    Count,
    Extent,
    Index,
    Microseconds,
    Name,
    Output,
    Seconds,
    Sentence,
    Sha256,
    Size,
)
from pytest_nvfp4.toolchain.trace import ReportedFindings

Status = Literal["passed", "failed", "error", "unsupported", "unavailable", "timeout", "crashed", "cheated"]
"""
Status of a job or of a case.

passed       the job ran to its end, and its outputs are right
failed       the kernel's outputs are wrong
error        the kernel raised an exception, or did not compile
unsupported  the device cannot run this kernel
unavailable  the device does not exist here, or a tool that it needs is missing
timeout      the job did not finish within its deadline
crashed      the process ended before it had sent its result
cheated      the outputs or times are forged
"""


RECORDS = ("trace", "protocol", "operands", "recording")
"""Fields of a simulated call that are files."""
RECORD_BYTES = 512 << 20
"""Largest size of the record of a simulated call (a timeline, a protocol) that is read."""


class DeviceInfo(Model):
    """The device that ran a job.

    Attributes:
        name: Name, such as ``NVIDIA H200``.
        capability: Compute capability.
        driver: Version of the driver; None for a simulator.
        sms: Number of streaming multiprocessors.
        l2_bytes: Size of the L2 cache in bytes.
        memory_bytes: Size of the device memory in bytes.
        uuid: Identity of the individual device.
        torch: Version of torch there.
        dsl: Version of nvidia-cutlass-dsl there.
        python: Version of Python there.
        simulated: Whether it is a simulator.
    """

    name: Name
    capability: tuple[Index, Index]
    driver: Name | None = None
    sms: Index | None = None
    l2_bytes: Size | None = None
    memory_bytes: Size | None = None
    uuid: Name | None = None
    torch: Name | None = None
    dsl: Name | None = None
    python: Name | None = None
    simulated: bool = False

    @property
    def arch(self) -> str:
        """Architecture whose code the device runs, such as ``sm_90a``."""
        return f"sm_{self.capability[0]}{self.capability[1]}a"

    def __str__(self) -> str:
        name = f"simulated {self.name}" if self.simulated else self.name
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{name}, sm_{self.capability[0]}{self.capability[1]}{driver}"


class GroupOutput(Model):
    """The buffer of one group's C after a call, including its guard rows.

    Attributes:
        call: Index of the call; a case may have several.
        rows: Number of rows of the buffer: guard rows before, m, guard rows after.
        columns: Number of columns, n.
        data: fp16 bits of the buffer, row-major.
        late_sha256: Hash of the same buffer after a later call that changed it, or else after the final
            synchronisation; None if a later call was given the memory.
        late_after: The call that changed it; None if no call did.
        returned: What the kernel returned for the group: ``c`` (the tensor that it was given), ``other`` (a tensor of
            its own, whose values are then in ``data``), or a description of what is wrong with it.
        inputs: For a benchmark, the set of rotating inputs and its visit (see ``device.rotation``); else None.
    """

    call: Index
    case: Index
    group: Index
    rows: Index
    columns: Index
    data: Blob
    returned: Sentence
    late_sha256: Sha256 | None = None
    late_after: Index | None = None
    inputs: tuple[Index, Index] | None = None


class RowPart(Model):
    """Part of a row of C after a round of a benchmark, in the row whose row of A was changed before the round.

    Attributes:
        column: First column of the part, drawn for every round.
        bits: fp16 bits as hexadecimal bytes in memory order; empty if the kernel returned no such tensor.
    """

    group: Index
    row: Index
    column: Index
    bits: Name


class RoundSample(Model):
    """The sample of outputs that every round of a benchmark returns, also when its whole outputs are not returned.

    Attributes:
        call: Index of the round.
        inputs: The set of rotating inputs and its visit (see ``device.rotation``).
        parts: One part for each group that has rows.
    """

    case: Index
    call: Index
    inputs: tuple[Index, Index]
    parts: Annotated[tuple[RowPart, ...], Field(max_length=MOST_EVENTS)]


class CaseReport(Model):
    """Observations of one call besides its outputs.

    Attributes:
        inputs_before: Hash of all inputs on the device before the call.
        inputs_after: The same after it.
        launches: Kernels that ran on the device during the call; None if unknown.
        findings: Findings in this call, if the device reports them (a simulator does). Its outputs are missing if a
            finding ended the kernel; those of other calls are valid.
        attribution: Who wrote its outputs; None if that is unknown.
        replayed: The fp16 bits of each group's C, row-major, after the requests of the call were repeated on other
            inputs (``rotation.replayed_inputs``).
    """

    call: Index
    case: Index
    inputs_before: Name
    inputs_after: Name
    launches: Annotated[tuple[Name, ...], Field(max_length=MOST_EVENTS)] | None = None
    findings: ReportedFindings = ()
    attribution: CallAttribution | None = None
    replayed: Annotated[tuple[Blob, ...], Field(max_length=MOST_EVENTS)] = ()


class Measurement(Model):
    """Measured times of one case.

    Attributes:
        device_us: Device time of each round in microseconds.
        host_us: Time from the call to the end of all its work in microseconds, for each of some further rounds.
        call_us: Median time until the call returned on the host in microseconds.
        late_rounds: Number of rounds in which the host was slower than expected: ``device_us`` includes host time.
        repeated_rounds: Number of late rounds that were repeated; their first times are not in ``device_us``.
        outside_stream: Whether the call wrote memory while the timed stream was held, or after the last of its work on
            that stream, so that ``device_us`` does not include that work; None if unknown.
        method: Method by which the device time was measured.
        l2: State of the L2 cache before each call.
        sets: Number of sets of inputs that rotated.
        clocks_mhz: SM clock before, during and after the rounds, if it could be read.
        launches: What CUPTI recorded of some calls after the rounds; None if the job does not ask for it.
    """

    case: Index
    device_us: Annotated[tuple[Microseconds, ...], Field(max_length=MOST_EVENTS)]
    host_us: Annotated[tuple[Microseconds, ...], Field(max_length=MOST_EVENTS)]
    call_us: Microseconds
    late_rounds: Index
    repeated_rounds: Index = 0
    outside_stream: bool | None = None
    method: Name
    l2: Literal["cold", "warm"]
    sets: Index
    clocks_mhz: Annotated[tuple[Index, ...], Field(max_length=1000)] = ()
    launches: CountedLaunches | None = None


class _Open(BaseModel):
    """A model that ignores unknown fields, which a later version may add."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class SimulatedRing(_Open):
    """A ring of mbarriers, in the CTA of a launch that refilled it most often (see ``sim.sync.rings``).

    Attributes:
        made: The statement that initialised it, such as ``k.py:12 `mbarrier_init(...)```; empty if unknown.
        waiters: Source lines of the waits for it, such as ``k.py:34``.
        cta: Linear index of the CTA.
        barriers: Byte indices in its shared memory, in stage order.
        count: Arrivals that complete a phase.
        bytes: Most bytes that copies delivered in a phase.
        phases: Completed phases of each stage.
    """

    made: Sentence
    waiters: Annotated[tuple[Name, ...], Field(max_length=10_000)]
    cta: Index
    barriers: Annotated[tuple[Index, ...], Field(min_length=1, max_length=30_000)]
    count: Index
    bytes: Size
    phases: Annotated[tuple[Index, ...], Field(min_length=1, max_length=30_000)]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.barriers)

    @property
    def refills(self) -> int:
        """Number of times that every stage completed a phase after its first one; -1 if a stage completed none."""
        return min(self.phases) - 1

    @property
    def iterations(self) -> int:
        """Number of completed phases of all stages."""
        return sum(self.phases)


class SimulatedLaunch(_Open):
    """One launch in the simulator.

    Attributes:
        kernel: The kernel's symbol.
        grid: Size in CTAs.
        block: Size in threads.
        cluster: Size in CTAs.
        shared_bytes: Shared memory of a CTA in bytes, static and dynamic.
        ctas_per_sm: CTAs resident on an SM, by shared memory, threads and TMEM columns; registers are unknown.
        counters: Deterministic event counts by name (see the modules of ``pytest_nvfp4.sim``).
        writers: Number of CTAs that wrote the final value of an output element; None if the launch wrote no output.
        printed: Text that the kernel printed.
        findings: Findings in the launch.
        rings: Its rings of mbarriers, if they were requested and the launch is small enough.
        detail: What a report draws of it, if requested.
    """

    kernel: Name
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    cluster: tuple[Extent, Extent, Extent]
    shared_bytes: Size
    ctas_per_sm: Extent
    counters: Annotated[dict[Name, Count], Field(max_length=10_000)]
    writers: Index | None = None
    printed: Output = ""
    findings: ReportedFindings = ()
    rings: Annotated[tuple[SimulatedRing, ...], Field(max_length=10_000)] = ()
    detail: LaunchDetail | None = None

    @property
    def ctas(self) -> int:
        """Number of CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def clusters(self) -> int:
        """Number of clusters of the grid."""
        return self.ctas // (self.cluster[0] * self.cluster[1] * self.cluster[2])

    def waves(self, sms: int) -> int:
        """Return the number of waves in which the grid runs on ``sms`` fully occupied SMs."""
        return -(-self.ctas // (sms * self.ctas_per_sm))


class OutputWrites(_Open):
    """Counts of the writes to one group's C.

    Attributes:
        elements: Number of elements, m * n.
        never: Number of elements that were not written.
        host: Number of elements that the host's copies or operators wrote last.
        by_two: Number of elements that two CTAs of one launch wrote.
        twice: Number of elements that one CTA wrote more than once.
        ctas: Number of CTAs that wrote any element.
        tiles: Number of rectangles that were each written by one CTA.
        written: The first of these rectangles, if the call is detailed.
        size: Rows and columns of C, if the call is detailed.
    """

    group: Index
    elements: Count
    never: Count
    host: Count = 0
    by_two: Count
    twice: Count
    ctas: Count
    tiles: Count
    written: Annotated[tuple[WrittenTile, ...], Field(max_length=MOST)] = ()
    size: tuple[Index, Index] = (0, 0)


class SimulatedCall(_Open):
    """One call in the simulator.

    Attributes:
        model: Name of the simulated device.
        sms: Number of its SMs.
        launches: Launches of the call, in order.
        outputs: Counts of the writes to each group's C.
        unrecorded: Number of outputs whose writers are not known: the kernel returned a part of a tensor of its own, or
            one that it made before the call.
        trace: Timeline as JSON text, if requested.
        protocol: Recordings of the launches as JSON text, if requested (``sim.sync.protocol_log``).
        operands: What the MMAs read, as JSON text, if it was followed (``sim.provenance.record``).
        recording: Recordings of the launches, if requested (``model.storage``).
    """

    call: Index
    case: Index
    model: Name
    sms: Extent
    launches: Annotated[tuple[SimulatedLaunch, ...], Field(max_length=MOST_EVENTS)]
    outputs: Annotated[tuple[OutputWrites, ...], Field(max_length=MOST_EVENTS)]
    unrecorded: Count = 0
    trace: Blob | None = None
    protocol: Blob | None = None
    operands: Blob | None = None
    recording: Blob | None = None

    @property
    def detailed(self) -> bool:
        """Whether it holds what a report draws, as far as it launched anything."""
        return all(launch.detail is not None for launch in self.launches)

    @property
    def printed(self) -> str:
        """Text that the kernels printed."""
        return "".join(launch.printed for launch in self.launches)


class Result(Model):
    """The result of a job (see ``Status``)."""

    schema_version: Literal[1] = SCHEMA
    job: Name
    status: Status
    findings: ReportedFindings = ()
    device: DeviceInfo | None = None
    outputs: Annotated[tuple[GroupOutput, ...], Field(max_length=MOST_EVENTS)] = ()
    cases: Annotated[tuple[CaseReport, ...], Field(max_length=MOST_EVENTS)] = ()
    measurements: Annotated[tuple[Measurement, ...], Field(max_length=MOST_EVENTS)] = ()
    samples: Annotated[tuple[RoundSample, ...], Field(max_length=MOST_EVENTS)] = ()
    simulated: Annotated[tuple[SimulatedCall, ...], Field(max_length=MOST_EVENTS)] = ()
    profile: ProfileRecord | None = None
    conversation: Blob | None = None
    """What the kernel's host code asked of the device (``worker.conversation``), if requested."""
    trace: Blob | None = None
    """Archive of the trace (``toolchain.trace_archive``) of a job that asks for one."""
    stdout: Output = ""
    stderr: Output = ""
    wall_s: Seconds = 0.0

    @property
    def reason(self) -> str:
        """Text of the first error, or the status."""
        for finding in self.findings:
            if finding.severity == "error":
                return str(finding)
        return self.status
