"""``nvfp4 compile``, ``ptx`` and ``sass``: what the compiler makes of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from pytest_nvfp4.cli import artifacts, output
from pytest_nvfp4.cli.errors import Exit, InputError
from pytest_nvfp4.cli.options import KernelOptions, json_option, kernel_options
from pytest_nvfp4.cli.subject import resolve
from pytest_nvfp4.cli.tracing import Traced, trace
from pytest_nvfp4.text import visible
from pytest_nvfp4.toolchain.trace import Code, LaunchFact, Trace

_TOP = 12


def _known(value: int | None, unit: str = "") -> str:
    return "unavailable" if value is None else f"{value}{unit}"


def _mix(mix: dict[str, int]) -> str:
    common = sorted(mix.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in common[_TOP:])
    shown = ", ".join(f"{name} {count}" for name, count in common[:_TOP])
    return shown + (f", {rest} others" if rest else "")


def _blackwell(mix: dict[str, int]) -> str:
    """The instructions that carry the work of a kernel of this kind, however rare they are."""
    families = ("tcgen05.", "cp.async.bulk", "cp.reduce", "mbarrier.", "tensormap.", "fence.", "griddepcontrol.")
    return ", ".join(f"{name} {count}" for name, count in mix.items() if name.startswith(families))


def _launch_line(launch: LaunchFact) -> str:
    grid, block, cluster = ("x".join(map(str, size)) for size in (launch.grid, launch.block, launch.cluster))
    more = "".join(
        f", {text}" for text, on in (("cooperative", launch.cooperative), ("dependent launch", launch.pdl)) if on
    )
    return f"grid {grid}, block {block}, cluster {cluster}, dynamic smem {launch.smem_bytes} B{more}"


def _code_lines(code: Code, launches: list[LaunchFact]) -> Iterator[str]:
    yield visible(code.source_name or code.symbol)
    yield f"  registers     {_known(code.registers)} a thread" + (
        f", at most {code.max_threads} threads" if code.max_threads else ""
    )
    spills = (
        "unavailable"
        if code.spill_stores is None or code.spill_loads is None
        else f"{code.spill_stores} stores, {code.spill_loads} loads"
    )
    yield f"  spills        {spills}; stack {_known(code.stack_bytes, ' B')}, local {_known(code.local_bytes, ' B')}"
    columns = ", ".join("computed at run time" if count is None else str(count) for count in code.tmem_columns)
    yield f"  TMEM columns  {columns or 'none allocated'}"
    yield f"  static smem   {code.static_smem_bytes} B"
    for launch in launches:
        yield f"  launch        {_launch_line(launch)}"
    if special := _blackwell(code.ptx_mix):
        yield f"  PTX           {special}"
    yield f"  PTX, all      {_mix(code.ptx_mix)}"
    if code.sass_mix:
        yield f"  SASS          {_mix(code.sass_mix)}"


def summary_lines(found: Trace, description: str) -> Iterator[str]:
    """What a compile came to, for people."""
    yield visible(
        f"{description}: {'compiled' if found.ok else 'did not compile'} for {found.arch} with CuTe DSL "
        f"{found.dsl_version} in {found.seconds:.1f} s; {found.launch_count} launch(es)"
    )
    for code in found.code:
        yield from _code_lines(code, [launch for launch in found.launches if launch.kernel == code.symbol])


def summary_json(traced: Traced) -> dict[str, Any]:
    """What a compile came to, as JSON-ready values."""
    return {
        **traced.to_json(),
        "seconds": traced.trace.seconds,
        "stages": traced.trace.stages,
        "launch_count": traced.trace.launch_count,
        "launches": [launch.model_dump(mode="json") for launch in traced.trace.launches],
        "code": [code.model_dump(mode="json") for code in traced.trace.code],
    }


def _out_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder to write the artifacts to, as FILE.KERNEL.KIND, with a manifest.json.",
    )(function)


@click.command("compile")
@click.argument("kernel", type=click.Path(path_type=Path))
@kernel_options
@_out_option
@json_option
@click.pass_context
def compile_command(ctx: click.Context, *, kernel: Path, how: KernelOptions, out: Path | None, as_json: bool) -> None:
    """Compile KERNEL without a device: registers, spills, shared memory, TMEM columns, instructions, seconds.

    With --out, its PTX, CUBIN, SASS and MLIR are kept there. The seconds are those of the compile itself; a compile
    made before is not made again. Exit code 1 if it does not compile; what it left until then is written all the same.
    """
    traced = trace(resolve(kernel, how))
    traced.report_findings()
    written = [] if out is None else artifacts.write(traced, artifacts.modules(traced.trace), artifacts.KINDS, out)
    if as_json:
        output.write_json({**summary_json(traced), "written": [str(path) for path in written]})
    else:
        output.write("\n".join(summary_lines(traced.trace, traced.subject.description)))
        for path in written:
            output.write(f"wrote {visible(str(path))}")
    ctx.exit(Exit.FINE if traced.trace.ok else Exit.FAILED)


def _text_command(
    ctx: click.Context,
    kind: artifacts.Kind,
    kernel: Path,
    how: KernelOptions,
    *,
    out: Path | None,
    only: str | None,
    as_json: bool,
) -> None:
    traced = trace(resolve(kernel, how))
    traced.report_findings()
    label = traced.subject.label
    found = artifacts.modules(traced.trace)
    wanted = [
        module
        for module in artifacts.chosen(found, only, label=label)
        if kind in module.files or (kind == "sass" and "cubin" in module.files)
    ]
    if not wanted and traced.trace.ok:
        raise InputError(f"{label}: the compile left no {kind.upper()}")
    if out is not None:
        for path in artifacts.write(traced, wanted, [kind], out):
            output.note(f"wrote {path}")
    texts = {module.name: artifacts.content(module, kind, label=label).decode("utf-8", "replace") for module in wanted}
    if as_json:
        output.write_json({**traced.to_json(), kind: texts})
    elif out is None:
        output.write("".join(text if text.endswith("\n") else text + "\n" for text in texts.values()))
    ctx.exit(Exit.FINE if traced.trace.ok else Exit.FAILED)


def _kernel_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--kernel", "only", metavar="NAME", help="Only the kernel of this name or pattern (function or symbol)."
    )(function)


@click.command("ptx")
@click.argument("kernel", type=click.Path(path_type=Path))
@kernel_options
@_kernel_option
@_out_option
@json_option
@click.pass_context
def ptx_command(
    ctx: click.Context, *, kernel: Path, how: KernelOptions, only: str | None, out: Path | None, as_json: bool
) -> None:
    """The PTX of KERNEL: to standard output, or with --out to files.

    Exit code 1 if the kernel does not compile; PTX that it left until then is shown all the same.
    """
    _text_command(ctx, "ptx", kernel, how, out=out, only=only, as_json=as_json)


@click.command("sass")
@click.argument("kernel", type=click.Path(path_type=Path))
@kernel_options
@_kernel_option
@_out_option
@json_option
@click.pass_context
def sass_command(
    ctx: click.Context, *, kernel: Path, how: KernelOptions, only: str | None, out: Path | None, as_json: bool
) -> None:
    """The SASS of KERNEL as nvdisasm prints it: to standard output, or with --out to files.

    Exit code 1 if the kernel does not compile; SASS that it left until then is shown all the same.
    """
    _text_command(ctx, "sass", kernel, how, out=out, only=only, as_json=as_json)
