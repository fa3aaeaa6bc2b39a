"""Judged statements as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_nvfp4.proof.statement import Statement, Status
from pytest_nvfp4.report.document import Block, Code, Document, Facts, Section, Style, Styled
from pytest_nvfp4.text import plural, visible

_STYLES: dict[Status, Style] = {Status.PROVED: "good", Status.UNKNOWN: "warning", Status.REFUTED: "bad"}


def headline(statements: Sequence[Statement]) -> str:
    """Return the number of proved, unknown and refuted statements and controls, and the time of all checks."""
    counts = [(status, sum(statement.status is status for statement in statements)) for status in _STYLES]
    shown = ", ".join(f"{count} {status}" for status, count in counts if count) or "nothing to prove"
    controls = [control for statement in statements for control in statement.controls]
    refuted = sum(control.status is Status.REFUTED for control in controls)
    seconds = sum(statement.seconds for statement in statements)
    return f"{shown}; {refuted} of {len(controls)} negative controls refuted; {seconds:.2f} s"


def all_proved(statements: Sequence[Statement], *, require: bool = True) -> bool:
    """Return whether there is a statement and every statement is proved.

    Args:
        statements: The judged statements.
        require: Whether a statement that needs an extra counts as not proved, and not as left out.
    """
    return bool(statements) and all(
        statement.status is Status.PROVED or (bool(statement.needs) and not require) for statement in statements
    )


def proof_document(
    statements: Sequence[Statement],
    *,
    title: str,
    missing: Sequence[str] = (),
    brief: bool = False,
    require: bool = True,
) -> Document:
    """Return statements as a command's result, refuted and unknown ones first.

    Args:
        statements: The judged statements.
        title: Title of the document.
        missing: Claims that could not be made, with the reason.
        brief: Whether to leave out the formulas and controls of what is proved; data is complete all the same.
        require: Whether statements that need an extra fail.
    """
    undecided = sum(bool(statement.needs) for statement in statements)
    left_out = f"nothing is claimed of {plural(undecided, 'statement')} that need{'s' * (undecided == 1)} an extra"
    left_out += "" if require else "; --require makes that a failure"
    solver = next((statement.solver for statement in statements if statement.solver), None)
    order = list(reversed(_STYLES))
    worst_first = sorted(statements, key=lambda statement: order.index(statement.status))
    methods = dict.fromkeys(statement.method for statement in statements)
    return Document(
        title,
        [
            *(_section(statement, brief=brief) for statement in worst_first),
            Section(
                headline(statements),
                [
                    Facts([(str(method), method.meaning) for method in methods]),
                    *([f"solver: {solver}"] if solver else []),
                ],
            ),
            "nothing here was measured on a device",
            *([Styled(left_out, "warning")] if undecided else []),
            *(Styled(f"not claimed: {text}", "bad") for text in missing),
        ],
        {
            "ok": all_proved(statements, require=require) and not missing,
            "headline": headline(statements),
            "solver": solver,
            "missing": list(missing),
            "statements": [statement.to_json() for statement in statements],
        },
    )


def _section(statement: Statement, *, brief: bool) -> Section:
    checked = statement.checked or "nothing checked"
    scope = f"; {statement.scope}" if statement.scope else ""
    title = f"{statement.verdict.upper():<23} {statement.name}  ({checked}, {statement.seconds * 1e3:.0f} ms{scope})"
    return Section(
        Styled(title, _STYLES[statement.status]),
        list(_blocks(statement, brief=brief and statement.status is Status.PROVED)),
    )


def _blocks(statement: Statement, *, brief: bool) -> Iterator[Block]:
    yield statement.words
    if statement.counterexample:
        yield f"counterexample: {statement.counterexample}"
    if statement.reason:
        yield f"unknown because: {statement.reason}"
    if brief:
        return
    if statement.formulas:
        yield Code(visible("\n".join(statement.formulas), multiline=True))
    yield from (f"given: {text}" for text in statement.preconditions)
    for control in statement.controls:
        yield f"control, {control.status}: {control.words}"
        yield f"  {control.counterexample or control.reason or 'no counterexample'}"
