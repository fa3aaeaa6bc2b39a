"""Where timelines of regions come from: a run of the kernel, the time model, a saved file."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.files import read_file
from pytest_nvfp4.isolation.door.json_values import Bounds, read_json
from pytest_nvfp4.profiler import dag, exchange, iket
from pytest_nvfp4.profiler.spans import Timeline, timeline_of

if TYPE_CHECKING:
    from pytest_nvfp4.cli.simulation import Runnable
    from pytest_nvfp4.device.job import GivenInputs, JobCase, KernelSpec
    from pytest_nvfp4.model.constants import DeviceConstants

_HARNESS = "from pytest_nvfp4.device.worker.regions import main\nmain()\n"
_BOUNDS = Bounds(size=exchange.MOST_BYTES, values=exchange.MOST_VALUES)
_MOST_GIVEN = 100_000
"""Characters of inputs that an argument of a program may have."""
_MOST_OUTPUT = 1 << 29
"""Bytes that a program may print."""


@dataclass(frozen=True)
class Ran:
    """A run with its records."""

    timeline: Timeline
    records: Any
    """JSON values of the records, or of IKET's trace."""
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Room:
    """Calls before the recorded one, and what the buffers of a kernel hold."""

    warmup: int
    slices: int
    events: int


def saved(file: Path) -> Timeline:
    """Return the timeline in a file of records or of IKET. Raises InputError."""
    source = str(file)
    try:
        data = read_file(file, source=source, most=exchange.MOST_BYTES)
        values = read_json(data, source=source, bounds=_BOUNDS)
        if iket.is_iket(values):
            return iket.timeline_of(values, source)
        return timeline_of(exchange.from_values(values, source=source), source=f"recorded in {file.name}")
    except DoorError as error:
        raise InputError(f"{error}; give what --save or run-iket --postprocess json wrote") from error


def edges(file: Path) -> list[dag.Edge]:
    """Return the edges of a DAG of IKET. Raises InputError."""
    try:
        return dag.read(file)
    except DoorError as error:
        raise InputError(f"{error}; give what iket.dag(...).save wrote") from error


def run(
    subject: Runnable, case: JobCase, room: Room, *, device: str, timeout_s: float, with_iket: bool = False
) -> Ran | None:
    """Run a kernel with its regions on a device.

    Args:
        with_iket: Whether ``run-iket`` times its marks of IKET instead, which needs a GPU; None is returned without.

    Raises InputError if that is not possible or it fails.
    """
    from pytest_nvfp4.device.base import DeviceUnavailableError
    from pytest_nvfp4.device.execute import execute
    from pytest_nvfp4.device.gpus import visible_gpus
    from pytest_nvfp4.device.remote.base import PythonProgram
    from pytest_nvfp4.device.select import select
    from pytest_nvfp4.device.worker.regions import Request
    from pytest_nvfp4.temporary import temporary_folder

    try:
        with temporary_folder("regions") as folder:
            simulated = select(device, folder=Path(folder)).name == "sim"
    except DeviceUnavailableError as error:
        raise InputError(str(error)) from error
    if with_iket and simulated:
        return None
    spec, word = subject.spec, secrets.token_hex(16)
    request = Request(
        word=word,
        main=spec.main,
        entry=spec.entry,
        compile_options=spec.compile_options,
        case=case,
        given=_given(spec, case, label=subject.label),
        warmup=0 if simulated else room.warmup,
        slices=room.slices,
        events=room.events,
        simulated=simulated,
        how="run-iket" if with_iket else "regions",
    )
    program = PythonProgram(
        source=_HARNESS,
        arguments=(request.model_dump_json(),),
        files={f"kernel/{file.path}": file.data for file in spec.files},
        environ={"CUTE_DSL_ARCH": spec.arch},
        deadline_s=timeout_s,
    )
    written: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    size = 0

    def collect(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        if size > _MOST_OUTPUT:
            raise InputError(f"{subject.label}: prints more than {_MOST_OUTPUT >> 20} MiB")
        written[stream].append(piece)

    backend, visible = ("sim", "") if simulated else ("cuda", visible_gpus()[0])
    done = execute(program, backend=backend, visible=visible, on_output=collect)
    text, errors = (b"".join(written[stream]).decode(errors="replace") for stream in ("stdout", "stderr"))
    if done.timed_out:
        raise InputError(f"{subject.label}: was stopped after {timeout_s:g} s; raise --timeout if it needs more")
    line = next((line for line in reversed(text.splitlines()) if line.startswith(f"{word} ")), "")
    if done.exit_status or not line:
        for tail in errors.strip().splitlines()[-20:]:
            output.note(tail)
        raise InputError(f"{subject.label}: did not run to its end (exit status {done.exit_status})")
    how = "simulated" if simulated else "measured with a cold L2"
    return _answer(line.removeprefix(f"{word} "), subject.label, how=how, with_iket=with_iket)


def _given(spec: KernelSpec, case: JobCase, *, label: str) -> tuple[GivenInputs, ...]:
    """Return the inputs of a contract of the user's own. Raises InputError if they exceed an argument's size."""
    from pytest_nvfp4.device.given import with_given
    from pytest_nvfp4.device.job import Job

    given = with_given(Job(id="regions", action="simulate", kernel=spec, cases=(case,))).given
    if sum(len(one.data) for one in given) > _MOST_GIVEN:
        raise InputError(
            f"{label}: the inputs of {case.problem.name} are too large for this command: name a smaller one"
        )
    return given


def _answer(text: str, label: str, *, how: str, with_iket: bool) -> Ran:
    from pytest_nvfp4.device.worker.regions import Answer
    from pytest_nvfp4.isolation.door.packing import from_base64, inflate

    try:
        answer = Answer.model_validate_json(text)
        if not 0 <= answer.size <= exchange.MOST_BYTES:
            raise DoorError(label, "recorded more than is read: give fewer --slices or --events")
        data = inflate(from_base64(answer.records, source=label), size=answer.size, source=label)
        if with_iket:
            values = read_json(data, source=label, bounds=_BOUNDS)
            timeline = replace(iket.timeline_of(values, label, last=True), source=f"IKET on {answer.device[:60]}")
            return Ran(timeline, values, answer.wrong)
        values = read_json(data, source=label, bounds=_BOUNDS)
        records = exchange.from_values(values, source=label)
    except (DoorError, ValidationError) as error:
        raise InputError(f"{label}: its records cannot be read: {error}") from error
    source = how if how == "simulated" else f"{how} on {answer.device[:60]}"
    return Ran(timeline_of(records, source=source), values, answer.wrong)


def modelled(subject: Runnable, case: JobCase, table: DeviceConstants, *, timeout_s: float) -> Timeline:
    """Return the regions of a kernel in modelled time; without spans and with the reason if there is no such time."""
    from pytest_nvfp4.device.modelled import conditions_of, conditions_text, recordings_of
    from pytest_nvfp4.device.simulate import simulate
    from pytest_nvfp4.model.regions import modelled_regions
    from pytest_nvfp4.model.replay import ReplayError, replay_sequence
    from pytest_nvfp4.temporary import temporary_folder

    conditions = conditions_of("single", table)
    source = f"modelled on {table.title} ({conditions_text(conditions)})"
    with temporary_folder("regions") as folder:
        (done,) = simulate(
            subject.simulator(timeout_s=timeout_s),
            subject.spec,
            [case],
            folder=Path(folder),
            base=subject.base,
            deadline_s=timeout_s,
            outputs=False,
            recording=True,
            sampled=True,
            regions=True,
        )
    if done.status != "passed" or done.errors:
        reason = subject.finding_text(done.errors[0]) if done.errors else done.status
        return Timeline(source, "ns", (), (f"no time is modelled: {reason}",))
    try:
        recordings = recordings_of(done)
        return modelled_regions(recordings, replay_sequence(recordings, table, conditions=conditions), source=source)
    except (ReplayError, DoorError) as error:
        return Timeline(source, "ns", (), (f"no time is modelled: {error}",))


def save(file: Path, ran: Ran) -> None:
    """Save records, which this command reads again. Raises InputError."""
    output.write_file(file, json.dumps(ran.records))
