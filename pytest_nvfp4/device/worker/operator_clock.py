"""Times a function of a kernel's file that takes one matrix, on a GPU: the program of operators of a suite.

``main(TOKEN)`` reads the task (an ``OperatorTask`` of ``bench.operators`` as JSON) from standard input and the kernel
from ``kernel.py``, and writes one line: the token and the result as JSON. Answers are compared before the first timed
round, and those of two timed rounds that are drawn. The kernel shares this process.
"""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

KERNEL = "kernel.py"
_LEAST_SETS, _MOST_SETS = 3, 8
_WARMUP = 4
_LEAST_L2 = 32 << 20


class WrongError(Exception):
    """An answer that is not right."""


def main(token: str) -> None:
    """Time the task on standard input."""
    task = json.load(sys.stdin)
    import torch

    from pytest_nvfp4.device.worker.device_info import describe, unavailable

    if (reason := unavailable(torch)) is not None:
        result: dict[str, Any] = {"status": "unavailable", "because": reason}
    else:
        result = timed(torch, task)
        result["device"] = describe(torch, simulated=False)
    sys.stdout.write(f"\n{token}{json.dumps(result)}\n")


def timed(torch: Any, task: Mapping[str, Any], *, device: str = "cuda") -> dict[str, Any]:
    """Return the times of a task, or why there are none. The kernel is in the working folder."""
    try:
        return _timed(torch, task, device)
    except WrongError as error:
        return {"status": "failed", "because": str(error)}
    except Exception as error:
        return {"status": "crashed", "because": f"{type(error).__name__}: {error}"[:2000]}


def _load(name: str) -> Callable[[Any], Any]:
    spec = importlib.util.spec_from_file_location("kernel", Path.cwd() / KERNEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function: Callable[[Any], Any] = getattr(module, name)
    return function


def _matrix(torch: Any, task: Mapping[str, Any], seed: int, device: str) -> Any:
    dtype = getattr(torch, task["dtype"])
    made = torch.Generator().manual_seed(seed)
    shape = (task["rows"], task["columns"])
    if dtype.is_floating_point:
        return torch.randn(shape, generator=made).to(device, dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, generator=made, dtype=dtype).to(device)


def _compare(torch: Any, task: Mapping[str, Any], x: Any, got: Any, when: str) -> None:
    """Raise WrongError if an answer is not the reference's."""
    want = eval(task["reference"], {"x": x, "torch": torch})
    if tuple(got.shape) != tuple(want.shape):
        raise WrongError(f"{when}: the answer has the shape {tuple(got.shape)}, expected is {tuple(want.shape)}")
    tolerance = task["tolerance"]
    if tolerance == 0:
        right = torch.equal(got, want.to(got.dtype)) if got.dtype.is_floating_point else torch.equal(got, want)
        wrong = None if right else (got != want)
    else:
        allowed = eval(tolerance, {"x": x, "torch": torch}) if isinstance(tolerance, str) else tolerance
        difference = (got.double() - want.double()).abs()
        wrong = ~(difference <= allowed)
    if wrong is not None and bool(wrong.any()):
        at = tuple(int(part) for part in wrong.nonzero()[0])
        raise WrongError(
            f"{when}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, the first at {at}: "
            f"{got[at].item()!r}, expected {want[at].item()!r}"
        )


def _keep(kept: list[Any], call: Callable[[Any], Any], x: Any) -> None:
    kept.append(call(x))


def _timed(torch: Any, task: Mapping[str, Any], device: str) -> dict[str, Any]:
    from pytest_nvfp4.device.gpus import SmClock
    from pytest_nvfp4.device.worker.clock import DeviceClock
    from pytest_nvfp4.device.worker.memory import CudaMemory

    call = _load(task["call"])
    properties = torch.cuda.get_device_properties(0)
    l2 = int(getattr(properties, "L2_cache_size", 0)) or 2 * _LEAST_L2
    size = task["rows"] * task["columns"] * getattr(torch, task["dtype"]).itemsize
    count = max(_LEAST_SETS, min(_MOST_SETS, -(-2 * l2 // size)))
    inputs = [_matrix(torch, task, task["seed"] + index, device) for index in range(count)]
    got = call(inputs[0])
    torch.cuda.synchronize()
    _compare(torch, task, inputs[0], got, "before the rounds")
    moved = size + got.numel() * got.element_size()
    clock = DeviceClock(CudaMemory(), l2_bytes=l2)
    sm_clock = SmClock(str(properties.uuid) if getattr(properties, "uuid", None) is not None else None)
    draw = random.Random(task["seed"])
    began = time.perf_counter()
    for number in range(_WARMUP):
        call(inputs[number % count])
    torch.cuda.synchronize()
    expected_us = (time.perf_counter() - began) / _WARMUP * 1e6
    clocks = [sm_clock.mhz()]
    rounds, late = [], 0
    checked = set(draw.sample(range(task["rounds"]), min(2, task["rounds"])))
    for number in range(task["rounds"]):
        x = inputs[draw.randrange(count)]
        kept: list[Any] = []
        work = partial(_keep, kept, call, x)
        done = clock.device_round(work, cold=True, expected_call_us=expected_us)
        rounds.append(done.device_us)
        late += done.late
        if number in checked:
            _compare(torch, task, x, kept[0], f"timed round {number}")
            clocks.append(sm_clock.mhz())
    return {
        "status": "passed",
        "device_us": rounds,
        "late": late,
        "call_us": round(expected_us, 3),
        "median_us": statistics.median(rounds),
        "bytes": moved,
        "sets": count,
        "clocks_mhz": [mhz for mhz in clocks if mhz],
    }
