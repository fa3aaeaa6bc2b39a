"""Comparison of a modelled time with its snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_nvfp4.bench.line_texts import LineTexts
from pytest_nvfp4.bench.modelled_facts import OWN, causes, modelled_facts, origin, time_change
from pytest_nvfp4.device.modelled import ModelledCall
from pytest_nvfp4.plugin.compare_facts import stored_sheet
from pytest_nvfp4.plugin.comparison import Comparison, header
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.plugin.state import Run
from pytest_nvfp4.toolchain.sheet import Sheet
from pytest_nvfp4.toolchain.trace import Trace

if TYPE_CHECKING:
    from pytest_nvfp4.problem import Problem

KIND = "model"
_DECIDES = {"device": "the device", "table": "the table of its constants", "conditions": "the conditions"}
"""Lines of the header that the run decides: a time under others is a failure."""
_VERSION = "model"
"""Line of the header that the installed package decides: a time of another version is not compared."""


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """Comparison of a call's modelled time with the stored snapshot."""

    _item: pytest.Item
    _run: Run

    def __call__(self, trace: Trace, call: ModelledCall, problem: Problem, *, tolerance: float) -> str:
        """Compare, and return the result in words.

        Args:
            trace: The kernel's trace, for names and versions.
            call: Its modelled time.
            problem: Its problem.
            tolerance: Share by which the time may grow.

        Raises:
            CheckFailure: The snapshot is missing or damaged, it is of another device, table or conditions, or the time
                grew.
            pytest.skip.Exception: No time is modelled, or the snapshot is of another version of the model.
        """
        comparison = Comparison(self._item, self._run, trace, name=None, what="modelled time")
        if call.refused:
            self._refused(comparison, call)
        names = {code.symbol: code.source_name for code in trace.code if code.source_name}
        lines = header(trace, self._run) | {"problem": problem.name} | origin(call)
        text_of = LineTexts(Path(trace.kernel), self._run.options.snapshots.root_of(Path(trace.kernel)))
        received = Sheet(KIND, lines, modelled_facts(call, names, text_of))
        if (stored := stored_sheet(comparison, received)) is None:
            return "recorded"
        if changed := [key for key in _DECIDES if stored.header.get(key) != received.header[key]]:
            if not comparison.settle(received.render(), passes=False):
                raise self._other(comparison, stored.header, received.header, changed)
            return "recorded"
        if stored.header.get(_VERSION) != received.header[_VERSION]:
            comparison.settle(received.render(), passes=True)
            if comparison.updating:
                return "recorded"
            pytest.skip(
                f"not compared: the code of the model differs from that of {comparison.shown} (another version of "
                f"pytest-nvfp4); record the time anew: {comparison.update_command()}"
            )
        try:
            change = time_change(stored.facts, call)
        except ValueError as error:
            raise comparison.damaged(received.render(), error) from error
        slower = change.share > tolerance
        if comparison.settle(received.render(), passes=not slower):
            return "recorded" if comparison.updating and slower else _words(change.share, tolerance, str(change))
        before = stored.header.get("dsl", "")
        compiler = "" if before == trace.dsl_version else f"the snapshot is of nvidia-cutlass-dsl {before}\n"
        grown = causes(stored.facts, call, text_of)
        where = "\n".join(f"  {text}" for _, text in grown)
        raise comparison.failure(
            f"modelled slower: {comparison.kernel} on {problem.name}, {call.title}: {change}, tolerance "
            f"{100 * tolerance:g} %, against {comparison.shown}\n"
            f"what was added to the modelled critical path, and what grew on it:\n{where}\n"
            f"{compiler}nothing was measured; `nvfp4 model` shows where the time goes\n"
            f"if the change is meant: {comparison.update_command()}, and commit the snapshot",
            line=self._line(trace, [place for place, _ in grown]),
        )

    def _other(
        self, comparison: Comparison, old: Mapping[str, str], new: Mapping[str, str], changed: Sequence[str]
    ) -> CheckFailure:
        """Return the failure of a snapshot that is of another device, table or conditions."""
        each = "\n".join(
            f"  {_DECIDES[key]}: {old.get(key, 'not stated')} in the snapshot, {new[key]} now" for key in changed
        )
        way = ""
        if new["table"].endswith(OWN):
            way = f"a shipped table is taken with --nvfp4-model-device shipped:{new['device']}\n"
        return comparison.failure(
            f"the modelled time cannot be compared with {comparison.shown}:\n{each}\n{way}"
            f"if the change is meant: {comparison.update_command()}, and commit the snapshot",
            cause=f"the modelled times of {comparison.kernel} are of another {' and '.join(changed)}",
        )

    def _line(self, trace: Trace, places: Sequence[str]) -> int | None:
        """Return the first line of the kernel's own file among some places ``file:line``."""
        for place in places:
            file, _, line = place.rpartition(":")
            if Path(file).name == Path(trace.kernel).name and line.isdigit():
                return int(line)
        return None

    def _refused(self, comparison: Comparison, call: ModelledCall) -> None:
        """Skip the item, or fail if a time was modelled before.

        Raises:
            CheckFailure: There is a snapshot.
            pytest.skip.Exception: There is none.
        """
        reason = f"no time is modelled: {'; '.join(call.refused)}"
        if comparison.stored is None:
            pytest.skip(reason)
        raise CheckFailure(
            f"{reason}\na time was modelled before ({comparison.shown}); if that is meant, remove the snapshot",
            file=comparison.trace.kernel,
        )


def _words(share: float, tolerance: float, change: str) -> str:
    if share < -tolerance:
        return f"modelled faster: {change}; --snapshot-update records it"
    return change if share else "as recorded"
