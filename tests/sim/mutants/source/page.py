"""The guide's page of mutants and refactorings.

``python -m tests.sim.mutants.source.page`` writes it from the edits. With ``--run [SUBJECT...]`` all edits are run
before, and what the checks report is written into the files of edits: read the difference before you commit it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.sim.mutants.source.corpus import ROOT, SUBJECTS, Subject
from tests.sim.mutants.source.edit import REFACTORING, Edit, parse
from tests.sim.mutants.source.runner import Said, run_all

PATH = ROOT / "pytest_nvfp4/guide/mutants.md"
_SHOWN = 150
"""Characters of a first line in the table."""
_STORED = 400

_HEAD = """# Mutants and refactorings

What the checks report of {mutants} mistakes and {refactorings} harmless changes in the Python of {kernels} kernels: the
shipped ones, `nvfp4_group_gemm/steps/map_updates.py`, and six grouped GEMMs of other structures
(`tests/sim/mutants/structures`). The mistakes are written as a tired author makes them: a wait is lost in a merge, a
commit moves up, a k block is fixed, a stride loses its Int64. All are *simulated*: {found} are found by running the
kernel once or twice, and {missed} are not; none needs a snapshot. No refactoring has a finding.

The edits are diffs in `tests/sim/mutants/source`, each with the check, the first line of its message and the line of
the kernel that it names. `pytest tests/sim/mutants/source -m slow` runs them again and compares; `python -m
tests.sim.mutants.source.page` writes this page.

## Found of all mistakes

{counts}

## Each mistake

The line is the one that the message names; `...` shortens.
"""


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 4].rstrip() + " ..."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _counts() -> str:
    topics = list(dict.fromkeys(edit.topic for subject in SUBJECTS for edit in subject.mutants))

    def count(mutants: list[Edit]) -> str:
        found = sum(not edit.missed for edit in mutants)
        return "" if not mutants else f"{found}" if found == len(mutants) else f"{found} of {len(mutants)}"

    rows = [_row(["", *(subject.name for subject in SUBJECTS), "all"]), "|---" * (len(SUBJECTS) + 2) + "|"]
    for topic in [*topics, ""]:
        each = [[edit for edit in subject.mutants if topic in ("", edit.topic)] for subject in SUBJECTS]
        rows.append(_row([topic or "all", *map(count, each), count([edit for one in each for edit in one])]))
    harmless = [len(subject.edits) - len(subject.mutants) for subject in SUBJECTS]
    rows.append(_row(["refactorings without a finding", *map(str, harmless), str(sum(harmless))]))
    return "\n".join(rows)


def _listed(subject: Subject) -> list[str]:
    lines = [f"\n### {subject.name}\n", _row(("mistake", "check", "first line", "line")), "|---|---|---|---|"]
    for edit in subject.mutants:
        first = edit.missed and f"*missed*: {edit.missed}"
        line = f"`{_short(edit.line, 60)}`" if edit.line else ""
        first = first or _short(edit.first.replace("`", ""), _SHOWN)
        lines.append(_row(map(_cell, (edit.name, edit.check, first, line))))
    names = [edit.name for edit in subject.edits if edit.topic == REFACTORING]
    lines.append(f"\nNo finding: {'; '.join(names)}.")
    return lines


def page() -> str:
    """Return the page."""
    mutants = [edit for subject in SUBJECTS for edit in subject.mutants]
    text = _HEAD.format(
        mutants=len(mutants),
        refactorings=sum(len(subject.edits) for subject in SUBJECTS) - len(mutants),
        kernels=len(SUBJECTS),
        found=sum(not edit.missed for edit in mutants),
        missed=sum(bool(edit.missed) for edit in mutants),
        counts=_counts(),
    )
    return text + "\n".join(line for subject in SUBJECTS for line in _listed(subject)) + "\n"


def record(path: Path, said: dict[str, Said]) -> None:
    """Write what is reported of the edits of a file, by name, into the file."""
    lines: list[str] = []
    skipping = False
    edits = iter(parse(path))
    for line in path.read_text().splitlines():
        if line.startswith("=== "):
            edit = next(edits)
            lines.append(line)
            skipping = edit.topic != REFACTORING and edit.name in said
            if skipping:
                one = said[edit.name]
                missed = edit.missed or "nothing is reported"
                fields = {"check": one.check, "line": one.line, "first": _short(one.first, _STORED)}
                lines += [f"{key}: {value}".rstrip() for key, value in fields.items()] if one.check else []
                lines += [] if one.check else [f"missed: {missed}"]
        elif not (skipping and line.startswith(("check:", "line:", "first:", "missed:"))):
            lines.append(line)
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write the page, after running the edits if that is asked for."""
    if "--run" in sys.argv:
        names = sys.argv[sys.argv.index("--run") + 1 :]
        for subject in SUBJECTS:
            if not names or subject.name in names:
                said = run_all([(subject, edit) for edit in subject.mutants])
                by_name = {edit.name: one for edit, one in zip(subject.mutants, said, strict=True)}
                record(Path(__file__).parent / f"{subject.name}.diff", by_name)
        for subject in SUBJECTS:
            vars(subject).pop("edits", None)
    PATH.write_text(page())


if __name__ == "__main__":
    main()
