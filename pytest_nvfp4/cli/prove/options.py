"""Options and output that the subcommands of ``nvfp4 prove`` share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.proof import report
from pytest_nvfp4.proof.statement import Limits, Statement
from pytest_nvfp4.text import visible

MOST_GROUPS = 64
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def result_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json``, ``--html``, ``--brief`` and ``--query-timeout``."""
    for option in (
        click.option(
            "--query-timeout",
            "query_ms",
            type=click.IntRange(min=1),
            default=5000,
            show_default=True,
            metavar="MS",
            help="Milliseconds of one question to the solver; what takes longer is unknown, which is no pass.",
        ),
        click.option("--brief", is_flag=True, help="Leave out formulas and controls of what is proved."),
        click.option(
            "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page to FILE too."
        ),
        click.option("--json", "as_json", is_flag=True, help="Write JSON."),
    ):
        function = option(function)
    return function


def groups_of(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read ``--groups``: ``8``, ``1-16`` or ``2,4,8``."""
    if value is None:
        return None
    found: set[int] = set()
    for part in value.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise click.BadParameter(f"{part!r} is no number of groups; write 8, 1-16 or 2,4,8", ctx=ctx, param=param)
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= MOST_GROUPS:
            raise click.BadParameter(
                f"{part}: numbers of groups are 1 to {MOST_GROUPS}; for any number the other statements hold",
                ctx=ctx,
                param=param,
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def limits(query_ms: int) -> Limits:
    """The limits of ``--query-timeout``."""
    return Limits(query_ms=query_ms)


def finish(
    ctx: click.Context,
    statements: Sequence[Statement],
    *,
    as_json: bool,
    html: Path | None,
    brief: bool,
    title: str,
    missing: Sequence[str] = (),
) -> None:
    """Write the result and leave: 0 if everything is proved, else 1."""
    if html is not None:
        output.write_file(html, report.render_html(statements, title=title, missing=missing))
        output.note(f"wrote {html}")
    if as_json:
        output.write_json(report.to_json(statements, missing=missing))
    else:
        for text in (*report.lines(statements, brief=brief), *(f"not claimed: {said}" for said in missing)):
            output.write(visible(text))
    ctx.exit(Exit.FINE if report.all_proved(statements) and not missing else Exit.FAILED)
