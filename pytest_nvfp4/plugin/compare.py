"""Compare what a trace shows with its snapshots, judge the difference by meaning, and say it in words."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_nvfp4.layout.change import ListingDiff, Severity
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.plugin.failure import CheckFailure, CheckRecord
from pytest_nvfp4.plugin.fixtures import RECORDS, TraceFactory
from pytest_nvfp4.plugin.snapshots import TextSnapshot
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.toolchain.sheet import Sheet, SheetError, codegen_facts, launch_facts

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace

_GROWING = ("spill_stores", "spill_loads", "local_bytes", "stack_bytes")


def header(trace: Trace, run: Run) -> dict[str, str]:
    """What a snapshot says about where it comes from; nothing in it depends on the machine."""
    lines = {"kernel": run.relative(Path(trace.kernel)), "problem": trace.problem, "arch": trace.arch}
    if trace.entry:
        lines["entry"] = trace.entry
    if trace.options:
        lines["options"] = " ".join(" ".join(trace.options).split())
    lines["dsl"] = trace.dsl_version
    return lines


def listing_of(trace: Trace, run: Run) -> Listing:
    """The layouts of a trace as a listing."""
    return Listing.from_pairs(header(trace, run), ((value.name, value.type) for value in trace.values))


class _Comparison:
    """What both kinds of snapshot share: reading the stored text, writing, and messages."""

    def __init__(self, item: pytest.Item, run: Run) -> None:
        self._item = item
        self._run = run
        self._snapshot = TextSnapshot(item)

    def _record(self, record: CheckRecord) -> None:
        self._item.stash.setdefault(RECORDS, []).append(record)

    def _recall(self, name: str | None) -> str | None:
        location = self._snapshot.location(name)
        try:
            return self._snapshot.recall(name)
        except (OSError, UnicodeDecodeError) as error:
            raise CheckFailure(
                f"the snapshot {self._run.relative(location)} cannot be read: {error}\n"
                "restore it from version control, or delete it and run again with --snapshot-update"
            ) from error

    def _settle(
        self,
        text: str,
        *,
        name: str | None,
        passes: Callable[[str], bool],
        may_write: bool = True,
    ) -> bool:
        """Compare through syrupy; True when it matches or was written.

        Raises:
            CheckFailure: the snapshot could not be written.
        """
        matched, exception = self._snapshot.compare(
            text, name=name, equal=lambda stored, _received: passes(stored), may_write=may_write
        )
        if exception is not None:
            location = self._run.relative(self._snapshot.location(name))
            raise CheckFailure(
                f"the snapshot {location} could not be written: {exception}\nnothing was changed"
            ) from exception
        return matched

    def _missing(self, name: str | None, what: str) -> CheckFailure:
        location = self._run.relative(self._snapshot.location(name))
        target = self._item.nodeid.split("::", maxsplit=1)[0]
        return CheckFailure(
            f"there is no snapshot of the {what} yet ({location})\n"
            f"record it with: pytest {target} --snapshot-update, look at it, and commit it"
        )

    def _table(self, diff: ListingDiff, threshold: Severity) -> str:
        """The changes as a table, without the counts and headings of a whole report."""
        from pytest_nvfp4.report.model import CheckReport, Report
        from pytest_nvfp4.report.terminal import render_terminal

        check = CheckReport(self._item.nodeid.split("::")[0], self._item.name, "failed", diff=diff)
        width = self._item.config.get_terminal_writer().fullwidth
        return render_terminal(Report([check], threshold=threshold), width=max(width, 80)).strip("\n")

    def _damaged(self, name: str | None, error: Exception) -> CheckFailure:
        location = self._run.relative(self._snapshot.location(name))
        return CheckFailure(f"the snapshot {location} is damaged: {error}")


class LayoutSnapshot(_Comparison):
    """Compare a kernel's layouts with the stored snapshot.

    ``layout_snapshot(trace)`` or ``layout_snapshot("kernels/x.py", entry=...)``; a second snapshot of one test needs
    ``name=``. A change as bad as the gate fails; milder ones are reported at the end of the run.
    """

    def __init__(self, item: pytest.Item, run: Run, factory: TraceFactory) -> None:
        super().__init__(item, run)
        self._factory = factory

    def __call__(
        self,
        kernel: Trace | str | Path,
        *,
        name: str | None = None,
        entry: str | None = None,
        problem: str | None = None,
        protected: Iterable[str] = (),
        fail_on: str | None = None,
    ) -> None:
        """Compare.

        Args:
            kernel: A trace, or the path of a kernel file, which is then compiled.
            name: Name of the snapshot within the test.
            entry: As for ``nvfp4_trace``, with a path.
            problem: As for ``nvfp4_trace``, with a path.
            protected: Patterns of layouts that may not change unnoticed, on top of the ini setting.
            fail_on: The mildest severity that fails; what the options say otherwise.

        Raises:
            CheckFailure: the kernel does not compile, the snapshot is missing or damaged, or a layout changed.
        """
        trace = self._factory(kernel, entry=entry, problem=problem) if isinstance(kernel, str | Path) else kernel
        threshold = Severity.parse(fail_on or self._run.options.fail_on)
        received = listing_of(trace, self._run)
        text = received.render()
        stored_text = self._recall(name)
        record = CheckRecord(self._run.relative(Path(trace.kernel)), self._item.name, kind="layouts", new=text)
        self._record(record)
        patterns = tuple(dict.fromkeys((*protected, *self._run.options.protected)))
        if stored_text is None:
            if not self._settle(text, name=name, passes=lambda _stored: False):
                raise self._missing(name, "layouts")
            return
        try:
            stored = Listing.parse(stored_text)
        except (LayoutError, ValueError) as error:
            if self._snapshot.updating:
                self._settle(text, name=name, passes=lambda _stored: False)
                return
            self._settle(text, name=name, passes=lambda _stored: False, may_write=False)
            raise self._damaged(name, error) from error
        names = {entry.name for entry in (*stored.records, *received.records)}
        record.old, record.protected = stored_text, sorted(_matching(names, patterns))
        diff = diff_listings(stored, received, protected=record.protected)
        self._judge(trace, diff, text=text, name=name, threshold=threshold)

    def _judge(self, trace: Trace, diff: ListingDiff, *, text: str, name: str | None, threshold: Severity) -> None:
        if self._snapshot.updating:
            allowed = _matching((change.name for change in diff.changes), self._run.options.unprotect)
            refused = [
                change
                for change in diff.changes
                if change.protected
                and change.severity >= Severity.COSMETIC
                and change.name not in allowed
                and (change.old_name or change.name) not in allowed
            ]
            if refused:
                self._settle(text, name=name, passes=lambda _stored: False, may_write=False)
                names = " ".join(f"--nvfp4-unprotect {change.name!r}" for change in refused[:8])
                raise CheckFailure(
                    f"--snapshot-update would change {len(refused)} protected layout(s), so the snapshot was left as "
                    f"it is:\n{self._table(diff, threshold)}\nif that is meant, name them: {names}",
                    file=trace.kernel,
                    line=_line(trace, refused[0].name),
                )
            self._settle(text, name=name, passes=lambda _stored: False)
            return
        gated = diff.gate(threshold)
        if self._settle(text, name=name, passes=lambda _stored: not gated):
            return
        first = gated[0].name
        location = self._run.relative(self._snapshot.location(name))
        raise CheckFailure(
            f"{len(gated)} layout change(s) of {self._run.relative(Path(trace.kernel))} at or above the gate "
            f"({threshold.label}), against {location}:\n{self._table(diff, threshold)}\n"
            "if the change is meant: run again with --snapshot-update and commit the snapshot",
            file=trace.kernel,
            line=_line(trace, first),
        )


class FactSnapshot(_Comparison):
    """Compare launch or codegen facts with the stored snapshot."""

    def __call__(self, trace: Trace, *, kind: Literal["launch", "codegen"], name: str | None = None) -> None:
        """Compare.

        Args:
            trace: The trace whose facts are compared.
            kind: ``launch`` (every change fails) or ``codegen`` (see ``checks.codegen`` for what fails).
            name: Name of the snapshot within the test.

        Raises:
            CheckFailure: the snapshot is missing or damaged, or a fact changed.
        """
        facts = launch_facts(trace) if kind == "launch" else codegen_facts(trace)
        received = Sheet(kind, header(trace, self._run), facts)
        text = received.render()
        stored_text = self._recall(name)
        record = CheckRecord(self._run.relative(Path(trace.kernel)), self._item.name, kind=kind, new=text)
        self._record(record)
        if stored_text is None:
            if not self._settle(text, name=name, passes=lambda _stored: False):
                raise self._missing(name, f"{kind} facts")
            return
        try:
            stored = Sheet.parse(stored_text, kind=kind)
        except SheetError as error:
            if self._snapshot.updating:
                self._settle(text, name=name, passes=lambda _stored: False)
                return
            self._settle(text, name=name, passes=lambda _stored: False, may_write=False)
            raise self._damaged(name, error) from error
        record.old = stored_text
        changes = diff_facts(stored.facts, received.facts)
        gated = gated_facts(changes, kind=kind, same_dsl=stored.header.get("dsl") == trace.dsl_version)
        if self._settle(text, name=name, passes=lambda _stored: not gated):
            return
        location = self._run.relative(self._snapshot.location(name))
        lines = "\n".join(f"  {change.text()}" for change in gated)
        others = len(changes) - len(gated)
        more = f"\n  ({others} further change(s) that do not fail)" if others else ""
        raise CheckFailure(
            f"{len(gated)} {kind} fact(s) of {self._run.relative(Path(trace.kernel))} changed against {location}:\n"
            f"{lines}{more}\nif the change is meant: run again with --snapshot-update and commit the snapshot",
            file=trace.kernel,
        )


def gated_facts(changes: Sequence[FactChange], *, kind: str, same_dsl: bool) -> list[FactChange]:
    """The changes that fail a check: all for ``launch``; for ``codegen`` what ``checks.codegen`` says."""
    if kind == "launch":
        return list(changes)
    gated = []
    for change in changes:
        fact = change.name.split(".", maxsplit=2)[-1]
        grew = fact in _GROWING and change.direction in ("up", "changed", "added")
        known = "unavailable" not in (change.old, change.new)
        opcode = fact.startswith("ptx.") and change.direction in ("added", "removed")
        kernel = fact == "kernel"
        if (grew and known) or (same_dsl and (opcode or kernel)):
            gated.append(change)
    return gated


def _matching(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """The names that fit one of the patterns; ``x#2`` is protected with ``x``."""
    return {
        name
        for name in names
        if any(fnmatch.fnmatchcase(part, pattern) for part in {name, name.partition("#")[0]} for pattern in patterns)
    }


def _line(trace: Trace, name: str) -> int | None:
    return next((value.line for value in trace.values if value.name == name and value.file == trace.kernel), None)
