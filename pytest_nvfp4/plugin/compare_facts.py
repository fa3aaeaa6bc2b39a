"""Compare launch or codegen facts of a trace with a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pytest_nvfp4.layout.launch_facts import FactChange, diff_facts
from pytest_nvfp4.plugin.comparison import Comparison, Pending, header, listed
from pytest_nvfp4.plugin.failure import CheckFailure
from pytest_nvfp4.toolchain.sheet import Sheet, codegen_facts, launch_facts

if TYPE_CHECKING:
    from pytest_nvfp4.toolchain.trace import Trace

_GROWING = ("spill_stores", "spill_loads", "local_bytes", "stack_bytes")


class FactSnapshot(Comparison):
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
        __tracebackhide__ = True
        if kind not in ("launch", "codegen"):
            raise CheckFailure(f"nvfp4_fact_snapshot(kind={kind!r}): the kinds are 'launch' and 'codegen'")
        try:
            self._compare(self._begin(trace, name=name, what=f"{kind} facts"), kind)
        except CheckFailure as failure:
            raise failure.with_traceback(None) from None

    def _compare(self, pending: Pending, kind: Literal["launch", "codegen"]) -> None:
        trace = pending.trace
        received = Sheet(
            kind, header(trace, self._run), launch_facts(trace) if kind == "launch" else codegen_facts(trace)
        )
        text = received.render()
        pending.record(kind, text)
        stored = pending.stored_sheet(received)
        if stored is None:
            return
        changes = diff_facts(stored.facts, received.facts)
        gated = gated_facts(changes, kind=kind, same_dsl=stored.header.get("dsl") == trace.dsl_version)
        if pending.settle(text, passes=not gated):
            return
        raise pending.failure(
            f"{len(gated)} {kind} fact{'' if len(gated) == 1 else 's'} of {pending.kernel} changed against "
            f"{pending.shown}:\n{listed(gated, others=len(changes) - len(gated))}\n"
            f"if the change is meant: {pending.update_command()}, and commit the snapshot"
        )


def gated_facts(changes: Sequence[FactChange], *, kind: str, same_dsl: bool) -> list[FactChange]:
    """The changes that fail a check: all for ``launch``; for ``codegen`` what ``checks.codegen`` says."""
    if kind == "launch":
        return list(changes)
    return [change for change in changes if _grew(change) or (same_dsl and _other_code(change))]


def _fact(change: FactChange) -> str:
    """``ptx.ld.global`` of ``code.0.ptx.ld.global``."""
    return change.name.split(".", maxsplit=2)[-1]


def _grew(change: FactChange) -> bool:
    """A spill, stack or local memory that was not there, or is more than it was; as far as both are known."""
    known = "unavailable" not in (change.old, change.new)
    more = change.direction in ("up", "changed") or (change.direction == "added" and change.new != "0")
    return _fact(change) in _GROWING and known and more


def _other_code(change: FactChange) -> bool:
    """A kernel or an opcode that appeared or vanished."""
    fact = _fact(change)
    return fact == "kernel" or (fact.startswith("ptx.") and change.direction in ("added", "removed"))
