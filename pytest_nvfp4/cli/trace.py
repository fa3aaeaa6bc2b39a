"""``nvfp4 trace``: write the trace of a kernel to a file, which other machines read without the DSL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import json_option
from pytest_nvfp4.cli.tracing import Traced, remote_device, traced_kernel
from pytest_nvfp4.temporary import temporary_folder
from pytest_nvfp4.toolchain.trace_archive import SUFFIX, pack

_FAMILY = "gpumode"


@click.command("trace")
@traced_kernel
@click.option(
    "-o",
    "--out",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"File to write.  [default: the kernel's name with the suffix {SUFFIX}]",
)
@json_option
def trace_command(*, traced: Traced, file: Path | None, as_json: bool) -> None:
    """Write the trace of KERNEL to a file: its layouts, launches and code, and the PTX, CUBIN, SASS and MLIR.

    Of a kernel with custom_kernel(data), the file also holds what its host code asks of the device on the problem of
    the compile, recorded in the simulator. layouts, insights, compile, ptx, sass and diff take the file in place of a
    kernel, and with that recording cost, run and model too, on machines without the DSL. Exit code 1 if the kernel does
    not compile; nothing is written then.
    """
    if not traced.trace.ok:
        raise click.exceptions.Exit(1)
    target = file or Path(Path(traced.trace.kernel).with_suffix(SUFFIX).name)
    if target.suffix != SUFFIX:
        raise InputError(f"--out {target}: the name of a trace ends with {SUFFIX}, by which commands recognise it")
    try:
        data = pack(traced.trace, base=Path(traced.trace.kernel).parent, host=_host(traced))
    except OSError as error:
        raise InputError(f"{traced.subject.label}: its artifacts cannot be read: {error.strerror}") from error
    output.write_file(target, data)
    if as_json:
        output.write_json({**traced.to_json(), "written": str(target), "bytes": len(data)})
    else:
        output.write(f"wrote {target} ({output.size_text(len(data))}), {traced.subject.description}\n")


def _host(traced: Traced) -> bytes | None:
    """Return the kernel with its recorded host code; None, with a note, if it cannot be recorded."""
    from pytest_nvfp4.device.base import Device
    from pytest_nvfp4.device.job import JobCase, KernelSpec, ProblemSpec
    from pytest_nvfp4.device.recorded import RecordingError, record
    from pytest_nvfp4.device.remote.base import RemoteError
    from pytest_nvfp4.device.sim import SimDevice

    subject, request = traced.subject, traced.subject.request
    if request.entry is not None or subject.label.endswith(SUFFIX):
        return None
    case = JobCase(problem=ProblemSpec.of(request.problem), family=_FAMILY)
    try:
        spec, base = KernelSpec.from_files(
            request.kernel,
            others=[Path(path) for path in traced.trace.dependencies],
            **replace(subject.settings, arch=request.arch, compile_options=request.options).of_job,
        )

        def recorded_by(device: Device) -> bytes:
            if (unsupported := device.unsupported(request.arch)) is not None:
                raise RecordingError(unsupported)
            with temporary_folder("trace") as folder, output.working(f"recording the host code of {subject.label}"):
                return record(device, spec, [case], folder=Path(folder), base=base)

        if traced.remote is None:
            return recorded_by(SimDevice(arch=request.arch))
        with remote_device(*traced.remote) as device:
            return recorded_by(device)
    except (RecordingError, RemoteError, OSError, SyntaxError, UnicodeDecodeError) as error:
        output.note(f"{subject.label}: its host code was not recorded, so the file can be compared, not run: {error}")
        return None
