"""What earlier candidates tried, from their records in the directory of state, which are the only copy.

A candidate is a duplicate of an earlier one with the same git tree, the same source (`source`) or the same PTX and
launches (`Examination.ptx_sha256`), if the verdict about the earlier one is *final*, which means that judging it again
could not end otherwise:

- ``faster`` is final: it became the incumbent, or the reviewer did not want it;
- ``slower``, and ``undecided`` by a modelled time or a counter, are final, because the incumbent only becomes better;
- ``undecided`` without a value was not judged to its end, and is not final;
- ``undecided`` by a measurement is what noise left open: final after three such measurements of the same candidate;
- ``rejected`` is final, but by a gate that compares with the incumbent only while the incumbent is the same, and by
  ``layouts`` only for the same source: their names do not follow from the PTX;
- ``infrastructure`` and ``no-candidate`` say nothing about the candidate, and are never final;
- no verdict is final that compared with a candidate which the reviewer then refused, or whose promotion was reverted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_nvfp4.loop.schemas import Candidate, Examination, GateResult, Model, Verdict
from pytest_nvfp4.loop.state import LoopState, StateFolder, read_model

M = TypeVar("M", bound=Model)
_COMPARING = frozenset({"layouts", "launch", "codegen", "cost", "model"})
"""Gates that compare with the incumbent."""
_MEASURED_AGAIN = 3
"""Measurements of one candidate that noise may leave open, before it counts as tried."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a candidate; None for what does not exist yet."""

    candidate: Candidate
    examination: Examination | None = None
    verdict: Verdict | None = None

    @property
    def number(self) -> int:
        """Number of the candidate."""
        return self.candidate.number

    @property
    def outcome(self) -> str:
        """The judge's decision; ``pending`` before there is one."""
        return "pending" if self.verdict is None else self.verdict.outcome

    @property
    def summary(self) -> str:
        """The worker's own words; a claim."""
        return "" if self.candidate.result is None else self.candidate.result.summary

    @property
    def red(self) -> GateResult | None:
        """The gate that did not pass."""
        gates = () if self.examination is None else self.examination.gates
        return next((gate for gate in reversed(gates) if gate.outcome != "passed"), None)

    @property
    def gain(self) -> float | None:
        """Share by which the target's metric is better than the incumbent's; negative if it is worse."""
        found = self.verdict
        if found is None or found.value is None or not found.incumbent_value:
            return None
        return 1 - found.value / found.incumbent_value

    def matches(self, text: str) -> bool:
        """Return whether each word of a text is in what was tried, how it ended, or why."""
        found = self.verdict
        red = self.red
        parts = [self.outcome, self.candidate.by, self.candidate.end, self.summary]
        parts += [*self.candidate.files, *self.candidate.violations, *self.candidate.problems]
        if found is not None:
            parts += [found.reason, found.feedback, *(f"{each.problem}/{each.name}" for each in found.worse)]
        if red is not None:
            parts += [red.gate, red.message]
        whole = "\n".join(parts).casefold()
        return all(word in whole for word in text.casefold().split())


class CandidateMemory:
    """The candidates of a loop, in the order of their numbers.

    Args:
        folder: The directory of state.
        source_of: Returns `source.source_sha256` of a commit, so that a way back to the kernel where the loop began is
            recognised before it is compiled.
    """

    def __init__(self, folder: StateFolder, *, source_of: Callable[[str], str] | None = None) -> None:
        self._folder, self._source_of = folder, source_of
        self._start: tuple[str, str] | None = None
        self._read: dict[Path, tuple[tuple[int, ...], Model]] = {}

    def record(self, number: int) -> Record | None:
        """Return a candidate; None if there is none. Raises DoorError and OSError."""
        folder = self._folder.candidate(number)
        candidate = self._model(folder / "candidate.json", Candidate)
        if candidate is None:
            return None
        examination = self._model(folder / "examination.json", Examination)
        return Record(candidate, examination, self._model(folder / "verdict.json", Verdict))

    def records(self) -> list[Record]:
        """Return all candidates. Raises DoorError and OSError."""
        found = (self.record(number) for number in self._numbers())
        return [record for record in found if record is not None]

    def before(self, iteration: int) -> list[Record]:
        """Return the candidates of earlier iterations. Raises DoorError and OSError."""
        return [record for record in self.records() if record.candidate.iteration < iteration]

    def same_source(self, candidate: Candidate) -> int | None:
        """Return the number of the first candidate of an earlier iteration with the same tree or source.

        0 is the kernel where the loop began; None if there is none whose verdict is final.
        """
        if candidate.source_sha256 is not None and candidate.source_sha256 == self._start_source():
            return 0
        earlier = self.before(candidate.iteration)
        same = [record for record in earlier if _same_source(record.candidate, candidate)]
        final = self._final(same, parent=candidate.parent)
        return final[0].number if final else None

    def _start_source(self) -> str | None:
        """Return the source of the kernel where the loop began."""
        if self._source_of is None:
            return None
        state = read_model(self._folder.state, LoopState)
        if state is None or not state.baseline:
            return None
        if self._start is None or self._start[0] != state.baseline:
            self._start = (state.baseline, self._source_of(state.baseline))
        return self._start[1]

    def known_ptx(self, iteration: int) -> Mapping[str, int]:
        """Return the candidates of earlier iterations whose verdict is final, and the baseline, by their PTX."""
        known: dict[str, int] = {}
        baseline = self._model(self._folder.baseline / "examination.json", Examination)
        if baseline is not None and baseline.ptx_sha256 is not None:
            known[baseline.ptx_sha256] = 0
        records = self.records()
        parent = next((each.candidate.parent for each in records if each.candidate.iteration == iteration), "")
        groups: dict[str, list[Record]] = {}
        for record in records:
            examination = record.examination
            if (
                record.candidate.iteration < iteration
                and examination is not None
                and examination.ptx_sha256 is not None
            ):
                groups.setdefault(examination.ptx_sha256, []).append(record)
        for ptx, same in groups.items():
            final = [record for record in self._final(same, parent=parent) if not _red_layouts(record)]
            if final:
                known.setdefault(ptx, final[0].number)
        return known

    def _final(self, same: Sequence[Record], *, parent: str) -> list[Record]:
        """Return those of some equal candidates whose verdict is final for one that begins at ``parent``."""
        open_measurements = [record for record in same if _left_open(record)]
        promoted, reverted = (self._promoted(), self._promoted(reverted=True)) if same else (frozenset(), frozenset())
        return [
            record
            for record in same
            if record.verdict is not None
            and (record.verdict.against == record.candidate.parent or record.verdict.against in promoted)
            and (record.outcome == "rejected" or record.verdict.against not in reverted)
            and _is_final(record, parent=parent, measured_open=len(open_measurements))
        ]

    def _promoted(self, *, reverted: bool = False) -> frozenset[str]:
        """Return the commits of promoted candidates, as workers left them and as they were promoted.

        Those whose promotions were reverted, or the others.
        """
        state = read_model(self._folder.state, LoopState)
        commits: set[str] = set()
        for promotion in () if state is None else state.promotions:
            if promotion.reverted == reverted:
                record = self.record(promotion.candidate)
                own = None if record is None else record.candidate.commit
                commits |= {promotion.commit, own or promotion.commit}
        return frozenset(commits)

    def _numbers(self) -> Iterator[int]:
        folder = self._folder.candidate(1).parent
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return iter(sorted(int(name) for name in names if name.isascii() and name.isdigit()))

    def _model(self, path: Path, model: type[M]) -> M | None:
        """Read a record, once while it does not change."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._read.get(path)
        if known is not None and known[0] == stamp and isinstance(known[1], model):
            return known[1]
        made = read_model(path, model)
        if made is not None:
            self._read[path] = (stamp, made)
        return made


def _same_source(one: Candidate, other: Candidate) -> bool:
    if one.commit is None or other.commit is None:
        return False
    return one.tree == other.tree or (one.source_sha256 is not None and one.source_sha256 == other.source_sha256)


def _red_layouts(record: Record) -> bool:
    red = record.red
    return record.outcome == "rejected" and red is not None and red.gate == "layouts"


def _left_open(record: Record) -> bool:
    found = record.verdict
    return found is not None and found.outcome == "undecided" and bool(found.comparisons)


def _is_final(record: Record, *, parent: str, measured_open: int) -> bool:
    if _left_open(record):
        return measured_open >= _MEASURED_AGAIN
    if record.outcome == "rejected":
        red = record.red
        return red is None or red.gate not in _COMPARING or record.candidate.parent == parent
    if record.outcome == "undecided":
        return record.verdict is not None and record.verdict.value is not None
    return record.outcome in ("faster", "slower")
