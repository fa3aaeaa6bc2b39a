"""Baselines of tests: rounds that pytest-benchmark loads for ``--benchmark-compare``, paired with new rounds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from pytest_nvfp4.bench.mark import EXTRA_KEY, MODELLED_TIMER, TIMER_NAME
from pytest_nvfp4.bench.modelled_facts import TimeChange, origin
from pytest_nvfp4.bench.provenance import Aspect, Provenance, ProvenanceError, differences, refusals
from pytest_nvfp4.bench.regression import ShapeRounds
from pytest_nvfp4.device.modelled import ModelledCall

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
    timer = _timer(entry)
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


def _timer(entry: Mapping[str, Any]) -> object:
    """Return the name of the timer of a stored benchmark; None if it has none."""
    return _within(entry, "options").get("timer")


def _within(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a stored entry; empty if it is missing or no mapping."""
    part = entry.get(name)
    return part if isinstance(part, Mapping) else {}


def _is_time(value: object) -> TypeGuard[int | float]:
    return not isinstance(value, bool) and isinstance(value, int | float) and _SHORTEST_S <= value <= _LONGEST_S


def baseline_rounds(config: pytest.Config, nodeid: str) -> Baseline | None:
    """Return the baseline of a test from the latest compared file that has it; None without one.

    Raises:
        BaselineError: The baseline cannot be used.
    """
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    compared = getattr(session, "compared_mapping", None) or {}
    for path, entries in compared.items():
        if any(_timer(entry) == MODELLED_TIMER for entry in entries.values()):
            raise BaselineError(
                f"{path} holds modelled times, and measured times are compared with measured ones only; name a file of "
                "measured times with --benchmark-compare"
            )
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


def modelled_baseline(
    entries: Mapping[Any, Mapping[str, Mapping[str, Any]]], call: ModelledCall, nodeid: str
) -> str | TimeChange:
    """Return the change of a modelled time against the latest stored one of a test, or why there is none.

    Args:
        entries: The stored benchmarks of each compared file, by node id.
        call: The modelled time.
        nodeid: Node id of the test.

    Raises:
        BaselineError: The stored time is damaged, or it was measured.
    """
    having = {path: stored[nodeid] for path, stored in entries.items() if nodeid in stored}
    if not having:
        return "no baseline of this check"
    source, entry = max(having.items(), key=lambda pair: str(pair[0]))
    if _timer(entry) != MODELLED_TIMER:
        raise BaselineError(
            f"{source} holds measured times, and modelled times are compared with modelled ones only; name a file of "
            f"{call.machine} with --benchmark-compare"
        )
    known = _within(_within(entry, "extra_info"), EXTRA_KEY)
    if changed := [key for key, value in origin(call).items() if known.get(key) != value]:
        return f"not compared with {source}: another {' and '.join(changed)}"
    seconds = _within(entry, "stats").get("min")
    if not _is_time(seconds):
        raise BaselineError(f"{source}: the baseline of {nodeid} is damaged: {seconds!r} is not a time in seconds")
    return TimeChange(float(seconds) * 1e6, call.us)
