"""The section of the HTML report about one kernel: what its checks have simulated, modelled and measured, drawn.

Nothing is simulated for it: where a check did not run, the section says what brings it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pytest_nvfp4.bench.peaks import peaks_of
from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.device.result import SimulatedCall, SimulatedLaunch
from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.grid import why_not
from pytest_nvfp4.layout.irtypes import TypeInfo, dtype_bits
from pytest_nvfp4.layout.measures import smem_bytes
from pytest_nvfp4.layout.notation import Layout
from pytest_nvfp4.layout.roles import base_name
from pytest_nvfp4.report.bank_view import bank_chart
from pytest_nvfp4.report.counter_rows import CounterRow, counter_rows
from pytest_nvfp4.report.cta_map import cta_chart
from pytest_nvfp4.report.evidence import Evidence
from pytest_nvfp4.report.memory_maps import shared_chart, shared_left_out, tmem_chart
from pytest_nvfp4.report.model import CheckReport
from pytest_nvfp4.report.roofline_view import TimedPoint, roofline_chart
from pytest_nvfp4.report.source_view import SourceView, source_view
from pytest_nvfp4.report.timeline_view import timeline_chart
from pytest_nvfp4.text import clip, plural, visible
from pytest_nvfp4.toolchain.trace import Trace

_NO_CALL = (
    "No call was simulated: the checks coverage, cost and tmem bring this, with the simulator (--nvfp4-device=sim or "
    "auto)."
)
_NO_MODEL = "No time was modelled: --nvfp4-model, or the setting model-problems, brings this."
_NO_WORK = "The contract states no operations of a call, so that it has no place on a roofline."
_NO_MEASUREMENT = "Nothing was measured: the check benchmark does, on a GPU or with --nvfp4-remote."
_SOURCES = frozenset({".py", ".cu", ".cuh", ".h", ".ptx"})
_MOST_SWIZZLES = 6
_MOST_NAMES = 3
"""Tensors whose stages are alike; with more, a row says nothing."""
_TENSOR = re.compile(r"s[A-Z]\w*")


@dataclass(frozen=True, slots=True)
class Figure:
    """A part of a section: heading, drawings, and a text below them, which stands alone if nothing can be drawn."""

    title: str
    note: str
    drawings: Sequence[Markup] = ()


@dataclass(frozen=True, slots=True)
class CounterTable:
    """The counters of one check: heading, those that changed, and those that did not."""

    title: str
    changed: Sequence[CounterRow]
    same: Sequence[CounterRow]
    compared: bool


@dataclass(frozen=True, slots=True)
class KernelView:
    """The section of one kernel and configuration.

    Attributes:
        name: The kernel, with its configuration.
        subject: The problem and device that the figures are about.
        figures: Its figures.
        source: Its source; None without a simulated call.
        without_source: Why there is no source.
        counters: Counters of its checks.
    """

    name: str
    subject: str
    figures: Sequence[Figure]
    source: SourceView | None
    without_source: str
    counters: Sequence[CounterTable]


def kernel_views(checks: Iterable[CheckReport]) -> list[KernelView]:
    """Return a section for each kernel and configuration of which a check left evidence."""
    found: dict[tuple[str, str], list[CheckReport]] = {}
    for check in checks:
        if check.evidence is not None:
            found.setdefault((check.kernel, check.evidence.configuration), []).append(check)
    return [_view(*key, of_kernel) for key, of_kernel in found.items()]


def _view(kernel: str, configuration: str, checks: Sequence[CheckReport]) -> KernelView:
    every = [check.evidence for check in checks if check.evidence is not None]
    # One problem, the largest that was simulated: the figures belong together, and a page stays small.
    called = max((each for each in every if _is_shown(each.call)), key=lambda each: each.flops, default=None)
    timed = [each for each in every if each.modelled is not None and each.modelled.launches]
    here = [each for each in timed if called is not None and each.problem == called.problem]
    model = max(here or timed, key=lambda each: each.flops, default=None)
    call = None if called is None else called.call
    modelled = None if model is None else model.modelled
    trace = next((each.trace for each in every if each.trace is not None), None)
    fitting = modelled if model is not None and called is not None and model.problem == called.problem else None
    shown = None
    if call is not None and called is not None:
        shown = source_view(call, fitting, own=_own_files(called, trace))
    subject = ""
    if call is not None and called is not None:
        subject = f"One call on {called.problem}, simulated on a model of {call.model} with {call.sms} SMs."
    return KernelView(
        name=f"{kernel} {configuration}".strip(),
        subject=subject,
        figures=[
            _roofline(every),
            _timeline(kernel, model, modelled, otherwise=_no_model(every)),
            _ctas(call),
            _tmem(call, trace),
            _shared(call, trace),
            _swizzles(trace),
        ],
        source=shown,
        without_source=_NO_CALL,
        counters=list(_counters(checks)),
    )


def _is_shown(call: SimulatedCall | None) -> bool:
    return call is not None and bool(call.launches) and call.detailed


def _own_files(evidence: Evidence, trace: Trace | None) -> dict[str, Path]:
    """Return the files of the kernel itself, by the names that sources have.

    The kernel's PTX names the files of its lines, so that no other file may be shown.
    """
    if not evidence.base:
        return {}
    kernel, base = Path(evidence.path).resolve(), Path(evidence.base).resolve()
    others = () if trace is None else (Path(path).resolve() for path in trace.dependencies)
    own = [kernel, *(path for path in others if path.is_relative_to(kernel.parent) and path.suffix in _SOURCES)]
    return {path.relative_to(base).as_posix(): path for path in own if path.is_relative_to(base)}


def _roofline(every: Sequence[Evidence]) -> Figure:
    title = "Roofline"
    known = [each for each in every if each.flops and each.bytes]
    arch = next((each.arch for each in known if each.arch), "")
    peaks = peaks_of(for_arch(arch).name) if arch else None
    if peaks is None:
        if known:
            return Figure(title, "The peak rates of the device are not listed.")
        return Figure(title, _NO_CALL if all(each.call is None for each in every) else _NO_WORK)
    notes = [f"Ceilings are the published peaks: {peaks.math.source}; {peaks.memory.source}."]
    points: dict[tuple[str, str], TimedPoint] = {}
    floors: dict[str, TimedPoint] = {}
    for each in known:
        work = each.flops, each.bytes
        if each.measured is not None and peaks_of(each.measured.device) != peaks:
            notes.append(f"Measured on another device, {each.measured.device}: {each.measured.us:.3g} us.")
        elif each.measured is not None:
            points["measured", each.problem] = TimedPoint("measured", each.problem, each.measured.us, *work)
        if each.modelled is not None and each.modelled.us:
            points["modelled", each.problem] = TimedPoint("modelled", each.problem, each.modelled.us, *work)
        least = max(each.flops / peaks.math.per_second, each.bytes / peaks.memory.per_second) * 1e6
        floors[each.problem] = TimedPoint("at least", each.problem, least, *work)
    for _, problem in points:
        floors.pop(problem, None)
    if not any(how == "modelled" for how, _ in points):
        notes.append(_no_model(every))
    if all(each.measured is None for each in known):
        notes.append(_NO_MEASUREMENT)
    chart = roofline_chart(list(points.values()), list(floors.values()), peaks)
    return Figure(title, " ".join(notes), [chart])


def _no_model(every: Sequence[Evidence]) -> str:
    """Return why there is no modelled time: the model refused the kernel, or no check asked for one."""
    refused = next((each.modelled.refused for each in every if each.modelled is not None and each.modelled.refused), ())
    return f"No time is modelled: {'; '.join(refused)}." if refused else _NO_MODEL


def _timeline(kernel: str, model: Evidence | None, modelled: ModelledCall | None, *, otherwise: str) -> Figure:
    title = "Timeline of the first SM (modelled)"
    if model is None or modelled is None or not modelled.timeline:
        return Figure(title, otherwise)
    chart, left_out = timeline_chart(modelled)
    more = f" {plural(left_out, 'track')} left out." if left_out else ""
    return Figure(
        title,
        f"On {model.problem}: {modelled.us:.3g} us, modelled, not measured.{more} All SMs, with zoom, at "
        f"ui.perfetto.dev: nvfp4 model {kernel} --problem {model.problem} --timeline timeline.pftrace. One warp at a "
        f"time, without a clock: nvfp4 trace {kernel}.",
        [chart],
    )


def _ctas(call: SimulatedCall | None) -> Figure:
    title = "Tiles of C by CTA"
    if call is None:
        return Figure(title, _NO_CALL)
    if not any(output.written for output in call.outputs):
        return Figure(title, "No launch wrote an output that is watched.")
    chart, left_out = cta_chart(call)
    launches = [launch for launch in call.launches if launch.writers]
    waves = max((launch.waves(call.sms) for launch in launches), default=1)
    note = f"{plural(waves, 'wave')} on {call.sms} SMs, in the order of CTA numbers (simulated)."
    return Figure(title, note + (f" Not drawn: {left_out}." if left_out else ""), [chart])


def _tmem(call: SimulatedCall | None, trace: Trace | None) -> Figure:
    title = "TMEM columns over the course of the first CTA"
    if call is None:
        return Figure(title, _NO_CALL)
    launch = next((each for each in call.launches if each.detail is not None and each.detail.columns), None)
    if launch is None or launch.detail is None:
        return Figure(title, "The first CTA uses no TMEM.")
    note = "Simulated; a use is an MMA, a copy, or a load of TMEM."
    if launch.detail.columns_left_out:
        note += f" The first {len(launch.detail.columns)} spans; {launch.detail.columns_left_out} uses follow."
    return Figure(title, note, [tmem_chart(launch.detail, allocated=_allocated(launch, trace))])


def _allocated(launch: SimulatedLaunch, trace: Trace | None) -> int | None:
    columns = next((code.tmem_columns for code in trace.code if code.symbol == launch.kernel), ()) if trace else ()
    return None if not columns or None in columns else sum(each or 0 for each in columns)


def _shared(call: SimulatedCall | None, trace: Trace | None) -> Figure:
    title = "Shared memory of the first CTA by stage"
    if call is None:
        return Figure(title, _NO_CALL)
    launch = max(call.launches, key=lambda each: len(each.detail.shared) if each.detail is not None else 0)
    if launch.detail is None or not launch.detail.shared:
        return Figure(title, "The first CTA has no barriers, and TMA neither fills nor reads its shared memory.")
    left_out = shared_left_out(launch.detail)
    note = (
        "Buffers that TMA and bulk copies fill or read, and mbarriers (simulated); of a short K, few stages are used."
    )
    chart = shared_chart(launch.detail, total=launch.shared_bytes, names=_stage_names(trace))
    return Figure(title, f"{note} {left_out}".strip(), [chart])


def _stage_names(trace: Trace | None) -> dict[int, str]:
    """Return the names of tensors in shared memory by the bytes of one stage, if the size tells them apart."""
    names: dict[int, dict[str, None]] = {}
    for name, info in _shared_tensors(trace):
        size = smem_bytes(info)
        if size is None or not isinstance(info.layout, Layout) or not isinstance(info.layout.shape, tuple):
            continue
        stages = info.layout.shape[-1]
        if isinstance(stages, int) and stages > 0 and size % stages == 0:
            names.setdefault(size // stages, {})[base_name(name)] = None
    return {size: "/".join(known) for size, known in names.items() if len(known) <= _MOST_NAMES}


def _shared_tensors(trace: Trace | None) -> Iterator[tuple[str, TypeInfo]]:
    for value in trace.values if trace is not None else ():
        if "smem" in value.type and _TENSOR.fullmatch(base_name(value.name)):
            try:
                info = parse_type(value.type)
            except LayoutError:
                continue
            if info.space == "smem" and info.family == "memref":
                yield value.name, info


def _swizzles(trace: Trace | None) -> Figure:
    title = "Swizzles by bank"
    if trace is None:
        return Figure(title, "No check of this run compiled the kernel.")
    alike: dict[str, tuple[TypeInfo, dict[str, None]]] = {}
    for name, info in _shared_tensors(trace):
        if info.swizzle is not None and dtype_bits(info.dtype) and why_not(info) is None:
            key = f"{info.layout} {info.swizzle} {info.dtype}"
            alike.setdefault(key, (info, {}))[1][base_name(name)] = None
    if not alike:
        return Figure(title, "No tensor in shared memory with a known name has a swizzle.")
    drawings: list[Markup] = []
    for info, names in alike.values():
        told = f"{', '.join(names)}: {info.dtype}, {info.swizzle} on {info.layout}"
        drawn = bank_chart(info, title=told) if len(drawings) < _MOST_SWIZZLES else None
        if drawn is not None:
            heading = Markup('<p class="mono">{}</p>').format(clip(visible(told), 200))
            drawings.append(heading + drawn[0] + Markup('<p class="muted">{}</p>').format(drawn[1]))
    more = len(alike) - len(drawings)
    note = "Equal layouts are drawn once." + (f" {plural(more, 'further layout')} not drawn." if more else "")
    return Figure(title, note, drawings)


def _counters(checks: Sequence[CheckReport]) -> Iterator[CounterTable]:
    for check in checks:
        if check.counters is not None:
            before, now, history = check.counters
            rows = counter_rows(before, now, history)
            changed = [row for row in rows if row.change] if before else []
            same = [row for row in rows if row not in changed]
            yield CounterTable(check.check, changed, same, bool(before))
