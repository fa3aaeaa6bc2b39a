"""Worker that compiles a CUDA source, or reads PTX, and simulates one launch: ``... worker JOB FOLDER``.

No code of the file's author runs here but as PTX in the simulator. The job names arrays, whose elements lie in the
folder; the elements after the launch are written there, and the answer goes to the result pipe.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_nvfp4.cores import cores
from pytest_nvfp4.device.worker.call_recorder import launch_facts
from pytest_nvfp4.device.worker.sim_findings import in_order, merge_by_statement, worker_finding
from pytest_nvfp4.device.worker.simulator import SimulatorSettings, new_session
from pytest_nvfp4.driver import ptx_module
from pytest_nvfp4.driver.kernel_names import short_kernel
from pytest_nvfp4.driver.launches import HostSideError, LaunchAttribute, NoCompilerError
from pytest_nvfp4.driver.tensormap_encoding import encode_tiled
from pytest_nvfp4.finding import Finding
from pytest_nvfp4.host import host_code, nvrtc
from pytest_nvfp4.host.device_side import local
from pytest_nvfp4.host.loaded_modules import LoadedModules
from pytest_nvfp4.isolation.environment import RESULT_VARIABLE, taken
from pytest_nvfp4.isolation.limits import called_in_time
from pytest_nvfp4.isolation.wall import enter_from_environment
from pytest_nvfp4.sim.fault import Fault
from pytest_nvfp4.sim.memory.globals import Region
from pytest_nvfp4.sim.ptx.instructions import INSTRUCTIONS
from pytest_nvfp4.sim.ptx.lexer import PtxError
from pytest_nvfp4.sim.run.grid import Grid
from pytest_nvfp4.sim.run.session import Session

_MOST_FINDINGS = 200
_NON_PORTABLE_CLUSTER = 14
_MAX_DYNAMIC_SMEM = 8
_VALUE_BYTES = 64
_NOT_MODELLED = " is not modelled"
_PRINTED_CHARACTERS = 100_000


class RefusedError(Exception):
    """The file cannot be compiled or launched as the job requests; ``findings`` have the reasons."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(findings[0].message)
        self.findings = findings


def compiled(job: Mapping[str, Any], folder: Path, answer: dict[str, Any]) -> tuple[bytes, str, str]:
    """Return the CUBIN, if there is one, the PTX, and the symbol of the kernel. Raises RefusedError."""
    if job["language"] == "ptx":
        text, name = job["text"], job["kernel"]
        return b"", text, _chosen(text, name, job, answer)
    options = nvrtc.options_for(job["options"], arch=job["arch"])
    expressions = [job["kernel"]] if job["kernel"] else []
    try:
        made = _compile(job, options, expressions)
    except nvrtc.CompileError as error:
        if host_code.has_host_code(job["text"]):
            text = _with_host_code(job, folder)
            return b"", text, _chosen(text, job["kernel"], {**job, "language": "ptx"}, answer)
        if not expressions:
            raise RefusedError(*_compile_findings(str(error), job)) from None
        try:
            made = _compile(job, options, [])  # the name may be mangled, or wrong
        except nvrtc.CompileError:
            raise RefusedError(*_compile_findings(str(error), job)) from None
        if job["kernel"] not in ptx_module.parse(made.ptx).kernels:
            _list(made.ptx, job, answer, why=f"has no kernel {job['kernel']}")
    answer["log"] = made.log[-_PRINTED_CHARACTERS:]
    symbol = made.names.get(job["kernel"] or "")
    return made.cubin, made.ptx, symbol or _chosen(made.ptx, job["kernel"], job, answer)


def _compile(job: Mapping[str, Any], options: list[str], expressions: list[str]) -> nvrtc.Compiled:
    return nvrtc.compile_source(
        job["text"], name=Path(job["file"]).name, options=options, expressions=expressions, headers=nvrtc.HOST_HEADERS
    )


def _with_host_code(job: Mapping[str, Any], folder: Path) -> str:
    name = Path(job["file"]).name
    (folder / "nvcc").mkdir()
    try:
        return host_code.ptx(job["text"], name=name, options=job["options"], arch=job["arch"], folder=folder / "nvcc")
    except NoCompilerError as error:
        raise RefusedError(Finding("compile", f"{name}: {error}", file=job["file"])) from None
    except nvrtc.CompileError as error:
        raise RefusedError(*_compile_findings(str(error), job)) from None


def _compile_findings(log: str, job: Mapping[str, Any]) -> list[Finding]:
    found = [
        Finding("compile", f"{Path(job['file']).name} does not compile: {message}", file=file, line=line, text=text)
        for file, line, message in itertools.islice(nvrtc.error_lines(log), 20)
        for text in [_line_of(file, line)]
    ]
    found = found or [Finding("compile", f"{Path(job['file']).name} does not compile: {log[:4000]}", file=job["file"])]
    return [replace(found[0], detail=log[:20_000]), *found[1:]]


def _line_of(file: str, line: int) -> str | None:
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = text.splitlines()
    return lines[line - 1].strip() or None if 0 < line <= len(lines) else None


def _chosen(text: str, name: str | None, job: Mapping[str, Any], answer: dict[str, Any]) -> str:
    """Return the kernel of the job, or the only one. Raises RefusedError, with the list of kernels."""
    try:
        kernels = list(ptx_module.parse(text).kernels)
    except ptx_module.PtxModuleError as error:
        raise RefusedError(Finding("entry", f"{Path(job['file']).name}: {error}", file=job["file"])) from None
    if name is None and len(kernels) == 1:
        return kernels[0]
    functions = [kernel for kernel in kernels if kernel.startswith(f"_Z{len(name or '')}{name}")]
    if name not in kernels and len(functions) == 1:
        return functions[0]
    if name is None or name not in kernels:
        _list(text, job, answer, why="has several kernels" if name is None else f"has no kernel {name}")
    return str(name)


def _list(text: str, job: Mapping[str, Any], answer: dict[str, Any], *, why: str) -> None:
    answer["entries"] = list(ptx_module.parse(text).kernels)[:1000]
    listed = ", ".join(answer["entries"][:20])
    hint = "" if job["language"] == "ptx" else "; a template is named with its arguments: 'scale<3>'"
    raise RefusedError(
        Finding(
            "entry", f"{Path(job['file']).name} {why}: it has {listed}; name one with --kernel{hint}", file=job["file"]
        )
    )


class Launcher:
    """Allocates the arrays of a job, and launches its kernel on a session."""

    def __init__(self, job: Mapping[str, Any], folder: Path, session: Session) -> None:
        self._job = job
        self._folder = folder
        self._session = session
        self._addresses: dict[str, int] = {}
        self._regions: list[Region] = []
        self._kept: list[Any] = []

    def allocate(self) -> None:
        """Allocate and name every array, and copy its elements."""
        memory = self._session.memory
        for number, array in enumerate(self._job["arrays"]):
            size = array["size"]
            address = memory.allocate(max(size, 1))
            self._addresses[array["name"]] = address
            region = memory.name(address, array["name"], describe=_describer(array), size=size)
            self._regions.append(region)
            if array["initialised"]:
                data = (self._folder / f"array-{number}").read_bytes()
                ctypes.memmove(address, data, size)
            else:
                region.track_writes()

    def parameters(self, sizes: tuple[int, ...], types: Sequence[str], kernel: str) -> list[bytes]:
        """Return the bytes of each parameter; ``types`` are those of PTX. Raises RefusedError."""
        arguments = self._job["arguments"]
        if len(arguments) != len(sizes):
            raise RefusedError(
                Finding(
                    "launch", f"{kernel} takes {len(sizes)} parameters of {list(sizes)} bytes, got {len(arguments)}"
                )
            )
        made = []
        for number, (argument, size, kind) in enumerate(zip(arguments, sizes, types, strict=True)):
            try:
                data = self._bytes(argument, size, kind)
            except (HostSideError, OverflowError, struct.error) as error:
                raise RefusedError(Finding("launch", f"argument {number} of {kernel}: {error}")) from None
            if len(data) != size:
                message = f"argument {number} of {kernel} has {len(data)} bytes, and its parameter {size}"
                raise RefusedError(Finding("launch", message))
            made.append(data)
        return made

    def _bytes(self, argument: Mapping[str, Any], size: int, kind: str) -> bytes:
        if "array" in argument:
            return (self._addresses[argument["array"]] + int(argument["offset"])).to_bytes(8, "little")
        if "bytes" in argument:
            return bytes.fromhex(argument["bytes"])
        if "pointers" in argument:
            table = b"".join(self._addresses[name].to_bytes(8, "little") for name in argument["pointers"])
            address = self._session.memory.allocate(len(table))
            self._session.memory.name(address, f"the pointers to {', '.join(argument['pointers'])}", writable=False)
            ctypes.memmove(address, table, len(table))
            return address.to_bytes(8, "little")
        if "map" in argument:
            fields = dict(argument["map"])
            return encode_tiled(address=self._addresses[fields.pop("array")], **fields)
        number = argument["number"]
        if isinstance(number, float) and kind[0] in "us" and not number.is_integer():
            raise HostSideError(f"{number} is no integer, as its parameter ({kind}) is; f32:{number} passes its bits")
        if isinstance(number, float) if kind[0] == "b" else kind[0] == "f":
            formats = {2: "<e", 4: "<f", 8: "<d"}
            if size not in formats:
                raise HostSideError(f"a parameter of {size} bytes is no floating-point number: give its type (f32:0.5)")
            return struct.pack(formats[size], float(number))
        return int(number).to_bytes(size, "little", signed=number < 0)

    def results(self) -> None:
        """Write the elements of each array."""
        for number, (array, region) in enumerate(zip(self._job["arrays"], self._regions, strict=True)):
            (self._folder / f"array-{number}").write_bytes(region.raw[: array["size"]])


def _describer(array: Mapping[str, Any]) -> Callable[[int], str]:
    shape, item, name = array["shape"], np.dtype(array["dtype"]).itemsize, array["name"]

    def describe(offset: int) -> str:
        element, inside = divmod(offset, item)
        place = ", ".join(str(int(index)) for index in np.unravel_index(element, shape)) if shape else ""
        return f"{name}[{place}]" + (f" byte {inside}" if inside else "")

    return describe


def simulate(job: Mapping[str, Any], folder: Path, answer: dict[str, Any]) -> None:
    """Compile and launch, and add launches, findings and printed text to the answer. Raises RefusedError."""
    image, text, symbol = compiled(job, folder, answer)
    shown = job["kernel"] or short_kernel(symbol)
    settings = SimulatorSettings(
        arch=job["arch"],
        processes=min(4, cores()),
        schedule=job["schedule"],
        races=job["races"],
        race_warnings=job["race_warnings"],
    )
    session = new_session(settings)
    grids: list[Grid] = []

    def prepare(grid: Grid) -> None:
        grid.counting = True
        grids.append(grid)

    session.prepare = prepare
    modules = LoadedModules(
        session.machine.model, local(session.launch, memory=session.memory, streams=session.streams), itertools.count(1)
    )
    launcher = Launcher(job, folder, session)
    try:
        if image:
            modules.compiled(image, text)
        handle = modules.find(modules.load(image or text.encode()), symbol)
        entry = modules.kernel(handle).entry
        launcher.allocate()
        modules.set_attribute(handle, _NON_PORTABLE_CLUSTER, 1)
        modules.set_attribute(handle, _MAX_DYNAMIC_SMEM, job["smem"])
        attributes = {}
        if job["cluster"] != [1, 1, 1]:
            attributes[int(LaunchAttribute.CLUSTER_DIMENSION)] = struct.pack("<III", *job["cluster"]).ljust(
                _VALUE_BYTES, b"\0"
            )
        params = launcher.parameters(
            tuple(size for _, size in entry.params), ptx_module.parameter_types(text, symbol), shown
        )
        with called_in_time(partial(_end_overdue, session)):
            modules.launch(
                handle,
                grid=tuple(job["grid"]),
                block=tuple(job["block"]),
                dynamic_smem=job["smem"],
                stream=0,
                params=params,
                attributes=attributes,
                cooperative=job["cooperative"],
            )
    except Fault:
        pass  # recorded by the session
    except PtxError as error:
        raise RefusedError(Finding("ptx", str(error), file=job["file"], line=error.line)) from None
    except HostSideError as error:
        message = str(error).replace(symbol, shown)
        raise RefusedError(Finding("launch", f"{Path(job['file']).name}: {message}", file=job["file"])) from None
    _report(job, session, grids, answer)
    launcher.results()


def _end_overdue(session: Session) -> None:
    """Raise the Fault of the launch that runs; a signal handler."""
    if session.running is not None and (fault := session.running.unended()) is not None:
        raise fault


def _report(job: Mapping[str, Any], session: Session, grids: list[Grid], answer: dict[str, Any]) -> None:
    reported = [finding for record in session.launches for finding in merge_by_statement(record.findings)]
    found = in_order([fault.finding() for fault in session.faults], reported)
    answer["findings"] = [_placed(finding, job).to_dict() for finding in found[:_MOST_FINDINGS]]
    answer["printed"] = session.output[-_PRINTED_CHARACTERS:]
    answer["model"], answer["sms"] = session.machine.model.name, session.machine.model.sm_count
    answer["launches"] = [launch_facts(record, grid) for record, grid in zip(session.launches, grids, strict=False)]


def _placed(finding: Finding, job: Mapping[str, Any]) -> Finding:
    """Return a finding as it is reported; PTX without ``.loc`` has its own lines."""
    name = finding.message.partition(".")[0]
    if finding.kind == "unsupported" and finding.message.endswith(_NOT_MODELLED) and name not in INSTRUCTIONS:
        message = f"{finding.message.removesuffix(_NOT_MODELLED)}: PTX has no instruction {name}, so ptxas refuses it"
        finding = replace(finding, message=message)
    where, made = finding.where, worker_finding(finding)
    if made.file is None and job["language"] == "ptx" and where is not None and where.ptx_line is not None:
        return replace(made, file=job["file"], line=where.ptx_line, text=where.text or None)
    return made


def main() -> None:
    """Run the job named on the command line."""
    result = int(taken(RESULT_VARIABLE))
    enter_from_environment(keep=(result,))
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {
        "findings": [], "launches": [], "entries": [], "log": "", "printed": "", "model": "", "sms": 0,
    }  # fmt: skip
    try:
        simulate(job, Path(sys.argv[2]), answer)
    except RefusedError as error:
        answer["findings"] = [finding.to_dict() for finding in error.findings]
    with os.fdopen(result, "wb") as pipe:
        pipe.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
