"""Sides of a comparison of calls: a kernel that is simulated here, or a snapshot of its facts, each in a revision too.

The facts of a call, by name, are counters (`nvfp4 cost`) or modelled times (`nvfp4 model`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_nvfp4.cli import revisions, sides
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions, RunOptions
from pytest_nvfp4.cli.simulation import Runnable, runnable
from pytest_nvfp4.problem import Problem
from pytest_nvfp4.settings import KernelSettings
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.trace_archive import SUFFIX

_RUN = (".py", SUFFIX)


@dataclass(frozen=True)
class CallFacts:
    """The facts of one call.

    Attributes:
        facts: Facts by name; empty if there are none.
        header: What they follow from, as in a snapshot's header.
        failure: Why there are none; empty otherwise.
    """

    facts: Mapping[str, str]
    header: Mapping[str, str]
    failure: str = ""


@dataclass(frozen=True)
class CallSide:
    """One side of a comparison.

    Attributes:
        label: The file or revision as the user named it.
        kind: ``kernel`` or ``snapshot``.
        calls: The facts by name of the problem.
        problems: The problems of a kernel.
        settings: Its settings; the defaults for a snapshot.
    """

    label: str
    kind: str
    calls: Mapping[str, CallFacts]
    problems: tuple[Problem, ...] = ()
    settings: KernelSettings = field(default_factory=KernelSettings)

    def as_data(self) -> dict[str, object]:
        """Return the side without its facts as JSON-ready values."""
        headers = {name: dict(call.header) for name, call in self.calls.items()}
        return {"label": self.label, "kind": self.kind, "headers": headers}


Simulate = Callable[[Runnable], Mapping[str, CallFacts]]
"""Returns the facts of a kernel's call on each of its problems."""


def load(text: str, how: RunOptions, simulate: Simulate, *, kind: str, problems: tuple[Problem, ...] = ()) -> CallSide:
    """Return one side.

    Args:
        text: A kernel, a snapshot of the kind, or ``REV:path`` of one. An existing file takes precedence.
        how: How a kernel is called.
        simulate: Returns the facts of a kernel.
        kind: Kind of the snapshot, ``cost`` or ``model``.
        problems: Problems of a kernel unless ``how`` names some.

    Raises:
        InputError: The text names none of these, or it cannot be read.
    """
    with kernel_of(text, how, problems=problems) as subject:
        if subject is not None:
            return CallSide(text, "kernel", simulate(subject), subject.problems, subject.settings)
    side = sides.load(text, KernelOptions())
    if kind not in side.facts:
        raise InputError(f"{text}: is no snapshot of the check {kind!r}; name one, or a kernel's Python file (.py)")
    return CallSide(text, "snapshot", {side.header.get("problem", ""): CallFacts(side.facts[kind], side.header)})


@contextlib.contextmanager
def kernel_of(text: str, how: RunOptions, *, problems: tuple[Problem, ...] = ()) -> Iterator[Runnable | None]:
    """Yield the kernel of a file or of a git revision, whose files exist while the block runs; None for another file.

    Raises:
        InputError: There is no such kernel.
    """
    path = Path(text)
    if path.exists() or revisions.split(text) is None:
        given = path.suffix in _RUN or not path.is_file()
        yield runnable(path, how, simulated=True, problems=problems) if given else None
        return
    revision = revisions.find(text, cwd=Path.cwd())
    if revision.path.suffix not in _RUN:
        yield None
        return
    with revisions.extracted(revision, below=TraceCache().root) as tree:
        yield runnable(tree / revision.path, how, simulated=True, label=text, within=tree, problems=problems)


def pairs(old: CallSide, new: CallSide) -> Iterator[tuple[str, CallFacts, CallFacts]]:
    """Yield the problems that both sides have. Raises InputError if there is none."""
    both = [name for name in new.calls if name in old.calls]
    if not both:
        raise InputError(
            f"{old.label} is of {', '.join(old.calls)} and {new.label} of {', '.join(new.calls)}: name one --problem, "
            "or snapshots of the same problem"
        )
    for name in both:
        yield name, old.calls[name], new.calls[name]


def both(old: str, new: str, how: RunOptions, simulate: Simulate, *, kind: str) -> tuple[CallSide, CallSide]:
    """Return both sides; without ``--problem``, a kernel is called on the problems of the other side."""
    if not _is_kernel(old) and _is_kernel(new):
        before = load(old, how, simulate, kind=kind)
        return before, load(new, _on(how, before), simulate, kind=kind)
    after = load(new, how, simulate, kind=kind)
    known = how if after.problems else _on(how, after)
    return load(old, known, simulate, kind=kind, problems=after.problems), after


def _is_kernel(text: str) -> bool:
    return text.endswith(_RUN)


def _on(how: RunOptions, other: CallSide) -> RunOptions:
    return how if how.names else replace(how, names=tuple(filter(None, other.calls)))
