"""The table of earlier candidates in a prompt, within a budget: the best, the latest, each reason of rejection once.

Each row is one quoted line, as summaries and reasons are texts of workers and kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_nvfp4.loop.memory.memory import Record
from pytest_nvfp4.loop.memory.quoting import MARK, one_line

_BEST = 5
_ROW_CHARACTERS = 200
NONE = "There are none."


def history(records: Sequence[Record], *, most: int) -> str:
    """Return a table of some candidates of at most ``most`` characters, in the order of their numbers."""
    if not records:
        return NONE[:most]
    rows: dict[int, str] = {}
    left = most - len(_rest(len(records)))
    for record in _by_use(records):
        row = _row(record)
        if record.number not in rows and len(row) < left:
            rows[record.number] = row
            left -= len(row) + 1
    hidden = len(records) - len(rows)
    lines = [rows[number] for number in sorted(rows)]
    return "\n".join([*lines, *([_rest(hidden)] if hidden else [])])[:most]


def _rest(count: int) -> str:
    return f"({count} more are not shown.)"


def _by_use(records: Sequence[Record]) -> Iterator[Record]:
    """Yield candidates in the order of their use for a worker: in turns the best, the latest, and new reasons."""
    best = sorted(
        (each for each in records if each.gain is not None), key=lambda each: (-(each.gain or 0), each.number)
    )
    latest = list(reversed(records))
    reasons = {_reason_key(each): each for each in records if each.outcome not in ("faster", "duplicate")}
    turns = (best[:_BEST], latest, list(reversed(reasons.values())))
    for at in range(len(records)):
        for turn in turns:
            if at < len(turn):
                yield turn[at]


def _reason_key(record: Record) -> tuple[str, str, str]:
    red = record.red
    return record.outcome, "" if red is None else red.gate, record.candidate.end


def _row(record: Record) -> str:
    found = record.verdict
    red = record.red
    why = f" by {red.gate}" if red is not None and record.outcome == "rejected" else ""
    gain = "" if record.gain is None else f", {100 * record.gain:+.2f} %"
    row = f"{MARK}{record.number}: {record.outcome}{why}{gain}. Idea: "
    row += one_line(record.summary, most=_ROW_CHARACTERS) or "not said"
    if found is not None and record.outcome != "faster":
        row += f". Why: {one_line(found.reason, most=_ROW_CHARACTERS)}"
    return row
