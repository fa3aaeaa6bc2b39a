"""``codegen``: the compiler generates the same kind of code as when the snapshot was recorded.

More spills, stack or local memory fail, and so does an opcode that appears or disappears (a store that was split, a TMA
load that became ordinary loads). Other counts and registers that changed are reported. With another version of the DSL
than the snapshot's, only spills, stack and local memory fail, because another compiler generates other code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_nvfp4.plugin.checks.facts import FactsCheck

if TYPE_CHECKING:
    from pytest_nvfp4.layout.launch_facts import FactChange
    from pytest_nvfp4.toolchain.trace import Trace

_MEMORY = ("spill_stores", "spill_loads", "local_bytes", "stack_bytes")


class CodegenCheck(FactsCheck):
    """The check of a kernel's generated code."""

    name = "codegen"
    help = "no more spills, stack or local memory, and no opcode that appeared or disappeared"
    stage = 10

    def facts(self, trace: Trace) -> dict[str, str]:
        """Return the facts of the code: registers, memory, and counts of opcodes."""
        from pytest_nvfp4.toolchain.sheet import codegen_facts

        return codegen_facts(trace)

    def gated(self, changes: Sequence[FactChange], *, same_dsl: bool) -> list[FactChange]:
        """Return the changes that fail; see the module's documentation."""
        return [change for change in changes if _more_memory(change) or (same_dsl and _other_code(change))]


def _fact(change: FactChange) -> str:
    """Return the name without its index: ``ptx.ld.global`` of ``code.0.ptx.ld.global``."""
    return change.name.split(".", maxsplit=2)[-1]


def _more_memory(change: FactChange) -> bool:
    """Return whether spills, stack or local memory appeared or grew; an unavailable number is no growth."""
    known = "unavailable" not in (change.old, change.new)
    more = change.direction in ("up", "changed") or (change.direction == "added" and change.new != "0")
    return _fact(change) in _MEMORY and known and more


def _other_code(change: FactChange) -> bool:
    """Return whether another kernel took a kernel's place, or an opcode appeared or disappeared."""
    fact = _fact(change)
    if fact == "kernel":
        return change.direction != "renamed"
    return fact.startswith("ptx.") and change.direction in ("added", "removed")
