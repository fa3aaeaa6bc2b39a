"""Findings about the operands of a launch's MMAs: wrong tensors, rows and k, k twice or never, tiles stored elsewhere.

A finding is stated only of data that were followed (``tags``). The operands of one MMA are compared with each other
(``expected``), those of an accumulation with the earlier ones, and the tiles with the elements of C that their CTAs
store (``accumulations``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_nvfp4.finding import Finding, Where
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.provenance import words
from pytest_nvfp4.sim.provenance.accumulations import Accumulations, Written
from pytest_nvfp4.sim.provenance.expected import Blame, Contents, agrees, blames, contents
from pytest_nvfp4.sim.provenance.origins import CtaOrigins
from pytest_nvfp4.sim.provenance.recorder import Mma, OperandRecorder, Part
from pytest_nvfp4.sim.run.grid import Grid

KIND = "provenance"
_HINT = "the indices, stages and descriptors of the statements that are named"


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """A wrong operand, as words: ``at`` is the statement at fault."""

    grid: Grid
    mma: Mma
    part: Part
    blame: Blame
    text: str
    at: int
    note: str


@dataclass(slots=True)
class OperandJudge:
    """Judges the MMAs of a call while they execute; ``findings`` has the result after it."""

    recorder: OperandRecorder
    accumulations: Accumulations = field(init=False)
    _suspicions: list[_Suspicion] = field(default_factory=list)
    _counts: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _otherwise: list[Finding] = field(default_factory=list)
    """The first MMA whose descriptor makes something else of its operands."""

    def __post_init__(self) -> None:
        self.accumulations = Accumulations(self.recorder)
        self.recorder.launched = self.accumulations.begin
        self.recorder.listen = self._multiplied
        self.recorder.read = self.accumulations.read

    def _multiplied(self, mma: Mma, origins: Sequence[CtaOrigins]) -> None:
        grid = self.recorder.grid
        assert grid is not None
        if mma.otherwise and not self._otherwise:
            text = f"the instruction descriptor of the MMA at {words.statement(grid, mma.at)} {mma.otherwise}"
            where = _where(grid, mma.at, mma.parts[0].cta)
            self._otherwise.append(Finding(KIND, text, where=where, hint="the bits of the instruction descriptor"))
        for part, memory in zip(mma.parts, origins, strict=True):
            read = contents(part, self.recorder.tags)
            seen = self.accumulations.seen(mma, part)
            if not agrees(read):
                self._suspect(mma, part, read, seen, memory, grid)
            self.accumulations.add(mma, part, read)

    def _suspect(
        self, mma: Mma, part: Part, read: Contents, seen: Mapping[str, set[int]], memory: CtaOrigins, grid: Grid
    ) -> None:
        for blame in blames(read, seen, self.recorder.tags):
            content = read[blame.name]
            key = (mma.launch, mma.at, blame.name, blame.tensor, content.matrix, content.group, blame.doubtful)
            self._counts[key] += 1
            if self._counts[key] > 1:
                continue
            found = words.evidence(blame, content, memory, self.recorder, grid)
            again = content.k != blame.k and content.k in seen.get(blame.name, ())
            text = words.reading(mma, blame, read, found, self.recorder, grid, again=again)
            note = "" if found.over else found.fact
            self._suspicions.append(
                _Suspicion(grid, mma, part, blame, text, mma.at if found.at < 0 else found.at, note)
            )

    def watch(self, outputs: Mapping[int, tuple[Region, int]]) -> None:
        """Set for each group the watched memory of C, and its columns, before the call."""
        self.accumulations.outputs = outputs

    def findings(self) -> list[Finding]:
        """Return the finding of the call that explains a wrong result; none if all operands are right or unknown."""
        written = self.accumulations.written()
        if made := [self._finding(each) for each in self._told(written)]:
            return made
        faults = [
            Finding(KIND, fault.text, where=_where(fault.grid, fault.at, fault.cta), hint=_HINT)
            for fault in self.accumulations.faults(written)
        ]
        return faults or self._otherwise

    def _told(self, written: Written) -> list[list[_Suspicion]]:
        """Return the suspicions that are reported, those of one MMA together.

        Where only the rows of a matrix and of its scale factors differ, the one that has the rows of C that the CTA
        stores is right; if that decides nothing, the matrix is.
        """
        kept: list[_Suspicion] = []
        for each in self._suspicions:
            if each.blame.doubtful:
                tensor = self.recorder.tags.tensors[each.blame.tensor]
                stored = written.get((each.mma.launch, each.part.linear, tensor.group))
                needed = each.blame.name.startswith("SF")
                if stored is not None:
                    needed = bool(np.isin(each.blame.rows, stored[tensor.matrix]).any())
                if not needed:
                    continue
            kept.append(each)
        together: dict[tuple[int, int], list[_Suspicion]] = {}
        for each in kept:
            together.setdefault((each.mma.launch, each.mma.at), []).append(each)
        groups = []
        for several in together.values():
            certain = [each for each in several if not each.blame.doubtful] or several
            first: dict[str, _Suspicion] = {}
            for each in certain:
                first.setdefault(each.blame.name, each)
            groups.append(list(first.values()))
        return groups[:1]

    def _finding(self, several: Sequence[_Suspicion]) -> Finding:
        first, *others = several
        notes = [first.note] if first.note else []
        notes += [each.text for each in others]
        return Finding(
            KIND, first.text, notes=tuple(notes), hint=_HINT, where=_where(first.grid, first.at, first.part.cta)
        )


def _where(grid: Grid, at: int, cta: tuple[int, int, int] | None) -> Where:
    instruction = grid.kernel.instructions[at]
    return Where(
        kernel=grid.kernel.name, cta=cta, at=at, ptx_line=instruction.ptx_line, text=instruction.text,
        source=instruction.location,
    )  # fmt: skip
