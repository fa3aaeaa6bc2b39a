"""What the comparisons with snapshots share: the stored text, its damage, and how a failure is said."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.kernel import not_compiled
from pytest_nvfp4.plugin.record import RECORDS, CheckRecord, Kind
from pytest_nvfp4.plugin.snapshots import TextSnapshots, recall
from pytest_nvfp4.plugin.state import Case, Run
from pytest_nvfp4.toolchain.sheet import Sheet, SheetError

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace

_SHOWN = 40


class Change(Protocol):
    """Something that a snapshot has otherwise."""

    def text(self) -> str:
        """The change in one line."""


def listed(gated: Sequence[Change], *, others: int) -> str:
    """The first of the changes for which a check fails, and how many others there are of either kind."""
    lines = [change.text() for change in gated[:_SHOWN]]
    if len(gated) > _SHOWN:
        lines.append(f"... and {len(gated) - _SHOWN} more; --nvfp4-html FILE writes all of them")
    if others:
        lines.append(f"({others} further change{'' if others == 1 else 's'} that alone would not fail)")
    return "\n".join(f"  {line}" for line in lines)


def header(trace: Trace, run: Run) -> dict[str, str]:
    """What a snapshot says about where it comes from; nothing in it depends on the machine."""
    lines = {"kernel": run.portable(Path(trace.kernel)), "problem": trace.problem, "arch": trace.arch}
    if trace.entry:
        lines["entry"] = " ".join(trace.entry.split())
    if options := " ".join(" ".join(trace.options).split()):
        lines["options"] = options
    lines["dsl"] = trace.dsl_version
    return lines


class Comparison:
    """Compares the texts of one test with its snapshots."""

    def __init__(self, item: pytest.Item, run: Run) -> None:
        self._item = item
        self._run = run

    def _begin(self, trace: Trace, *, name: str | None, what: str) -> Pending:
        """Start a comparison.

        Raises:
            CheckFailure: the kernel did not compile, syrupy is missing, or the snapshot cannot be read.
        """
        if not trace.ok:
            raise not_compiled(trace, self._run)
        return Pending(self._item, self._run, trace, name=name, what=what)


class Pending:
    """One comparison with one snapshot file.

    Attributes:
        trace: The trace that is compared.
        file: The snapshot's file.
        stored: Its text; None when there is none yet.
    """

    def __init__(self, item: pytest.Item, run: Run, trace: Trace, *, name: str | None, what: str) -> None:
        self._item, self._run, self._name, self._what = item, run, name, what
        self._snapshots = TextSnapshots(item)
        self.trace = trace
        self.file = self._snapshots.claim(name)
        try:
            self.stored = recall(self.file)
        except OSError as error:
            raise self.failure(
                f"the snapshot {self.shown} cannot be read: {error}\n"
                "put it right, or move it away and record it again with --snapshot-update"
            ) from error

    @property
    def shown(self) -> str:
        """The snapshot's file as the user knows it."""
        return self._run.relative(self.file)

    @property
    def kernel(self) -> str:
        """The kernel as the user knows it."""
        return self._run.relative(Path(self.trace.kernel))

    @property
    def updating(self) -> bool:
        """Whether what differs is to be written."""
        return self._snapshots.updating

    def record(self, kind: Kind, new: str, *, protected: tuple[str, ...] = ()) -> CheckRecord:
        """Keep what is compared for the reports."""
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

    def failure(self, text: str, *, line: int | None = None) -> CheckFailure:
        """A failure that points at the kernel."""
        return CheckFailure(text, file=self.trace.kernel, line=line)

    def settle(self, text: str, *, passes: bool, may_write: bool = True) -> bool:
        """Count the comparison and write what is to be written; see ``TextSnapshots.settle``.

        Raises:
            CheckFailure: it could not be written.
        """
        try:
            return self._snapshots.settle(text, name=self._name, passes=passes, may_write=may_write)
        except OSError as error:
            raise self.failure(
                f"the snapshot {self.shown} could not be written: {error}\nwhat was there is unchanged"
            ) from error

    def settle_new(self, text: str) -> None:
        """Record a first snapshot, where the command line asks for that.

        Raises:
            CheckFailure: it does not; the text says how to.
        """
        if not self.settle(text, passes=False):
            raise self.failure(
                f"there is no snapshot of the {self._what} yet ({self.shown})\n"
                f"record it with: {self.update_command()}, look at it, and commit it"
            )

    def stored_sheet(self, received: Sheet) -> Sheet | None:
        """The sheet to compare with; None where there was none, or a damaged one, and this one was written.

        Raises:
            CheckFailure: there is none that can be understood, and the command line does not ask to write one.
        """
        text = received.render()
        if self.stored is None:
            self.settle_new(text)
            return None
        try:
            return Sheet.parse(self.stored, kind=received.kind)
        except SheetError as error:
            if not self.updating:
                raise self.damaged(text, error) from error
            self.settle(text, passes=False)
            return None

    def damaged(self, text: str, error: Exception) -> CheckFailure:
        """The failure of a snapshot that cannot be understood; it is left as it is."""
        self.settle(text, passes=False, may_write=False)
        return self.failure(f"the snapshot {self.shown} is damaged: {error}")

    def update_command(self, *more: str) -> str:
        """The command that writes this snapshot anew, with what this run was told about kernels."""
        from pytest_nvfp4.text import visible

        options = self._run.options.about_kernels if isinstance(getattr(self._item, "case", None), Case) else ()
        arguments = visible(shlex.join([*options, "--snapshot-update", *more]))
        return f"pytest {self._run.typed(self._item.path)} {arguments}"
