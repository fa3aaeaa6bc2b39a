"""A module of this package that runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worker:
    """A module to run, and the modules that a fork server may import for it.

    Attributes:
        launcher: The interpreter, its options, and the script that starts a module by name.
        module: The module that runs as ``__main__``, with ``arguments``.
        preload: Modules that it imports before it runs untrusted code. If there are any, the worker may be forked from
            a process that has imported them (see ``isolation.fork_server``). None of them may read variables that
            differ between jobs (``fork_server.compatibility``), start threads, or initialise CUDA.
    """

    launcher: tuple[str, ...]
    module: str
    arguments: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command that runs it in a new process."""
        return [*self.launcher, self.module, *self.arguments]
