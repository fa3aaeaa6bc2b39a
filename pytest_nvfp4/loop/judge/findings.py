"""What an examination has found so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pytest_nvfp4.loop.judge.answers import CostAnswer, ModelAnswer, ReportAnswer
from pytest_nvfp4.loop.judge.gates import layout_line
from pytest_nvfp4.loop.schemas import Examination, GateResult, ProblemTime
from pytest_nvfp4.text import clip

_MOST_LAYOUTS: Final = 200
_MOST_COUNTERS: Final = 100_000
_MOST_PARTS: Final = 40
"""Parts of the critical path of one problem that are kept, the longest ones."""


@dataclass(slots=True)
class Found:
    """What an examination has found so far; `Examination` describes the fields."""

    gates: list[GateResult] = field(default_factory=list)
    red: bool = False
    infrastructure: str = ""
    compiled: dict[str, str] = field(default_factory=dict)
    ptx_sha256: str | None = None
    duplicate_of: int | None = None
    layouts: list[str] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    modelled: list[ProblemTime] = field(default_factory=list)
    path: dict[str, float] = field(default_factory=dict)
    table: str = ""
    kind: str = ""
    band: float = 0.0
    usd: float = 0.0

    def check(self, report: ReportAnswer) -> None:
        """Take over what a run of pytest says besides its outcomes."""
        for check in report.checks:
            if sha256 := check.values.get("code_sha256"):
                self.compiled[f"{check.kernel}::{check.check}"] = sha256
            if check.gate == "layouts" and check.diff is not None:
                self.layouts += [layout_line(change) for change in check.diff.changes]

    def count(self, answer: CostAnswer) -> None:
        """Take over the counters."""
        for problem in answer.problems:
            for name, value in problem.facts.items():
                if not isinstance(value, str) and len(self.counters) < _MOST_COUNTERS:
                    self.counters[f"{problem.problem}/{name}"] = float(value)

    def time(self, answer: ModelAnswer) -> None:
        """Take over the modelled times, and where they go."""
        tables, kinds = [], []
        for problem in answer.problems:
            if problem.modelled_us is None:
                continue
            self.modelled.append(ProblemTime(problem=problem.problem, us=problem.modelled_us))
            tables.append(f"{problem.device} {problem.table}, model {problem.model}, {problem.conditions}")
            kinds.append(problem.kind)
            self.band = max(self.band, problem.band.p90 if problem.band is not None else 1.0)
            parts = Counter[str]()
            for launch in problem.launches:
                for part in launch.path:
                    parts[f"{problem.problem}/{part.role or 'warps'}: {part.cause}"] += part.us  # type: ignore[assignment]
            self.path |= {clip(name, 1000): us for name, us in parts.most_common(_MOST_PARTS)}
        self.table, self.kind = "; ".join(dict.fromkeys(tables)), ", ".join(sorted(set(kinds)))

    def examination(self, number: int, gates: Sequence[str], *, wall_s: float) -> Examination:
        """Return the examination; it passes if each gate ran, and none was red."""
        whole = [gate.gate for gate in self.gates] == list(gates)
        return Examination(
            candidate=number,
            gates=tuple(self.gates),
            passed=whole and not self.red and not self.infrastructure,
            infrastructure=clip(self.infrastructure, 10_000),
            ptx_sha256=self.ptx_sha256,
            duplicate_of=None if self.infrastructure else self.duplicate_of,
            layouts=tuple(self.layouts[:_MOST_LAYOUTS]),
            counters=self.counters,
            modelled=tuple(self.modelled),
            path=self.path,
            table=clip(self.table, 4000),
            kind=clip(self.kind, 4000),
            band=min(1.0, self.band),
            wall_s=round(wall_s, 3),
            usd=self.usd,
        )
