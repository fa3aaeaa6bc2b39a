"""Class in a Modal container: receives and returns compressed JSON, runs each kernel in its own process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import modal

_STARTED = time.monotonic()


class Runner:
    """One container. Its own process uses no GPU memory: each job runs in another process."""

    @modal.enter()
    def start(self) -> None:
        """Describe the container, once."""
        from pytest_nvfp4.device.remote.executor import describe_place, protect_memory

        protect_memory()
        self._place = describe_place(
            container=os.environ.get("MODAL_TASK_ID", f"pid-{os.getpid()}"),
            image=os.environ.get("MODAL_IMAGE_ID", ""),
            startup_s=time.monotonic() - _STARTED,
        )

    @modal.method()
    def batch(self, data: bytes) -> bytes:
        """Execute a batch and return its result or error; see `device.remote.serialization` for the bytes."""
        from pytest_nvfp4.device.remote.base import RemoteError
        from pytest_nvfp4.device.remote.executor import execute_batch, job_runner
        from pytest_nvfp4.device.remote.parts import check_code
        from pytest_nvfp4.device.remote.serialization import compress, decompress, pack_result, unpack_batch

        try:
            batch = unpack_batch(decompress(data))
            run = job_runner(batch.backend)
            check_code(batch.code, backend=batch.backend)
            result = execute_batch(batch, run=run, place=self._place)
        except RemoteError as error:
            return compress(json.dumps({"error": error.kind, "problem": error.problem, "remedy": error.remedy}))
        self._place = self._place.model_copy(update={"startup_s": 0.0})
        return compress(pack_result(result))

    @modal.method()
    def execute(self, text: str) -> Iterator[str]:
        """Run a program and yield its output; see `device.remote.program`.

        The first output names the call: the client cannot cancel a stream, but a call whose name it has.
        """
        from pytest_nvfp4.device.remote.program import Output, pack_output, run_program

        yield pack_output(Output(call=modal.current_function_call_id() or ""))
        yield from run_program(text)
