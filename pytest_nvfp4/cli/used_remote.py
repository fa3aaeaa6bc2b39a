"""A remote that a command uses: its end, however it comes, and what the user is told then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytest_nvfp4.cli import output
from pytest_nvfp4.device.remote.options import RemoteOptions
from pytest_nvfp4.end_signals import clean_ends
from pytest_nvfp4.text import printed

if TYPE_CHECKING:
    from pytest_nvfp4.device.remote.base import Remote

GRACE_S = 20.0
"""Seconds after Ctrl-C in which what runs on a remote may end before this process exits."""


@contextlib.contextmanager
def used_remote(name: str, options: RemoteOptions) -> Iterator[Remote]:
    """Yield a remote; at the end stop it, and note its cost and what may still run. Raises RemoteError."""
    from pytest_nvfp4.device.remote.registry import remote

    chosen = remote(name, options)
    with stopping(name, chosen):
        yield chosen


@contextlib.contextmanager
def stopping(name: str, remote: Remote, *, close: Callable[[], None] | None = None) -> Iterator[None]:
    """Stop a remote at the end, after ``close``; note its cost and what may still run."""
    from pytest_nvfp4.device.remote.base import left_on

    with clean_ends(lambda: left_on(remote), within_s=GRACE_S):
        try:
            yield
        finally:
            if close is not None:
                close()
            remote.stop()
            note_end(name, remote)


def note_end(name: str, remote: Remote) -> None:
    """Note the cost of a stopped remote, its app, and what may still run."""
    from pytest_nvfp4.device.remote.base import left_on

    cost, where = remote.cost(), getattr(remote, "where", "")
    if cost.seconds >= 1:
        output.note(printed(f"{name}: {cost}{f'; {where}' if where else ''}"))
    if left := left_on(remote):
        output.note(printed(f"{name}: {left}"))
