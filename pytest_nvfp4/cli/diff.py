"""``nvfp4 diff``: compare layouts of two kernels, snapshots or git revisions by meaning."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_nvfp4.cli import sides
from pytest_nvfp4.cli.comparison import Form, compare, show
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import KernelOptions, gate_options, json_option, kernel_options
from pytest_nvfp4.layout.change import Severity


@click.command("diff")
@click.argument("old")
@click.argument("new")
@kernel_options
@gate_options
@click.option("--fail-on-launch", is_flag=True, help="Exit with 1 also when a launch or code fact differs.")
@click.option("--opcodes", is_flag=True, help="Compare also how often each PTX instruction occurs.")
@json_option
@click.option("--md", "as_markdown", is_flag=True, help="Write Markdown, for a pull request.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page to FILE as well.")
@click.pass_context
def diff_command(
    ctx: click.Context,
    *,
    old: str,
    new: str,
    how: KernelOptions,
    fail_on: Severity,
    protected: tuple[str, ...],
    fail_on_launch: bool,
    opcodes: bool,
    as_json: bool,
    as_markdown: bool,
    html: Path | None,
) -> None:
    """Compare the layouts of OLD and NEW by meaning.

    Each is a kernel (*.py, compiled here without a device), a snapshot file, or one of them in a git revision,
    REV:path, such as HEAD~1:kernels/gemm.py. Two kernels are compiled for the same problem, and their launches and
    code (grid, shared memory, TMEM columns, registers, spills) are compared too.

    Exit code 1 if a layout changed as much as --fail-on says, a protected one changed at all, or a kernel does not
    compile.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --md cannot be had together")
    after = sides.load(new, how)
    same = after.traced.subject.problem if after.traced else None
    before = sides.load(old, how, problem=same)
    if before.failure is None and after.failure is None and not _common(before, after):
        raise InputError(f"{old} and {new} are snapshots of different things, so there is nothing to compare")
    made_with = dict(after.header) if after.traced else {}
    comparison = compare(
        before,
        after,
        threshold=fail_on,
        protected=protected,
        opcodes=opcodes,
        facts_gate=fail_on_launch,
        made_with=made_with,
    )
    show(comparison, Form(json=as_json, markdown=as_markdown, html=html))
    ctx.exit(Exit.FAILED if comparison.failed else Exit.FINE)


def _common(one: sides.Side, other: sides.Side) -> bool:
    pairs = (
        (one.listing, other.listing),
        (one.launch, other.launch),
        (one.codegen, other.codegen),
        (one.cost, other.cost),
    )
    return any(left is not None and right is not None for left, right in pairs)
