"""The mutants and their outcomes as a table: ``python -m tests.sim.mutants.table`` writes ``table.md``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.sim.mutants.corpus import SUBJECTS
from tests.sim.mutants.outcome import Equivalent, Found, Hidden, Mutant, Outcome, Wrong

PATH = Path(__file__).parent / "table.md"

_HEAD = """# Mutants of the PTX of two grouped GEMMs, and what the simulator says of each

Written by `python -m tests.sim.mutants.table` from `map_updates` and `sm90.py` beside this file; `test_mutants.py`
asserts every outcome. *Eager* does asynchronous work when it is issued, *lazy* as late as it can, with waits that give
up once (`Lazy(patient=False)`), *races* is the eager schedule with the happens-before analysis. A finding is given by
its kind and the user's line; "wrong" is the judgement of `pytest_nvfp4.numerics` where nothing was found; "-" is a
right result without a finding.
"""


def outcome(one: Outcome | None) -> str:
    """An outcome as a cell."""
    match one:
        case Found(kind, at):
            return f"{kind}" + (f" at `{at}`" if at else "")
        case Wrong():
            return "wrong"
        case Hidden() | Equivalent():
            return "-"
        case None:
            return ""


def verdict(mutant: Mutant) -> str:
    """What a mutant is, all schedules together."""
    shown = list(mutant.expected.values())
    if any(isinstance(one, Found) for one in shown):
        return "needs races" if mutant.needs else "found"
    if any(isinstance(one, Wrong) for one in shown):
        return "wrong result"
    return "equivalent"


def note(mutant: Mutant) -> str:
    """Why nothing was found where nothing was."""
    return " ".join(
        dict.fromkeys(one.reason for one in mutant.expected.values() if isinstance(one, Hidden | Equivalent))
    )


def table() -> str:
    """The whole text."""
    text = [_HEAD]
    for subject in SUBJECTS.values():
        counts = Counter(verdict(mutant) for mutant in subject.mutants)
        told = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
        text.append(f"\n## {subject.name}: {len(subject.mutants)} mutants, {told}\n")
        for aspect in dict.fromkeys(mutant.aspect for mutant in subject.mutants):
            text.append(
                f"\n### {aspect}\n\n| mutant | verdict | eager | lazy | races | why |\n|---|---|---|---|---|---|\n"
            )
            for mutant in subject.mutants:
                if mutant.aspect == aspect:
                    cells = [outcome(mutant.expected.get(name)) for name in ("eager", "lazy", "races")]
                    row = [mutant.name, verdict(mutant), *cells, note(mutant)]
                    text.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n")
    return "".join(text)


if __name__ == "__main__":
    PATH.write_text(table())
