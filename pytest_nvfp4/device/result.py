"""Results of jobs, as JSON. They contain outputs, which the parent process judges, and no verdict to be trusted.

The fields ``case``, ``call``, ``group`` and ``row`` are indices: of a case in the job, a call, a group, and a row of C.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytest_nvfp4.device.job import SCHEMA, Model
from pytest_nvfp4.toolchain.trace import ReportedFinding

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

    name: str
    capability: tuple[int, int]
    driver: str | None = None
    sms: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    uuid: str | None = None
    torch: str | None = None
    dsl: str | None = None
    python: str | None = None
    simulated: bool = False

    @property
    def arch(self) -> str:
        """Architecture whose code the device runs, such as ``sm_90a``."""
        return f"sm_{self.capability[0]}{self.capability[1]}a"

    def __str__(self) -> str:
        name = f"simulated {self.name}" if self.simulated else self.name
        driver = f", driver {self.driver}" if self.driver else ""
        return f"{name}, sm_{self.capability[0]}{self.capability[1]}{driver}"


class Blob(Model):
    """Bytes, either inline (zlib, base64) or in a file.

    Attributes:
        sha256: Hash of the plain bytes.
        size: Number of plain bytes.
        inline: The bytes, compressed.
        file: Path of the file, relative to the folder that parent and worker share.
    """

    sha256: str
    size: int = Field(ge=0)
    inline: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.inline is None) == (self.file is None):
            raise ValueError("a blob is either inline or in a file")
        if self.file is not None and (Path(self.file).is_absolute() or ".." in Path(self.file).parts):
            raise ValueError(f"the file {self.file!r} of a blob must stay below the job's folder")
        return self

    @classmethod
    def inlined(cls, data: bytes) -> Blob:
        """Return a blob that contains the bytes."""
        text = base64.b64encode(zlib.compress(data, 1)).decode("ascii")
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data), inline=text)

    def read(self, folder: Path | None) -> bytes:
        """Return the plain bytes.

        Args:
            folder: Folder of the files; None if they did not come with the result.

        Raises:
            ValueError: The bytes are missing or do not match the hash.
        """
        if self.inline is not None:
            inflate = zlib.decompressobj()  # bounded, so that a small blob cannot expand without end
            data = inflate.decompress(base64.b64decode(self.inline, validate=True), self.size + 1)
        else:
            assert self.file is not None
            if folder is None:
                raise ValueError(f"{self.file} did not come with the result")
            path = folder / self.file
            if path.is_symlink() or not path.is_file():
                raise ValueError(f"{self.file} is not a file beside the result")
            data = path.read_bytes()
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError("the bytes of an output do not match its hash")
        return data


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
        inputs: For a benchmark, the set of rotating inputs and its visit (see ``device.rotation``); None if the inputs
            are those of the case.
    """

    call: int
    case: int
    group: int
    rows: int
    columns: int
    data: Blob
    late_sha256: str | None
    late_after: int | None = None
    returned: str
    inputs: tuple[int, int] | None = None


class RowPart(Model):
    """Part of a row of C after a round of a benchmark, in the row whose row of A was changed before the round.

    Attributes:
        column: First column of the part, drawn for every round.
        bits: fp16 bits as hexadecimal bytes in memory order; empty if the kernel returned no such tensor.
    """

    group: int
    row: int
    column: int
    bits: str


class RoundSample(Model):
    """The sample of outputs that every round of a benchmark returns, also when its whole outputs are not returned.

    Attributes:
        call: Index of the round.
        inputs: The set of rotating inputs and its visit (see ``device.rotation``).
        parts: One part for each group that has rows.
    """

    case: int
    call: int
    inputs: tuple[int, int]
    parts: tuple[RowPart, ...]


class CaseReport(Model):
    """Observations of one call besides its outputs.

    Attributes:
        inputs_before: Hash of all inputs on the device before the call.
        inputs_after: The same after it.
        launches: Kernels that ran on the device during the call; None if unknown.
        findings: Findings in this call, if the device reports them (a simulator does). Its outputs are missing if a
            finding ended the kernel; those of other calls are valid.
    """

    call: int
    case: int
    inputs_before: str
    inputs_after: str
    launches: tuple[str, ...] | None = None
    findings: tuple[ReportedFinding, ...] = ()


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
    """

    case: int
    device_us: tuple[float, ...]
    host_us: tuple[float, ...]
    call_us: float
    late_rounds: int
    repeated_rounds: int = 0
    outside_stream: bool | None = None
    method: str
    l2: Literal["cold", "warm"]
    sets: int
    clocks_mhz: tuple[int, ...] = ()


class _Open(BaseModel):
    """A model that ignores unknown fields, which a later version may add."""

    model_config = ConfigDict(frozen=True, extra="ignore")


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

    made: str
    waiters: tuple[str, ...]
    cta: int
    barriers: tuple[int, ...]
    count: int
    bytes: int
    phases: tuple[int, ...]

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
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    ctas_per_sm: int
    counters: dict[str, int]
    writers: int | None = None
    printed: str = ""
    findings: tuple[ReportedFinding, ...] = ()
    rings: tuple[SimulatedRing, ...] = ()

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
        by_two: Number of elements that two CTAs of one launch wrote.
        twice: Number of elements that one CTA wrote more than once.
        ctas: Number of CTAs that wrote any element.
        tiles: Number of rectangles that were each written by one CTA.
    """

    group: int
    elements: int
    never: int
    by_two: int
    twice: int
    ctas: int
    tiles: int


class SimulatedCall(_Open):
    """One call in the simulator.

    Attributes:
        model: Name of the simulated device.
        sms: Number of its SMs.
        launches: Launches of the call, in order.
        outputs: Counts of the writes to each group's C.
        trace: Timeline as JSON text, if requested.
        protocol: Recordings of the launches as JSON text, if requested (``sim.sync.protocol_log``).
        operands: What the MMAs read, as JSON text, if it was followed (``sim.provenance.record``).
    """

    call: int
    case: int
    model: str
    sms: int
    launches: tuple[SimulatedLaunch, ...]
    outputs: tuple[OutputWrites, ...]
    trace: Blob | None = None
    protocol: Blob | None = None
    operands: Blob | None = None

    @property
    def printed(self) -> str:
        """Text that the kernels printed."""
        return "".join(launch.printed for launch in self.launches)


class Result(Model):
    """The result of a job (see ``Status``)."""

    schema_version: Literal[1] = SCHEMA
    job: str
    status: Status
    findings: tuple[ReportedFinding, ...] = ()
    device: DeviceInfo | None = None
    outputs: tuple[GroupOutput, ...] = ()
    cases: tuple[CaseReport, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    samples: tuple[RoundSample, ...] = ()
    simulated: tuple[SimulatedCall, ...] = ()
    stdout: str = ""
    stderr: str = ""
    wall_s: float = 0.0

    @property
    def reason(self) -> str:
        """Text of the first error, or the status."""
        for finding in self.findings:
            if finding.severity == "error":
                return str(finding)
        return self.status
