"""The class in a container of Modal: compressed JSON in and out, kernels in processes of their own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import modal

_STARTED = time.monotonic()


class Runner:
    """One container. It holds what a batch needs and no GPU memory: each job has a process of its own."""

    @modal.enter()
    def start(self) -> None:
        """Look around, once."""
        from pytest_nvfp4.device.remote.far import here, keep_to_itself

        keep_to_itself()
        self._place = here(
            container=os.environ.get("MODAL_TASK_ID", f"pid-{os.getpid()}"),
            image=os.environ.get("MODAL_IMAGE_ID", ""),
            startup_s=time.monotonic() - _STARTED,
        )

    @modal.method()
    def batch(self, data: bytes) -> bytes:
        """Do a batch; see ``device.remote.wire`` for the bytes. What cannot be read is answered in words."""
        from pytest_nvfp4.device.remote.base import RemoteError
        from pytest_nvfp4.device.remote.far import do_batch, worker
        from pytest_nvfp4.device.remote.wire import pack_answer, squeeze, unpack_batch, unsqueeze

        try:
            asked = unpack_batch(unsqueeze(data))
            answer = do_batch(asked, run=worker(asked.backend), place=self._place)
        except RemoteError as error:
            return squeeze(json.dumps({"trouble": error.trouble, "what": error.what, "do": error.do}))
        self._place = self._place.model_copy(update={"startup_s": 0.0})
        return squeeze(pack_answer(answer))

    @modal.method()
    def execute(self, text: str) -> Iterator[str]:
        """Run a program and pass on what it writes; see ``device.remote.program``.

        The first piece names the call: the client cannot cancel a stream, but a call that it knows the name of.
        """
        from pytest_nvfp4.device.remote.program import Output, pack_output, run_program

        yield pack_output(Output(call=modal.current_function_call_id() or ""))
        yield from run_program(text)
