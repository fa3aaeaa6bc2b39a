"""What a mutant is expected to show, and the mutants themselves as values."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_nvfp4.problem import Problem
from tests.sim.mutants.mutate import Mutation

KERNELS = Path(__file__).parents[3] / "kernels" / "nvfp4_group_gemm"


@dataclass(frozen=True)
class Found:
    """The simulator says so.

    Attributes:
        kind: The finding's kind.
        at: Part of the user's line that it names; empty if it names none (what is found when a CTA has ended).
        says: Words of the message.
    """

    kind: str
    at: str
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wrong:
    """Nothing is found, and C is wrong in a way that holds ``says``."""

    says: str


@dataclass(frozen=True)
class Hidden:
    """C is right and nothing is found, in this schedule: why. Another schedule, or the analysis of races, shows it."""

    reason: str


@dataclass(frozen=True)
class Equivalent:
    """C is right and nothing is found, in any schedule and by the analysis of races: why that must be so.

    Attributes:
        reason: The argument.
        counters: Prefixes of the counters that may differ from the unchanged kernel's; all others must be equal.
    """

    reason: str
    counters: tuple[str, ...] = ()


Outcome = Found | Wrong | Hidden | Equivalent


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        name: What is changed.
        aspect: synchronisation, address, descriptor, predicate, count or arithmetic.
        mutate: Makes the edits.
        eager: What running asynchronous work at once shows.
        lazy: What running it as late as possible, with impatient waits, shows; None for the same.
        race: What the happens-before analysis adds to the eager schedule; None for nothing.
        kernel: Part of the name of the kernel that is changed, if the module has several.
    """

    name: str
    aspect: str
    mutate: Mutation
    eager: Outcome
    lazy: Outcome | None = None
    race: Found | None = None
    kernel: str = ""

    @property
    def expected(self) -> dict[str, Outcome]:
        """What is expected, by the schedules that it is run in."""
        everywhere = isinstance(self.eager, Equivalent)
        expected: dict[str, Outcome] = {"eager": self.eager}
        if self.lazy is not None or everywhere:
            expected["lazy"] = self.lazy or self.eager
        if self.race is not None or everywhere:
            expected["races"] = self.race or self.eager
        return expected

    @property
    def needs(self) -> str:
        """``races`` if no schedule shows it, and only the happens-before analysis can find it."""
        shown = any(isinstance(self.expected.get(name), Found | Wrong) for name in ("eager", "lazy"))
        return "races" if self.race is not None and not shown else ""


@dataclass(frozen=True)
class Subject:
    """A kernel and what is run.

    Attributes:
        path: Its file, relative to the folder of the grouped GEMMs.
        edits: Replacements in its source that keep it what it is and make it compile faster.
        warned: Parts of the lines that race warnings of the kernel itself are about.
    """

    name: str
    path: str
    arch: str
    problem: Problem
    family: str
    mutants: tuple[Mutant, ...]
    edits: tuple[tuple[str, str], ...] = ()
    warned: tuple[str, ...] = ()

    def copy(self, folder: Path) -> Path:
        """The kernel as a file of ``folder``."""
        target = folder / f"{self.name}.py"
        source = KERNELS / self.path
        if not self.edits:
            shutil.copy(source, target)
            return target
        text = source.read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{old!r} stands {text.count(old)} times in {source.name}")
            text = text.replace(old, new)
        target.write_text(text)
        return target


class Mutants:
    """Collects the mutants of one aspect: ``mutant("name", edits, expected)``."""

    def __init__(self, aspect: str, *, kernel: str = "") -> None:
        self.aspect = aspect
        self.kernel = kernel
        self.made: list[Mutant] = []

    def __call__(
        self,
        name: str,
        mutate: Mutation,
        eager: Outcome,
        lazy: Outcome | None = None,
        *,
        race: Found | None = None,
        kernel: str | None = None,
    ) -> None:
        part = self.kernel if kernel is None else kernel
        self.made.append(Mutant(name, self.aspect, mutate, eager, lazy, race, part))


def check(said: dict[str, Any], expected: Outcome, *, first: bool) -> None:
    """``first`` if the expected finding must be the first one."""
    errors = [one for one in said["findings"] if one["severity"] == "error"]
    match expected:
        case Found(kind, at, words):
            told = [one for one in (errors[:1] if first and errors else said["findings"]) if one["kind"] == kind]
            assert told, said["findings"] or said["wrong"] or "nothing was found, and C is right"
            (one, *_) = told
            assert at in (one["text"] or "") if at else one["text"] is None, one["text"]
            for word in words:
                assert word in one["message"]
        case Wrong(words):
            assert not errors
            assert said["wrong"], "C is right"
            assert words in said["wrong"][0]
        case Hidden() | Equivalent():
            assert not said["findings"]
            assert not said["wrong"]
            if isinstance(expected, Equivalent):
                allowed = ("instructions", *expected.counters)
                assert [name for name in said["counters"] if not name.startswith(allowed)] == []
