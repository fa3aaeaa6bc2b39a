"""Merge findings of the simulator and put their place, notes and hint into the message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from pytest_nvfp4.finding import OUTSIDE, UNWRITTEN_SOURCE, Finding, Where
from pytest_nvfp4.sim.run.source import described, lines_of, stated, statement

_WARNING_KINDS = frozenset(
    {
        *("exit-before-read", "lanes-rounding", "mbarrier-reuse", "own-quadrant", "parity", "prefetch"),
        *("race-warning", "reserved-bits", "unaligned-box", "written-twice"),
        OUTSIDE,
    }
)
"""Kinds that are warnings."""
_MERGED_KINDS = frozenset(
    {"lanes-rounding", "out-of-bounds", "tmem", "tmem-overlap", "uninitialised", OUTSIDE, UNWRITTEN_SOURCE}
)
"""Kinds that occur for each instruction of an unrolled statement, and are reported once for the statement."""
_CAUSES = frozenset({"race", "proxy", "uninitialised"})
"""Kinds of errors behind which a launch goes on, and may end by a fault that they have caused."""
_PTX_CHARACTERS = 200
"""Limit on the text of an instruction; a load of 128 registers lists them all."""


def merge_by_statement(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings of one kind at one statement into one."""
    merged: dict[object, Finding] = {}
    more: Counter[object] = Counter()
    for finding in findings:
        source = finding.where.source if finding.where is not None else None
        merges = finding.kind in _MERGED_KINDS and source is not None
        key: object = (finding.kind, lines_of(source)) if merges and source is not None else id(finding)
        more[key] += key in merged
        merged.setdefault(key, finding)
    return [
        replace(finding, notes=(*finding.notes, f"and the same at {more[key]} further instructions of this statement"))
        if more[key]
        else finding
        for key, finding in merged.items()
    ]


def in_order(faults: Iterable[Finding], findings: Iterable[Finding]) -> list[Finding]:
    """Return the faults that ended launches and the findings, those first that may be the cause of a fault.

    A fault is an effect of a value that was read too early, or of a wait that is missing: of poison as an address, or
    of a warp that comes to another phase.
    """
    found, ended = list(findings), list(faults)
    if not ended:
        return found
    causes = [finding for finding in found if finding.kind in _CAUSES]
    return [*causes, *ended, *(finding for finding in found if finding.kind not in _CAUSES)]


def worker_finding(finding: Finding) -> Finding:
    """Return a simulator finding as a worker reports it: place, notes and hint are part of the message."""
    where = finding.where
    lines = [finding.message]
    if where is not None and (place := _place(where, finding.message)):
        lines.append(f"  {place}")
    lines += [f"  {note}" for note in finding.notes]
    if finding.hint:
        lines.append(f"  look at: {finding.hint.removeprefix('look at ')}")
    source = where.source if where is not None else None
    file, line = stated(source) if source is not None else (None, None)
    text = statement(file, line) if file is not None and line is not None else None
    return replace(
        finding,
        message=f"simulated, {finding.kind}: " + "\n".join(lines),
        severity="warning" if finding.kind in _WARNING_KINDS else "error",
        file=file,
        line=line,
        text=text or None,
        hint="",
        notes=(),
        where=None,
    )


def _place(where: Where, message: str) -> str:
    words = []
    if where.cta is not None:
        words.append(f"CTA {where.cta}")
    if where.warp is not None:
        words.append(f"warp {where.warp}")
    if where.lanes:
        words.append("lane " + ", ".join(map(str, where.lanes[:4])) + (" ..." if len(where.lanes) > 4 else ""))
    if where.source is not None and len(lines_of(where.source)) > 1:
        calls = described(where.source)
        words += [] if calls in message else [calls]
    if where.ptx_line is not None:
        text = where.text if len(where.text) <= _PTX_CHARACTERS else f"{where.text[: _PTX_CHARACTERS - 4]} ..."
        words.append(f"PTX line {where.ptx_line}: {text}")
    return ", ".join(words)
