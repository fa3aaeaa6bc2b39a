"""Jobs: everything that a device needs to run a kernel, as JSON, independent of the machine that sends them."""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from pytest_nvfp4 import schedules
from pytest_nvfp4.driver.memory import POISON
from pytest_nvfp4.isolation.door.fields import STRICT
from pytest_nvfp4.problem import GROUP_GEMM, Axis, Group, Problem
from pytest_nvfp4.toolchain.own_files import extension_sources, imported_sources

SCHEMA: Literal[1] = 1
"""Version of the JSON of jobs and results; a worker rejects a job of another version."""

Action = Literal["probe", "verify", "benchmark", "simulate", "profile", "trace"]
ProfileMode = Literal["ncu", "nsys", "sanitizer", "torch"]
MetricSet = Literal["basic", "detailed", "full", "curated", "extended"]
SanitizerTool = Literal["memcheck", "racecheck", "synccheck", "initcheck"]

_METRIC = re.compile(r"[A-Za-z][\w.:-]{0,300}")
"""A name of a metric: it becomes part of a command line."""


class Model(BaseModel):
    """An immutable model without unknown fields and without numbers that are not finite."""

    model_config = STRICT


class SourceFile(Model):
    """One of the user's source files, of Python or of an extension.

    Attributes:
        path: Path relative to the common folder of the files, with forward slashes.
        text: Its text.
        encoding: The encoding that the file declares (PEP 263).
        sha256: Hash of its bytes.
    """

    path: str
    text: str
    encoding: str = "utf-8"
    sha256: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "\\" in self.path:
            raise ValueError(f"path {self.path!r} of a source file must be relative and stay below its folder")
        try:
            data = self.data
        except LookupError as error:  # pydantic makes an error of its own of ValueError only
            raise ValueError(f"source file {self.path} has an {error}") from error
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ValueError(f"the content of source file {self.path} does not match its hash")
        return self

    @property
    def data(self) -> bytes:
        """Bytes of the file."""
        return self.text.encode(self.encoding)

    @classmethod
    def read(cls, path: Path, *, base: Path) -> SourceFile:
        """Read a file below ``base``. Raises OSError, SyntaxError and UnicodeDecodeError."""
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return cls(
            path=path.relative_to(base).as_posix(),
            text=data.decode(encoding),
            encoding=encoding,
            sha256=hashlib.sha256(data).hexdigest(),
        )

    def with_text(self, text: str) -> SourceFile:
        """Return the file with another text."""
        sha256 = hashlib.sha256(text.encode(self.encoding)).hexdigest()
        return SourceFile(path=self.path, text=text, encoding=self.encoding, sha256=sha256)


class KernelSpec(Model):
    """A kernel: its file, the user's modules that it imports, and how it is called.

    Attributes:
        files: The kernel's file and the user's modules that it imports.
        main: Path of the kernel's file among them.
        entry: ``PATH::FUNCTION`` for a kernel outside the contract, PATH among the files.
        arch: Architecture that it is compiled for, such as ``sm_100a``.
        compile_options: Options in addition to its own.
        side_stream: Whether it is to be called while another stream than the default one is current.
        torch_operators: Whether operators of torch may compute its outputs.
        readable: Files and folders of the machine that runs it that it may read besides ``files``.
        network: Whether it may use the network.
        others_sha256: Hash of what else its trace depends on: files that it read, modules that are not there.
        recorded: Path, among the files, of the recording of its host code that stands for it (``worker.conversation``);
            None to run the host code.
    """

    files: tuple[SourceFile, ...]
    main: str
    entry: str | None = None
    arch: str
    compile_options: tuple[str, ...] = ()
    side_stream: bool = False
    torch_operators: bool = False
    readable: tuple[str, ...] = ()
    network: bool = False
    others_sha256: str = ""
    recorded: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        paths = {file.path for file in self.files}
        recorded = [self.recorded] if self.recorded is not None else []
        for path in (self.main, *([self.entry.rpartition("::")[0]] if self.entry else []), *recorded):
            if path not in paths:
                raise ValueError(f"{path} is not among the kernel's files: {', '.join(sorted(paths))}")
        return self

    @property
    def sha256(self) -> str:
        """Hash of every file's path and content."""
        digest = hashlib.sha256()
        for file in sorted(self.files, key=lambda file: file.path):
            digest.update(f"{file.path}\0{file.sha256}\0".encode())
        return digest.hexdigest()

    @classmethod
    def from_files(
        cls,
        main: Path,
        *,
        others: Iterable[Path] | None = None,
        roots: Sequence[Path] = (),
        arch: str,
        entry: str | None = None,
        entry_file: Path | None = None,
        compile_options: tuple[str, ...] = (),
        side_stream: bool = False,
        torch_operators: bool = False,
        readable: tuple[str, ...] = (),
        network: bool = False,
        others_sha256: str = "",
    ) -> tuple[KernelSpec, Path]:
        """Pack a kernel's file and its dependencies, and return them with the folder that their paths are relative to.

        Args:
            main: The kernel's file.
            others: Further files that it needs, such as a trace's dependencies; by default the modules beside it and
                below ``roots`` that it imports. Sources of extensions below its folder are packed without being named.
            roots: Further folders of the import path.
            arch: Architecture to compile for.
            entry: Name of the entry function, for a kernel outside the contract.
            entry_file: File of the entry function; the kernel's file if None.
            compile_options: Options in addition to the kernel's own.
            side_stream: See `KernelSpec`, as for the next ones.
            torch_operators: Whether operators of torch may compute its outputs.
            readable: Further files that it may read.
            network: Whether it may use the network.
            others_sha256: Hash of what else its trace depends on.
        """
        if others is None:
            others = imported_sources(main, entry_file, roots=roots)
        paths = {main.resolve(), *(path.resolve() for path in others)}
        if entry_file is not None:
            paths.add(entry_file.resolve())
        paths.update(extension_sources(paths))
        base = main.resolve().parent
        while not all(path.is_relative_to(base) for path in paths):
            base = base.parent
        while (base / "__init__.py").is_file() and base.parent != base:
            base = base.parent
        for path in list(paths):
            folder = path.parent
            while folder != base and folder.is_relative_to(base):
                if (folder / "__init__.py").is_file():
                    paths.add(folder / "__init__.py")
                folder = folder.parent
        files = [SourceFile.read(path, base=base) for path in sorted(paths)]
        target = (entry_file or main).resolve().relative_to(base).as_posix()
        spec = cls(
            files=tuple(files),
            main=main.resolve().relative_to(base).as_posix(),
            entry=f"{target}::{entry}" if entry else None,
            arch=arch,
            compile_options=compile_options,
            side_stream=side_stream,
            torch_operators=torch_operators,
            readable=readable,
            network=network,
            others_sha256=others_sha256,
        )
        return spec, base


class ProblemSpec(Model):
    """A problem in the JSON of a job: its name, the (m, n, k, l) of each group, and the seed of its inputs.

    Attributes:
        contract: Name of its contract.
        axes: What describes the problem in place of sizes (see ``Problem``).
    """

    name: str
    sizes: tuple[tuple[int, int, int, int], ...]
    seed: int
    contract: str = GROUP_GEMM
    axes: tuple[tuple[str, Axis], ...] = ()

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides the shapes of its tensors: equal for problems that differ in name and seed alone."""
        return self.contract, self.sizes, self.axes

    @classmethod
    def of(cls, problem: Problem) -> ProblemSpec:
        """Return the specification of a problem."""
        return cls(
            name=problem.name,
            sizes=tuple(problem.sizes),
            seed=problem.seed,
            contract=problem.contract,
            axes=problem.axes,
        )

    def problem(self) -> Problem:
        """Return the problem."""
        groups = tuple(Group(*size) for size in self.sizes)
        return Problem(self.name, groups, self.seed, self.contract, self.axes)


class GivenInputs(Model):
    """A draw of inputs that the job carries (see ``device.given``).

    Attributes:
        problem: Name of the problem.
        family: Input family of the draw.
        label: Which draw of it this is.
        data: Its content (``contracts.own.packing``), compressed, base64.
    """

    problem: str
    family: str
    label: str
    data: str


class JobCase(Model):
    """One call of a kernel: a problem and the family of its inputs."""

    problem: ProblemSpec
    family: str


class Timing(Model):
    """Settings of a benchmark.

    Attributes:
        rounds: Number of timed rounds of each case.
        warmup: Number of untimed calls before them.
        cold_l2: Whether to flush the L2 cache before every timed call.
        repeats: Number of late rounds, whose device time includes host time, that may be repeated.
        counted: Number of inputs on which launches are counted after the rounds, in two calls each.
    """

    rounds: int = Field(default=50, ge=1, le=100_000)
    warmup: int = Field(default=5, ge=0, le=1000)
    cold_l2: bool = True
    repeats: int = Field(default=0, ge=0, le=100_000)
    counted: int = Field(default=0, ge=0, le=8)

    @property
    def judged_calls(self) -> int:
        """Number of calls whose outputs are judged: the rounds, and then the calls whose launches are counted."""
        return self.rounds + 2 * self.counted


class Simulating(Model):
    """Settings of a simulation.

    Attributes:
        outputs: Whether to return the outputs, so that they can be judged.
        origins: Whether to report who computed the outputs, as a job that verifies does.
        trace_ctas: Number of CTAs of each launch whose timeline is recorded; 0 for no timeline.
        races: Whether to search for races.
        race_warnings: Whether to report also orderings that the PTX ISA requires and official kernels omit.
        provenance: Whether to call the kernel on tags in place of its inputs, and to report operands of MMAs that read
            wrong data (``sim.provenance``). The outputs are then meaningless.
        unwritten: Whether to report uses of device memory that nothing has written: of the kernel's allocations, and of
            its outputs before it writes them.
        poison: Byte that new device memory of the kernel is filled with.
        far_end: Whether to look for offsets that overflow 32 bits (``worker.far_end``), instead of running the cases.
        schedule: ``eager``, ``lazy``, ``late-0-3`` (warps 0 and 3 run last), or the seed of a random schedule.
        protocol: Whether to record what each warp of a launch's first cluster waits for, signals, reads and writes.
            No races are searched for, and in the lazy schedule a wait may return False once.
        recording: Whether to record each launch for the model of its time (``model.recorder``), in the eager schedule
            and without a search for races.
        sampled: Whether a recording is made without data (``model.recorder_dataless``), and only some clusters of a
            large launch run, from which the others are derived (``model.large``). Inputs have no content, and outputs
            and counters are meaningless.
        ring_ctas: Largest number of CTAs of a launch whose rings of mbarriers are reported; 0 for none.
        later_calls: Whether to call the kernel again on the same inputs, to check launches unlike those of the first
            call (``worker.later_calls``).
        regions: Whether regions that the kernel names (``profiler``, IKET) are compiled into it.
        launch_only: Indices of cases whose launches are recorded but not executed, which shows their grids.
        sms: SMs of the simulated device; None for those of the product. It also applies to a job that verifies.
        conversation: Whether to record what the kernel's host code asks of the device (``worker.conversation``).
        detailed: Whether what a report draws is recorded: counters by source line, the CTA of each tile of C, uses of
            TMEM columns and shared memory (``device.detail``).
        debugging: Whether a debugger stops the launches, whose commands come on the worker's standard input
            (``device.dialogue``).
    """

    outputs: bool = True
    origins: bool = False
    trace_ctas: int = Field(default=0, ge=0, le=9999)
    races: bool = False
    race_warnings: bool = False
    provenance: bool = False
    unwritten: bool = False
    poison: int = Field(default=POISON, ge=0, le=255)
    far_end: bool = False
    schedule: str = Field(default="eager", pattern=f"^({schedules.PATTERN})$")
    protocol: bool = False
    recording: bool = False
    sampled: bool = False
    ring_ctas: int = Field(default=0, ge=0, le=9999)
    later_calls: bool = False
    regions: bool = False
    launch_only: tuple[int, ...] = ()
    sms: int | None = Field(default=None, ge=1, le=9999)
    conversation: bool = False
    detailed: bool = False
    debugging: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        others = self.races or self.race_warnings or self.protocol or self.trace_ctas or self.schedule != "eager"
        if self.recording and others:
            raise ValueError("a recording needs the eager schedule, and excludes races, a protocol and a timeline")
        if self.sampled and (self.outputs or not self.recording):
            raise ValueError("clusters are left out for a recording only, and without outputs")
        if self.unwritten and (self.origins or self.sampled):
            raise ValueError("uses of unwritten memory are found without origins, and with data")
        if self.debugging and (self.recording or self.races or self.race_warnings or self.protocol or self.provenance):
            raise ValueError("a debugger excludes races, a protocol, tags and a recording")
        return self


class Profiling(Model):
    """Settings of a profile.

    Attributes:
        mode: The tool: Nsight Compute, Nsight Systems, compute-sanitizer or torch's profiler.
        warmup: Number of calls before the profiled ones.
        rounds: Number of profiled calls.
        metric_set: What Nsight Compute collects: one of its sets, or ``curated`` (few passes) or ``extended``.
        metrics: Metrics of Nsight Compute in addition, by its names.
        sanitizer_tool: What compute-sanitizer looks for.
        launch_skip: Number of the kernel's launches that are not profiled.
        launch_count: Number of launches that are profiled after them; None for all of the profiled calls.
        base_clocks: Whether Nsight Compute locks the clocks to the base clock.
        fallback: Whether the next best tool is tried where one cannot run.
    """

    mode: ProfileMode
    warmup: int = Field(default=3, ge=0, le=1000)
    rounds: int = Field(default=1, ge=1, le=1000)
    metric_set: MetricSet = "basic"
    metrics: tuple[str, ...] = Field(default=(), max_length=1000)
    sanitizer_tool: SanitizerTool = "memcheck"
    launch_skip: int = Field(default=0, ge=0, le=1_000_000)
    launch_count: int | None = Field(default=None, ge=1, le=1000)
    base_clocks: bool = False
    fallback: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.metrics:
            if not _METRIC.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is no name of a metric")
        return self


class Job(Model):
    """A request to a device.

    Attributes:
        schema_version: Version of the JSON.
        id: Name of the job, repeated in the result.
        action: ``probe`` describes the device, ``verify`` runs every case and returns the outputs, ``benchmark`` times
            every case, ``simulate`` (simulators only) runs every case once, in order, and returns its launches,
            ``profile`` runs every case under a profiler and returns the outputs of its last call and the tool's files,
            ``trace`` compiles the kernel for the problem of the first case and returns its trace; it needs no device.
        kernel: The kernel; None for ``probe``.
        cases: The cases, in the order in which results are returned. The worker calls them in another order.
        given: Inputs of the cases that are not generated from seeds.
        order_seed: Seed of the order of calls, which makes a run repeatable.
        row_key: Key from which the inputs of verified calls, and the changed rows of timed ones, follow (see
            ``rotation``); the kernel cannot see it.
        timing: Settings for ``benchmark``.
        simulating: Settings for ``simulate``.
        profiling: Settings for ``profile``; with ``probe``, the tools of the device are looked for too.
        deadline_s: Seconds after which the job is stopped.
        memory_bytes: Limit on the host memory of the worker.
    """

    schema_version: Literal[1] = SCHEMA
    id: str
    action: Action
    kernel: KernelSpec | None = None
    cases: tuple[JobCase, ...] = ()
    given: tuple[GivenInputs, ...] = ()
    order_seed: int = 0
    row_key: int = Field(default=0, ge=0)
    timing: Timing = Timing()
    simulating: Simulating = Simulating()
    profiling: Profiling | None = None
    deadline_s: float = Field(default=300.0, gt=0)
    memory_bytes: int = Field(default=32 << 30, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.action != "probe" and (self.kernel is None or not self.cases):
            raise ValueError(f"a {self.action} job needs a kernel and at least one case")
        if self.action == "profile" and self.profiling is None:
            raise ValueError("a profile job needs the settings of the profile")
        return self
