"""compute-sanitizer's text as records: what kind of thing it tells, how often, and which lines of the program it names.

Every line of its begins with ``=========``; a record begins with one blank behind that, and what belongs to it follows
with more.
"""

from __future__ import annotations

import re
from typing import Any

from tests.silicon.sanitizer.program import FILE

__all__ = ["parsed", "unavailable"]

_MARK = "========="
_HEADS = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Saved host", "Host Frame",
          "Target application", "No attachable", "Error: process", "Error: Process",
          "This report")  # fmt: skip
_UNAVAILABLE = ("Device not supported", "not supported on this", "Internal Sanitizer Error", "Unable to find injection",
                "error 999", "unsupported device", "failed to load", "Debugger API", "No device supported",
                "insufficient privileges", "ERR_NVGPUCTRPERM", "Failed to initialize")  # fmt: skip
_LINE = re.compile(re.escape(FILE) + r":(\d+)")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d[\d,]*")
_KEPT = 6


def unavailable(text: str) -> str | None:
    """Why the tool cannot work here, if that is what it says."""
    for line in text.splitlines():
        if line.startswith(_MARK) and any(word.lower() in line.lower() for word in _UNAVAILABLE):
            return line.strip("= ").strip()
    return None


def parsed(text: str) -> list[dict[str, Any]]:
    """Records, the same ones folded: kind, message, count, lines."""
    records: list[list[str]] = []
    for line in text.splitlines():
        if not line.startswith(_MARK):
            continue
        rest = line[len(_MARK) :]
        body = rest.strip()
        if not body:
            continue
        if rest.startswith("  ") and records:
            records[-1].append(body)
        else:
            records.append([body])
    told: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    for record in records:
        head = record[0]
        if head.startswith(_HEADS):
            continue
        body = [line for line in record if not line.startswith(_HEADS) and "Frame:" not in line]
        kind = _NUMBERS.sub("N", head)
        lines = tuple(sorted({int(number) for line in body for number in _LINE.findall(line)}))
        found = told.get((kind, lines))
        if found is None:
            told[kind, lines] = {"kind": kind, "message": body[:_KEPT], "count": 1, "lines": list(lines)}
        else:
            found["count"] += 1
    return list(told.values())
