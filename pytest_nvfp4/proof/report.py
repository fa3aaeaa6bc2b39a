"""Judged statements as lines, JSON and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_nvfp4.proof.statement import Statement, Status

_ORDER = (Status.REFUTED, Status.UNKNOWN, Status.PROVED)


def headline(statements: Sequence[Statement]) -> str:
    """How many were proved, refuted, unknown, and how long it took."""
    counts = [(status, sum(one.status is status for one in statements)) for status in reversed(_ORDER)]
    shown = ", ".join(f"{count} {status}" for status, count in counts if count) or "nothing to prove"
    controls = sum(len(one.controls) for one in statements)
    refuted = sum(control.status is Status.REFUTED for one in statements for control in one.controls)
    seconds = sum(one.seconds for one in statements)
    return f"{shown}; {refuted} of {controls} negative controls refuted; {seconds:.2f} s"


def all_proved(statements: Sequence[Statement]) -> bool:
    """Whether there are statements and all are proved."""
    return bool(statements) and all(one.status is Status.PROVED for one in statements)


def lines(statements: Sequence[Statement], *, brief: bool = False) -> Iterator[str]:
    """The statements for people; ``brief`` leaves out the formulas and controls of what is proved."""
    for one in statements:
        yield f"{one.verdict.upper():<23} {one.name}  ({one.checked or 'nothing checked'}, {one.seconds * 1e3:.0f} ms)"
        yield f"    {one.words}"
        if one.counterexample:
            yield f"    counterexample: {one.counterexample}"
        if one.reason:
            yield f"    unknown because: {one.reason}"
        if brief and one.status is Status.PROVED:
            continue
        yield from (f"    | {formula}" for formula in one.formulas)
        yield from (f"    given: {text}" for text in one.preconditions)
        for control in one.controls:
            shown = control.counterexample or control.reason or "no counterexample"
            yield f"    control, {control.status}: {control.words}"
            yield f"        {shown}"
    yield headline(statements)
    yield from (f"  {method}: {method.meaning}" for method in dict.fromkeys(one.method for one in statements))
    if solver := next((one.solver for one in statements if one.solver), ""):
        yield f"  solver: {solver}"
    yield "nothing here was measured on a device"


def to_json(statements: Sequence[Statement], *, missing: Sequence[str] = ()) -> dict[str, Any]:
    """The statements as JSON-ready values; ``missing`` says what could not be claimed."""
    return {
        "ok": all_proved(statements) and not missing,
        "headline": headline(statements),
        "solver": next((one.solver for one in statements if one.solver), None),
        "missing": list(missing),
        "statements": [one.to_json() for one in statements],
    }


def render_html(statements: Sequence[Statement], *, title: str = "NVFP4 proofs", missing: Sequence[str] = ()) -> str:
    """One HTML page without scripts or external resources; every text is escaped."""
    from jinja2 import Environment, StrictUndefined

    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_PAGE)
    ordered = sorted(statements, key=lambda one: _ORDER.index(one.status))
    return template.render(title=title, headline=headline(statements), statements=ordered, missing=missing)


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
section { border-left: 4px solid #2b8a3e; padding: .1rem 1rem; margin: 1.5rem 0; }
section.refuted { border-color: #c92a2a; }
section.unknown { border-color: #e67700; }
code, pre { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
small { color: #555; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } small { color: #aaa; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ headline }}. Nothing here was measured on a device.</p>
{% for text in missing %}
<p><strong>not claimed:</strong> {{ text }}</p>
{% endfor %}
{% for one in statements %}
<section class="{{ one.status }}" id="{{ one.name }}">
<h2>{{ one.verdict }}: {{ one.name }}</h2>
<p>{{ one.words }}</p>
<pre>{% for formula in one.formulas %}{{ formula }}
{% endfor %}</pre>
{% if one.counterexample %}<p><strong>counterexample:</strong> <code>{{ one.counterexample }}</code></p>{% endif %}
{% if one.reason %}<p><strong>unknown because:</strong> {{ one.reason }}</p>{% endif %}
{% if one.preconditions %}
<p>Given:</p>
<ul>
{% for text in one.preconditions %}<li>{{ text }}</li>
{% endfor %}</ul>
{% endif %}
{% if one.controls %}
<p>Negative controls:</p>
<ul>
{% for control in one.controls %}
<li>{{ control.status }}: {{ control.words }}<br/><code>{{ control.counterexample or control.reason }}</code></li>
{% endfor %}</ul>
{% endif %}
<p><small>{{ one.method.meaning }};
{{ one.checked or "nothing checked" }}, {{ "%.0f" | format(one.seconds * 1000) }} ms
{% if one.solver %}, {{ one.solver }}{% endif %}</small></p>
</section>
{% endfor %}
</body>
</html>
"""
