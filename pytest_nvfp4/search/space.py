"""What a search needs of the problems that it tries: their order, smaller ones, and their names."""

from __future__ import annotations

from typing import Protocol

from pytest_nvfp4.problem import Problem


class Space(Protocol):
    """Problems of one kind."""

    def size(self, problem: Problem) -> tuple[int, ...]:
        """Return the order of problems by size."""

    def smaller(self, problem: Problem) -> list[Problem]:
        """Return the distinct problems that are one step smaller."""

    def text(self, problem: Problem) -> str:
        """Return the text by which ``--nvfp4-problem`` names a problem."""

    def read(self, text: str) -> Problem:
        """Return the problem of a text. Raises ProblemError."""
