"""``nvfp4 upgrade``: what another version of CuTe DSL changes in a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from pytest_nvfp4.cli.codegen import code_sections, summary_json
from pytest_nvfp4.cli.comparison import compare
from pytest_nvfp4.cli.environments import toolchain
from pytest_nvfp4.cli.options import KernelOptions, document_options, gate_options, kernel_options
from pytest_nvfp4.cli.sides import Side, of_kernel
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.report.document import Document
from pytest_nvfp4.toolchain.cache import TraceCache
from pytest_nvfp4.toolchain.request import DSL_DISTRIBUTION, Toolchain


def _side(traced: Traced) -> Side:
    side = of_kernel(traced)
    facts = dict(side.facts)
    if "codegen" in facts:
        counts = {}
        for index, code in enumerate(traced.trace.code):
            if code.sass_mix:
                counts[f"code.{index}.sass_instructions"] = str(sum(code.sass_mix.values()))
            counts[f"code.{index}.ptx_instructions"] = str(sum(code.ptx_mix.values()))
        facts["codegen"] = {**facts["codegen"], **counts}
    return replace(side, label=f"{traced.subject.label} with CuTe DSL {traced.trace.dsl_version}", facts=facts)


@click.command("upgrade")
@click.argument("kernel", type=click.Path(path_type=Path))
@click.option("--from", "old", required=True, metavar="VERSION", help=f"Version of {DSL_DISTRIBUTION}, such as 4.4.0.")
@click.option("--to", "new", metavar="VERSION", help="Version to compare with.  [default: the installed one]")
@click.option(
    "--with", "extra", multiple=True, metavar="PACKAGE", help="Package that the kernel imports; may be repeated."
)
@kernel_options
@gate_options
@document_options()
def upgrade_command(
    *,
    kernel: Path,
    old: str,
    new: str | None,
    extra: tuple[str, ...],
    how: KernelOptions,
    fail_on: Severity,
    protected: tuple[str, ...],
) -> Document:
    """Compare KERNEL between two versions of CuTe DSL: layouts by meaning, launches, registers, instructions.

    uv installs each version with torch in an isolated environment in the cache; the installed version is used in
    place. Exit code 1 as for `nvfp4 diff`, or if the kernel does not compile with one of the versions; the result for
    the other version is shown all the same.
    """
    subject = resolve(kernel, how)
    root = TraceCache().root
    traces = []
    for version in (old, new or Toolchain.current().dsl_version):
        request = replace(subject.request, toolchain=toolchain(version, root=root, extra=extra))
        traces.append(trace(replace(subject, request=request)))
    before, after = (_side(traced) for traced in traces)
    failed = before.failure is not None or after.failure is not None
    more = [block for traced in traces if failed and traced.trace.ok for block in code_sections(traced)]
    data = {"summaries": [summary_json(traced) for traced in traces]}
    return compare(before, after, threshold=fail_on, protected=protected, opcodes=True, more=more, data=data)
