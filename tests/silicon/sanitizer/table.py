"""Both sides, side by side: ``python -m tests.silicon.sanitizer.table [sanitizer.json]`` prints Markdown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.silicon.sanitizer.corpus import PROGRAMS
from tests.silicon.sanitizer.ours import agrees, verdict
from tests.silicon.sanitizer.program import Program
from tests.silicon.sanitizer.recorded import KEPT, TOOLS, found, load, said
from tests.silicon.sanitizer.silent import SILENT

__all__ = ["rows"]


def rows(recording: dict[str, Any]) -> Iterator[str]:
    """The lines."""
    device = recording["device"]
    version = recording["sanitizer"].splitlines()[-1] if recording["sanitizer"] else "unknown"
    yield f"Device: {device.get('name', 'none')}, driver {device.get('smi', ['?'])}; compute-sanitizer {version}."
    yield ""
    yield "| program | on the device | ours | lines | racecheck | synccheck | memcheck | initcheck |"
    yield "|---|---|---|---|---|---|---|---|"
    counts = {side: [0, 0] for side in ("ours", *TOOLS)}
    correct = defective = 0
    for program in PROGRAMS:
        entry = recording["programs"].get(program.name, {})
        if entry.get("ptx") != program.hash:
            entry = {"plain": "not recorded"}
        mine = verdict(program)
        wrong = program.defect is not None
        correct, defective = correct + (not wrong), defective + wrong
        if mine.findings:
            counts["ours"][wrong] += 1
        for tool in TOOLS:
            if found(entry.get(tool) or {}):
                counts[tool][wrong] += 1
        ours = ", ".join(mine.kinds) or ("-" if not wrong else f"- ({SILENT.get(program.name, 'NOT EXPLAINED')})")
        right = "" if not wrong or program.defect.ours is None else ("yes" if agrees(program, mine) else "NO")  # type: ignore[union-attr]
        cells = [_name(program), entry.get("plain", "not recorded"), ours, right]
        cells += [said(entry, tool, program) for tool in TOOLS]
        yield "| " + " | ".join(" ".join(cell.split()).replace("|", "/") for cell in cells) + " |"
    yield ""
    yield f"Of {defective} defects and {correct} correct programs, something is said of:"
    yield ""
    yield "| | defects | correct |"
    yield "|---|---|---|"
    for side, (right_ones, wrong_ones) in counts.items():
        yield f"| {side} | {wrong_ones} | {right_ones} |"
    if recording.get("kernels"):
        yield ""
        yield "| shipped kernel | plain | racecheck | synccheck | memcheck |"
        yield "|---|---|---|---|---|"
        for name, entry in recording["kernels"].items():
            yield f"| {name} | {entry.get('plain')} | " + " | ".join(said(entry, tool) for tool in TOOLS[:3]) + " |"


def _name(program: Program) -> str:
    return f"**{program.idiom.name}**" if program.defect is None else program.defect.name


if __name__ == "__main__":
    for row in rows(load(Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT)):
        sys.stdout.write(row + "\n")
