"""Baselines of tests: rounds that pytest-benchmark loads for ``--benchmark-compare``, paired with new rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_nvfp4.bench.mark import EXTRA_KEY, TIMER_NAME
from pytest_nvfp4.bench.provenance import Aspect, Provenance, ProvenanceError, differences, refusals
from pytest_nvfp4.bench.regression import ShapeRounds

if TYPE_CHECKING:
    import pytest


_SHORTEST_S, _LONGEST_S = 1e-9, 1e6
"""Bounds of a plausible round: a tick of a GPU's clock, and eleven days."""


class BaselineError(ValueError):
    """A stored benchmark that cannot serve as a baseline."""


class IncomparableError(BaselineError):
    """A baseline that was measured under other conditions."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Stored rounds of a test.

    Attributes:
        nodeid: Node id of the test.
        source: The stored file.
        rounds_us: Device time of each round, in microseconds.
        provenance: How they were measured.
    """

    nodeid: str
    source: str
    rounds_us: tuple[float, ...]
    provenance: Provenance


def read_baseline(entry: Mapping[str, Any], *, nodeid: str, source: str) -> Baseline:
    """Read one stored benchmark.

    Args:
        entry: The benchmark as pytest-benchmark stores it.
        nodeid: Node id of the test.
        source: The stored file.

    Raises:
        BaselineError: It was not measured on a device by this plugin, or has no rounds.
    """
    where = f"{source}: the baseline of {nodeid}"
    save = "save a new one with --benchmark-autosave"
    timer = _within(entry, "options").get("timer")
    extra = _within(entry, "extra_info").get(EXTRA_KEY)
    if timer != TIMER_NAME:
        raise BaselineError(f"{where} is not a device time: its timer is {timer!r}, not {TIMER_NAME!r}; {save}")
    if extra is None:
        raise BaselineError(f"{where} has no provenance (key {EXTRA_KEY!r} of its extra_info); {save}")
    try:
        provenance = Provenance.read(extra)
    except ProvenanceError as error:
        raise BaselineError(f"{where}: {error}; {save}") from error
    data = _within(entry, "stats").get("data")
    if not isinstance(data, list) or not data:
        raise BaselineError(f"{where} holds statistics without rounds; {save} --benchmark-save-data")
    if (damaged := next((index for index, time in enumerate(data) if not _is_time(time)), None)) is not None:
        raise BaselineError(f"{where} is damaged: round {damaged} is not a time in seconds; {save}")
    return Baseline(nodeid, source, tuple(time * 1e6 for time in data), provenance)


def _within(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a stored entry; empty if it is missing or no mapping."""
    part = entry.get(name)
    return part if isinstance(part, Mapping) else {}


def _is_time(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and _SHORTEST_S <= value <= _LONGEST_S


def baseline_rounds(config: pytest.Config, nodeid: str) -> Baseline | None:
    """Return the baseline of a test from the latest compared file that has it; None without one.

    Raises:
        BaselineError: The baseline cannot be used.
    """
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    compared = getattr(session, "compared_mapping", None) or {}
    having = [path for path, entries in compared.items() if nodeid in entries]
    if not having:
        return None
    latest = max(having, key=lambda path: (path.name, str(path)) if hasattr(path, "name") else (str(path), ""))
    return read_baseline(compared[latest][nodeid], nodeid=nodeid, source=str(latest))


@dataclass(frozen=True, slots=True)
class Comparable:
    """Rounds that may be compared, and differences of the two sides that do not prevent it."""

    rounds: ShapeRounds
    notes: tuple[str, ...]


def against(
    baseline: Baseline,
    *,
    rounds_us: Collection[float],
    provenance: Provenance,
    name: str,
    noise: float | None = None,
    threshold: float | None = None,
    allow: Collection[Aspect] = (),
) -> Comparable:
    """Pair new rounds with their baseline for ``regression.compare``.

    Args:
        baseline: The stored rounds.
        rounds_us: The new rounds, in microseconds.
        provenance: How the new rounds were measured.
        name: Name of the shape in the verdict.
        noise: Measured noise between sessions on such a device, as a share; None if not measured.
        threshold: Least change that matters for this shape, as a share.
        allow: Aspects in which the two may differ.

    Raises:
        IncomparableError: They differ in an aspect that is not allowed.
    """
    if reasons := refusals(baseline.provenance, provenance, allow=allow):
        raise IncomparableError(
            f"{name} cannot be compared with {baseline.source}: {'; '.join(reasons)}; compare with a baseline of the "
            "same conditions, or save a new one with --benchmark-autosave"
        )
    before, now = baseline.provenance.clock_mhz, provenance.clock_mhz
    rounds = ShapeRounds(
        name=name,
        baseline=baseline.rounds_us,
        current=tuple(rounds_us),
        noise=noise,
        threshold=threshold,
        clocks_mhz=(before, now) if before and now else None,
    )
    notes = differences(baseline.provenance, provenance)
    if provenance.kernel_sha256 is not None and provenance.kernel_sha256 == baseline.provenance.kernel_sha256:
        notes.append("the kernel's files are those of the baseline, byte for byte")
    return Comparable(rounds, tuple(notes))
