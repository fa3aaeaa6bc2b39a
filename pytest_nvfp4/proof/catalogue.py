"""All claims that need no kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_nvfp4.proof import cta_indexing, integer_range, scale_factors, scale_on_chip, schedules, tmem_claims
from pytest_nvfp4.proof.statement import Claim, Limits, Statement, judge


def cta_claims(groups: Sequence[int] = cta_indexing.DEFAULT_GROUPS) -> tuple[Claim, ...]:
    """Return the claims on the CTA map, its schedules and its arithmetic."""
    return (*cta_indexing.claims(groups), *schedules.claims(), *integer_range.claims())


def scale_claims() -> tuple[Claim, ...]:
    """Return the claims on scale factors that need no kernel."""
    return (*scale_factors.claims(), *scale_on_chip.claims())


def pure_claims() -> tuple[Claim, ...]:
    """Return all claims that need no kernel."""
    return (*cta_claims(), *scale_claims(), *tmem_claims.claims())


def judge_all(claims: Iterable[Claim], limits: Limits | None = None) -> tuple[Statement, ...]:
    """Check claims and their controls, in order."""
    return tuple(judge(claim, limits) for claim in claims)
