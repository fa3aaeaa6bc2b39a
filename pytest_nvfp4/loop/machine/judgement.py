"""The phase ``JUDGE``: candidates are examined side by side, in any order, and decided one by one, in theirs.

What is found about a candidate depends on it, on its parent and on earlier iterations only, so that the history is the
same for any number of examinations at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from pytest_nvfp4.isolation import cancellation
from pytest_nvfp4.isolation.cancellation import StoppedError
from pytest_nvfp4.loop.machine.context import Context, twice
from pytest_nvfp4.loop.protocols import BudgetError, InfrastructureError
from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult, Outcome, Verdict
from pytest_nvfp4.loop.state import Gates, LoopState, Spent, StateFolder, read_model, write_model
from pytest_nvfp4.text import clip


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best so far: that of the iteration's start, or a candidate of the iteration that would be promoted."""

    commit: str
    examination: Examination


def incumbent_of(folder: StateFolder, number: int) -> Examination | None:
    """Return the examination of a promoted candidate, or of the baseline for 0. Raises DoorError and OSError."""
    place = folder.candidate(number) if number else folder.baseline
    return read_model(place / "examination.json", Examination)


def examine_baseline(context: Context, commit: str) -> Examination:
    """Return the examination of the commit where the loop begins.

    Raises:
        InfrastructureError: It could not be examined, also not the second time.
        StoppedError: The loop has to end.
    """
    with cancellation.stopped_by(context.pulse.halt):
        found = _examined(context, None, commit=commit, parent=commit, known={})
    if found.infrastructure:
        raise InfrastructureError(found.infrastructure)
    return found


class Judgement:
    """The judgement of one iteration.

    Args:
        context: What the phases share.
        state: State of the iteration.
        candidates: Its candidates, in order.
        start: The incumbent at its start.
    """

    def __init__(self, context: Context, state: LoopState, candidates: Sequence[Candidate], start: Incumbent) -> None:
        self._context, self._state, self._candidates, self._best = context, state, candidates, start
        self._parent = start.commit
        self._verdicts: dict[int, Verdict] = {}
        self._ptx: dict[str, int] = {}
        self._repeats = dict(_repeats(candidates))

    def run(self) -> list[tuple[Candidate, Verdict]]:
        """Return the candidates with their verdicts, which are on the disk.

        Raises:
            StoppedError: The loop has to end; what is on the disk is not done again.
            BudgetError: What comes next costs too much, and no candidate of this iteration would be promoted.
            OSError: A record cannot be written.
        """
        try:
            self._judge()
        except (StoppedError, BudgetError) as error:
            over = isinstance(error, BudgetError) or self._context.pulse.cause == "time"
            if not over or not any(verdict.outcome == "faster" for verdict in self._verdicts.values()):
                raise
            # What would be promoted must not wait for a budget that may never come.
            self._close(str(error) if isinstance(error, BudgetError) else self._context.pulse.reason)
        return [(candidate, self._verdicts[candidate.number]) for candidate in self._candidates]

    def _judge(self) -> None:
        context = self._context
        known = context.parts.memory.known_ptx(self._state.iteration)
        begun: dict[int, Future[Examination]] = {}
        with context.side_by_side(context.config.judge.jobs) as begin:
            for candidate in self._candidates:
                if _usable(candidate) and self._recorded(candidate) is None and self._repeated(candidate) is None:
                    begun[candidate.number] = begin(self._examination(candidate, known))
            context.pulse.doing("candidates are examined", start=begun)
            for candidate in self._candidates:
                verdict = self._recorded(candidate) or self._decided(candidate, begun.get(candidate.number))
                self._keep(candidate, verdict)
                context.pulse.doing("candidates are examined", end=[candidate.number])

    def _repeated(self, candidate: Candidate) -> int | None:
        """Return the candidate that this one repeats: of this iteration, or of an earlier one."""
        if (number := self._repeats.get(candidate.number)) is None:
            number = self._context.parts.memory.same_source(candidate)
            if number is not None:
                self._repeats[candidate.number] = number
        return number

    def _examination(self, candidate: Candidate, known: Mapping[str, int]) -> Callable[[], Examination]:
        assert candidate.commit is not None
        commit = candidate.commit
        return lambda: _examined(self._context, candidate, commit=commit, parent=self._parent, known=known)

    def _decided(self, candidate: Candidate, begun: Future[Examination] | None) -> Verdict:
        number = candidate.number
        if not _usable(candidate):
            outcome: Outcome = "rejected" if candidate.end == "violation" else "no-candidate"
            reason = "; ".join([*candidate.violations, *candidate.problems]) or _ENDS[candidate.end]
            return self._verdict(candidate, outcome, reason)
        if (original := self._repeats.get(number)) is not None:
            return self._duplicate(candidate, original, "the same source")
        assert begun is not None
        examination = begun.result()
        if examination.infrastructure:
            return self._verdict(candidate, "infrastructure", examination.infrastructure)
        original = examination.duplicate_of
        if original is None and examination.ptx_sha256 is not None:
            original = self._ptx.get(examination.ptx_sha256)
        if original is not None:
            return self._duplicate(candidate, original, "the same compiled code and launches")
        key = f"decide/{number:04d}"
        folder = self._context.folder.candidate(number)

        def decide() -> Verdict:
            return self._context.parts.judge.decide(
                candidate,
                examination,
                against=self._best.commit,
                incumbent=self._best.examination,
                folder=folder,
                purse=self._context.budget.attempt(key),
            )

        with cancellation.stopped_by(self._context.pulse.halt):
            cancellation.check()
            try:
                return twice(decide)
            except InfrastructureError as error:
                return self._verdict(candidate, "infrastructure", str(error))

    def _keep(self, candidate: Candidate, verdict: Verdict) -> None:
        """Write a verdict, and let a winner be the incumbent of those that follow."""
        context, number = self._context, candidate.number
        folder = context.folder.candidate(number)
        if self._recorded(candidate) is None:
            write_model(folder / "verdict.json", verdict)
            context.log(f"iteration {candidate.iteration}: candidate {number} is {verdict.outcome}: {verdict.reason}")
        context.budget.record(f"decide/{number:04d}", Spent(gpu_s=verdict.gpu_s, usd=verdict.usd))
        self._verdicts[number] = verdict
        examination = read_model(folder / "examination.json", Examination)
        if examination is None:
            return
        context.budget.record(f"examine/{number:04d}", Spent(gpu_s=examination.gpu_s, usd=examination.usd))
        if examination.ptx_sha256 is not None and verdict.outcome != "infrastructure":
            self._ptx.setdefault(examination.ptx_sha256, number)
        if verdict.outcome == "faster" and candidate.commit is not None:
            self._best = Incumbent(candidate.commit, examination)

    def _close(self, reason: str) -> None:
        """Give the candidates that are not decided a verdict that says why."""
        for candidate in self._candidates:
            if candidate.number not in self._verdicts:
                verdict = self._verdict(candidate, "undecided", f"not judged to the end: {reason}")
                self._keep(candidate, self._recorded(candidate) or verdict)

    def _recorded(self, candidate: Candidate) -> Verdict | None:
        return read_model(self._context.folder.candidate(candidate.number) / "verdict.json", Verdict)

    def _duplicate(self, candidate: Candidate, original: int, what: str) -> Verdict:
        name = f"candidate {original}" if original else "the kernel at the start"
        reason = f"it has {what} as {name}"
        return self._verdict(candidate, "duplicate", reason).model_copy(update={"duplicate_of": original})

    def _verdict(self, candidate: Candidate, outcome: Outcome, reason: str) -> Verdict:
        """Return the verdict about a candidate that the judge need not decide."""
        return Verdict(
            candidate=candidate.number,
            iteration=candidate.iteration,
            against=self._best.commit,
            outcome=outcome,
            reason=clip(reason, 20_000),
            metric=self._context.config.target.metric,
        )


_ENDS = {
    "unchanged": "the worker changed nothing",
    "withdrawn": "the worker withdrew its candidate",
    "violation": "the worker changed what the policy does not allow",
    "failed": "the worker left no candidate",
}


def _usable(candidate: Candidate) -> bool:
    return candidate.end == "proposed" and candidate.commit is not None


def _repeats(candidates: Sequence[Candidate]) -> Iterator[tuple[int, int]]:
    """Yield the candidates of an iteration that repeat one with a smaller number, with that number."""
    first: dict[str, int] = {}
    for candidate in filter(_usable, candidates):
        names = [name for name in (candidate.tree, candidate.source_sha256) if name is not None]
        earlier = [first[name] for name in names if name in first]
        if earlier:
            yield candidate.number, min(earlier)
        for name in names:
            first.setdefault(name, min([candidate.number, *earlier]))


def _examined(
    context: Context, candidate: Candidate | None, *, commit: str, parent: str, known: Mapping[str, int]
) -> Examination:
    """Return the examination of a commit, which is on the disk; one that says nothing is tried once more.

    Raises:
        BudgetError: A remote would cost too much.
        StoppedError: The loop has to end.
        OSError: The record cannot be written.
    """
    number = 0 if candidate is None else candidate.number
    folder = context.folder.baseline if candidate is None else context.folder.candidate(number)
    if (record := read_model(folder / "examination.json", Examination)) is not None and not record.infrastructure:
        return record
    cancellation.check()
    folder.mkdir(parents=True, exist_ok=True)
    key, gates = f"examine/{number:04d}", list[GateResult]()

    def on_gate(gate: GateResult) -> None:
        gates.append(gate)
        write_model(folder / "gates.json", Gates(gates=tuple(gates)))

    def examine() -> Examination:
        gates.clear()
        found = context.parts.judge.examine(
            candidate,
            commit=commit,
            parent=parent,
            known=known,
            folder=folder,
            on_gate=on_gate,
            purse=context.budget.attempt(key),
        )
        context.budget.record(key, Spent(gpu_s=found.gpu_s, usd=found.usd))
        if found.infrastructure:
            raise InfrastructureError(found.infrastructure)
        return found

    try:
        found = twice(examine)
    except InfrastructureError as error:
        found = Examination(candidate=number, infrastructure=clip(str(error), 20_000) or "unknown")
    cancellation.check()
    write_model(folder / "examination.json", found)
    return found
