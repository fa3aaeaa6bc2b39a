"""A module of this package that is run in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worker:
    """What to run, and what a nursery may have ready for it.

    Attributes:
        launcher: The interpreter, its options, and the script that starts a module by name.
        module: The module that is run as ``__main__``.
        arguments: Its arguments.
        preload: Modules that it imports before it runs anything that is not trusted. Where they are named, it may be
            forked from a process that has imported them (see ``isolation.nursery``). None of them may read variables
            that are this job's own (``isolation.nursery.likeness``), start threads, or initialise CUDA.
    """

    launcher: tuple[str, ...]
    module: str
    arguments: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command that runs it in a process that begins from nothing."""
        return [*self.launcher, self.module, *self.arguments]
