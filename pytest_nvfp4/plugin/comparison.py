"""Comparison with a snapshot: the stored text, a damaged one, updates, and failures."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from pytest_nvfp4.plugin.failure import CheckFailure, not_compiled
from pytest_nvfp4.plugin.record import RECORDS, USED, CheckRecord
from pytest_nvfp4.plugin.snapshots import read_text, settle, snapshot_file, syrupy_session
from pytest_nvfp4.plugin.state import CASE, Run
from pytest_nvfp4.temporary import remove_unfinished
from pytest_nvfp4.text import visible
from pytest_nvfp4.toolchain.trace import Trace

_SHOWN = 40


class Change(Protocol):
    """A difference from a snapshot."""

    def text(self) -> str:
        """Return the change in one line."""


def listed(gated: Sequence[Change], *, others: int) -> str:
    """Return the first changes that fail a check, with the number of further ones and of those that do not fail."""
    lines = [change.text() for change in gated[:_SHOWN]]
    if len(gated) > _SHOWN:
        lines.append(f"... and {len(gated) - _SHOWN} more; --nvfp4-html FILE writes all of them")
    if others:
        lines.append(f"({others} further change{'' if others == 1 else 's'} that would not fail alone)")
    return "\n".join(f"  {line}" for line in lines)


def header(trace: Trace, run: Run) -> dict[str, str]:
    """Return the header of a snapshot, which names its origin and is the same on every machine."""
    lines = {"kernel": run.portable(Path(trace.kernel)), "problem": trace.problem, "arch": trace.arch}
    if trace.entry:
        lines["entry"] = " ".join(trace.entry.split())
    if options := " ".join(" ".join(trace.options).split()):
        lines["options"] = options
    lines["dsl"] = trace.dsl_version
    return lines


class Comparison:
    """One comparison of a trace with one snapshot file of a test.

    Syrupy's assertion compares them, so ``--snapshot-update`` and syrupy's counts work as its users expect.

    Attributes:
        trace: The trace.
        file: The snapshot's file.
        stored: Its text; None if there is none yet.
        updating: Whether ``--snapshot-update`` was given.

    Raises:
        CheckFailure: The kernel did not compile, syrupy is missing, the test compared a snapshot of this name before,
            or the snapshot cannot be read.
    """

    def __init__(self, item: pytest.Item, run: Run, trace: Trace, *, name: str | None, what: str) -> None:
        if not trace.ok:
            raise not_compiled(trace, run)
        syrupy_session(item.config)
        self._item, self._run, self._name, self._what = item, run, name, what
        self.trace = trace
        self.file = snapshot_file(item, name)
        self.updating = run.options.update
        used = item.stash.setdefault(USED, set())
        if str(self.file) in used:
            called = "without a name" if name is None else f"named {name!r}"
            raise CheckFailure(
                f"{item.nodeid} compares a second snapshot {called}, which would be the same file; give each "
                'its own name: layout_snapshot(trace, name="...")'
            )
        used.add(str(self.file))
        remove_unfinished(self.file.parent)
        try:
            self.stored = read_text(self.file)
        except OSError as error:
            raise self.failure(
                f"the snapshot {self.shown} cannot be read: {error}\n"
                "correct it, or move it away and record it again with --snapshot-update"
            ) from error

    @property
    def shown(self) -> str:
        """The snapshot's file, relative to the root."""
        return self._run.relative(self.file)

    @property
    def kernel(self) -> str:
        """The kernel file, relative to the root."""
        return self._run.relative(Path(self.trace.kernel))

    def record(self, kind: str, new: str, *, protected: Sequence[str] = ()) -> CheckRecord:
        """Record the compared texts for the reports."""
        record = CheckRecord(
            self.kernel,
            self._item.name,
            file=self.trace.kernel,
            kind=kind,
            old=self.stored,
            new=new,
            protected=protected,
        )
        self._item.stash.setdefault(RECORDS, []).append(record)
        return record

    def failure(self, text: str, *, line: int | None = None, cause: str | None = None) -> CheckFailure:
        """Return a failure that points at the kernel."""
        return CheckFailure(text, file=self.trace.kernel, line=line, cause=cause)

    def settle(self, text: str, *, passes: bool, may_write: bool = True) -> bool:
        """Count the comparison and update the snapshot if requested; see `snapshots.settle`.

        Raises:
            CheckFailure: The snapshot could not be written.
        """
        try:
            return settle(self._item, text, name=self._name, passes=passes, may_write=may_write)
        except OSError as error:
            raise self.failure(
                f"the snapshot {self.shown} could not be written: {error}\nthe old one is unchanged"
            ) from error

    def settle_new(self, text: str) -> None:
        """Record a first snapshot, with ``--snapshot-update``. Raises CheckFailure without that option."""
        if not self.settle(text, passes=False):
            raise self.failure(
                f"there is no snapshot of the {self._what} yet ({self.shown})\n"
                f"record it with: {self.update_command()}, look at it, and commit it",
                cause=f"no snapshots of {self.kernel}",
            )

    def damaged(self, text: str, error: Exception) -> CheckFailure:
        """Return the failure of a damaged snapshot, which is not changed."""
        self.settle(text, passes=False, may_write=False)
        return self.failure(f"the snapshot {self.shown} is damaged: {error}")

    def update_command(self, *more: str) -> str:
        """Return the command that updates this snapshot, with this run's options about kernels."""
        options = self._run.options.about_kernels if CASE in self._item.stash else ()
        arguments = visible(shlex.join([*options, "--snapshot-update", *more]))
        return f"pytest {self._run.argument(self._item.path)} {arguments}"
