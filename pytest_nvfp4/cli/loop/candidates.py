"""``nvfp4 loop candidates``: what was tried, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.loop.folder import state_option
from pytest_nvfp4.cli.options import document_options
from pytest_nvfp4.isolation.door.files import read_text
from pytest_nvfp4.loop.memory.memory import CandidateMemory, Record
from pytest_nvfp4.loop.memory.quoting import one_line
from pytest_nvfp4.loop.schemas import Examination, Outcome, Verdict
from pytest_nvfp4.loop.state import StateFolder
from pytest_nvfp4.report.document import Block, Code, Column, Document, Facts, Section, Style, Styled, Table
from pytest_nvfp4.text import printed

_DIFF_BYTES = 16 << 20
_LINE_CHARACTERS = 60
"""Of what and why in a row; `--show` has all of it."""
_STYLES: dict[str, Style] = {"faster": "good", "rejected": "bad", "infrastructure": "warning"}
_COLUMNS = (
    Column("candidate", right=True, key="candidate"),
    Column("iteration", right=True, key="iteration"),
    Column("by", key="by"),
    Column("outcome", key="outcome"),
    Column("gate", key="gate"),
    Column("value", right=True, key="value"),
    Column("gain", unit="%", right=True, key="gain_percent"),
    Column("what", key="summary"),
    Column("why", key="reason"),
)
_GATE_COLUMNS = (Column("gate"), Column("outcome"), Column("time", unit="s", right=True), Column("finding", share=4))
_RATIO_COLUMNS = (Column("device"), Column("ratio", right=True), Column("95 % interval"), Column("outcome"))
_COUNTER_COLUMNS = (Column("counter"), Column("incumbent", right=True), Column("candidate", right=True))


@click.command("candidates")
@click.option("--search", metavar="TEXT", default="", help="Only candidates in whose records all words are.")
@click.option(
    "--outcome",
    "outcomes",
    type=click.Choice([*get_args(Outcome), "pending"]),
    multiple=True,
    help="Only candidates that ended so; may be repeated.",
)
@click.option("--show", type=click.IntRange(min=1), metavar="N", help="Show all that is known of one candidate.")
@click.option("--diff", type=click.IntRange(min=1), metavar="N", help="Show the diff of one candidate.")
@state_option
@document_options(csv=True)
def candidates_command(
    *, search: str, outcomes: tuple[str, ...], show: int | None, diff: int | None, state: StateFolder
) -> Document:
    """List what was tried: by whom, how it ended, its modelled and measured times, and why it was rejected.

    What a worker says about its candidate is a claim; everything else is what the judge found.
    """
    memory = CandidateMemory(state)
    if show is not None and diff is not None:
        raise InputError("--show and --diff show one candidate each; give one of them")
    if diff is not None:
        return _diff(_known(memory, diff, state), state)
    if show is not None:
        return _shown(_known(memory, show, state))
    if not state.root.is_dir():
        raise InputError(f"{state.root}: no such directory of state; `nvfp4 loop run` makes it, --state names another")
    found = [
        record for record in memory.records() if record.matches(search) and (not outcomes or record.outcome in outcomes)
    ]
    table = Table(_COLUMNS, [_row(record) for record in found])
    blocks: list[Block] = [table] if found else ["no candidates"]
    return Document("Candidates", blocks, {"candidates": [_values(record) for record in found]})


def _known(memory: CandidateMemory, number: int, state: StateFolder) -> Record:
    record = memory.record(number)
    if record is None:
        raise InputError(f"{state.root}: has no candidate {number}; `nvfp4 loop candidates` lists them")
    return record


def _row(record: Record) -> list[str | int | Styled | None]:
    found, red, gain = record.verdict, record.red, record.gain
    return [
        record.number,
        record.candidate.iteration,
        record.candidate.by or None,
        Styled(record.outcome, _STYLES.get(record.outcome, "")),
        None if red is None else red.gate,
        None if found is None or found.value is None else f"{found.value:.6g}",
        None if gain is None else f"{100 * gain:+.2f}",
        one_line(record.summary, most=_LINE_CHARACTERS) or None,
        None if found is None else one_line(found.reason, most=_LINE_CHARACTERS),
    ]


def _values(record: Record) -> dict[str, Any]:
    """Return a candidate as a row for programs."""
    made, found, red = record.candidate, record.verdict, record.red
    examined = record.examination
    return {
        "candidate": made.number,
        "iteration": made.iteration,
        "slot": made.slot,
        "by": made.by,
        "end": made.end,
        "commit": made.commit,
        "parent": made.parent,
        "outcome": record.outcome,
        "gate": None if red is None else red.gate,
        "metric": None if found is None else found.metric,
        "value": None if found is None else found.value,
        "incumbent_value": None if found is None else found.incumbent_value,
        "gain": record.gain,
        "duplicate_of": None if found is None else found.duplicate_of,
        "summary": record.summary,
        "reason": None if found is None else found.reason,
        "violations": list(made.violations),
        "modelled_us": {} if examined is None else {each.problem: each.us for each in examined.modelled},
        "measured": [] if found is None else [each.model_dump(mode="json") for each in found.comparisons],
        "worse": [] if found is None else [each.model_dump(mode="json") for each in found.worse],
        "wall_s": made.wall_s + (0.0 if examined is None else examined.wall_s),
        "gpu_s": (0.0 if examined is None else examined.gpu_s) + (0.0 if found is None else found.gpu_s),
        "usd": (0.0 if examined is None else examined.usd)
        + (0.0 if found is None else found.usd)
        + (0.0 if made.result is None else made.result.usd),
    }


def _shown(record: Record) -> Document:
    made, examined, found = record.candidate, record.examination, record.verdict
    blocks: list[Block] = [
        Facts(
            [
                ("outcome", Styled(record.outcome, _STYLES.get(record.outcome, ""))),
                ("iteration", made.iteration),
                ("by", made.by or None),
                ("commit", made.commit),
                ("parent", made.parent),
                ("files", ", ".join(made.files) or None),
                ("duplicate of", None if found is None else found.duplicate_of),
            ]
        )
    ]
    if found is not None:
        blocks.append(Section("Why", [found.reason, *([found.feedback] if found.feedback else [])]))
    if record.summary:
        blocks.append(Section("What the worker says", [record.summary]))
    if made.violations or made.problems:
        blocks.append(Section("Problems", [*made.violations, *made.problems]))
    if examined is not None:
        blocks += _of_examination(examined)
    if found is not None:
        blocks += _of_verdict(found)
    data = {
        "candidate": made.model_dump(mode="json"),
        "examination": None if examined is None else examined.model_dump(mode="json"),
        "verdict": None if found is None else found.model_dump(mode="json"),
    }
    return Document(f"Candidate {record.number}", blocks, data)


def _of_examination(examined: Examination) -> Iterator[Section]:
    gates = [(gate.gate, gate.outcome, f"{gate.wall_s:.1f}", gate.message or None) for gate in examined.gates]
    if gates:
        yield Section("Gates", [Table(_GATE_COLUMNS, gates)])
    if examined.modelled:
        times = [(each.problem, f"{each.us:.3f}") for each in examined.modelled]
        yield Section("Modelled times", [Table((Column("problem"), Column("time", unit="us", right=True)), times)])
    if examined.layouts:
        yield Section("Layouts", ["\n".join(examined.layouts)])


def _of_verdict(found: Verdict) -> Iterator[Section]:
    if found.comparisons:
        rows = [
            (each.device, f"{each.ratio:.4f}", f"{each.low:.4f} to {each.high:.4f}", each.outcome)
            for each in found.comparisons
        ]
        yield Section("Measured against the incumbent", [Table(_RATIO_COLUMNS, rows)])
    if found.worse:
        counters = [
            (f"{each.problem}/{each.name}", _figure(each.incumbent), _figure(each.candidate)) for each in found.worse
        ]
        yield Section("Counters that got worse", [Table(_COUNTER_COLUMNS, counters)])


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"


def _diff(record: Record, state: StateFolder) -> Document:
    path = state.candidate(record.number) / "diff.patch"
    try:
        text = read_text(path, source=str(path), most=_DIFF_BYTES)
    except FileNotFoundError:
        raise InputError(f"candidate {record.number} has no diff: {record.candidate.end}") from None
    shown = Code(printed(text), "diff")  # a worker may have written escapes of terminals
    return Document(f"Diff of candidate {record.number}", [shown], {"candidate": record.number, "diff": text})
