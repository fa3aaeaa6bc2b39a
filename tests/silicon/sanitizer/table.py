"""Both sides, side by side: ``python -m tests.silicon.sanitizer.table`` writes ``table.md`` from the kept recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.silicon.sanitizer.corpus import PROGRAMS
from tests.silicon.sanitizer.ours import Verdict, agrees, verdict
from tests.silicon.sanitizer.program import Program
from tests.silicon.sanitizer.recorded import TOOLS, found, load, said
from tests.silicon.sanitizer.silent import FALSE, SILENT

__all__ = ["PATH", "table"]

PATH = Path(__file__).parent / "table.md"

_HEAD = """# What the race check and compute-sanitizer say of the same programs

Written by `python -m tests.silicon.sanitizer.table` from the programs (`shared.py`, `pipelines.py`, `copies.py`,
`clusters.py`) and the kept recording `sanitizer.json`; `test_sanitizer.py` asserts that this file is of both, and every
verdict of ours. *Ours* is simulated: the eager schedule with the happens-before analysis, as the `races` check runs it,
and, where a warp reads what is not there yet, one schedule more in which that warp is late. Everything else was
measured on one {device}, driver {driver},
with compute-sanitizer {version}: one run a program and a tool, and a plain run
without a tool. Another run may say otherwise: what racecheck says of a program that overtakes itself depends on how
the run went. racecheck ran with `--racecheck-detect-level info`; where it had not ended within 12 seconds it ran again
with `--racecheck-deadlock-timeout 3000`, which is off by default. Where a program hangs each tool was ended after 12
seconds; only racecheck with that option had spoken by then.

A program is a kernel of some 20 lines of PTX, correct (bold) or with one edge changed. memcheck and initcheck are made
for other defects than most of these; they are here to be complete. Whatever a tool reports counts as found; of ours
only a finding of the kind, and with the lines, that the program states.
"""


@dataclass(frozen=True)
class _Row:
    """A program, what we say, and what was recorded."""

    program: Program
    ours: Verdict
    entry: Mapping[str, Any]

    @property
    def wrong(self) -> bool:
        return self.program.defect is not None

    @property
    def told(self) -> bool:
        """Whether we say what the program states."""
        return bool(self.ours.findings) and (not self.wrong or agrees(self.program, self.ours))

    @property
    def plain(self) -> str:
        return str(self.entry.get("plain", "not recorded"))

    @property
    def shown(self) -> bool:
        """Whether a plain run shows that something is wrong."""
        return self.plain.startswith(("wrong", "hang", "error"))

    @property
    def deadlock(self) -> bool:
        return "deadlock" in self.ours.kinds

    def by(self, tool: str) -> bool:
        """Whether a tool reports something."""
        return bool(found(self.entry.get(tool) or {}))

    @property
    def theirs(self) -> bool:
        return any(self.by(tool) for tool in TOOLS)

    def hangs(self, tool: str) -> bool:
        return (self.entry.get(tool) or {}).get("status") == "hang"


def table(recording: Mapping[str, Any]) -> str:
    """The whole text."""
    return "\n".join(_lines(recording)) + "\n"


def _lines(recording: Mapping[str, Any]) -> Iterator[str]:
    device = recording["device"]
    version = recording["sanitizer"].splitlines()[-1] if recording["sanitizer"] else "unknown"
    driver = device.get("smi", ["unknown"])[0].split(", ")[-1]
    yield _HEAD.format(device=device.get("name", "no device"), driver=driver, version=version.removeprefix("Version "))
    rows = [_Row(program, verdict(program), _entry(recording, program)) for program in PROGRAMS]
    yield from _summary([row for row in rows if row.wrong], [row for row in rows if not row.wrong])
    yield from _kernels(recording)
    yield "## Program by program"
    yield ""
    yield "Tags in brackets are those of the program's lines."
    yield ""
    yield "| program | plain run | ours | racecheck | synccheck | memcheck | initcheck |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        cells = [_name(row.program), _brief(row.plain), _ours(row), *(said(row.entry, t, row.program) for t in TOOLS)]
        yield _cells(cells)


def _entry(recording: Mapping[str, Any], program: Program) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = recording["programs"].get(program.name, {})
    return entry if entry.get("ptx") == program.hash else {}


def _summary(defects: list[_Row], correct: list[_Row]) -> Iterator[str]:
    def row(name: str, how: str, test: Callable[[_Row], bool]) -> str:
        wrong, right = sum(map(test, defects)), sum(map(test, correct))
        return f"| {name} | {how} | {wrong} of {len(defects)} | {right} of {len(correct)} |"

    measured = "measured"
    yield "## Summary"
    yield ""
    yield "| | | defects found | correct programs with a finding |"
    yield "|---|---|---|---|"
    yield row("the `races` check", "simulated", lambda one: one.told)
    for tool in TOOLS:
        yield row(tool, measured, lambda one, tool=tool: one.by(tool))  # type: ignore[misc]
    yield row("racecheck without its deadlock timeout", measured, _races_only)
    yield row("any of the four tools", measured, lambda one: one.theirs)
    yield row("a plain run: wrong result, error or hang", measured, lambda one: one.shown)
    yield row("a tool or the plain run", measured, lambda one: one.theirs or one.shown)
    yield ""
    shown = {word: sum(one.plain.startswith(word) for one in defects) for word in ("right", "wrong", "error", "hang")}
    yield (
        f"In plain runs of the {len(defects)} defects {shown['right']} came out right, {shown['wrong']} wrong, "
        f"{shown['error']} ended with an error and {shown['hang']} hung; of the {len(correct)} correct programs "
        f"{sum(one.plain == 'right' for one in correct)} came out right."
    )
    yield ""
    alone = [one for one in defects if one.told and not one.theirs]
    hidden = [one for one in alone if not one.shown]
    yield (
        f"Found by us and by none of the tools: {len(alone)}, of which {len(hidden)} also came out right in the plain "
        "run. They are of proxy fences, orders and scopes, global memory, bulk and tensor copies, wgmma, most of all."
    )
    yield ""
    theirs = [one for one in defects if one.theirs and not one.told]
    yield f"Found by a tool and not by us: {len(theirs)}{_named(theirs)}"
    yield ""
    neither = [one for one in defects if not one.told and not one.theirs]
    yield f"Found by nobody: {len(neither)}. We say nothing because:"
    yield ""
    for one in neither:
        yield f"- {one.program.name}: {SILENT.get(one.program.name, 'NOT EXPLAINED')}"
    yield ""
    false = [(one, tool) for one in correct for tool in TOOLS if one.by(tool)]
    yield f"Findings on correct programs: {len(false)}."
    yield ""
    for one, tool in false:
        yield f"- {tool} on {one.program.name}: {FALSE.get((one.program.name, tool), 'NOT EXPLAINED')}"
    yield ""
    yield "## Programs that do not end"
    yield ""
    hung = [one for one in defects if one.plain == "hang"]
    other = [one for one in hung if not one.deadlock]
    yield (
        f"{len(hung)} programs hung in the plain run, all of them defects. The simulator calls "
        f"{len(hung) - len(other)} of them deadlocks; the others it ends before, with what it found: "
        + "; ".join(f"{one.program.name} ({', '.join(one.ours.kinds)})" for one in other)
        + "."
    )
    yield ""
    ended = [one for one in defects if one.deadlock and one.plain != "hang"]
    yield f"Deadlocks in the simulator that ended on the device: {len(ended)}."
    yield ""
    for one in ended:
        yield f"- {one.program.name}: {_brief(one.plain)}"
    yield ""
    yield (
        "What a device does there is a matter of time (a phase that is overtaken), or undefined (a barrier that a part "
        "of a warp skips)."
    )
    yield ""
    under = [(one, [tool for tool in TOOLS if one.hangs(tool)]) for one in (*defects, *correct) if one.plain != "hang"]
    some = [(one, tools) for one, tools in under if tools]
    yield f"Programs that hung under a tool only: {len(some)}."
    yield ""
    for one, tools in some:
        ours = ", ".join(one.ours.kinds)
        yield f"- {one.program.name}: {', '.join(tools)} (plain: {_brief(one.plain)}; ours: {ours})"
    yield ""


def _races_only(row: _Row) -> bool:
    return any("deadlock" not in one["kind"].lower() for one in found(row.entry.get("racecheck") or {}))


def _kernels(recording: Mapping[str, Any]) -> Iterator[str]:
    if not recording.get("kernels"):
        return
    yield "## Shipped Hopper kernels"
    yield ""
    yield (
        "CuTe DSL kernels, compiled and run once on the device under each tool; the `races` check finds nothing in "
        "them either. memcheck's 34 errors are no accesses of a kernel: all are calls of `cuGetProcAddress_v2` by the "
        "CUDA bindings for Python that return an error, where they were looked at (`copy_transpose` and "
        "`nvfp4_group_gemm`); those two ran once more with `--report-api-errors no`, and had none."
    )
    yield ""
    yield "| kernel | plain run | racecheck | synccheck | memcheck |"
    yield "|---|---|---|---|---|"
    for name, entry in recording["kernels"].items():
        cells = [f"{said(entry, tool)} ({entry[tool].get('summary', '?')})" for tool in TOOLS[:3]]
        yield _cells([f"`{name}`", str(entry.get("plain")), *cells])
    yield ""


def _named(rows: Iterable[_Row]) -> str:
    names = [one.program.name for one in rows]
    return ": " + "; ".join(names) + "." if names else "."


def _brief(plain: str) -> str:
    """A plain run's result, an error by its name alone."""
    return f"error {plain.rsplit(' ', 2)[-2].rstrip(':')}" if plain.startswith("error cu") else plain


def _ours(row: _Row) -> str:
    if row.ours.findings:
        kinds = ", ".join(row.ours.kinds)
        return kinds if row.told or not row.wrong else f"{kinds} (NOT WHAT IT STATES)"
    return "-" if not row.wrong or row.program.name in SILENT else "NOT EXPLAINED"


def _cells(cells: list[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "/") for cell in cells) + " |"


def _name(program: Program) -> str:
    return f"**{program.idiom.name}**" if program.defect is None else program.defect.name


if __name__ == "__main__":
    PATH.write_text(table(load()))
