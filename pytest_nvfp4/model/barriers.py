"""Phases of barriers in modelled time: from the first arrival to completion, and who waits for each.

A recording has phases but no addresses of barriers. Phases that the same instructions signal and wait for are those of
one ring, in the order of their completion. A ring has as many barriers as its phases need: a barrier's next phase
begins when the one before it is complete, so that phases which overlap are of different barriers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_nvfp4.model.recording import Does, Program, Unit
from pytest_nvfp4.model.replay_machine import Machine
from pytest_nvfp4.model.replay_state import ClusterRun, WarpRun

__all__ = ["PhaseSpan", "Waiter", "phase_spans"]

_UNITS = (Unit.TMA_LOAD, Unit.COMMIT, Unit.SHARED_REMOTE)
"""Units that signal barriers; the phases of others are results and groups, which are no barriers."""
_MOST_BARRIERS = 64
"""Barriers of a ring that are looked for."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A wait for a phase, which passes at once if it does not begin before the phase is complete."""

    role: str
    source: str
    begin_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of a barrier.

    Attributes:
        sm: SM of the warps that wait.
        ring: Role and line of the first wait, which names the ring.
        barrier: Number of the barrier in its ring; None if the ring has one.
        number: Number of the phase in its ring.
        begin_ns, end_ns: First arrival, or issue of the first copy that arrives; completion.
        completed_by: Role and line of the arrival or operation that completes it.
        waiters: The waits, in order of their begins.
    """

    sm: int
    ring: str
    barrier: int | None
    number: int
    begin_ns: float
    end_ns: float
    completed_by: str
    waiters: tuple[Waiter, ...]


def phase_spans(machine: Machine) -> Iterator[PhaseSpan]:
    """Yield the phases of a machine that kept its timeline, cluster by cluster."""
    waits: dict[int, dict[int, list[tuple[WarpRun, float, float, int]]]] = defaultdict(lambda: defaultdict(list))
    for w, phase, begin, end, site in machine.waits:
        waits[id(w.cluster)][phase].append((w, begin, end, site))
    rings = [_rings(program) for program in machine.recording.programs]
    clusters = {id(w.cluster): w.cluster for w in machine.runs}
    for key, cluster in clusters.items():
        program = machine.recording.clusters[cluster.number].program
        for ring in rings[program]:
            known = [phase for phase in ring if waits[key].get(phase)]
            if known:
                yield from _ring(machine, cluster, sorted(known, key=cluster.at.__getitem__), waits[key])


def _rings(program: Program) -> list[list[int]]:
    """Return the phases of barriers, those of one ring together."""
    signalled: dict[int, set[int]] = defaultdict(set)
    waited: dict[int, set[tuple[int, int]]] = defaultdict(set)
    operations: list[tuple[int, ...]] = program.operations.tolist()
    for number, warp in enumerate(program.warps):
        for does, _, site, item in warp.events.tolist():
            if does == Does.WAIT:
                waited[item].add((number, site))
            elif does == Does.SIGNAL:
                signalled[item].add(site)
            elif does == Does.ISSUE and operations[item][0] in _UNITS:
                for index in operations[item][4:6]:
                    for phase in program.signals[index] if index >= 0 else ():
                        signalled[phase].add(site)
    rings: dict[object, list[int]] = defaultdict(list)
    for phase in sorted(signalled.keys() & waited.keys()):
        rings[frozenset(signalled[phase]), frozenset(waited[phase])].append(phase)
    return list(rings.values())


def _ring(
    machine: Machine,
    cluster: ClusterRun,
    phases: Sequence[int],
    waits: dict[int, list[tuple[WarpRun, float, float, int]]],
) -> Iterator[PhaseSpan]:
    sites = machine.recording.sites

    def place(w: WarpRun, site: int) -> str:
        return f"{w.warp.role} at {sites[site].source}" if site >= 0 and sites[site].source else w.warp.role

    spans = [
        (min(cluster.opened.get(phase, cluster.at[phase]), cluster.at[phase]), cluster.at[phase]) for phase in phases
    ]
    count = next((size for size in range(1, _MOST_BARRIERS) if _fit(spans, size)), len(spans))
    first = min(waits[phases[0]], key=lambda wait: wait[1])
    ring = place(first[0], first[3])
    for number, (phase, (begin, end)) in enumerate(zip(phases, spans, strict=True)):
        why = cluster.why[phase]
        own = sorted(waits[phase], key=lambda wait: wait[1])
        yield PhaseSpan(
            sm=own[0][0].sm,
            ring=ring,
            barrier=number % count if count > 1 else None,
            number=number,
            begin_ns=begin,
            end_ns=end,
            completed_by="" if why is None else place(why[0], why[0].steps[why[1]][2]),
            waiters=tuple(
                Waiter(w.warp.role, sites[site].source if site >= 0 else "", start, until)
                for w, start, until, site in own
            ),
        )


def _fit(spans: Sequence[tuple[float, float]], size: int) -> bool:
    """Return whether the phases of a ring with a number of barriers follow each other on each of them."""
    return all(later[0] >= earlier[1] for earlier, later in zip(spans, spans[size:], strict=False))
