"""Profiles of Hypothesis: ``dev`` for short searches, ``ci`` for repeatable ones, ``thorough`` for long ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hypothesis


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of Hypothesis.

    Attributes:
        name: Name without prefix.
        examples: Number of examples of one search.
        repeatable: Whether every run has the same examples.
    """

    name: str
    examples: int
    repeatable: bool

    @property
    def hypothesis_name(self) -> str:
        """Name among Hypothesis's profiles (``--hypothesis-profile``)."""
        return f"nvfp4-{self.name}"

    def settings(self) -> hypothesis.settings:
        """Return the profile as settings without a deadline, as kernels may take any time."""
        import hypothesis

        if self.repeatable:
            return hypothesis.settings(
                max_examples=self.examples, deadline=None, derandomize=True, database=None, print_blob=True
            )
        # derandomize is explicit: Hypothesis's default profile on a CI server is repeatable.
        return hypothesis.settings(max_examples=self.examples, deadline=None, derandomize=False, print_blob=True)


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (Profile("dev", 20, False), Profile("ci", 50, True), Profile("thorough", 400, False))
}
"""The profiles by name."""
