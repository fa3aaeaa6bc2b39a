"""Options and output that the subcommands of ``nvfp4 prove`` share."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.options import Function, result_options
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.proof.statement import Statement
from pytest_nvfp4.report.proofs import proof_document

MOST_GROUPS = 64
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def proof_options(function: Function) -> Function:
    """Add ``--query-timeout``, ``--brief``, ``--require`` and the options of a result's format."""
    require = click.option(
        "--require", is_flag=True, help="Fail if a statement needs an extra that is not installed, such as z3."
    )
    brief = click.option("--brief", is_flag=True, help="Leave out formulas and controls of proved statements.")
    limit = click.option(
        "--query-timeout",
        "query_ms",
        type=click.IntRange(min=1),
        default=5000,
        show_default=True,
        metavar="MS",
        help="Time limit of one solver query in milliseconds; a query that exceeds it is unknown, which is no pass.",
    )
    return limit(brief(require(result_options()(function))))


def groups_of(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse ``--groups``: ``8``, ``1-16`` or ``2,4,8``."""
    if value is None:
        return None
    found: set[int] = set()
    for part in value.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise click.BadParameter(
                f"{part!r} is not a number of groups, such as 8, 1-16 or 2,4,8", ctx=ctx, param=param
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= MOST_GROUPS:
            raise click.BadParameter(
                f"{part}: the number of groups must be 1 to {MOST_GROUPS}; the other statements hold for any number",
                ctx=ctx,
                param=param,
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def finish(
    ctx: click.Context,
    statements: Sequence[Statement],
    *,
    result: ResultWriter,
    brief: bool,
    title: str,
    require: bool,
    missing: Sequence[str] = (),
) -> None:
    """Write the result and exit: 0 if every statement is proved and none is missing, else 1.

    Without ``require``, a statement that needs an extra which is not installed is left out of that.
    """
    whole = proof_document(statements, title=title, missing=missing, require=require)
    shown = proof_document(statements, title=title, missing=missing, brief=brief, require=require)
    result.write(shown, page=whole)
    ctx.exit(Exit.FINE if whole.data["ok"] else Exit.FAILED)
