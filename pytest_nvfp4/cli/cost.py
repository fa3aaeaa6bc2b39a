"""``nvfp4 cost``: counts of one call of a kernel from the simulator, beside the floor of a roofline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.call_sides import CallFacts, kernel_of
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import RunOptions, document_options, run_options, timeout_option
from pytest_nvfp4.cli.simulation import Runnable
from pytest_nvfp4.report.document import Block, Document, Facts, Section, Styled
from pytest_nvfp4.temporary import temporary_folder

if TYPE_CHECKING:
    from pytest_nvfp4.bench.roofline import NoRoofline, Roofline
    from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch
    from pytest_nvfp4.device.simulate import SimulationResult
    from pytest_nvfp4.problem import Problem

_FAMILY = "gpumode"
NO_TIME = "counts of what one call does, simulated; none is a time"


@click.command("cost")
@click.argument("kernel")
@click.argument("new", required=False)
@run_options
@click.option("--verify", is_flag=True, help="Judge the result of the counted call too; a wrong one fails.")
@timeout_option(600.0)
@document_options()
def cost_command(
    kernel: str,
    new: str | None,
    *,
    how: RunOptions,
    verify: bool,
    timeout: float,
) -> Document:
    """Count the work of one call of KERNEL, exactly and repeatably, without a GPU; with NEW, compare both.

    The counts are CTAs and waves, bytes and requests of TMA, matrix instructions and padding, shared memory and bank
    conflicts, global sectors against the fewest possible, atomics, barriers, and instructions by warp. None is a time:
    the simulator has no clock. The floor follows from the published peaks of the device and is no measurement.

    KERNEL and NEW are kernels, snapshots of the check cost, or one of them in a git revision, REV:path. Exit code 1 if
    a call fails, or a counter of NEW is larger than that of KERNEL by more than its tolerance.
    """
    if new is not None:
        from pytest_nvfp4.cli import cost_comparison

        return cost_comparison.compare(
            kernel, new, how, lambda subject: _facts(subject, _counted(subject, verify=verify, timeout=timeout))
        )
    with kernel_of(kernel, how) as subject:
        if subject is None:
            raise InputError(f"{kernel}: is a snapshot; name what to compare it with")
        done = _counted(subject, verify=verify, timeout=timeout)
    pairs = list(zip(subject.problems, done, strict=True))
    sections = [_section(subject, problem, run) for problem, run in pairs]
    data = {
        "kernel": subject.label,
        "arch": subject.spec.arch,
        "note": NO_TIME,
        "problems": [_json(subject, problem, run) for problem, run in pairs],
    }
    ok = all(_is_counted(run) for run in done)
    return Document(f"Costs of {subject.label}", sections, data, ok)


def _is_counted(run: SimulationResult) -> bool:
    return run.call is not None and not run.errors and run.status == "passed"


def _facts(subject: Runnable, done: Sequence[SimulationResult]) -> dict[str, CallFacts]:
    from pytest_nvfp4.bench.cost import COUNTS, cost_facts
    from pytest_nvfp4.toolchain.request import installed_dsl_version

    found = {}
    for problem, run in zip(subject.problems, done, strict=True):
        if run.call is None or not _is_counted(run):
            reason = "; ".join(subject.finding_text(finding) for finding in run.errors) or run.status
            found[problem.name] = CallFacts({}, {}, reason)
            continue
        header = {
            "problem": problem.name,
            "model": f"{run.call.model}, {run.call.sms} SMs",
            "counts": COUNTS,
            "dsl": installed_dsl_version() or "",
        }
        found[problem.name] = CallFacts(cost_facts(run.call, problem), header)
    return found


def _counted(subject: Runnable, *, verify: bool, timeout: float) -> list[SimulationResult]:
    """Return the simulated call on each problem. Raises InputError if nothing simulates the architecture."""
    from pytest_nvfp4.device.simulate import simulate

    device = subject.simulator(timeout_s=timeout)
    if (unsupported := device.unsupported(subject.spec.arch)) is not None:
        raise InputError(f"{subject.label}: {unsupported}")
    with temporary_folder("cost") as folder, output.working(f"simulating {subject.label}"):
        return simulate(
            device,
            subject.spec,
            subject.cases(),
            folder=Path(folder),
            base=subject.base,
            deadline_s=timeout,
            outputs=verify,
            origins=verify,
        )


def floor(problem: Problem, arch: str) -> Roofline | NoRoofline:
    """Return the roofline of a problem on the device of an architecture."""
    from pytest_nvfp4.bench.roofline import roofline
    from pytest_nvfp4.device.result import DeviceInfo
    from pytest_nvfp4.driver.device_model import for_arch

    model = for_arch(arch)
    # A simulator has no roofline, so the device is the product itself.
    return roofline(problem, DeviceInfo(name=model.name, capability=model.capability, l2_bytes=model.l2_bytes))


def floor_text(line: Roofline | NoRoofline) -> str:
    """Return the floor as text that cannot be mistaken for a measured time."""
    from pytest_nvfp4.bench.roofline import Roofline

    if not isinstance(line, Roofline):
        return str(line)
    return (
        f"floor on {line.peaks.gpu}: {line.floor_us:.3g} us if the published peaks were reached, bound by {line.term}; "
        "not a measurement"
    )


def _json(subject: Runnable, problem: Problem, result: SimulationResult) -> dict[str, Any]:
    from pytest_nvfp4.bench.cost import as_number, cost_facts
    from pytest_nvfp4.bench.roofline import Roofline

    line, call = floor(problem, subject.spec.arch), result.call
    bound: dict[str, Any] = {"unavailable": str(line)}
    if isinstance(line, Roofline):
        bound = {
            "gpu": line.peaks.gpu,
            "us_if_published_peaks_were_reached": line.floor_us,
            "bound_by": line.term,
            "is_a_measurement": False,
        }
    return {
        "problem": problem.name,
        "sizes": [list(size) for size in problem.sizes],
        "status": result.status,
        "findings": [finding.to_dict() for finding in result.findings],
        "model": call.model if call else None,
        "sms": call.sms if call else None,
        "facts": {name: as_number(text) for name, text in cost_facts(call, problem).items()} if call else {},
        "launches": [launch.model_dump(mode="json", exclude={"detail"}) for launch in call.launches] if call else [],
        "floor": bound,
    }


def _section(subject: Runnable, problem: Problem, done: SimulationResult) -> Section:
    blocks: list[Block] = []
    if done.status != "passed":
        blocks.append(Styled(f"{done.status}:", "bad"))
    blocks += [subject.finding_text(finding) for finding in done.findings]
    if done.call is not None:
        failed = bool(done.errors) or done.status != "passed"
        what = "counts of a call that failed, perhaps before its end; they are no costs" if failed else NO_TIME
        blocks.append(f"simulated on a model of {done.call.model} with {done.call.sms} SMs: {what}")
        blocks += cost_blocks(done.call, problem)
        if not failed:
            blocks.append(floor_text(floor(problem, subject.spec.arch)))
    return Section(f"{subject.label} on {problem.name} ({_sizes(problem)})", blocks)


def _sizes(problem: Problem) -> str:
    groups = [f"{m}x{n}x{k}" + (f"x{batches}" if batches != 1 else "") for m, n, k, batches in problem.sizes]
    return ", ".join(groups[:4]) + (f" and {len(groups) - 4} more groups" if len(groups) > 4 else "")


def cost_blocks(call: SimulatedCall, problem: Problem) -> Iterator[Block]:
    """Yield the costs of a call, one section for each launch."""
    from pytest_nvfp4.bench.cost import flops_of

    flops = flops_of(call, problem)
    if flops.executed:
        yield (
            f"matrix work: {_amount(flops.executed)}FLOP executed, {_amount(flops.useful)}FLOP useful "
            f"({100 * flops.padding:.2f} % padding)"
        )
    yield from launch_sections(call.launches, call.sms)


def launch_sections(
    launches: Sequence[SimulatedLaunch], sms: int, *, names: Sequence[str] | None = None
) -> Iterator[Section]:
    """Yield the counts of each launch, on a device with a number of SMs. ``names`` are the kernels', if known."""
    from pytest_nvfp4.driver.kernel_names import short_kernel

    for index, launch in enumerate(launches):
        name = short_kernel(launch.kernel) if names is None else names[index]
        yield Section(
            f"launch {index} {name}: grid {_dims(launch.grid)}, block {_dims(launch.block)}, "
            f"cluster {_dims(launch.cluster)}, {launch.shared_bytes} B of shared memory",
            [Facts(list(_rows(launch, sms)))],
        )


_SHARED = "{requests} requests, {size}, {conflicts} passes lost to bank conflicts of {wavefronts}"
_MEMORY_ROWS = {
    "tma.load": ("TMA loads", "{requests} requests, {size}"),
    "tma.store": ("TMA stores", "{requests} requests, {size}"),
    "tma.reduce": ("TMA reductions", "{requests} requests, {size}"),
    "bulk.load": ("bulk loads", "{requests} requests, {size}"),
    "bulk.store": ("bulk stores", "{requests} requests, {size}"),
    "cp_async": ("cp.async", "{requests} requests, {size}"),
    "global.load": ("global loads", "{requests} requests, {size} in {sectors} sectors, {sectors_least} at least"),
    "global.store": ("global stores", "{requests} requests, {size} in {sectors} sectors, {sectors_least} at least"),
    "shared.load": ("shared loads", _SHARED),
    "shared.store": ("shared stores", _SHARED),
    "global.atomic": ("global atomics", "{requests} requests, {lanes} lanes"),
    "shared.atomic": ("shared atomics", "{requests} requests, {lanes} lanes"),
}
"""Counter -> label, and text with the counter's parts."""


def _rows(launch: SimulatedLaunch, sms: int) -> Iterator[tuple[str, str]]:
    from pytest_nvfp4.bench.cost import instructions_by_role

    counters = launch.counters
    idle = "" if launch.writers is None else f", {launch.ctas - launch.writers} of them wrote no output"
    waves = launch.waves(sms)
    each = f"{launch.ctas_per_sm} an SM by shared memory, threads and TMEM"
    yield (
        "CTAs",
        f"{launch.ctas} in {launch.clusters} clusters, {waves} wave{'s' * (waves != 1)} on {sms} SMs ({each}){idle}",
    )
    for name, label in (("mma", "MMA"), ("wgmma", "wgmma")):
        if counters.get(f"{name}.instructions"):
            yield label, f"{counters[f'{name}.instructions']} instructions"
    unique = counters.get("tma.load.unique_bytes", 0)
    for name, (label, form) in _MEMORY_ROWS.items():
        if not counters.get(f"{name}.requests"):
            continue
        own = {key.removeprefix(f"{name}."): count for key, count in counters.items() if key.startswith(f"{name}.")}
        values = defaultdict[str, Any](int, own)
        text = form.format_map(values | {"size": f"{_amount(values['bytes'])}B"})
        if name in ("tma.load", "bulk.load") and unique and (times := values["bytes"] / unique) >= 1:
            text += f"; {_amount(unique)}B different, each {times:.2f} times"
        yield label, text
    yield (
        "barriers",
        f"{counters.get('mbarrier.waits', 0)} mbarrier waits, {counters.get('mbarrier.phases', 0)} phases, "
        f"{counters.get('barrier.cta.arrivals', 0)} arrivals at CTA barriers",
    )
    if counters.get("instructions"):  # counted when a CTA ends, which one in a deadlock does not
        roles = instructions_by_role(counters)
        shown = ", ".join(f"{role} {count}" for role, count in roles.items())
        yield "instructions", str(counters["instructions"]) + ("" if roles.keys() == {"nothing"} else f": {shown}")


def _dims(dims: tuple[int, int, int]) -> str:
    return "x".join(map(str, dims))


def _amount(count: int) -> str:
    """Return a number with an SI prefix, such as ``363.3 M``."""
    amount = float(count)
    for prefix in ("", "k", "M", "G", "T"):
        if amount < 1000 or prefix == "T":
            return f"{count} " if not prefix else f"{amount:.1f} {prefix}"
        amount /= 1000
    raise AssertionError("unreachable")
