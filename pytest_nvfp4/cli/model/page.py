"""Document of modelled times: text and tables for readers, plain data for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.device.modelled import ModelledCall, ModelledLaunch
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.report.document import Block, Cell, Column, Facts, Items, Section, Styled, Table

if TYPE_CHECKING:
    from pytest_nvfp4.finding import Finding

NO_MEASUREMENT = (
    "Every time here is modelled: the launches of one simulated call, replayed on a table of the device's constants. "
    "Nothing was run on a GPU."
)
_PARTS_SHOWN = 20
_WAITS_SHOWN = 8
SUMMARY = (
    Column("problem", key="problem"),
    Column("device", key="device"),
    Column("modelled", "us", right=True, key="modelled_us"),
    Column("at least", "us", right=True, key="low_us"),
    Column("at most", "us", right=True, key="high_us"),
    Column("bound by", key="bound"),
    Column("status", key="status"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A what-if question, and its modelled time, or why the change is not possible."""

    question: str
    us: float | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Modelled:
    """The kernel on one problem.

    Attributes:
        problem: Name of the problem.
        call: Its modelled time, or why there is none; None if the simulation failed.
        answers: What-if answers.
        findings: What the simulation found.
        status: Status of the simulation.
    """

    problem: str
    call: ModelledCall | None
    answers: Sequence[Answer]
    findings: Sequence[Finding]
    status: str

    @property
    def ok(self) -> bool:
        """Whether there is a modelled time."""
        return self.call is not None and not self.call.refused

    @property
    def verdict(self) -> str:
        """``modelled``, ``refused``, or the status of a simulation that failed."""
        if self.call is None:
            return self.status
        return "refused" if self.call.refused else "modelled"


def micro(us: float) -> str:
    """Return a time in microseconds with three digits."""
    return f"{us:.0f}" if us >= 999.5 else f"{us:.3g}"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %" if share >= 0.095 or not share else f"{100 * share:.1f} %"


def summary(done: Sequence[Modelled]) -> Table:
    """Return one line for each problem."""
    return Table(SUMMARY, [_summary_row(each) for each in done])


def _summary_row(each: Modelled) -> list[Cell]:
    call = each.call
    if call is None or call.refused:
        return [each.problem, call.device if call else None, None, None, None, None, Styled(each.verdict, "bad")]
    band = call.band
    low, high = (None, None) if band is None else band.around(call.us)
    bound = ", ".join(dict.fromkeys(launch.bound for launch in call.launches))
    return [
        each.problem,
        call.device,
        micro(call.us),
        micro(low) if low is not None else None,
        micro(high) if high is not None else None,
        bound,
        each.verdict,
    ]


def headline(call: ModelledCall) -> str:
    """Return the modelled time with its band in one sentence."""
    band = call.band
    first = f"modelled {micro(call.us)} us on {call.title} ({call.conditions})"
    if band is None:
        return f"{first}; no band: {call.without_band}, so only compare modelled times with each other"
    low, high = band.around(call.us)
    errors = f"{percent(band.p90)} (median {percent(band.median)}, worst {percent(band.worst)}; {band.times})"
    return (
        f"{first}; {micro(low)} to {micro(high)} us: of {band.points} measured times of a {call.kind}, 90 % were "
        f"modelled within {errors}"
    )


def section(each: Modelled, title: str, findings: Sequence[str]) -> Section:
    """Return everything about one problem."""
    call = each.call
    blocks: list[Block] = [*findings]
    if call is None:
        blocks.insert(0, Styled(f"no time is modelled: the simulation {each.status}", "bad"))
    elif call.refused:
        blocks.append(Styled("no time is modelled:", "bad"))
        blocks.append(Items(call.refused))
    else:
        blocks.append(Styled(headline(call), "strong"))
        blocks.append(call.table_text)
        for index, launch in enumerate(call.launches):
            blocks.append(_launch(index, launch))
        if each.answers:
            blocks.append(Section("what if (modelled by replay)", [_answers(each.answers, call.us)]))
    return Section(title, blocks)


def _launch(index: int, launch: ModelledLaunch) -> Section:
    ctas = f"{launch.ctas} CTA" if launch.ctas == 1 else f"{launch.ctas} CTAs"
    return Section(
        f"launch {index} {short_kernel(launch.kernel)}: {ctas}, modelled {micro(launch.us)} us",
        [
            Facts(list(_times(launch))),
            Section("where the time goes (modelled critical path)", [_path(launch)]),
            *([Section("waits on that path", [_waits(launch)])] if launch.waits else []),
            Section("how busy the units are (modelled)", [_busy(launch)]),
            *([Section("assumed", [Items(launch.notes)])] if launch.notes else []),
        ],
    )


def _times(launch: ModelledLaunch) -> Iterator[tuple[str, Cell]]:
    yield "bound by", launch.bound
    yield "launch", f"{micro(launch.launch_us)} us before the first CTA starts"
    yield "kernel", f"{micro(launch.kernel_us)} us"
    yield (
        "fill",
        f"{micro(launch.fill_us)} us of it, until the median SM starts to multiply (or to copy, if nothing multiplies)",
    )
    yield "drain", f"{micro(launch.drain_us)} us, after the median SM has multiplied"
    yield "tail", f"{micro(launch.tail_us)} us, in which some SMs have no CTA left"
    yield "waves", f"{launch.waves:.3g}"


def _path(launch: ModelledLaunch) -> Table:
    whole = sum(part.us for part in launch.path) or 1.0
    rows: list[list[Cell]] = [
        [micro(part.us), percent(part.us / whole), part.role or "-", part.cause, part.source or "-"]
        for part in launch.path[:_PARTS_SHOWN]
    ]
    if rest := launch.path[_PARTS_SHOWN:]:
        us = sum(part.us for part in rest)
        rows.append([micro(us), percent(us / whole), "-", f"{len(rest)} further parts", "-"])
    columns = (
        Column("time", "us", right=True),
        Column("share", right=True),
        Column("warps"),
        Column("spent on"),
        Column("line", code=True),
    )
    return Table(columns, rows)


def _waits(launch: ModelledLaunch) -> Table:
    columns = (Column("times", right=True), Column("warps"), Column("line", code=True))
    return Table(columns, [[str(each.count), each.role or "-", each.source] for each in launch.waits[:_WAITS_SHOWN]])


def _busy(launch: ModelledLaunch) -> Table:
    columns = (Column("unit"), Column("busiest SM", right=True), Column("mean", right=True))
    ordered = sorted(launch.busy, key=lambda unit: -unit.busiest)
    return Table(columns, [[unit.unit, percent(unit.busiest), percent(unit.mean)] for unit in ordered])


def _answers(answers: Sequence[Answer], us: float) -> Table:
    columns = (Column("change"), Column("modelled", "us", right=True), Column("difference", right=True))
    rows: list[list[Cell]] = [
        [f"{each.question}: not possible, {each.refused}", None, None]
        if each.us is None
        else [each.question, micro(each.us), f"{100 * (each.us / us - 1):+.1f} %"]
        for each in answers
    ]
    return Table(columns, rows)


def as_data(each: Modelled) -> dict[str, Any]:
    """Return everything about one problem as JSON-ready values."""
    call, band = each.call, each.call.band if each.call is not None else None
    data: dict[str, Any] = {
        "problem": each.problem,
        "status": each.verdict,
        "is_a_measurement": False,
        "findings": [finding.to_dict() for finding in each.findings],
    }
    if call is None:
        return data
    data |= call.model_dump(mode="json", exclude={"timeline"})
    data["table_is_shipped"] = call.shipped
    data["modelled_us"] = None if call.refused else call.us
    data["band"] = None
    if band is not None and not call.refused:
        low, high = band.around(call.us)
        data["band"] = {
            "low_us": low,
            "high_us": high,
            "points": band.points,
            "median": band.median,
            "p90": band.p90,
            "worst": band.worst,
            "times": band.times,
        }
    data["what_if"] = [
        {"change": answer.question, "modelled_us": answer.us, "not_possible": answer.refused} for answer in each.answers
    ]
    return data
