"""A test's baseline: rounds that pytest-benchmark loaded for ``--benchmark-compare``, and what they compare with."""

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
"""A tick of a GPU's clock is a nanosecond or more, and nobody waits for eleven days."""


class BaselineError(ValueError):
    """A stored benchmark that cannot serve as a baseline; the message says why and what to do."""


class IncomparableError(BaselineError):
    """A baseline that was measured under other conditions; the message names them."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Stored rounds of a test.

    Attributes:
        nodeid: The test.
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
        nodeid: The test.
        source: The stored file.

    Raises:
        BaselineError: it was not measured on a device by this plugin, or has no rounds.
    """
    where = f"the baseline of {nodeid} in {source}"
    timer = _within(entry, "options").get("timer")
    extra = _within(entry, "extra_info").get(EXTRA_KEY)
    if timer != TIMER_NAME:
        raise BaselineError(
            f"{where} is not a device time: its timer is {timer!r}, not {TIMER_NAME!r}. Save a new one with "
            "--benchmark-autosave"
        )
    if extra is None:
        raise BaselineError(
            f"{where} does not say how it was measured (its extra_info has no {EXTRA_KEY!r}), so nothing can be "
            "compared with it. Save a new one with --benchmark-autosave"
        )
    try:
        provenance = Provenance.read(extra)
    except ProvenanceError as error:
        raise BaselineError(f"{where}: {error}. Save a new one with --benchmark-autosave") from error
    data = _within(entry, "stats").get("data")
    if not isinstance(data, list) or not data:
        raise BaselineError(
            f"{where} holds statistics without rounds, and a verdict needs the rounds. Save a new one with "
            "--benchmark-autosave --benchmark-save-data"
        )
    if not all(map(_is_time, data)):
        raise BaselineError(f"{where} holds a round that is no time; the file is damaged. Save a new one")
    return Baseline(nodeid, source, tuple(time * 1e6 for time in data), provenance)


def _within(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of what was stored; empty where it is missing, or no longer what it was."""
    part = entry.get(name)
    return part if isinstance(part, Mapping) else {}


def _is_time(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and _SHORTEST_S <= value <= _LONGEST_S


def baseline_rounds(config: pytest.Config, nodeid: str) -> Baseline | None:
    """The baseline of a test, from the latest compared file that has it; None where nothing is compared or none has it.

    Raises:
        BaselineError: it is there and cannot be used.
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
    """Rounds that may be compared, and what else there is to know of the two sides."""

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
        rounds_us: The new ones, in microseconds.
        provenance: How the new ones were measured.
        name: Name of the shape in the verdict.
        noise: Measured noise between sessions on such a device, as a share; None where it was not measured.
        threshold: Least change that matters for this shape, as a share.
        allow: What the two may differ in.

    Raises:
        IncomparableError: they differ in something that is not allowed.
    """
    if reasons := refusals(baseline.provenance, provenance, allow=allow):
        raise IncomparableError(
            f"{name} cannot be compared with {baseline.source}: {'; '.join(reasons)}. Compare with a baseline of the "
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
        notes.append("the kernel is the baseline's, byte for byte: whatever changed is not the kernel")
    return Comparable(rounds, tuple(notes))
