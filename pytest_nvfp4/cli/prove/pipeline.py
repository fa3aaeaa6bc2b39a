"""``nvfp4 prove pipeline``: the rings of a kernel, for every number of k-tiles and tiles."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions, run_options, timeout_option
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.cli.prove.options import finish, proof_options
from pytest_nvfp4.cli.simulation import Runnable, runnable
from pytest_nvfp4.proof.statement import Limits, Statement
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.device.simulate import SimulationResult

_TILES = ("128x128x256", "128x128x512", "128x128x1280", "128x128x2304")
"""One output tile, of 1 to 9 k-tiles of 256."""
_SEVERAL = ("1536x128x256", "1536x256x512,128x128x256", "2560x128x768", "128x128x1280", "128x128x2304")
"""Several output tiles for each CTA of a small device, if the kernel is persistent."""
_SMS = 4


@click.command("pipeline")
@click.argument("kernel", type=click.Path(path_type=Path))
@run_options
@timeout_option(600.0)
@proof_options
@click.pass_context
def pipeline_command(
    ctx: click.Context,
    *,
    kernel: Path,
    how: RunOptions,
    timeout: float,
    brief: bool,
    require: bool,
    query_ms: int,
    result: ResultWriter,
) -> None:
    """Prove the pipelines of KERNEL for every number of k-tiles and tiles, each compiled kernel for itself.

    Simulated runs show the protocol of each ring: its stages, who fills, reads, waits for which phase and signals, in
    which order. If all runs fit one protocol, z3 proves for any number of iterations that no stage is overwritten
    before it is read, none is read before it is filled, and nothing deadlocks. What fits no protocol is unknown, with
    the reason. --problem replaces the problems that are recorded by default; they must differ in their numbers of
    iterations. A refutation is an order of a recorded run, with its number of iterations, stage and lines.
    """
    subject = runnable(kernel, replace(how, names=how.names or _TILES), simulated=True)
    small = subject if how.names else runnable(kernel, replace(how, names=_SEVERAL), simulated=True)
    with (
        temporary_folder("prove") as folder,
        output.working(f"recording {subject.label}"),
        ThreadPoolExecutor(2) as pool,
    ):
        plain = pool.submit(_record, subject, Path(folder) / "eager", "eager", None, timeout)
        other = pool.submit(_record, small, Path(folder) / "lazy", "lazy", _SMS, timeout)
        done = [*_labelled(subject, plain.result(), "eager"), *_labelled(small, other.result(), "lazy")]
    statements, missing = _judge(subject, done, query_ms)
    finish(
        ctx,
        statements,
        result=result,
        brief=brief,
        require=require,
        title=f"Pipelines of {subject.label}",
        missing=missing,
    )


def _record(
    subject: Runnable, folder: Path, schedule: str, sms: int | None, timeout: float
) -> list[SimulationResult]:  # fmt: skip
    from pytest_nvfp4.device.sim import SimDevice
    from pytest_nvfp4.device.simulate import simulate

    device = SimDevice(arch=subject.spec.arch)
    if (unsupported := device.unsupported(subject.spec.arch)) is not None:
        raise InputError(f"{subject.label}: {unsupported}")
    return simulate(
        device, subject.spec, subject.cases(["gpumode"]), folder=folder, base=subject.base, deadline_s=timeout,
        schedule=schedule, protocol=True, sms=sms,
    )  # fmt: skip


def _labelled(
    subject: Runnable, done: Sequence[SimulationResult], schedule: str
) -> list[tuple[str, SimulationResult]]:  # fmt: skip
    return [(f"{problem.name}, {schedule} schedule", run) for problem, run in zip(subject.problems, done, strict=True)]


def _judge(
    subject: Runnable, done: Sequence[tuple[str, SimulationResult]], query_ms: int
) -> tuple[list[Statement], list[str]]:
    from pytest_nvfp4.proof.catalogue import judge_all
    from pytest_nvfp4.proof.pipeline.claims import RecordedRun, claims, runs_claim
    from pytest_nvfp4.proof.pipeline.protocol import fit
    from pytest_nvfp4.proof.pipeline.recording import Recording, parse

    kernels: dict[tuple[str, str], list[Recording]] = {}
    runs: list[RecordedRun] = []
    for label, run in done:
        error = subject.finding_text(run.errors[0]) if run.errors else ""
        deadlock = bool(run.errors) and run.errors[0].kind == "deadlock"
        runs.append(RecordedRun(label, error or ("" if run.status == "passed" else run.status), deadlock))
        if run.protocol is None:
            continue
        try:
            recordings = parse(run.protocol, label=label)
        except ValueError as error_of_format:
            raise InputError(f"{subject.label}: the recording cannot be read: {error_of_format}") from error_of_format
        for recording in recordings:
            kernels.setdefault((recording.kernel, recording.code), []).append(recording)
    if not kernels:
        reason = next((run.error for run in runs if run.error), "no launch uses an mbarrier")
        return list(judge_all([runs_claim(runs)])), [f"nothing could be recorded: {reason}"]
    found = [runs_claim(runs)]
    missing: list[str] = []
    for number, recordings in enumerate(kernels.values()):
        protocol = fit(recordings)
        topic = "pipeline" if len(kernels) == 1 else f"pipeline.kernel-{number}"
        own = claims(protocol, runs, topic=topic)
        found += own
        if not own:
            missing.append(f"no memory of {recordings[0].kernel[:60]} is filled again and guarded by mbarriers")
    return list(judge_all(found, Limits(query_ms=query_ms))), missing
