"""``nvfp4 trace``: write the trace of a kernel to a file, which other machines read without the DSL."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.tracing import Traced, traced_kernel
from pytest_nvfp4.toolchain.trace_archive import SUFFIX, pack


@click.command("trace")
@traced_kernel
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"File to write.  [default: the kernel's name with the suffix {SUFFIX}]",
)
@json_option
def trace_command(*, traced: Traced, file: Path | None, as_json: bool) -> None:
    """Write the trace of KERNEL to a file: its layouts, launches and code, and the PTX, CUBIN, SASS and MLIR.

    layouts, insights, compile, ptx, sass and diff take the file in place of a kernel, on machines without the DSL too.
    Exit code 1 if the kernel does not compile; nothing is written then.
    """
    if not traced.trace.ok:
        raise click.exceptions.Exit(1)
    target = file or Path(Path(traced.trace.kernel).with_suffix(SUFFIX).name)
    if target.suffix != SUFFIX:
        raise InputError(f"--output {target}: the name of a trace ends with {SUFFIX}, by which commands recognise it")
    try:
        data = pack(traced.trace, base=Path(traced.trace.kernel).parent)
    except OSError as error:
        raise InputError(f"{traced.subject.label}: its artifacts cannot be read: {error.strerror}") from error
    output.write_file(target, data)
    if as_json:
        output.write_json({**traced.to_json(), "written": str(target), "bytes": len(data)})
    else:
        output.write(f"wrote {target} ({output.size_text(len(data))}), {traced.subject.description}\n")
