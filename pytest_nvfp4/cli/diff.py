"""``nvfp4 diff``: compare layouts of two kernels, snapshots or git revisions by meaning."""

from __future__ import annotations

import click

from pytest_nvfp4.cli import sides
from pytest_nvfp4.cli.comparison import compare
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import KernelOptions, document_options, gate_options, kernel_options
from pytest_nvfp4.layout.change import Severity
from pytest_nvfp4.report.document import Document


@click.command("diff")
@click.argument("old")
@click.argument("new")
@kernel_options
@gate_options
@click.option("--fail-on-launch", is_flag=True, help="Exit with 1 also if a launch or code fact differs.")
@click.option("--opcodes", is_flag=True, help="Also compare how often each PTX instruction occurs.")
@document_options()
def diff_command(
    *,
    old: str,
    new: str,
    how: KernelOptions,
    fail_on: Severity,
    protected: tuple[str, ...],
    fail_on_launch: bool,
    opcodes: bool,
) -> Document:
    """Compare the layouts of OLD and NEW by meaning.

    Each is a kernel (*.py, compiled here without a device), a snapshot file, or one of them in a git revision,
    REV:path, such as HEAD~1:kernels/gemm.py. Two kernels are compiled for the same problem, and their launches and
    code (grid, shared memory, TMEM columns, registers, spills) are compared too. Layouts of different kernels are
    paired by name, then by role, space, element type and shape; such a pair says how sure it is.

    Exit code 1 if a layout change has the severity of --fail-on or a worse one, if a protected layout changed at all,
    or if a kernel does not compile.
    """
    after = sides.load(new, how)
    same = after.traced.subject.problem if after.traced else None
    before = sides.load(old, how, problem=same)
    comparable = before.facts.keys() & after.facts.keys() or (before.listing and after.listing)
    if before.failure is None and after.failure is None and not comparable:
        raise InputError(f"{old} and {new} are snapshots of different kinds; compare two of the same kind")
    return compare(
        before,
        after,
        threshold=fail_on,
        protected=protected,
        opcodes=opcodes,
        facts_gate=fail_on_launch,
        made_with=dict(after.header) if after.traced else {},
    )
