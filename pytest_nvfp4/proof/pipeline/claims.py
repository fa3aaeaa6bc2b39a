"""The statements on a kernel's rings, with their negative controls.

A ring has three: its stages are not overwritten before they are read, they are not read before they are filled, and no
warp waits forever. z3 proves them for all numbers of iterations. A statement that it does not prove is *refuted* only
with an order of a recorded run that shows the failure, and otherwise *unknown*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pytest_nvfp4.proof.pipeline.chains import Question
from pytest_nvfp4.proof.pipeline.progress import other_clocks, progress
from pytest_nvfp4.proof.pipeline.protocol import Protocol
from pytest_nvfp4.proof.pipeline.replay import Failure, Wanted, search
from pytest_nvfp4.proof.pipeline.rings import Ring
from pytest_nvfp4.proof.pipeline.statements import RingModel, model_of, overwritten, unfilled
from pytest_nvfp4.proof.pipeline.streams import Action, Stream
from pytest_nvfp4.proof.solver import Z3, SolverMissingError, discharge, load, version
from pytest_nvfp4.proof.statement import (
    CaseResult,
    Claim,
    Control,
    Limits,
    Method,
    Mistake,
    ProofVerdict,
    Status,
    claim_by_cases,
)  # fmt: skip

_PRECONDITIONS = (
    "each iteration does what the recorded ones do, in their order; the recordings with the most iterations show no "
    "order that shorter ones do not",
    "copies, MMAs and commits that are issued complete; the bytes announced are those copied, as in the recordings",
    "N is the number of iterations of a CTA, over all its tiles, N >= 0",
)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run.

    Attributes:
        label: Its problem and schedule.
        error: The first error that the simulator found in it; empty for none.
        deadlock: Whether that is a deadlock.
    """

    label: str
    error: str = ""
    deadlock: bool = False


@dataclass(frozen=True, slots=True)
class RingCheck:
    """Check of one statement on a ring: z3 for all numbers of iterations, and a replay for a concrete failure."""

    protocol: Protocol
    ring: Ring
    failure: Failure
    questions: Callable[[Z3, RingModel], Iterator[Question]]
    seen: str = ""
    """The failure as it happened in a recorded run, if it did."""

    def run(self, limits: Limits) -> ProofVerdict:
        """Decide the statement."""
        if self.seen:
            return ProofVerdict(Status.REFUTED, counterexample=self.seen)
        verdict = self._prove(limits)
        if verdict.status is Status.PROVED:
            return verdict
        own = (number for number, part in enumerate(self.protocol.parts) if part in self.ring.parts)
        order = search(self.protocol, Wanted(self.failure, frozenset(own)))
        if order is not None:
            return ProofVerdict(Status.REFUTED, counterexample=order, checked=verdict.checked)
        reason = verdict.reason or f"z3 finds no proof, and no replay of a recording fails: {verdict.counterexample}"
        return ProofVerdict(Status.UNKNOWN, reason=reason, checked=verdict.checked)

    def _prove(self, limits: Limits) -> ProofVerdict:
        model = model_of(self.protocol, self.ring)
        problem = model.problem
        if not problem and self.failure == "deadlock":
            problem = other_clocks(self.protocol, model)
        stopped = next((each for each in self.protocol.recordings if not each.complete), None)
        if not problem and stopped is not None:
            problem = f"the run with {stopped.label} does not end"
        if problem:
            return ProofVerdict(Status.UNKNOWN, reason=problem)
        try:
            z3 = load()
        except SolverMissingError as error:
            return ProofVerdict(Status.UNKNOWN, reason=str(error), needs=error.needs)
        seen: set[object] = set()
        count = 0
        for question in self.questions(z3, model):
            count += 1
            if question.shape in seen:
                continue
            seen.add(question.shape)
            verdict = discharge(z3, question.build(), limits)
            if verdict.status is not Status.PROVED:
                return replace(verdict, status=Status.UNKNOWN, checked=f"{count} obligations")
        runs = len(self.protocol.fitted)
        return ProofVerdict(
            Status.PROVED, checked=f"{count} obligations ({len(seen)} different), fitted to {runs} runs"
        )

    def changed(self, **changes: Any) -> Self:
        """Return the check of a protocol without some waits or signals (``without``)."""
        return replace(self, protocol=self.protocol.without(changes["without"]), seen="")

    @property
    def solver(self) -> str:
        """Version of z3."""
        return version()


def claims(protocol: Protocol, runs: Sequence[RecordedRun] = (), *, topic: str = "pipeline") -> tuple[Claim, ...]:
    """Return the statements on the rings of a kernel; a deadlock among its runs refutes that there is none."""
    deadlock = next((f"with {run.label}: {run.error}" for run in runs if run.deadlock), "")
    return tuple(
        claim
        for number, ring in enumerate(protocol.rings)
        for claim in _of_ring(protocol, ring, f"{topic}.ring-{number}", deadlock)
    )


def runs_claim(runs: Sequence[RecordedRun], *, topic: str = "pipeline") -> Claim:
    """Return the statement that the recorded runs end without an error, on which the others rest."""

    def look(invented: str = "") -> CaseResult:
        for number, run in enumerate(runs, 1):
            if error := run.error or invented:
                return CaseResult(f"with {run.label}: {error}", number)
        return CaseResult(None, len(runs))

    return claim_by_cases(
        f"{topic}.runs",
        "The recorded runs end, and the simulator finds no error in them.",
        look,
        "runs",
        formulas=tuple(f"recorded: {run.label}" for run in runs),
        controls=(Mistake("a run that ends with an error", {"invented": "an error"}),),
    )


def _of_ring(protocol: Protocol, ring: Ring, name: str, deadlock: str) -> Iterator[Claim]:
    title = protocol.ring_name(ring)
    fillers = {part.fill.role for part in ring.parts}
    readers = {read.role for part in ring.parts for read in part.reads}
    waits = [stream for stream in protocol.clock(ring.parts[0].fill) if stream.action is Action.WAIT]
    before_fill = [wait for wait in waits if wait.role in fillers and wait.array != ring.array]
    before_read = [wait for wait in waits if wait.array == ring.array and wait.role in readers]
    released = _signals_for(protocol, before_fill) or _signals_for(protocol, before_read)
    formulas = tuple(_formulas(protocol, ring))

    def claim(what: str, words: str, check: RingCheck, mistake: str, without: Sequence[Stream]) -> Claim:
        controls = (Control(mistake, check.changed(without=without)),) if without else ()
        return Claim(f"{name}.{what}", words, formulas, Method.Z3, check, _PRECONDITIONS, controls)

    yield claim(
        "not-overwritten",
        f"No stage of {title} is filled again before everything that was in it has been read, for any N.",
        RingCheck(protocol, ring, "overwritten", overwritten),
        "the warps that fill it wait for no release",
        before_fill,
    )
    yield claim(
        "filled",
        f"No stage of {title} is read before it is filled, for any N.",
        RingCheck(protocol, ring, "unfilled", unfilled),
        "the warps that read it do not wait until it is full",
        before_read,
    )
    yield claim(
        "no-deadlock",
        f"Every wait of the warps that use {title} ends, for any N.",
        RingCheck(protocol, ring, "deadlock", progress, seen=deadlock),
        "one of the stages' releases is left out",
        released[:1],
    )


def _signals_for(protocol: Protocol, waits: Sequence[Stream]) -> list[Stream]:
    arrays = {wait.array for wait in waits}
    return [
        stream
        for stream in protocol.streams
        if stream.action is Action.SIGNAL and stream.array in arrays and any(use.number for use in stream.runs[0])
    ]


def _formulas(protocol: Protocol, ring: Ring) -> Iterator[str]:
    """Yield the fitted protocol, one stream a line; equal lines once."""
    seen: set[str] = set()
    model = model_of(protocol, ring)
    for stream in model.streams:
        array = protocol.arrays[stream.array]
        shift = f"(n + {stream.shift})" if stream.shift else "n"
        stage = f"stage {shift} mod {stream.stages}" if stream.stages > 1 else "the only stage"
        phase = ""
        if stream.is_wait:
            sign = f" + {stream.phase}" if stream.phase > 0 else f" - {-stream.phase}" if stream.phase else ""
            phase = f", phase floor(n / {stream.stages}){sign}"
        of = "of the memory" if not (stream.is_wait or stream.action is Action.SIGNAL) else f"of line {array.line}"
        text = f"iteration n: {protocol.longest.place(stream.at)} {stream.action} {stage} {of}{phase}"
        if text not in seen:
            seen.add(text)
            yield text
