"""Comparison of the layouts of a trace with a snapshot; differences are judged by meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_nvfp4.layout.change import Change, ListingDiff, Severity
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.errors import LayoutError
from pytest_nvfp4.layout.listing import Listing
from pytest_nvfp4.plugin.comparison import Comparison, header
from pytest_nvfp4.plugin.difftext import excerpt
from pytest_nvfp4.plugin.failure import CheckFailure, fails_at_caller
from pytest_nvfp4.plugin.state import KernelCase, Run
from pytest_nvfp4.plugin.traces import TraceFactory
from pytest_nvfp4.toolchain.trace import Trace

_NAMED = 8
"""Protected layouts that a suggested command names one by one."""


def listing_of(trace: Trace, run: Run) -> Listing:
    """Return the layouts of a trace as a listing."""
    return Listing.from_pairs(header(trace, run), ((value.name, value.type) for value in trace.values))


@dataclass(frozen=True, slots=True)
class LayoutSnapshot:
    """Comparison of a kernel's layouts with the stored snapshot.

    ``layout_snapshot(trace)`` or ``layout_snapshot("kernels/x.py", entry=...)``. A second snapshot of one test needs a
    ``name``. A change at or above the gate fails; milder ones are reported at the end of the run.
    """

    _item: pytest.Item
    _run: Run
    _factory: TraceFactory
    _case: KernelCase | None

    @fails_at_caller
    def __call__(
        self,
        kernel: Trace | str | Path,
        *,
        name: str | None = None,
        protected: Iterable[str] = (),
        fail_on: str | None = None,
        **options: Any,
    ) -> None:
        """Compare.

        Args:
            kernel: A trace, or the path of a kernel file, which is then compiled.
            name: Name of the snapshot within the test.
            protected: Patterns of protected layouts, in addition to those of the settings.
            fail_on: The mildest severity that fails; that of the options otherwise.
            options: With a path, the arguments of ``nvfp4_trace``: ``entry``, ``problem``, ``compile_options``, ...

        Raises:
            CheckFailure: The kernel does not compile, the snapshot is missing or damaged, or a layout changed.
            TypeError: ``nvfp4_trace`` has no such argument, or arguments were given with a trace.
        """
        if options and not isinstance(kernel, str | Path):
            raise TypeError(
                f"layout_snapshot(trace, {', '.join(options)}): give these to nvfp4_trace, which made the trace"
            )
        trace = self._factory(kernel, **options) if isinstance(kernel, str | Path) else kernel
        comparison = Comparison(self._item, self._run, trace, name=name, what="layouts")
        patterns = (protected,) if isinstance(protected, str) else tuple(protected)
        all_protected = tuple(dict.fromkeys((*patterns, *self._configured(trace))))
        _LayoutComparison(comparison, self._run, all_protected, self._threshold(fail_on)).compare()

    def _configured(self, trace: Trace) -> tuple[str, ...]:
        """Return the protected patterns of the item's configuration, or for a test of all of the kernel's."""
        cases = [self._case] if self._case else self._run.cases(Path(trace.kernel), named=False)
        return tuple(pattern for case in cases for pattern in case.settings.protected)

    def _threshold(self, fail_on: str | None) -> Severity:
        try:
            return Severity.parse(fail_on or self._run.options.fail_on)
        except ValueError as error:
            raise CheckFailure(f"layout_snapshot(fail_on={fail_on!r}): {error}") from error


class _LayoutComparison:
    """One comparison of layouts."""

    def __init__(self, comparison: Comparison, run: Run, protected: Sequence[str], threshold: Severity) -> None:
        self._comparison, self._run, self._protected, self._threshold = comparison, run, tuple(protected), threshold
        try:
            self._received = listing_of(comparison.trace, run)
            self._text = self._received.render()
        except LayoutError as error:
            named = getattr(error, "name", None)
            raise comparison.failure(
                f"the layouts of {comparison.kernel} cannot be compared: {error}", line=self._line(named)
            ) from error

    def compare(self) -> None:
        """Compare, and update the snapshot if requested. Raises CheckFailure."""
        comparison = self._comparison
        record = comparison.record("layouts", self._text, protected=self._protected)
        if comparison.stored is None:
            comparison.settle_new(self._text)
            return
        try:
            stored = Listing.parse(comparison.stored)
        except LayoutError as error:
            self._replace_damaged(error)
            return
        diff = diff_listings(stored, self._received, protected=self._protected)
        if diff.changes:
            record.line = self._line(diff.changes[0].name)
        if comparison.updating:
            self._update(stored, diff)
        else:
            self._judge(diff)

    def _judge(self, diff: ListingDiff) -> None:
        comparison, gated = self._comparison, diff.gate(self._threshold)
        if comparison.settle(self._text, passes=not gated):
            return
        shielded = [change for change in gated if change.protected]
        command = comparison.update_command(*_unprotect(shielded))
        if all(change.kind == "renamed" for change in gated):
            first = gated[0]
            more = f" (and {len(gated) - 1} more)" if len(gated) > 1 else ""
            what = f"the protected layout {first.old_name} of {comparison.kernel} is renamed to {first.name}{more}"
        else:
            what = f"{_count(gated)} of {comparison.kernel} at or above the gate ({self._threshold.label})"
        raise comparison.failure(
            f"{what}, against {comparison.shown}:\n{self._excerpt(diff)}\n"
            f"if the change is meant: {command}, and commit the snapshot",
            line=self._line(gated[0].name),
        )

    def _update(self, stored: Listing, diff: ListingDiff) -> None:
        comparison = self._comparison
        if stored.records and not self._received.records:
            comparison.settle(self._text, passes=False, may_write=False)
            raise comparison.failure(
                f"the compile shows no layout, so --snapshot-update did not replace the {len(stored.records)} of "
                f"{comparison.shown}; if {comparison.kernel} has none any more, delete that file"
            )
        if refused := self._refused(stored, diff):
            comparison.settle(self._text, passes=False, may_write=False)
            raise comparison.failure(
                f"--snapshot-update would change {len(refused)} protected layout(s), so {comparison.shown} was not "
                f"changed:\n{self._excerpt(diff, only=refused)}\n"
                f"if that is meant: {comparison.update_command(*_unprotect(refused))}",
                line=self._line(refused[0].name),
            )
        comparison.settle(self._text, passes=False)

    def _replace_damaged(self, error: LayoutError) -> None:
        """Write a damaged snapshot again when updating, unless it may have held a protected layout that changed."""
        comparison = self._comparison
        if not comparison.updating:
            raise comparison.damaged(self._text, error) from error
        nothing = Listing(self._received.header)
        if refused := self._refused(nothing, diff_listings(nothing, self._received, protected=self._protected)):
            failure = comparison.damaged(self._text, error)
            command = comparison.update_command(*_unprotect(refused))
            raise comparison.failure(
                f"{failure}\nit is unknown whether {len(refused)} protected layout(s) changed, so "
                f"--snapshot-update did not change it; to write it again: {command}"
            ) from error
        comparison.settle(self._text, passes=False)

    def _refused(self, stored: Listing, diff: ListingDiff) -> list[Change]:
        """Return the protected layouts that would change and that the command line does not name."""
        named = self._run.options.unprotect
        allowed = diff_listings(stored, self._received, protected=named).changes if named else ()
        names = {change.name for change in allowed if change.protected}
        return [change for change in diff.changes if change.protected and change.name not in names]

    def _excerpt(self, diff: ListingDiff, *, only: Sequence[Change] | None = None) -> str:
        return excerpt(
            diff,
            only=diff.gate(self._threshold) if only is None else only,
            threshold=self._threshold,
            run=self._run,
            snapshot=self._comparison.file,
        )

    def _line(self, name: str | None) -> int | None:
        trace = self._comparison.trace
        plain = (name or "").partition("#")[0]
        lines = [value.line for value in trace.values if value.name == plain and value.file == trace.kernel]
        return lines[0] if lines else None


def _unprotect(changes: Sequence[Change]) -> list[str]:
    if len(changes) > _NAMED:
        return ["--nvfp4-unprotect=*"]
    return [f"--nvfp4-unprotect={change.name}" for change in changes]


def _count(changes: Sequence[Change]) -> str:
    return f"{len(changes)} layout change{'' if len(changes) == 1 else 's'}"
