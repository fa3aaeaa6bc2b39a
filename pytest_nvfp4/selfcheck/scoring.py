"""Scores of input families: the wrong kernels that each of them catches."""

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
"""A small problem with ragged M, several tiles of rows, columns and k, and groups of equal and of different K."""


class ScoreError(RuntimeError):
    """A right kernel that was judged wrong, so that scores would have no meaning."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Numbers of wrong outputs that each family reveals of each wrong kernel.

    ``mismatches[mutant][family]`` counts wrong outputs and written guard elements; 0 means that the mutant passes.
    """

    families: tuple[str, ...]
    defaults: tuple[str, ...]
    mutants: tuple[Mutant, ...]
    mismatches: Mapping[str, Mapping[str, int]]

    def missed_by(self, *families: str) -> tuple[str, ...]:
        """Return the mutants that none of these families catches."""
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
        families: Families to score, each on its own ``shapes`` if it has any, otherwise on ``problem``.
        mutants: Wrong kernels; all of ``MUTANTS`` by default.
        problem: Groups and seed.

    Raises:
        ScoreError: The right kernel is judged wrong on a family's inputs.
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
    """Return mutants that decode only codes wrongly which this family lacks: missed for every size and every seed."""
    # What element codes 0..15 and scale codes 0..255 decode to.
    right_elements = E2M1.decode(np.arange(16, dtype=np.uint8))
    right_scales = E4M3.decode(np.arange(256, dtype=np.uint8))
    missed = []
    for mutant in MUTANTS.values() if mutants is None else mutants:
        if mutant.elements is None and mutant.scales is None:
            continue
        elements = right_elements if mutant.elements is None else mutant.elements
        scales = right_scales if mutant.scales is None else mutant.scales
        agree = all(_same(elements[code], right_elements[code]) for code in family.codes)
        if agree and all(_same(scales[code], right_scales[code]) for code in family.scales):
            missed.append(mutant.name)
    return tuple(missed)


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))
