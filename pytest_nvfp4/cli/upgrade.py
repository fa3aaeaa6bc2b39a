"""``nvfp4 upgrade``: what another version of CuTe DSL changes in a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.codegen import summary_json, summary_lines
from pytest_nvfp4.cli.comparison import Form, compare, show
from pytest_nvfp4.cli.environments import toolchain
from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.options import KernelOptions, gate_options, json_option, kernel_options
from pytest_nvfp4.cli.sides import Side, of_kernel
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, Toolchain


def _side(traced: Traced) -> Side:
    side = of_kernel(traced)
    codegen = side.codegen
    if codegen is not None:
        codegen = dict(codegen)
        for index, code in enumerate(traced.trace.code):
            if code.sass_mix:
                codegen[f"code.{index}.sass_instructions"] = str(sum(code.sass_mix.values()))
            codegen[f"code.{index}.ptx_instructions"] = str(sum(code.ptx_mix.values()))
    label = f"{traced.subject.label} with CuTe DSL {traced.trace.dsl_version}"
    return replace(side, label=label, codegen=codegen)


@click.command("upgrade")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--from", "old", required=True, metavar="VERSION", help=f"Version of {DSL_DISTRIBUTION}, such as 4.4.0.")
@click.option("--to", "new", metavar="VERSION", help="The version to compare with; the installed one by default.")
@click.option(
    "--with", "extra", multiple=True, metavar="PACKAGE", help="Package that the kernel imports; may be repeated."
)
@kernel_options
@gate_options
@json_option
@click.option("--md", "as_markdown", is_flag=True, help="Write Markdown, for a pull request.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page to FILE as well.")
@click.pass_context
def upgrade_command(
    ctx: click.Context,
    *,
    kernel: Path,
    old: str,
    new: str | None,
    extra: tuple[str, ...],
    how: KernelOptions,
    fail_on: Severity,
    protected: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
    html: Path | None,
) -> None:
    """What KERNEL becomes with another version of CuTe DSL: layouts by meaning, launches, registers, instructions.

    Each version is installed with uv in an environment of its own, beside torch, and kept in the cache; the one
    installed here is used as it is. Exit code 1 as for `nvfp4 diff`, or if the kernel does not compile with one of
    them; the other is shown all the same.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --md cannot be had together")
    subject = resolve(kernel, how)
    new = new or Toolchain.current().dsl_version
    root = TraceCache().root
    traced = []
    for version in (old, new):
        request = replace(subject.request, toolchain=toolchain(version, root=root, extra=extra))
        traced.append(trace(replace(subject, request=request)))
    sides = [_side(one) for one in traced]
    comparison = compare(sides[0], sides[1], threshold=fail_on, protected=protected, opcodes=True)
    show(
        comparison,
        Form(json=as_json, markdown=as_markdown, html=html),
        more={"summaries": [summary_json(one) for one in traced]},
    )
    if not as_json and any(side.failure for side in sides):
        for one in traced:
            if one.trace.ok:
                output.write("\n".join(summary_lines(one.trace, one.subject.description)))
    ctx.exit(Exit.FAILED if comparison.failed else Exit.FINE)
