"""``nvfp4 compile``, ``ptx`` and ``sass``: the code of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli import artifacts, output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import document_options, result_options
from pytest_nvfp4.cli.output import ResultWriter
from pytest_nvfp4.cli.tracing import Traced, traced_kernel
from pytest_nvfp4.report.document import Block, Code, Document, Facts, Section
from pytest_nvfp4.report.render import OutputFormat
from pytest_nvfp4.text import plural
from pytest_nvfp4.toolchain.trace import Code as KernelCode
from pytest_nvfp4.toolchain.trace import LaunchFact

_SHOWN_OPCODES = 12
_TENSOR_FAMILIES = ("tcgen05.", "cp.async.bulk", "cp.reduce", "mbarrier.", "tensormap.", "fence.", "griddepcontrol.")
"""Instructions that carry the work of a Blackwell GEMM; they are shown however rare they are."""


def _known(value: int | None, unit: str = "") -> str:
    return "unavailable" if value is None else f"{value}{unit}"


def _mix(mix: dict[str, int]) -> str:
    common = sorted(mix.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in common[_SHOWN_OPCODES:])
    shown = ", ".join(f"{name} {count}" for name, count in common[:_SHOWN_OPCODES])
    return shown + (f", {rest} others" if rest else "")


def _launch_line(launch: LaunchFact) -> str:
    grid, block, cluster = ("x".join(map(str, size)) for size in (launch.grid, launch.block, launch.cluster))
    more = "".join(
        f", {text}" for text, on in (("cooperative", launch.cooperative), ("dependent launch", launch.pdl)) if on
    )
    return f"grid {grid}, block {block}, cluster {cluster}, dynamic smem {launch.smem_bytes} B{more}"


def _code_facts(code: KernelCode, launches: list[LaunchFact]) -> Iterator[tuple[str, str]]:
    most = f", at most {code.max_threads} threads" if code.max_threads else ""
    yield "registers", f"{_known(code.registers)} a thread{most}"
    known = code.spill_stores is not None and code.spill_loads is not None
    spills = f"{code.spill_stores} stores, {code.spill_loads} loads" if known else "unavailable"
    yield "spills", f"{spills}; stack {_known(code.stack_bytes, ' B')}, local {_known(code.local_bytes, ' B')}"
    columns = ", ".join("computed at run time" if count is None else str(count) for count in code.tmem_columns)
    yield "TMEM columns", columns or "none allocated"
    yield "static smem", f"{code.static_smem_bytes} B"
    for launch in launches:
        yield "launch", _launch_line(launch)
    if special := {name: count for name, count in code.ptx_mix.items() if name.startswith(_TENSOR_FAMILIES)}:
        yield "PTX", ", ".join(f"{name} {count}" for name, count in special.items())
    yield "PTX, all", _mix(code.ptx_mix)
    if code.sass_mix:
        yield "SASS", _mix(code.sass_mix)


def code_sections(traced: Traced) -> Iterator[Block]:
    """Yield the result of a compile: one line, and a section for each kernel."""
    done = traced.trace
    yield (
        f"{traced.subject.description}: {'compiled' if done.ok else 'did not compile'} for {done.arch} with CuTe DSL "
        f"{done.dsl_version} in {done.seconds:.1f} s; {plural(done.launch_count, 'launch', 'launches')}"
    )
    for code in done.code:
        launches = [launch for launch in done.launches if launch.kernel == code.symbol]
        yield Section(code.source_name or code.symbol, [Facts(list(_code_facts(code, launches)))])


def summary_json(traced: Traced) -> dict[str, Any]:
    """Return the result of a compile as JSON-ready values."""
    return {
        **traced.to_json(),
        "seconds": traced.trace.seconds,
        "stages": traced.trace.stages,
        "launch_count": traced.trace.launch_count,
        "launches": [launch.model_dump(mode="json") for launch in traced.trace.launches],
        "code": [code.model_dump(mode="json") for code in traced.trace.code],
    }


_OUT = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the artifacts to DIR as FILE.KERNEL.KIND, with a manifest.json.",
)


@click.command("compile")
@traced_kernel
@_OUT
@document_options()
def compile_command(*, traced: Traced, out: Path | None) -> Document:
    """Compile KERNEL without a device: registers, spills, shared memory, TMEM columns, instructions, seconds.

    --out saves its PTX, CUBIN, SASS and MLIR. The seconds are those of the compile itself; a cached compile is not
    repeated. Exit code 1 if the kernel does not compile; artifacts from before the error are written all the same.
    """
    written = [] if out is None else artifacts.write(traced, artifacts.modules(traced.trace), artifacts.KINDS, out)
    blocks = [*code_sections(traced), *(f"wrote {path}" for path in written)]
    data = {**summary_json(traced), "written": [str(path) for path in written]}
    return Document(f"Compile of {traced.subject.description}", blocks, data, traced.trace.ok)


def _code_command(kind: artifacts.Kind, text: str) -> click.Command:
    """Return the command that writes the code of one kind; ``text`` is its help."""

    @click.command(kind, help=text)
    @traced_kernel
    @click.option(
        "--kernel", "only", metavar="NAME", help="Only the kernel with this function name, symbol or pattern."
    )
    @_OUT
    @result_options()
    @click.pass_context
    def command(
        ctx: click.Context, *, traced: Traced, only: str | None, out: Path | None, result: ResultWriter
    ) -> None:
        label = traced.subject.label
        modules = [
            module
            for module in artifacts.chosen(artifacts.modules(traced.trace), only, label=label)
            if kind in module.files or (kind == "sass" and "cubin" in module.files)
        ]
        if not modules and traced.trace.ok:
            raise InputError(f"{label}: the compile produced no {kind.upper()}")
        if out is not None:
            for path in artifacts.write(traced, modules, [kind], out):
                output.note(f"wrote {path}")
        texts = {
            module.name: artifacts.content(module, kind, label=label).decode("utf-8", "replace") for module in modules
        }
        if out is None or result.format is OutputFormat.JSON:
            blocks = [Code(code, kind) for code in texts.values()]
            title = f"{kind.upper()} of {traced.subject.description}"
            result.write(Document(title, blocks, {**traced.to_json(), kind: texts}))
        ctx.exit(Exit.FINE if traced.trace.ok else Exit.FAILED)

    return command


ptx_command = _code_command(
    "ptx",
    """Write the PTX of KERNEL to standard output, or with --out to files.

    Exit code 1 if the kernel does not compile; PTX from before the error is written all the same.
    """,
)
sass_command = _code_command(
    "sass",
    """Write the SASS of KERNEL, as nvdisasm prints it, to standard output, or with --out to files.

    Exit code 1 if the kernel does not compile; SASS from before the error is written all the same.
    """,
)
