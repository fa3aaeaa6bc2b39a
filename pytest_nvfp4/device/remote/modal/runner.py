"""The class in a container of Modal: compressed JSON in and out, kernels in processes of their own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import modal

_STARTED = time.monotonic()
BACKEND_VARIABLE = "NVFP4_REMOTE_BACKEND"
"""What a container's device is: ``cuda`` unless its environment says otherwise, as that of a test may."""


class Runner:
    """One container. It holds what a batch needs and no GPU memory: each job has a process of its own."""

    @modal.enter()
    def start(self) -> None:
        """Look around, once."""
        from pytest_nvfp4.device.remote.far import here, keep_to_itself

        keep_to_itself()
        self._backend = os.environ.get(BACKEND_VARIABLE, "cuda")
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
            answer = do_batch(unpack_batch(unsqueeze(data)), run=worker(self._backend), place=self._place)
        except RemoteError as error:
            return squeeze(json.dumps({"trouble": error.trouble, "what": error.what, "do": error.do}))
        self._place = self._place.model_copy(update={"startup_s": 0.0})
        return squeeze(pack_answer(answer))

    @modal.method()
    def execute(self, text: str) -> Iterator[str]:
        """Run a program and pass on what it writes; see ``device.remote.program``."""
        from pytest_nvfp4.device.remote.program import run_program

        yield from run_program(text)
