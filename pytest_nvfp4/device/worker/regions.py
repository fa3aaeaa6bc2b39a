"""A program that calls a kernel with its regions switched on, and prints what they recorded.

Its first argument is a `Request` as JSON. The last line that it prints is an `Answer` as JSON, behind a word that the
caller has chosen, so that a kernel's own output is not taken for it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pytest_nvfp4.device.job import GivenInputs, JobCase

_RUN_IKET = "import sys; sys.argv[0] = 'run-iket'; from iket.cli.main import entrypoint; entrypoint()"
_PLAIN = "from pytest_nvfp4.device.worker.regions import main; main()"


class Request(BaseModel):
    """What is called.

    Attributes:
        word: First word of the answer's line.
        main, entry, compile_options: See ``device.job.KernelSpec``; files lie below ``kernel``.
        case: Problem and family of the inputs.
        given: Inputs that are not generated from a seed.
        warmup: Calls before the one that is recorded.
        slices, events: See ``profiler.Session``.
        how: With regions switched on; by ``run-iket`` in a process of its own; or as it is, which that process does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    word: str
    main: str
    entry: str | None
    compile_options: tuple[str, ...]
    case: JobCase
    given: tuple[GivenInputs, ...] = ()
    warmup: int
    slices: int
    events: int
    simulated: bool
    how: Literal["regions", "run-iket", "plain"] = "regions"


class Answer(BaseModel):
    """What came out.

    Attributes:
        wrong: What is wrong with the outputs; empty if they are right, or not judged here: a contract of the user's own
            does not run where the kernel does.
        device: Name of the GPU.
        size: Bytes of the records, or of IKET's trace, as JSON; ``records`` has them deflated, in base64.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    wrong: tuple[str, ...]
    device: str
    size: int
    records: str


def main() -> None:
    """Run the program."""
    request = Request.model_validate_json(sys.argv[1])
    if request.how == "plain":
        call, _ = _call(request)
        for _ in range(request.warmup + 1):
            call()
        return
    answer = _traced(request) if request.how == "run-iket" else _run(request)
    sys.stdout.flush()
    sys.stdout.write(f"\n{request.word} {answer.model_dump_json()}\n")
    sys.stdout.flush()


def _call(request: Request) -> tuple[Callable[[], object], Callable[[], tuple[str, ...]]]:
    """Import the kernel; return what calls it, and what says afterwards what is wrong with its outputs."""
    import torch

    from pytest_nvfp4.device.worker.imported_kernel import import_kernel

    folder = Path.cwd()
    kernel = import_kernel(
        folder / "kernel",
        main=request.main,
        entry=request.entry,
        compile_options=request.compile_options,
        own=lambda file: file.startswith(str(folder)),
    )
    contract = _Call(torch, kernel.function, request)
    return contract, contract.wrong


def _traced(request: Request) -> Answer:
    """Run the kernel under ``run-iket``, which starts processes with its library loaded into the driver."""
    # Its options for the folder stand before the subcommand (DSL 4.8.1).
    arguments = ["-o", "iket", "--clobber", "profile", "--postprocess", "json", "--"]
    program = plain_command(request)
    done = subprocess.run(
        [sys.executable, "-c", _RUN_IKET, *arguments, *program],
        env={**os.environ, "CUTE_DSL_COMPILER_OPT": "iket"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    files = sorted(Path("iket").glob("*.trace.json"))
    if done.returncode or not files:
        sys.exit(f"{(done.stdout + done.stderr)[-4000:]}\nrun-iket wrote no trace (exit status {done.returncode})")
    return _answer(files[-1].read_bytes(), (), request)


def plain_command(request: Request) -> list[str]:
    """Return the command that calls the kernel as it is, below a program that passes no PYTHONPATH on.

    The wall permits no process to list the folder that holds this package where it is not installed, such as a clone.
    A link in a folder of our own makes it importable.
    """
    folder = Path("importable").absolute()
    folder.mkdir(exist_ok=True)
    (folder / "pytest_nvfp4").symlink_to(Path(__file__).parents[2])
    path = [str(folder), *sys.path]
    own = request.model_copy(update={"how": "plain"}).model_dump_json()
    return [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {_PLAIN}", own]


def _flush_l2() -> None:
    """Write twice the size of L2, so that the recorded call finds nothing of the calls before, as in the model."""
    import torch

    size = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 128 << 20
    torch.zeros(2 * size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()


def _answer(data: bytes, wrong: tuple[str, ...], request: Request) -> Answer:
    import torch

    device = "the simulator" if request.simulated else torch.cuda.get_device_name()
    records = base64.b64encode(zlib.compress(data, 1)).decode()
    return Answer(wrong=wrong, device=device, size=len(data), records=records)


def _run(request: Request) -> Answer:
    from pytest_nvfp4.profiler.exchange import as_data
    from pytest_nvfp4.profiler.sessions import session

    with session(slices=request.slices, events=request.events) as regions:
        call, wrong = _call(request)
        for _ in range(request.warmup):
            call()
        if not request.simulated:
            _flush_l2()
        regions.clear()
        call()
        records = regions.records()
    return _answer(json.dumps(as_data(records)).encode(), wrong(), request)


class _Call:
    """A call under its contract on exact inputs."""

    def __init__(self, torch: Any, function: Any, request: Request) -> None:
        from pytest_nvfp4.contracts.registry import contract_of
        from pytest_nvfp4.device import rotation
        from pytest_nvfp4.device.worker.buffers import CallBuffers
        from pytest_nvfp4.device.worker.memory import CudaMemory, HostMemory

        problem = request.case.problem.problem()
        self._contract = contract_of(problem)
        self._function, self._torch = function, torch
        self._inputs = rotation.set_inputs(request.case, 0, given=request.given)
        self._memory = HostMemory() if request.simulated else CudaMemory()
        self._buffers = CallBuffers(torch, self._inputs)
        self._buffers.fill(self._memory, self._inputs)

    def __call__(self) -> None:
        arguments, _ = self._buffers.arguments()
        self._function(*arguments)
        self._torch.cuda.synchronize()

    def wrong(self) -> tuple[str, ...]:
        """Return what is wrong with the outputs."""
        import numpy as np

        from pytest_nvfp4.contracts.registry import is_own
        from pytest_nvfp4.numerics.judge import judge

        found: list[str] = []
        if is_own(self._inputs.problem.contract):
            return ()
        references = self._contract.references(self._inputs)
        for number, (buffer, reference) in enumerate(zip(self._buffers.outputs, references, strict=True)):
            bits = np.frombuffer(buffer.bits(self._memory), reference.want.dtype).reshape(reference.want.shape)
            verdict = judge(bits, reference, group=number)
            if not verdict.ok:
                found.append(f"group {number}: {verdict.mismatches} of {bits.size} elements are wrong")
        return tuple(found)
