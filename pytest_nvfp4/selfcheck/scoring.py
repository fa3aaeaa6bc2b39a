"""Score input families by the wrong kernels they catch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pytest_nvfp4.numerics import kernel_model as model
from pytest_nvfp4.numerics.families import Family
from pytest_nvfp4.numerics.formats import E2M1, E4M3
from pytest_nvfp4.numerics.inputs import ProblemInput
from pytest_nvfp4.numerics.judge import Reference, Verdict, judge
from pytest_nvfp4.numerics.kernel_model import Kernel
from pytest_nvfp4.numerics.mutants import MUTANTS, Mutant
from pytest_nvfp4.problem import Group, Problem

SCORING_PROBLEM = Problem("scoring", (Group(40, 128, 256), Group(136, 384, 512), Group(72, 128, 512)))
"""Small, with ragged M, several tiles of rows, columns and k, and groups of equal and of different K."""


class ScoreError(RuntimeError):
    """The right kernel was judged wrong, so the scores would mean nothing."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """How many outputs of each wrong kernel each family shows to be wrong.

    ``mismatches[mutant][family]`` counts wrong outputs and touched guard elements; 0 means that the family lets the
    mutant pass.
    """

    families: tuple[str, ...]
    defaults: tuple[str, ...]
    mutants: tuple[Mutant, ...]
    mismatches: Mapping[str, Mapping[str, int]]

    def caught_by(self, mutant: str) -> tuple[str, ...]:
        """Families that catch a mutant."""
        return tuple(family for family in self.families if self.mismatches[mutant][family])

    def missed_by(self, *families: str) -> tuple[str, ...]:
        """Mutants that none of these families catches."""
        return tuple(
            mutant.name for mutant in self.mutants if not any(self.mismatches[mutant.name][name] for name in families)
        )


def verdict_of(kernel: Kernel, inputs: ProblemInput, references: tuple[Reference, ...]) -> Verdict:
    """Run a model kernel on a problem's inputs and judge every group, guard rows included."""
    groups = []
    for index, (group, reference) in enumerate(zip(inputs.groups, references, strict=True)):
        before, out, after = group.split_c(kernel(inputs, index))
        poison = group.guard.poison
        groups.append(judge(out, reference, group=index, guard_before=before, guard_after=after, poison=poison))
    return Verdict(tuple(groups))


def score(
    families: Iterable[Family],
    *,
    mutants: Iterable[Mutant] | None = None,
    problem: Problem = SCORING_PROBLEM,
) -> ScoreTable:
    """Run every mutant on every family's inputs.

    Args:
        families: families to score; one with ``shapes`` of its own is scored on those, others on ``problem``.
        mutants: wrong kernels, all of ``MUTANTS`` by default.
        problem: groups and seed.

    Raises:
        ScoreError: the right kernel is judged wrong on a family's inputs.
    """
    families = tuple(families)
    chosen = tuple(MUTANTS.values()) if mutants is None else tuple(mutants)
    mismatches: dict[str, dict[str, int]] = {mutant.name: {} for mutant in chosen}
    for family in families:
        inputs = family.generate(family.shapes or problem)
        references = tuple(Reference.of(group.exact()) for group in inputs.groups)
        right = verdict_of(model.RIGHT, inputs, references)
        if not right.ok:
            raise ScoreError(f"the right kernel is judged wrong on family {family.name!r}:\n{right}")
        for mutant in chosen:
            mismatches[mutant.name][family.name] = verdict_of(mutant.kernel, inputs, references).mismatches
    return ScoreTable(
        families=tuple(family.name for family in families),
        defaults=tuple(family.name for family in families if family.default),
        mutants=chosen,
        mismatches=mismatches,
    )


def blind_spots(family: Family, mutants: Iterable[Mutant] | None = None) -> tuple[str, ...]:
    """Mutants that decode wrongly, but never a code this family contains: missed for every size and every seed."""
    found = []
    for mutant in MUTANTS.values() if mutants is None else mutants:
        if mutant.elements is None and mutant.scales is None:
            continue
        right_elements, right_scales = _right_tables()
        elements = mutant.elements or right_elements
        scales = mutant.scales or right_scales
        agree = all(_same(elements[code], right_elements[code]) for code in family.codes)
        if agree and all(_same(scales[code], right_scales[code]) for code in family.scales):
            found.append(mutant.name)
    return tuple(found)


def _right_tables() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What element codes 0..15 and scale codes 0..255 mean."""
    elements = E2M1.decode(np.arange(16, dtype=np.uint8))
    scales = E4M3.decode(np.arange(256, dtype=np.uint8))
    return tuple(float(value) for value in elements), tuple(float(value) for value in scales)


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def render_markdown(table: ScoreTable) -> str:
    """The table as Markdown: a row a mutant, a column a family, cells the number of wrong outputs (blank: missed).

    Default families are in bold; the last rows count what each family catches.
    """
    heads = [f"**{name}**" if name in table.defaults else name for name in table.families]
    lines = [
        "| wrong kernel | part | " + " | ".join(heads) + " |",
        "|---|---|" + "---:|" * len(heads),
    ]
    for mutant in table.mutants:
        row = table.mismatches[mutant.name]
        cells = " | ".join(str(row[name] or "") for name in table.families)
        lines.append(f"| {mutant.name} | {mutant.part} | {cells} |")
    total = len(table.mutants)
    caught = [total - len(table.missed_by(name)) for name in table.families]
    lines.append(f"| **caught of {total}** |  | " + " | ".join(str(count) for count in caught) + " |")
    missed = table.missed_by(*table.defaults) if table.defaults else ()
    lines.append("")
    lines.append(
        f"Default families together catch {total - len(missed)} of {total}."
        + (f" Missed: {', '.join(missed)}." if missed else "")
    )
    return "\n".join(lines)
