"""Times of operators: functions of a kernel's file that take one matrix, as suites name them.

They are timed by a program (``device.worker.operator_clock``) that runs as ``nvfp4 exec`` runs one: isolated, on a GPU
of this machine or of a remote. Unlike kernels under GPU MODE's contract, whose answers this process judges, an operator
is compared with its reference in the process that it runs in, so its author is trusted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pytest_nvfp4.bench.suite import Dtype
from pytest_nvfp4.device.remote.base import PythonProgram
from pytest_nvfp4.device.result import DeviceInfo
from pytest_nvfp4.device.worker.operator_clock import KERNEL
from pytest_nvfp4.isolation import OnOutput
from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.isolation.door.fields import STRICT, Extent, Index, Microseconds, Sentence, Size
from pytest_nvfp4.isolation.door.models import parsed

METHOD = "driver events behind a gate, scattered, legacy default stream"
_MOST_OUTPUT = 4 << 20
_SHOWN = 2000

RunProgram = Callable[[PythonProgram, OnOutput], int]
"""Runs a program, forwards its output, and returns its exit status."""


class OperatorTask(BaseModel):
    """What is timed: the function ``call`` on matrices of a shape and type; see ``suite.SuiteCase``."""

    model_config = STRICT

    call: str
    reference: str
    tolerance: float | str
    rows: Extent
    columns: Extent
    dtype: Dtype
    rounds: Extent
    seed: Index = 1111


class OperatorTimes(BaseModel):
    """What was measured.

    Attributes:
        status: ``passed``; ``failed`` if an answer was wrong; ``crashed``, ``unavailable``.
        because: Why there are no times.
        device: Where it ran.
        device_us: Device time of each round.
        late: Rounds whose time includes host time.
        call_us: Time until a call returned on the host.
        median_us: Median of the rounds.
        bytes: Bytes of the matrix and of the answer.
        sets: Number of matrices that rotated.
        clocks_mhz: SM clock before and during the rounds, if it could be read.
    """

    model_config = STRICT

    status: Literal["passed", "failed", "crashed", "unavailable"]
    because: Sentence = ""
    device: DeviceInfo | None = None
    device_us: Annotated[tuple[Annotated[float, Field(gt=0, le=1e10)], ...], Field(max_length=100_000)] = ()
    late: Index = 0
    call_us: Microseconds = 0.0
    median_us: Microseconds = 0.0
    bytes: Size = 0
    sets: Index = 0
    clocks_mhz: Annotated[tuple[Index, ...], Field(max_length=100)] = ()


def time_operator(run: RunProgram, task: OperatorTask, kernel: bytes, *, deadline_s: float) -> OperatorTimes:
    """Time an operator. An answer that does not fit the task is a status with its reason.

    Args:
        run: Runs the program on the device.
        task: What is timed.
        kernel: The kernel's file.
        deadline_s: Seconds after which the program is stopped.
    """
    token = f"operator-{secrets.token_hex(16)} "
    program = PythonProgram(
        source=f"from pytest_nvfp4.device.worker.operator_clock import main\n\nmain({token!r})\n",
        files={KERNEL: kernel},
        stdin=task.model_dump_json().encode(),
        deadline_s=deadline_s,
    )
    written = {"stdout": b"", "stderr": b""}

    def collect(stream: Literal["stdout", "stderr"], piece: bytes) -> None:
        written[stream] = (written[stream] + piece)[-_MOST_OUTPUT:]

    status = run(program, collect)
    lines = [line for line in written["stdout"].split(b"\n") if line.startswith(token.encode())]
    if len(lines) != 1:
        end = written["stderr"][-_SHOWN:].decode("utf-8", "replace").strip()
        because = f"the program ended with status {status} and without a result{': ' if end else ''}{end}"
        return OperatorTimes(status="crashed", because=because)
    try:
        times = parsed(OperatorTimes, lines[0][len(token) :], source="the result of the operator")
    except DoorError as error:
        return OperatorTimes(status="crashed", because=str(error))
    if times.status == "passed" and (len(times.device_us) != task.rounds or times.device is None):
        because = f"{len(times.device_us)} rounds were measured, and {task.rounds} were asked for"
        return OperatorTimes(status="crashed", because=because, device=times.device)
    if times.status != "passed" and not times.because:
        return times.model_copy(update={"because": times.status})
    return times
