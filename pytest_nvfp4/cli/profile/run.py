"""``nvfp4 profile KERNEL``: profile a kernel on a GPU of this machine or of a remote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.opened_device import opened
from pytest_nvfp4.cli.options import (
    RunOptions,
    document_options,
    remote_options,
    run_options,
    timeout_option,
)
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.report.document import Block, Column, Document, Facts, Section, Table
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.cli.simulation import Runnable
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import Profiling
    from pytest_nvfp4.profile.result import Profile

_MODES = ("ncu", "nsys", "sanitizer", "torch")
_SETS = ("basic", "detailed", "full", "curated", "extended")
_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_SLACK_S = 120.0
"""Seconds of a remote around a profile that has its whole timeout."""


@click.command("run")
@click.argument("kernel", type=click.Path(path_type=Path), required=False)
@click.option("--mode", type=click.Choice(_MODES), default="ncu", show_default=True, help="Tool.")
@run_options
@click.option("--device", default="local", show_default=True, help="local, or a remote: modal, ssh:HOST, ...")
@click.option(
    "--set",
    "metric_set",
    type=click.Choice(_SETS),
    default="basic",
    show_default=True,
    help="What ncu collects: one of its sets, curated (few passes) or extended.",
)
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Metric of ncu besides; may be repeated.")
@click.option(
    "--counted",
    is_flag=True,
    help="Simulate the same call too: the simulator's counters beside ncu's, and modelled gains of hints.",
)
@click.option(
    "--tool",
    "sanitizer_tool",
    type=click.Choice(_TOOLS),
    default="memcheck",
    show_default=True,
    help="What compute-sanitizer looks for.",
)
@click.option("--warmup", type=click.IntRange(0, 1000), default=3, show_default=True, help="Calls before.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Profiled calls.")
@click.option("--launch-skip", type=click.IntRange(0), default=0, show_default=True, help="Launches to leave out.")
@click.option("--launch-count", type=click.IntRange(1, 1000), help="Launches to profile.  [default: all]")
@click.option(
    "--clocks",
    type=click.Choice(["free", "base"]),
    default="free",
    show_default=True,
    help="Whether ncu locks the clocks to the base clock.",
)
@click.option("--fallback/--no-fallback", default=True, show_default=True, help="Try the next best tool.")
@click.option("--probe", is_flag=True, help="Show which tools the device has, and profile nothing.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Keep the tool's files here."
)
@timeout_option(600.0, help_text="Time limit of one problem in seconds, further tools included.")
@remote_options("gpu", "gpu_capability", "timeout_s", "max_cost", "gpu_price", "deployed_app")
@document_options()
def run_command(
    kernel: Path | None,
    *,
    mode: str,
    how: RunOptions,
    device: str,
    metric_set: str,
    metrics: tuple[str, ...],
    counted: bool,
    sanitizer_tool: str,
    warmup: int,
    rounds: int,
    launch_skip: int,
    launch_count: int | None,
    clocks: str,
    fallback: bool,
    probe: bool,
    out: Path | None,
    timeout: float,
    remote: RemoteOptions,
) -> Document:
    """Profile KERNEL on exact inputs, warm-up and profiled calls in NVTX ranges, and judge what it computed.

    Only the kernel's own launches are profiled. Where a tool cannot run, the reason and the next best one are named:
    nsys, then its NVTX ranges, then torch's profiler; ncu, then what a launch is, then torch's profiler. The exit code
    is 1 if the kernel is wrong or no tool ran.
    """
    remote = replace(remote, profilers=True, longest_s=timeout + _SLACK_S)
    if probe:
        with temporary_folder("profile") as name, _opened(device, remote, Path(name)) as where:
            return _probe(where, device, Path(name))
    if kernel is None:
        raise click.UsageError("name a KERNEL, or give --probe")
    from pydantic import ValidationError

    from pytest_nvfp4.cli.simulation import runnable
    from pytest_nvfp4.device.job import Profiling
    from pytest_nvfp4.profile.measure import Request, lacking, profile_kernel

    subject = runnable(kernel, how, simulated=True)
    if counted:
        metrics = _with_counters(mode, metrics, subject.spec.arch)
    try:
        profiling = Profiling(
            mode=mode,  # type: ignore[arg-type]
            metric_set=metric_set,  # type: ignore[arg-type]
            sanitizer_tool=sanitizer_tool,  # type: ignore[arg-type]
            metrics=metrics,
            warmup=warmup,
            rounds=rounds,
            launch_skip=launch_skip,
            launch_count=launch_count,
            base_clocks=clocks == "base",
            fallback=fallback,
        )
    except ValidationError as error:
        raise InputError(f"--metric: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    if missing := lacking(metrics, subject.spec.arch):
        raise InputError(f"--metric: {'; '.join(missing.values())}")
    profiles: list[Profile] = []
    with temporary_folder("profile") as name, _opened(device, remote, Path(name)) as where:
        _check(where, subject)
        for number, case in enumerate(subject.cases()):
            job_folder, files = Path(name) / f"job-{number}", _files_folder(out, Path(name), number, subject)
            job_folder.mkdir()
            request = Request(subject.label, subject.spec, subject.base, case, profiling, timeout)
            with output.working(f"profiling {subject.label} on {case.problem.name} with {mode} on {where.name}"):
                profiles.append(profile_kernel(request, where, folder=job_folder, out=files))
    return _document(subject, profiling, profiles, out, timeout if counted else None)


def _with_counters(mode: str, metrics: tuple[str, ...], arch: str) -> tuple[str, ...]:
    """Return the metrics, and those that the simulator counts too. Raises InputError."""
    from pytest_nvfp4.driver.device_model import for_arch
    from pytest_nvfp4.profile.shared_counters import chip_of, metrics_of

    chip = chip_of(for_arch(arch).capability)
    if mode != "ncu" or chip is None:
        raise InputError(f"--counted compares with ncu's counters of sm_90 and sm_100, not with {mode} on {arch}")
    return tuple(dict.fromkeys((*metrics, *metrics_of(chip))))


def _document(
    subject: Runnable, profiling: Profiling, profiles: Sequence[Profile], out: Path | None, simulated_s: float | None
) -> Document:
    """Return the profiles; with a time for simulations, each beside one of the same call."""
    from pytest_nvfp4.cli.explanation import explained
    from pytest_nvfp4.cli.profile.tables import profile_section

    blocks: list[Block] = []
    explanations = []
    for case, profile in zip(subject.cases(), profiles, strict=True):
        problem = profile.configuration.problem if profile.configuration is not None else ""
        blocks.append(profile_section(profile, f"{subject.label} on {problem}, {profiling.mode}"))
        try:
            beside = None if simulated_s is None else subject
            shown, data_of = explained(profile, beside, case, timeout_s=simulated_s or 0)
        except InputError as error:  # the profile was measured all the same
            output.note(error.message)
            shown, data_of = explained(profile)
        blocks += shown
        explanations.append(data_of)
        if out is not None and profile.artifacts:
            kept = ", ".join(artifact.name for artifact in profile.artifacts)
            blocks.append(f"files in {out}: {kept}")
    passed = all(profile.verdict is not None and profile.verdict.status == "passed" for profile in profiles)
    ran = all(profile.tool is not None and not _errors(profile) for profile in profiles)
    data = {
        "kernel": subject.label,
        "profiles": [
            {**profile.model_dump(mode="json"), "explanation": explanation}
            for profile, explanation in zip(profiles, explanations, strict=True)
        ],
    }
    return Document(f"Profile of {subject.label}", blocks, data, passed and ran)


def _errors(profile: Profile) -> bool:
    return any(defect.severity == "error" for defect in profile.defects)


def _files_folder(out: Path | None, folder: Path, number: int, subject: Runnable) -> Path:
    """Return the folder of a problem's files. Raises InputError."""
    place = folder / f"files-{number}" if out is None else out
    if out is not None and len(subject.cases()) > 1:
        place = out / str(number)
    try:
        place.mkdir(parents=True, exist_ok=out is not None)
    except OSError as error:
        raise InputError(f"--out {place}: cannot be made: {error.strerror}") from error
    if not os.access(place, os.W_OK):
        raise InputError(f"--out {place}: cannot be written")
    return place


def _check(device: Device, subject: Runnable) -> None:
    from pytest_nvfp4.device.base import DeviceUnavailableError

    try:
        unsupported = device.unsupported(subject.spec.arch)
    except DeviceUnavailableError as error:
        raise InputError(f"{device.name}: {error}") from error
    if unsupported is not None:
        raise InputError(f"{subject.label}: {unsupported}")


@contextmanager
def _opened(name: str, options: RemoteOptions, folder: Path) -> Iterator[Device]:
    """Yield a device of this machine or of a remote. Raises InputError."""
    if name in ("sim", "none"):
        raise InputError(
            f"--device {name} has no counters of a GPU; `nvfp4 cost` counts the work and `nvfp4 model` models the time"
        )
    with opened("local" if name == "auto" else name, options, folder, what="problem") as found:
        yield found.device


def _probe(device: Device, name: str, folder: Path) -> Document:
    """Show the tools of a device, and whether counters may be read there."""
    from pytest_nvfp4.profile.measure import listed_metrics, probe_tools

    place = folder / "probe"
    place.mkdir()
    info, tools, problem = probe_tools(device, folder=place)
    words = {True: "permitted", False: "administrators only", None: None}
    rows = [(tool.tool, tool.version, words[tool.counters], tool.path or tool.because) for tool in tools]
    columns = [Column("tool"), Column("version"), Column("counters"), Column("path, or why there is none")]
    facts = [("device", None if info is None else str(info)), ("problem", problem or None)]
    if info is not None:
        facts.append(("metrics", listed_metrics(info.capability)))
    blocks: list[Block] = [Facts(facts), Table(columns, rows)]
    data = {
        "device": None if info is None else info.model_dump(mode="json"),
        "problem": problem,
        "tools": [tool.model_dump(mode="json") for tool in tools],
    }
    return Document(f"Profilers of {name}", [Section(f"Profilers of {name}", blocks)], data, not problem)
