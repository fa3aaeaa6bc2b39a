"""Events that a worker sends to its parent, one JSON object a line, on its result pipe.

Each line is written at once, so that a crash loses no earlier event. A kernel can find the pipe among its descriptors
and write to it. Therefore the first event contains a random word, and the last one a hash of all lines before it: the
kernel cannot compute the hash without the word, and any line of its own changes the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from typing import Any, Final

_PART_S: Final = 1.0


class EventSender:
    """Sends events to the parent; ``descriptor`` is the writing end of the result pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._digest = hashlib.sha256()
        self._stage, self._reported = "", 0.0
        # Bound before a kernel can replace them.
        self._write, self._encode = os.write, json.JSONEncoder(ensure_ascii=False).encode
        self.send("begin", word=secrets.token_hex(16))

    def send(self, event: str, **data: Any) -> None:
        """Send one event."""
        line = (self._encode({"event": event, **data}) + "\n").encode("utf-8", "replace")  # no lone surrogates
        with self._lock:
            self._digest.update(line)
            self._write_all(line)

    def end(self, **data: Any) -> None:
        """Send the last event."""
        with self._lock:
            last = {"event": "end", **data, "sha256": self._digest.hexdigest()}
            self._write_all((self._encode(last) + "\n").encode())

    @property
    def sending(self) -> bool:
        """Whether an event is being sent, by the code that a signal handler interrupts or by another thread."""
        return self._lock.locked()

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start

    def stage(self, name: str) -> None:
        """Report the stage of the job that begins now."""
        self._stage, self._reported = name, self._elapsed_s
        self.send("stage", name=name, seconds=round(self._reported, 3))

    def part(self, text: str) -> None:
        """Report how far the stage is, unless something was reported within the last second."""
        if self._elapsed_s - self._reported >= _PART_S:
            self._reported = self._elapsed_s
            self.send("stage", name=f"{self._stage}: {text}", seconds=round(self._reported, 3))

    def _write_all(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[self._write(self._descriptor, view) :]
