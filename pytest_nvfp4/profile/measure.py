"""Profile a kernel on a device: send the job, judge what the kernel computed, and read what the tool wrote."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_nvfp4.device.base import Device
from pytest_nvfp4.device.given import with_given
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, Profiling
from pytest_nvfp4.device.profiling.record import MOST_FILE_BYTES, FoundTool, ProfiledCase, ProfileRecord, ToolRun
from pytest_nvfp4.device.result import DeviceInfo, Result
from pytest_nvfp4.device.verdict import Judge
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profile.chip_metrics import chip_metrics, chip_of
from pytest_nvfp4.profile.read import read_report
from pytest_nvfp4.profile.readers import sanitizer_xml
from pytest_nvfp4.profile.readers.durations import TimedLaunch, by_kernel
from pytest_nvfp4.profile.readers.ncu_csv import merged, read_ncu_csv
from pytest_nvfp4.profile.result import (
    Artifact,
    Configuration,
    Judgement,
    Metric,
    Profile,
    ProfiledDevice,
    ProfiledKernel,
    ProfiledLaunch,
    TimedRange,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What is profiled, and how.

    Attributes:
        label: The kernel's file as the user named it.
        spec: The kernel.
        base: Folder that its files are relative to.
        case: The problem.
        profiling: Settings.
        deadline_s: Seconds for everything, further tools included.
    """

    label: str
    spec: KernelSpec
    base: Path
    case: JobCase
    profiling: Profiling
    deadline_s: float


def profile_kernel(request: Request, device: Device, *, folder: Path, out: Path) -> Profile:
    """Profile a kernel on a device.

    Args:
        folder: A new, empty folder for the job.
        out: A folder for the tool's files.

    Returns:
        The profile. A kernel that is wrong has a verdict that says so, and a tool that did not run an attempt.
    """
    job = with_given(
        Job(
            id=f"profile-{uuid.uuid4().hex[:12]}",
            action="profile",
            kernel=request.spec,
            cases=(request.case,),
            profiling=request.profiling,
            deadline_s=request.deadline_s,
        )
    )
    result = device.run(job, folder=folder, base=request.base)
    record = result.profile or ProfileRecord()
    files, notes = _saved(record, folder, out)
    read = _Reader(record, request, files, out)
    profile = read.profile()
    return profile.model_copy(
        update={
            "kernel": _kernel(request),
            "configuration": _configuration(request),
            "verdict": _verdict(job, result, folder),
            "device": _device(result.device, profile.device),
            "notes": (*notes, *profile.notes),
            "artifacts": tuple(
                Artifact(name=file.name, size=file.data.size, sha256=file.data.sha256)
                for file in record.files
                if file.name in files
            ),
        }
    )


def probe_tools(device: Device, *, folder: Path) -> tuple[DeviceInfo | None, tuple[FoundTool, ...], str]:
    """Return the device, the profilers that it has, and why it cannot be used; the latter is empty if it can."""
    job = Job(id="probe", action="probe", profiling=Profiling(mode="ncu"), deadline_s=300)
    result = device.run(job, folder=folder)
    tools = () if result.profile is None else result.profile.tools
    return result.device, tools, "" if result.status == "passed" else result.reason


def _saved(record: ProfileRecord, folder: Path, out: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Write the tool's files, whose sizes and hashes are compared, and return those that came whole."""
    files: dict[str, Path] = {}
    notes: list[str] = []
    for file in record.files:
        try:
            data = file.data.read(folder, source=f"the file {file.name}", most=MOST_FILE_BYTES, exact=False)
        except DoorError as error:
            notes.append(str(error))
            continue
        files[file.name] = out / file.name
        files[file.name].write_bytes(data)
    return files, tuple(notes)


def _kernel(request: Request) -> ProfiledKernel:
    entry = request.spec.entry
    name = entry.rpartition("::")[2] if entry else "custom_kernel"
    return ProfiledKernel(name=name, path=request.label, sha256=request.spec.sha256)


def _configuration(request: Request) -> Configuration:
    settings = request.profiling
    return Configuration(
        mode=settings.mode,
        problem=request.case.problem.name,
        sizes=request.case.problem.sizes,
        warmup=settings.warmup,
        rounds=settings.rounds,
        metric_set=settings.metric_set if settings.mode == "ncu" else "",
        sanitizer_tool=settings.sanitizer_tool if settings.mode == "sanitizer" else "",
        launch_skip=settings.launch_skip,
        launch_count=settings.launch_count,
    )


def _verdict(job: Job, result: Result, folder: Path) -> Judgement:
    if result.status != "passed":
        return Judgement(status=result.status, because=result.reason[:2000])
    (verdict,) = Judge().judge(job, result, folder=folder)
    first = next((finding for finding in verdict.findings if finding.severity == "error"), None)
    return Judgement(status=verdict.status, because="" if first is None else first.message[:2000])


def _device(info: DeviceInfo | None, reported: ProfiledDevice | None) -> ProfiledDevice | None:
    """Return the device of the worker, with the clocks of the report."""
    if info is None:
        return reported
    return ProfiledDevice(
        name=info.name,
        capability=info.capability,
        sms=info.sms,
        driver=info.driver,
        sm_mhz=reported.sm_mhz if reported is not None else None,
        memory_mhz=reported.memory_mhz if reported is not None else None,
    )


class _Reader:
    """Reads what the last tool wrote; a report that cannot be read is an attempt without figures."""

    def __init__(self, record: ProfileRecord, request: Request, files: Mapping[str, Path], out: Path) -> None:
        self._record = record
        self._request = request
        self._files = files
        self._out = out

    def profile(self) -> Profile:
        attempts = self._record.attempts
        ranges = tuple(_ranges(self._record.cases))
        empty = Profile(attempts=attempts, ranges=ranges)
        if not attempts or attempts[-1].state != "ran":
            return empty
        run = attempts[-1]
        try:
            read = self._of(run)
        except (DoorError, OSError) as error:
            failed = ToolRun(
                tool=run.tool,
                version=run.version,
                options=run.options,
                state="unavailable",
                because=f"its report cannot be read: {error}"[:2000],
                output=run.output,
            )
            return empty.model_copy(update={"attempts": (*attempts[:-1], failed)})
        update: dict[str, object] = {"attempts": attempts, "ranges": read.ranges or ranges, "source": ""}
        launches = read.launches
        if run.tool == "ncu":
            launches = tuple(map(self._with_reasons, launches))
        update["launches"] = tuple(map(self._with_user_files, launches))
        update["defects"] = tuple(
            one.model_copy(update={"file": None if one.file is None else self._user_file(one.file)})
            for one in read.defects
        )
        return read.model_copy(update=update)

    def _of(self, run: ToolRun) -> Profile:
        match run.tool:
            case "ncu":
                return self._ncu()
            case "nsys" | "nvtx":
                return read_report(self._files["nsys.sqlite"])
            case "sanitizer":
                return self._sanitizer(run)
        return _of_torch(self._record.cases)

    def _ncu(self) -> Profile:
        """Read the report with its library if it is there, else its pages."""
        notes: tuple[str, ...] = ()
        if (report := self._files.get("ncu.ncu-rep")) is not None:
            try:
                return read_report(report)
            except DoorError as error:
                notes = (f"source lines are missing: {error}",)
        raw, device = self._page("raw")
        details, other = self._page("details")
        return Profile(launches=merged(raw, details), device=device or other, notes=notes)

    def _page(self, name: str) -> tuple[tuple[ProfiledLaunch, ...], ProfiledDevice | None]:
        file = self._files.get(f"ncu.{name}.csv")
        if file is None:
            raise DoorError(f"the page {name} of ncu", "did not come with the answer")
        return read_ncu_csv(file.read_text("utf-8", "replace"), source=f"the page {name} of ncu")

    def _sanitizer(self, run: ToolRun) -> Profile:
        stated = sanitizer_xml.summary(run.output)
        report = self._files.get("sanitizer.xml")
        if report is None:
            if stated:
                raise DoorError("compute-sanitizer", f"states {stated} errors and wrote no XML")
            return Profile()
        read = read_report(report)
        found = sum(defect.count for defect in read.defects if defect.severity == "error")
        if stated and not found:
            note = f"compute-sanitizer states {stated} errors, of which its XML has none"
            return read.model_copy(update={"notes": (*read.notes, note)})
        return read

    def _with_reasons(self, launch: ProfiledLaunch) -> ProfiledLaunch:
        """Say of each metric that was asked for and is absent whether the chip has it at all."""
        asked = self._request.profiling.metrics
        absent = [name for name in asked if name not in launch.counters]
        if not absent:
            return launch
        counters = dict(launch.counters)
        lacks = lacking(absent, self._request.spec.arch)
        for name in absent:
            counters[name] = Metric.unknown(lacks.get(name) or "the tool did not collect it")
        return launch.model_copy(update={"counters": counters})

    def _with_user_files(self, launch: ProfiledLaunch) -> ProfiledLaunch:
        markers = tuple(one.model_copy(update={"file": self._user_file(one.file)}) for one in launch.markers)
        lines = tuple(one.model_copy(update={"file": self._user_file(one.file)}) for one in launch.lines)
        return launch.model_copy(update={"markers": markers, "lines": lines})

    def _user_file(self, file: str) -> str:
        """Return the user's own file for the worker's copy of it."""
        path, sources = Path(file), self._record.sources
        if sources and path.is_relative_to(sources):
            return str(self._request.base / path.relative_to(sources))
        own = [one.path for one in self._request.spec.files if Path(one.path).name == file]
        return str(self._request.base / own[0]) if len(own) == 1 else file


def lacking(names: tuple[str, ...] | list[str], arch: str) -> dict[str, str]:
    """Return which metrics the chip of an architecture lacks, with the reason; empty if its list is not here."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not digits.isdigit():
        return {}
    chip = chip_of((int(digits) // 10, int(digits) % 10))
    if chip is None:
        return {}
    try:
        known = chip_metrics(chip)
    except DoorError:
        return {}
    return {name: reason for name in names if (reason := known.lacks(name)) is not None}


def listed_metrics(capability: tuple[int, int]) -> str:
    """Return how many metrics the chip of a compute capability has, or why its list is not here."""
    chip = chip_of(capability)
    if chip is None:
        return f"there is no list of a chip of compute capability {capability[0]}.{capability[1]}"
    try:
        known = chip_metrics(chip)
    except DoorError as error:
        return str(error)
    counts = len(known.counters), len(known.throughputs), len(known.ratios)
    return f"{chip}: {counts[0]} counters, {counts[1]} throughputs and {counts[2]} ratios (libnvperf_host)"


def _ranges(cases: tuple[ProfiledCase, ...]) -> Iterator[TimedRange]:
    for case in cases:
        yield TimedRange(name="warmup", instances=1, total_us=Metric.of(case.warmup_us, "us"))
        total = sum(case.region_us)
        yield TimedRange(name="profile_region", instances=len(case.region_us), total_us=Metric.of(total, "us"))


def _of_torch(cases: tuple[ProfiledCase, ...]) -> Profile:
    works = [work for case in cases for work in case.works]
    launches = by_kernel(
        TimedLaunch(work.name if work.kind == "kernel" else f"[{work.kind}] {work.name}", float(work.duration_ns))
        for work in works
    )
    return Profile(launches=launches, ranges=tuple(_ranges(cases)))
