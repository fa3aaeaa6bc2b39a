"""Command lines of the profilers. Sources: the manuals of Nsight Compute, Nsight Systems and compute-sanitizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_nvfp4.device.job import MetricSet, Profiling
from pytest_nvfp4.device.profiling.record import Tool
from pytest_nvfp4.device.profiling.tools import Program
from pytest_nvfp4.isolation.wall.description import PROFILER_PORTS

REGION: Final = "profile_region"
"""The NVTX range of the profiled calls (``worker.profiled``)."""
_FEW: Final = ("SpeedOfLight", "LaunchStats", "Occupancy")
_SECTIONS: Final[dict[MetricSet, tuple[str, ...]]] = {
    "curated": _FEW,
    "extended": (
        *_FEW,
        "ComputeWorkloadAnalysis",
        "MemoryWorkloadAnalysis",
        "MemoryWorkloadAnalysis_Chart",
        "SchedulerStats",
        "WarpStateStats",
        "InstructionStats",
        "WorkloadDistribution",
    ),
}
"""Identifiers of sections: the names of the tables are no identifiers."""
_NEEDED: Final = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_issued.avg.pct_of_peak_sustained_active",
    *(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in (
        "barrier", "membar", "not_selected",
    )),
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)  # fmt: skip
"""What the rules of bottlenecks need and ``basic`` lacks; a metric that a chip lacks is only a warning."""


@dataclass(frozen=True, slots=True)
class ToolCommand:
    """One attempt.

    Attributes:
        tool: The tool.
        program: Its program.
        options: Its options without paths, for the record.
        arguments: Program and all its options; the worker's command follows.
        exports: Further commands once it has ended, with the name of the file for what they print; None if they write
            a file themselves.
        needed: Files that are there if it ran.
        log: File of its messages; None if it writes them to its output.
        last: Pattern of the line with which its log ends; empty if it has none.
    """

    tool: Tool
    program: Program
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    exports: tuple[tuple[tuple[str, ...], str | None], ...]
    needed: tuple[str, ...]
    log: Path | None
    last: str = ""

    def complete(self, log: str) -> bool:
        """Return whether a log says that the tool came to its end."""
        return re.search(self.last, log) is not None


def ncu(
    program: Program, settings: Profiling, folder: Path, *, kernels: tuple[str, ...] = (), counters: bool = True
) -> ToolCommand:
    """Return the command of Nsight Compute.

    Args:
        kernels: Parts of the names of the launches that are profiled; all launches if empty.
        counters: Whether to collect counters; else what a launch is, which needs no permission for counters.
    """
    chosen: list[str] = []
    if not counters:
        chosen += ["--section", "LaunchStats"]
    elif settings.metric_set in _SECTIONS:
        for section in _SECTIONS[settings.metric_set]:
            chosen += ["--section", section]
    else:
        chosen += ["--set", settings.metric_set]
    if counters:
        chosen += ["--metrics", ",".join(dict.fromkeys((*_NEEDED, *settings.metrics)))]
    options = (
        *chosen,
        *_launches(settings),
        *(("--kernel-name", f"regex:{'|'.join(kernels)}") if kernels else ()),
        *("--nvtx", "--nvtx-include", f"{REGION}/"),
        *("--clock-control", "base" if settings.base_clocks else "none"),
    )
    report, log = folder / "ncu.ncu-rep", folder / "ncu.log"
    read = (str(program.path), "--import", str(report), "--csv", "--print-units", "base", "--page")
    return ToolCommand(
        "ncu",
        program,
        options,
        (
            str(program.path),
            *("--export", str(report), "--force-overwrite", "--log-file", str(log), "--target-processes", "all"),
            *_ports(),
            *options,
        ),
        (((*read, "raw"), "ncu.raw.csv"), ((*read, "details"), "ncu.details.csv")),
        ("ncu.ncu-rep",),
        log,
    )


def nsys(program: Program, folder: Path, *, cuda: bool = True) -> ToolCommand:
    """Return the command of Nsight Systems; without ``cuda`` it records NVTX ranges only."""
    options = ("--trace", "cuda,nvtx" if cuda else "nvtx", "--sample", "none", "--cpuctxsw", "none")
    report, database = folder / "nsys.nsys-rep", folder / "nsys.sqlite"
    export = ("export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(database), str(report))
    return ToolCommand(
        "nsys" if cuda else "nvtx",
        program,
        options,
        (str(program.path), "profile", "--output", str(report), "--force-overwrite", "true", *options),
        (((str(program.path), *export), None),),
        ("nsys.sqlite",),
        None,
    )


def sanitizer(program: Program, settings: Profiling, folder: Path) -> ToolCommand:
    """Return the command of compute-sanitizer; it looks at the whole process."""
    options: tuple[str, ...] = ("--tool", settings.sanitizer_tool, *_launches(settings))
    if settings.sanitizer_tool == "racecheck":
        options += ("--racecheck-report", "all")
    report, log = folder / "sanitizer.xml", folder / "sanitizer.log"
    return ToolCommand(
        "sanitizer",
        program,
        options,
        (
            str(program.path),
            *("--xml", "--save", str(report), "--log-file", str(log), "--print-limit", "1000"),
            *("--target-processes", "all"),
            *_ports(),
            *options,
        ),
        (),
        (),  # without an error it may write no XML
        log,
        r"[A-Z]+ SUMMARY: ",
    )


def _launches(settings: Profiling) -> tuple[str, ...]:
    skip = ("--launch-skip", str(settings.launch_skip)) if settings.launch_skip else ()
    count = () if settings.launch_count is None else ("--launch-count", str(settings.launch_count))
    return (*skip, *count)


def _ports() -> tuple[str, ...]:
    return ("--port", str(PROFILER_PORTS.start), "--max-connections", str(len(PROFILER_PORTS)))
