"""A program that calls a kernel with its regions switched on, and prints what they recorded.

Its first argument is a `Request` as JSON. The last line that it prints is an `Answer` as JSON, behind a word that the
caller has chosen, so that a kernel's own output is not taken for it.
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pytest_nvfp4.device.job import JobCase


class Request(BaseModel):
    """What is called.

    Attributes:
        word: First word of the answer's line.
        main, entry, compile_options: See ``device.job.KernelSpec``; files lie below ``kernel``.
        case: Problem and family of the inputs; ignored by a kernel with an entry, which has inputs of its own.
        warmup: Calls before the one that is recorded.
        slices, events: See ``profiler.Session``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    word: str
    main: str
    entry: str | None
    compile_options: tuple[str, ...]
    case: JobCase
    warmup: int
    slices: int
    events: int
    simulated: bool


class Answer(BaseModel):
    """What came out.

    Attributes:
        wrong: What is wrong with the outputs; empty if they are right, or judged by the kernel's own exercise.
        device: Name of the GPU.
        size: Bytes of the records as JSON; ``records`` has them deflated, in base64.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    wrong: tuple[str, ...]
    device: str
    size: int
    records: str


def main() -> None:
    """Run the program."""
    request = Request.model_validate_json(sys.argv[1])
    answer = _run(request)
    sys.stdout.flush()
    sys.stdout.write(f"\n{request.word} {answer.model_dump_json()}\n")
    sys.stdout.flush()


def _run(request: Request) -> Answer:
    import torch

    from pytest_nvfp4.device.worker.imported_kernel import import_kernel
    from pytest_nvfp4.profiler.exchange import as_data
    from pytest_nvfp4.profiler.session import session

    with session(slices=request.slices, events=request.events) as regions:
        folder = Path.cwd()
        kernel = import_kernel(
            folder / "kernel",
            main=request.main,
            entry=request.entry,
            compile_options=request.compile_options,
            folder=folder,
            own=lambda file: file.startswith(str(folder)),
        )
        contract = None if request.entry else _Call(torch, kernel.function, request)
        call = contract or kernel.function
        for _ in range(request.warmup):
            call()
        regions.clear()
        call()
        records = regions.records()
    data = json.dumps(as_data(records)).encode()
    return Answer(
        wrong=contract.wrong() if contract else (),
        device="the simulator" if request.simulated else torch.cuda.get_device_name(),
        size=len(data),
        records=base64.b64encode(zlib.compress(data, 1)).decode(),
    )


class _Call:
    """A call under GPU MODE's contract on exact inputs."""

    def __init__(self, torch: Any, function: Any, request: Request) -> None:
        from pytest_nvfp4.device.worker.buffers import CallBuffers
        from pytest_nvfp4.device.worker.memory import CudaMemory, HostMemory
        from pytest_nvfp4.numerics.families import family

        problem = request.case.problem.problem()
        self._function, self._torch = function, torch
        self._inputs = family(request.case.family).generate(problem)
        self._memory = HostMemory() if request.simulated else CudaMemory()
        self._buffers = CallBuffers(torch, self._inputs)
        self._buffers.fill(self._memory, self._inputs)
        self._sizes = [(group.m, group.n, group.k, group.l) for group in problem.groups]

    def __call__(self) -> None:
        data, _ = self._buffers.data(self._sizes)
        self._function(data)
        self._torch.cuda.synchronize()

    def wrong(self) -> tuple[str, ...]:
        """Return what is wrong with the outputs."""
        import numpy as np

        from pytest_nvfp4.numerics.judge import judge

        found = []
        for number, (buffers, group) in enumerate(zip(self._buffers.groups, self._inputs.groups, strict=True)):
            bits = np.frombuffer(buffers.c_bits(self._memory), np.uint16).reshape(group.group.m, group.group.n)
            verdict = judge(bits, group.exact(), group=number)
            if not verdict.ok:
                found.append(f"group {number}: {verdict.mismatches} of {bits.size} elements are wrong")
        return tuple(found)
