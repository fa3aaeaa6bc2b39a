"""What a profile shows: the verdict first, then the tools that were tried, and the figures of the last one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_nvfp4.profile.metrics import METRICS
from pytest_nvfp4.profile.readers.durations import SECTION
from pytest_nvfp4.profile.result import Profile, ProfiledLaunch
from pytest_nvfp4.report.document import Block, Cell, Column, Facts, Items, Section, Styled, Table
from pytest_nvfp4.text import clip, plural

MOST_SHOWN = 10
"""Launches, rules and lines that are shown; JSON has all of them."""
_NAME = 100
_STATES = {"ran": "ran", "unavailable": "unavailable", "failed": "failed", "timeout": "timed out"}


def profile_section(profile: Profile, title: str) -> Section:
    """Return a profile for readers."""
    return Section(Styled(title, "strong"), list(_blocks(profile)))


def _blocks(profile: Profile) -> Iterator[Block]:
    verdict = profile.verdict
    if verdict is not None:
        text = f"the kernel: {verdict.status}" + (f": {verdict.because}" if verdict.because else "")
        yield Styled(text, "good" if verdict.status == "passed" else "bad")
    yield from _tools(profile)
    facts: list[tuple[str, Cell]] = []
    if profile.device is not None:
        facts.append(("GPU", _device(profile)))
    if profile.configuration is not None and profile.configuration.problem:
        facts.append(("problem", profile.configuration.problem))
    if facts:
        yield Facts(facts)
    if profile.defects:
        yield _defects(profile)
    elif profile.tool is not None and profile.tool.tool == "sanitizer" and not profile.notes:
        yield Styled("no defect was found", "good")
    for launch in profile.launches[:MOST_SHOWN]:
        yield launch_section(launch)
    if len(profile.launches) > MOST_SHOWN:
        yield f"and {plural(len(profile.launches) - MOST_SHOWN, 'more launch', 'more launches')}; --kernel selects some"
    if profile.ranges:
        columns = [Column("NVTX range", code=True), Column("times", right=True), Column("total", unit="us", right=True)]
        rows = [(one.name, one.instances, str(one.total_us).removesuffix(" us")) for one in profile.ranges[:MOST_SHOWN]]
        yield Table(columns, rows)
    if profile.notes:
        yield Items([clip(note, 400) for note in profile.notes[:MOST_SHOWN]])


def _tools(profile: Profile) -> Iterator[Block]:
    for run in profile.attempts:
        version = f" {run.version}" if run.version else ""
        because = f": {run.because}" if run.because else ""
        if run.state != "ran" or len(profile.attempts) > 1:
            text = f"{run.tool}{version}: {_STATES[run.state]}{because}"
            yield Styled(text, "muted" if run.state == "ran" else "warning")
    if profile.attempts and profile.tool is None:
        yield Styled("no tool ran, so nothing was measured", "bad")


def _device(profile: Profile) -> str:
    device = profile.device
    assert device is not None
    parts = [device.name]
    if device.capability is not None:
        parts.append(f"sm_{device.capability[0]}{device.capability[1]}")
    parts += [f"driver {device.driver}"] if device.driver else []
    parts += [f"SM clock {device.sm_mhz:.0f} MHz"] if device.sm_mhz else []
    return ", ".join(parts)


def launch_section(launch: ProfiledLaunch) -> Section:
    """Return one launch: known metrics with units, stalls, rules of the tool, and source lines."""
    shape = [
        f"{name} {'x'.join(map(str, extents))}"
        for name, extents in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster))
        if extents is not None
    ]
    several = f" ({launch.instances} launches)" if launch.instances > 1 else ""
    blocks: list[Block] = [", ".join(shape)] if shape else []
    blocks.append(Table([Column("metric"), Column("value", right=True)], list(_metrics(launch)), heading=False))
    if SECTION not in launch.sections and (unknown := _unknown(launch)):  # a timeline has no counters at all
        blocks.append(Styled(f"unknown: {unknown}", "muted"))
    stalls = sorted(
        ((one.value, reason) for reason, one in launch.stalls.items() if one.value), key=lambda item: -item[0]
    )
    if stalls:
        text = ", ".join(f"{reason} {value:.2f}" for value, reason in stalls[:5])
        blocks.append(f"warps stalled for each issued instruction: {text}")
    advice = sorted(
        (rule for rule in launch.rules if rule.kind != "message"), key=lambda rule: -(rule.speedup_pct or 0)
    )
    if advice:
        blocks.append(Items([_advice(rule.name, rule.text, rule.speedup_pct, rule.scope) for rule in advice[:5]]))
    if launch.lines:
        columns = [Column("line", code=True), Column("samples", right=True), Column("mostly")]
        rows = [
            (f"{Path(line.file).name}:{line.line}", line.samples, next(iter(line.stalls), ""))
            for line in launch.lines[:MOST_SHOWN]
        ]
        blocks.append(Table(columns, rows))
    if launch.markers:
        blocks.append(
            Items([f"{Path(one.file).name}:{one.line}: {clip(one.text, 300)}" for one in launch.markers[:MOST_SHOWN]])
        )
    return Section(f"{clip(launch.name, _NAME)}{several}", blocks)


def _metrics(launch: ProfiledLaunch) -> Iterator[Sequence[Cell]]:
    for known in METRICS:
        metric = launch.metric(known.name)
        if metric.value is not None:
            yield known.title, str(metric)
    for section in launch.sections.values():
        if not launch.counters and launch.instances > 1:
            yield from ((name, str(metric)) for name, metric in section.items() if metric.value is not None)


def _unknown(launch: ProfiledLaunch) -> str:
    return ", ".join(known.title for known in METRICS if launch.metric(known.name).value is None)


def _advice(name: str, text: str, speedup: float | None, scope: str) -> str:
    gain = f"[{speedup:.0f} % {scope}] ".replace("  ", " ") if speedup else ""
    return f"{gain}{name}: {clip(' '.join(text.split()), 400)}"


def _defects(profile: Profile) -> Block:
    texts = []
    for defect in profile.defects[:MOST_SHOWN]:
        place = f"{defect.file}:{defect.line}: " if defect.file and defect.line else ""
        times = f" ({defect.count} times)" if defect.count > 1 else ""
        where = f" in {clip(defect.kernel, _NAME)}" if defect.kernel else ""
        texts.append(f"{place}{defect.severity}: {clip(defect.text, 500)}{where}{times}")
    if len(profile.defects) > MOST_SHOWN:
        texts.append(f"and {plural(len(profile.defects) - MOST_SHOWN, 'more defect')}")
    return Items(texts)
