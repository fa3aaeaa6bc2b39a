"""A result: what a device says about a job. The parent believes outputs and checks them; it believes no verdict."""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pytest_nvfp4.device.job import SCHEMA
from pytest_nvfp4.toolchain.trace import ReportedFinding

Status = Literal["passed", "failed", "error", "unsupported", "unavailable", "timeout", "crashed", "cheated"]
"""
passed       the job was done, and what came back holds
failed       the kernel's outputs are wrong
error        the kernel raised, or did not compile
unsupported  the device cannot run this kernel
unavailable  there is no such device here, or a tool it needs is missing
timeout      it did not finish within its deadline
crashed      the process ended before it had an answer
cheated      the outputs or times are not what they claim to be
"""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceInfo(_Model):
    """The device that did a job.

    Attributes:
        name: Its name, such as ``NVIDIA H200``.
        capability: Compute capability.
        driver: Version of the driver; None where there is none (a simulator).
        sms: Number of streaming multiprocessors.
        l2_bytes: Size of the L2 cache.
        memory_bytes: Size of the device memory.
        uuid: Identity of this very device.
        torch: Version of torch that ran there.
        dsl: Version of nvidia-cutlass-dsl that ran there.
        python: Version of Python that ran there.
        simulated: It is a simulator.
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
        """The architecture of its own instructions, such as ``sm_90a``."""
        return f"sm_{self.capability[0]}{self.capability[1]}a"

    def __str__(self) -> str:
        words = [
            f"simulated {self.name}" if self.simulated else self.name,
            f"sm_{self.capability[0]}{self.capability[1]}",
        ]
        if self.driver:
            words.append(f"driver {self.driver}")
        return ", ".join(words)


class Blob(_Model):
    """Bytes: inline (zlib, base64) or in a file beside the result. ``sha256`` is of the plain bytes.

    A file is named relative to the folder that parent and worker share.
    """

    sha256: str
    size: int = Field(ge=0)
    inline: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.inline is None) == (self.file is None):
            raise ValueError("a blob is either inline or in a file")
        if self.file is not None and (Path(self.file).is_absolute() or ".." in Path(self.file).parts):
            raise ValueError(f"the file {self.file!r} of a blob must stay below the job's folder")
        return self

    @classmethod
    def inlined(cls, data: bytes) -> Blob:
        """The bytes within the result."""
        text = base64.b64encode(zlib.compress(data, 1)).decode("ascii")
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data), inline=text)

    def read(self, folder: Path | None) -> bytes:
        """The plain bytes.

        Raises:
            ValueError: they are missing, or not those that were named.
        """
        if self.inline is not None:
            inflate = zlib.decompressobj()
            data = inflate.decompress(base64.b64decode(self.inline, validate=True), self.size + 1)
        else:
            assert self.file is not None
            if folder is None:
                raise ValueError(f"the bytes of {self.file} did not come with the result")
            path = folder / self.file
            if path.is_symlink() or not path.is_file():
                raise ValueError(f"{self.file} is not a file beside the result")
            data = path.read_bytes()
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError("the bytes of an output are not those that its hash names")
        return data


class GroupOutput(_Model):
    """What a call left in one group's C, with its guard rows.

    Attributes:
        call: Index of the call; a case may be called more than once.
        case: Index of the case in the job.
        group: Index of the group.
        rows: Rows of the buffer: guard rows before, m, guard rows after.
        columns: n.
        data: fp16 bits of the buffer, row-major.
        late_sha256: Hash of the same buffer after the final synchronisation, when everything had come to rest; None
            where a later call got the same memory.
        inputs: For a benchmark, which of the rotating inputs at which visit (see ``device.rotation``); None where the
            inputs are those of the case.
        returned: What the kernel returned for the group: ``c`` (the tensor it was given), ``other`` (a tensor of its
            own, whose values are then in ``data``), or a description of what is wrong with it.
    """

    call: int
    case: int
    group: int
    rows: int
    columns: int
    data: Blob
    late_sha256: str | None
    returned: str
    inputs: tuple[int, int] | None = None


class RowPart(_Model):
    """A part of the row of a group's C that a round of a benchmark changed, as the call left it.

    Attributes:
        group: Index of the group.
        row: The row of C whose row of A was changed before the call.
        column: Its first column here, drawn anew for every round.
        bits: fp16 bits, hexadecimal, in memory's order; empty where the kernel returned no such tensor.
    """

    group: int
    row: int
    column: int
    bits: str


class RoundSample(_Model):
    """What is looked at of every round of a benchmark, also of those whose outputs do not come back whole.

    Attributes:
        case: Index of the case.
        call: Index of the round.
        inputs: Which of the rotating inputs at which visit, see ``device.rotation``.
        parts: One for each group that has rows.
    """

    case: int
    call: int
    inputs: tuple[int, int]
    parts: tuple[RowPart, ...]


class CaseReport(_Model):
    """What the worker saw of one call besides its outputs.

    Attributes:
        call: Index of the call.
        case: Index of the case.
        inputs_before: Hash of all inputs on the device before the call.
        inputs_after: The same after it.
        launches: Kernels that ran on the device during the call; None where that could not be seen.
        findings: What was found in this call alone, where the device can tell (a simulator). Its outputs are missing
            if that ended the kernel, and those of other calls stand.
    """

    call: int
    case: int
    inputs_before: str
    inputs_after: str
    launches: tuple[str, ...] | None = None
    findings: tuple[ReportedFinding, ...] = ()


class Measurement(_Model):
    """Times of one case.

    Attributes:
        case: Index of the case.
        device_us: Device time of each round, in microseconds.
        host_us: Time of each of some further rounds, from the call to the end of all its work, in microseconds.
        call_us: Median time until the call returned on the host, in microseconds.
        late_rounds: Rounds in which the host was slower than foreseen, so that ``device_us`` holds host time too.
        repeated_rounds: Rounds that were late and were measured again; their first times are not in ``device_us``.
        outside_stream: Whether work reached memory while the timed stream was held, or after the end of what the call
            left on it: then ``device_us`` does not hold it; None where that could not be seen.
        method: How the device time was measured.
        l2: State of the L2 cache before each call.
        sets: How many sets of inputs rotated.
        clocks_mhz: SM clock before, during and after, where it could be read.
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
    """What a later version may say more of: fields that are not known are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SimulatedLaunch(_Open):
    """What one launch did in the simulator.

    Attributes:
        kernel: The kernel's symbol.
        grid, cluster: Sizes in CTAs.
        block: Size in threads.
        shared_bytes: Shared memory of a CTA, static and dynamic.
        ctas_per_sm: CTAs that an SM holds at once, by shared memory, threads and TMEM columns; registers are not known.
        counters: What was counted, by name; the same on every run (see the modules of ``pytest_nvfp4.sim``).
        writers: CTAs that wrote the final value of an output element; None where the launch wrote no output.
        printed: What the kernel printed.
        findings: What was found in it.
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

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def clusters(self) -> int:
        """Clusters of the grid."""
        return self.ctas // (self.cluster[0] * self.cluster[1] * self.cluster[2])

    def waves(self, sms: int) -> int:
        """Rounds in which the grid's CTAs run on a number of SMs, each full."""
        return -(-self.ctas // (sms * self.ctas_per_sm))


class OutputWrites(_Open):
    """Who wrote one group's C.

    Attributes:
        group: Index of the group.
        elements: m * n.
        never: Elements that nobody wrote.
        by_two: Elements that two CTAs of one launch wrote.
        twice: Elements that one CTA wrote more than once.
        ctas: CTAs that wrote some of it.
        tiles: Rectangles of it that one CTA wrote.
    """

    group: int
    elements: int
    never: int
    by_two: int
    twice: int
    ctas: int
    tiles: int


class SimulatedCall(_Open):
    """What one call did in the simulator.

    Attributes:
        call: Index of the call.
        case: Index of the case.
        model: The device that was simulated.
        sms: Its SMs.
        launches: Its launches, in order.
        outputs: Who wrote the outputs.
        trace: The timeline as JSON text, where it was asked for.
    """

    call: int
    case: int
    model: str
    sms: int
    launches: tuple[SimulatedLaunch, ...]
    outputs: tuple[OutputWrites, ...]
    trace: Blob | None = None

    @property
    def printed(self) -> str:
        """All that kernels printed."""
        return "".join(launch.printed for launch in self.launches)


class Result(_Model):
    """What a device says about a job; see ``Status`` for what the words mean."""

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
        """The first error in words, or the status."""
        for finding in self.findings:
            if finding.severity == "error":
                return str(finding)
        return self.status
