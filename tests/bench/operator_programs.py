"""Programs of operators that run on the CPU, with a clock that counts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

from pytest_nvfp4.bench.operators import OperatorTask
from pytest_nvfp4.device.execute import execute
from pytest_nvfp4.device.remote.base import PythonProgram
from pytest_nvfp4.isolation import OnOutput

TASK = OperatorTask(
    call="doubled", reference="2 * x", tolerance=0, rows=8, columns=16, dtype="float32", rounds=9, seed=3
)


class CountingClock:
    """A clock whose rounds take 1, 2, 3 ... us, the second one late."""

    def __init__(self, memory: object, *, l2_bytes: int) -> None:
        del memory, l2_bytes
        self.round = 0

    def device_round(self, work: Callable[[], None], *, cold: bool, expected_call_us: float) -> SimpleNamespace:
        """Do the work."""
        del cold, expected_call_us
        work()
        self.round += 1
        return SimpleNamespace(device_us=float(self.round), late=self.round == 2)


def on_cpu(program: PythonProgram, on_output: OnOutput) -> int:
    """Run the program where ``device="cuda"`` is the CPU."""
    prelude = f"""
from __future__ import annotations
from types import SimpleNamespace
from pytest_nvfp4.device.worker import clock, memory

{inspect.getsource(CountingClock)}
clock.DeviceClock = CountingClock
memory.CudaMemory = lambda: None
"""
    changed = replace(program, source=prelude + program.source)
    return execute(changed, backend="host", on_output=on_output).exit_status
