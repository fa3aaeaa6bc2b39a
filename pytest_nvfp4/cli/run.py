"""``nvfp4 run``: run a kernel once, judge it, and show what it found, printed and did."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.cost import cost_lines
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import arch_of, json_option
from pytest_nvfp4.cli.simulation import Runnable, runnable
from pytest_nvfp4.schedules import WORDS, is_schedule

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.result import DeviceInfo
    from pytest_nvfp4.device.simulate import SimulationResult

_DEVICES = ("auto", "sim", "local")
_FAMILY = "gpumode"
_MOST_FINDINGS = 20


@dataclass(frozen=True)
class _How:
    """What the command line says besides the kernel."""

    families: tuple[str, ...]
    device: str
    trace: Path | None
    trace_ctas: int
    schedule: str
    timeout_s: float


@click.command("run")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option(
    "--problem", "names", multiple=True, metavar="NAME", help="Problem, or a shape MxNxK[,...]; may be repeated."
)
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="Input family (default: gpumode); may be repeated."
)
@click.option("--device", type=click.Choice(_DEVICES), default="auto", show_default=True, help="Where to run it.")
@click.option("--arch", callback=arch_of, metavar="ARCH", help="Architecture, such as sm_100a.")
@click.option("--config", "configuration", metavar="NAME", help="Which of several configurations of the kernel.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a timeline for ui.perfetto.dev, in steps, not time (simulator only; one problem and family).",
)
@click.option(
    "--trace-ctas",
    type=click.IntRange(1, 9999),
    default=4,
    show_default=True,
    help="CTAs of each launch that the timeline shows, from the first.",
)
@click.option(
    "--schedule",
    default="eager",
    show_default=True,
    metavar="NAME",
    help="When the simulator does asynchronous work: eager (when it is issued), lazy (when all warps wait), late-WARP "
    "(that warp runs when no other can), or a seed.",
)
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, show_default=True, help="Seconds it may take.")
@json_option
def run_command(
    kernel: Path,
    *,
    names: tuple[str, ...],
    families: tuple[str, ...],
    device: str,
    arch: str | None,
    configuration: str | None,
    trace: Path | None,
    trace_ctas: int,
    schedule: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Run KERNEL once on each problem and input family, and judge its outputs exactly.

    On the simulator the compiled PTX is executed on the CPU: memory accesses, synchronisation and the use of the
    hardware are checked too, and what the kernel did is counted. auto takes a GPU of this machine that fits the
    kernel, else the simulator; with --trace or --schedule, the simulator.
    """
    how = _How(families or (_FAMILY,), device, trace, trace_ctas, schedule, timeout)
    _check_families(how.families)
    if not is_schedule(schedule):
        raise InputError(f"--schedule {schedule!r} must be {WORDS}")
    if schedule != "eager" and device == "local":
        raise InputError("--schedule is for the simulator: a GPU has its own")
    subject = runnable(kernel, names, arch=arch, configuration=configuration, simulated=False)
    if trace is not None and len(subject.problems) * len(how.families) > 1:
        raise InputError("--trace is for one run: name one --problem and one --family")
    if trace is not None and device == "local":
        raise InputError("--trace needs the simulator: a GPU does not say what it does step by step")
    with tempfile.TemporaryDirectory(prefix="nvfp4-run-") as name:
        where = _device(subject, how, Path(name))
        with output.working(f"running {subject.label} on {where.name}"):
            done = _run(subject, how, where, Path(name) / "jobs")
    if trace is not None:
        _write_trace(trace, done[0])
    if as_json:
        output.write_json(_json(subject, where, done))
    else:
        output.write("\n".join(line for one in done for line in _lines(subject, one)) + "\n")
    if any(one.status != "passed" for one in done):
        raise click.exceptions.Exit(Exit.FAILED)


def _check_families(names: Sequence[str]) -> None:
    from pytest_nvfp4.numerics.families import FAMILIES

    for name in names:
        if name not in FAMILIES:
            raise InputError(f"--family {name!r}: known are {', '.join(FAMILIES)}")


def _device(subject: Runnable, how: _How, folder: Path) -> Device:
    """The device. Raises InputError if there is none that can run the kernel."""
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.select import select
    from pytest_nvfp4.device.sim import SimDevice

    arch = subject.spec.arch
    sim = SimDevice(arch=arch)
    if how.device == "sim" or how.trace is not None or how.schedule != "eager":
        found: Device = sim
    else:
        try:
            found = select(how.device, folder=folder)
            if found.name == "sim" or (how.device == "auto" and found.unsupported(arch) is not None):
                found = sim
        except DeviceUnavailableError as error:
            if how.device != "auto":
                raise InputError(str(error)) from error
            found = sim
    unsupported = found.unsupported(arch)
    if unsupported is not None:
        raise InputError(f"{subject.label}: {unsupported}")
    return found


def _run(subject: Runnable, how: _How, device: Device, folder: Path) -> list[SimulationResult]:
    from pytest_nvfp4.device.simulate import SimulationResult, simulate

    cases = subject.cases(how.families)
    if device.name == "sim":
        return simulate(
            device,
            subject.spec,
            cases,
            folder=folder,
            base=subject.base,
            deadline_s=how.timeout_s,
            outputs=True,
            trace_ctas=how.trace_ctas if how.trace is not None else 0,
            schedule=how.schedule,
        )
    from pytest_nvfp4.device.verify import Verifier

    done = Verifier(device, folder=folder, deadline_s=how.timeout_s).verify(subject.spec, cases, base=subject.base)
    return [
        SimulationResult(
            verdict.case, verdict.status, tuple(verdict.findings), None, done.device, done.stdout, done.stderr
        )
        for verdict in done.verdicts
    ]


def _write_trace(file: Path, one: SimulationResult) -> None:
    if one.trace is None:
        output.note(f"{file} was not written: the kernel did not come to a launch")
        return
    output.write_file(file, one.trace)
    output.note(f"{file}: open it at https://ui.perfetto.dev; it counts steps of the simulator, not time")


def _json(subject: Runnable, device: Device, done: Sequence[SimulationResult]) -> dict[str, Any]:
    return {
        "kernel": subject.label,
        "arch": subject.spec.arch,
        "device": device.name,
        "runs": [
            {
                "problem": one.case.problem.name,
                "family": one.case.family,
                "status": one.status,
                "device": one.device.model_dump(mode="json") if one.device is not None else None,
                "findings": [finding.to_dict() for finding in one.findings],
                "printed": one.call.printed if one.call is not None else "",
                "stdout": one.stdout,
                "stderr": one.stderr,
                "launches": [launch.model_dump(mode="json") for launch in one.call.launches] if one.call else [],
                "outputs": [written.model_dump(mode="json") for written in one.call.outputs] if one.call else [],
            }
            for one in done
        ],
    }


def _lines(subject: Runnable, one: SimulationResult) -> Iterator[str]:
    problem = one.case.problem.problem()
    yield f"{subject.label} on {problem.name} with inputs {one.case.family!r}: {one.status}{_on(one.device)}"
    for finding in one.findings[:_MOST_FINDINGS]:
        yield from (f"  {line}" for line in subject.say(finding).splitlines())
    if len(one.findings) > _MOST_FINDINGS:
        yield f"  and {len(one.findings) - _MOST_FINDINGS} more findings"
    if one.call is not None:
        yield from _printed("the kernel printed", one.call.printed)
    yield from _printed("its host code printed", one.stdout)
    if one.status != "passed":
        yield from _printed("it wrote to stderr", one.stderr)
    if one.call is not None:
        yield from cost_lines(one.call, problem)


def _on(device: DeviceInfo | None) -> str:
    if device is None:
        return ", no device answered"
    return f", simulated on a model of {device.name}" if device.simulated else f", run on {device}"


def _printed(what: str, text: str) -> Iterator[str]:
    if text.strip():
        yield f"  {what}:"
        yield from (f"    {line}" for line in text.rstrip("\n").splitlines())
