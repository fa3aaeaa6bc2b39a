"""``nvfp4 run``: run a kernel once and check its outputs; show findings, printed text and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.cost import cost_blocks
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions, document_options, run_options, timeout_option
from pytest_nvfp4.cli.run_source import SUFFIXES, SourceOptions, run_source_file, source_options
from pytest_nvfp4.cli.simulation import Runnable, runnable
from pytest_nvfp4.contracts.registry import contract_named, is_own
from pytest_nvfp4.report.document import Block, Document, Section, Styled
from pytest_nvfp4.schedules import WORDS, is_schedule
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.result import DeviceInfo
    from pytest_nvfp4.device.simulate import SimulationResult

_DEVICES = ("auto", "sim", "local")
_FAMILY = "gpumode"
_MAX_FINDINGS = 20


@dataclass(frozen=True)
class _How:
    """Options of the command besides the kernel."""

    families: tuple[str, ...]
    device: str
    trace: Path | None
    trace_ctas: int
    schedule: str
    timeout_s: float
    races: bool
    race_warnings: bool

    @property
    def simulates(self) -> bool:
        """Whether an option needs the simulator."""
        return self.trace is not None or self.schedule != "eager" or self.races


@click.command("run")
@click.argument("kernel", type=click.Path(path_type=Path))
@run_options
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="Input family; may be repeated.  [default: gpumode]"
)
@click.option("--device", type=click.Choice(_DEVICES), default="auto", show_default=True, help="Device to run on.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a timeline for ui.perfetto.dev, in steps, not time; simulator only, for one problem and family.",
)
@click.option(
    "--trace-ctas",
    type=click.IntRange(1, 9999),
    default=4,
    show_default=True,
    help="Number of CTAs of each launch in the timeline.",
)
@click.option(
    "--schedule",
    default="eager",
    show_default=True,
    metavar="NAME",
    help="Schedule of the simulator's asynchronous work: eager (at issue), lazy (when all warps wait), late-WARP "
    "(that warp runs only when no other can), or a seed.",
)
@click.option("--races", is_flag=True, help="Search for races too; simulator only.")
@click.option("--race-warnings", is_flag=True, help="As --races, and report what official kernels omit.")
@timeout_option(600.0)
@source_options
@document_options()
def run_command(
    kernel: Path,
    *,
    how: RunOptions,
    families: tuple[str, ...],
    device: str,
    trace: Path | None,
    trace_ctas: int,
    schedule: str,
    races: bool,
    race_warnings: bool,
    timeout: float,
    source: SourceOptions,
) -> Document:
    """Run KERNEL once on each problem and input family, and check its outputs exactly.

    Of a CUDA C++ or PTX file (.cu, .ptx), one launch with the given grid, block and arguments is simulated, without
    host code. NVRTC compiles it; nvcc does if it has host code, too.

    The simulator executes the compiled PTX on the CPU; it also checks memory accesses, synchronisation and the use of
    the hardware, and counts the kernel's work. auto selects a GPU of this machine that fits the kernel, else the
    simulator; with --trace, --schedule or --races, the simulator.
    """
    if kernel.suffix in SUFFIXES:
        for_python = how.names or how.configuration is not None or families or trace is not None
        if for_python or device == "local":
            raise InputError(
                f"{kernel}: --problem, --family, --config, --trace and --device local are for a Python file"
            )
        return run_source_file(
            kernel,
            source,
            arch=how.arch,
            compile_options=how.compile_options,
            races=races or race_warnings,
            race_warnings=race_warnings,
            schedule=schedule,
            timeout_s=timeout,
        )
    if given := source.given():
        raise InputError(f"{given[0]} is for a CUDA C++ or PTX file ({', '.join(SUFFIXES)}), and {kernel} is none")
    plan = _How(
        families or (_FAMILY,), device, trace, trace_ctas, schedule, timeout, races or race_warnings, race_warnings
    )
    if not is_schedule(schedule):
        raise InputError(f"--schedule {schedule!r} must be {WORDS}")
    if schedule != "eager" and device == "local":
        raise InputError("--schedule needs the simulator: a GPU has its own schedule; give --device sim")
    if plan.races and device == "local":
        raise InputError("--races needs the simulator, which sees every access: give --device sim")
    subject = runnable(kernel, how, simulated=False)
    _check_families(subject, families)
    if trace is not None and len(subject.problems) * len(plan.families) > 1:
        raise InputError("--trace shows one run: name one --problem and one --family")
    if trace is not None and device == "local":
        raise InputError("--trace needs the simulator, which records every step: give --device sim")
    with temporary_folder("run") as name:
        where = _device(subject, plan, Path(name))
        with output.working(f"running {subject.label} on {where.name}"):
            done = _run(subject, plan, where, Path(name) / "jobs")
    if trace is not None:
        _write_trace(trace, done[0])
    shown: dict[str, str] = {}
    sections = [_section(subject, run, shown) for run in done]
    passed = all(run.status == "passed" for run in done)
    return Document(f"{subject.label} on {where.name}", sections, _json(subject, where, done), passed)


def _check_families(subject: Runnable, names: Sequence[str]) -> None:
    """Raise InputError if a family is none of the kernel's contract."""
    from pytest_nvfp4.numerics.families import FAMILIES

    contract = subject.problems[0].contract
    known = tuple(contract_named(contract).families()) if is_own(contract) else tuple(FAMILIES)
    for name in names:
        if name not in known:
            raise InputError(f"--family {name!r} does not exist; families are {', '.join(known)}")


def _device(subject: Runnable, how: _How, folder: Path) -> Device:
    """Return the device. Raises InputError if no device can run the kernel."""
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.select import select

    arch, found = subject.spec.arch, None
    if how.device != "sim" and not how.simulates:
        try:
            found = select(how.device, folder=folder)
        except DeviceUnavailableError as error:
            if how.device != "auto":
                raise InputError(str(error)) from error
    if found is None or found.name == "sim" or (how.device == "auto" and found.unsupported(arch) is not None):
        found = subject.simulator(timeout_s=how.timeout_s)
    unsupported = found.unsupported(arch)
    if unsupported is not None:
        raise InputError(f"{subject.label}: {unsupported}")
    return found


def _run(subject: Runnable, how: _How, device: Device, folder: Path) -> list[SimulationResult]:
    from pytest_nvfp4.device.cause_search import explained
    from pytest_nvfp4.device.simulate import SimulationResult, simulate

    cases = subject.cases(how.families)
    if device.name == "sim":
        call = partial(
            simulate,
            device,
            subject.spec,
            folder=folder,
            base=subject.base,
            deadline_s=how.timeout_s,
            schedule=how.schedule,
        )
        done = call(
            cases,
            outputs=True,
            trace_ctas=how.trace_ctas if how.trace is not None else 0,
            races=how.races,
            race_warnings=how.race_warnings,
        )
        return [
            replace(one, findings=tuple(findings)) for one, findings in zip(done, explained(done, call), strict=True)
        ]
    from pytest_nvfp4.device.verify import Verifier

    verified = Verifier(device, folder=folder, deadline_s=how.timeout_s).verify(subject.spec, cases, base=subject.base)
    return [
        SimulationResult(
            verdict.case,
            verdict.status,
            tuple(verdict.findings),
            None,
            verified.device,
            verified.stdout,
            verified.stderr,
        )
        for verdict in verified.verdicts
    ]


def _write_trace(file: Path, result: SimulationResult) -> None:
    if result.trace is None:
        output.note(f"{file} was not written: the kernel launched nothing")
        return
    output.write_file(file, result.trace)
    output.note(f"{file}: open it at https://ui.perfetto.dev; it counts steps of the simulator, not time")


def _json(subject: Runnable, device: Device, done: Sequence[SimulationResult]) -> dict[str, Any]:
    return {
        "kernel": subject.label,
        "arch": subject.spec.arch,
        "device": device.name,
        "runs": [
            {
                "problem": run.case.problem.name,
                "family": run.case.family,
                "status": run.status,
                "device": run.device.model_dump(mode="json") if run.device is not None else None,
                "findings": [finding.to_dict() for finding in run.findings],
                "printed": run.call.printed if run.call is not None else "",
                "stdout": run.stdout,
                "stderr": run.stderr,
                "launches": [launch.model_dump(mode="json", exclude={"detail"}) for launch in run.call.launches]
                if run.call
                else [],
                "outputs": [
                    written.model_dump(mode="json", exclude={"written", "size"}) for written in run.call.outputs
                ]
                if run.call
                else [],
            }
            for run in done
        ],
    }


def _section(subject: Runnable, result: SimulationResult, shown: dict[str, str]) -> Section:
    """Return what one run shows.

    Args:
        subject: The kernel.
        result: The run.
        shown: The earlier run that showed a finding, by `Finding.identity`; later runs show its first line.
    """
    problem = result.case.problem.problem()
    where = f"on {problem.name} with inputs {result.case.family!r}"
    title = f"{subject.label} {where}: {result.status}{_on(result.device)}"
    blocks: list[Block] = []
    for finding in result.findings[:_MAX_FINDINGS]:
        text = subject.finding_text(finding)
        earlier = shown.setdefault(finding.identity, where)
        blocks.append(text if earlier == where else f"as {earlier}: {text.partition(chr(10))[0]}")
    if len(result.findings) > _MAX_FINDINGS:
        blocks.append(f"and {len(result.findings) - _MAX_FINDINGS} more findings")
    if result.call is not None:
        blocks += _printed("the kernel printed", result.call.printed)
    blocks += _printed("its host code printed", result.stdout)
    if result.status != "passed":
        blocks += _printed("it wrote to stderr", result.stderr)
    if result.call is not None:
        blocks += cost_blocks(result.call, problem)
    return Section(Styled(title, "good" if result.status == "passed" else "bad"), blocks)


def _on(device: DeviceInfo | None) -> str:
    if device is None:
        return ", without a device"
    return f", simulated on a model of {device.name}" if device.simulated else f", run on {device}"


def _printed(title: str, text: str) -> Iterator[Section]:
    if text.strip():
        yield Section(f"{title}:", [text.rstrip("\n")])
