"""How long a search takes: ``dev`` while one writes, ``ci`` the same on every run, ``thorough`` over night."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hypothesis


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile.

    Attributes:
        name: Its name here.
        examples: Examples of one search.
        repeatable: The same examples on every run.
    """

    name: str
    examples: int
    repeatable: bool

    @property
    def hypothesis_name(self) -> str:
        """Its name among Hypothesis's profiles (``--hypothesis-profile``)."""
        return f"nvfp4-{self.name}"

    def settings(self) -> hypothesis.settings:
        """As Hypothesis takes it. A kernel takes as long as it takes: there is no deadline for one example."""
        import hypothesis

        if self.repeatable:
            return hypothesis.settings(
                max_examples=self.examples, deadline=None, derandomize=True, database=None, print_blob=True
            )
        # Said, because where Hypothesis takes the machine for a CI server its own default profile is repeatable.
        return hypothesis.settings(max_examples=self.examples, deadline=None, derandomize=False, print_blob=True)


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (Profile("dev", 20, False), Profile("ci", 50, True), Profile("thorough", 400, False))
}
"""The profiles by name."""
