"""What a worker says, one JSON object a line on its result pipe, each whole: a crash loses nothing said before it.

A kernel can find the pipe among its descriptors and write to it. So the first line holds a random word, and the last
one a hash of all that was said before: who did not hear the word cannot make the hash, and a line of his breaks it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from typing import Any


class Events:
    """Sends events to the parent."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._said = hashlib.sha256()
        self._write, self._encode = os.write, json.JSONEncoder().encode  # taken before any kernel is imported
        self.send("begin", word=secrets.token_hex(16))

    def send(self, event: str, **data: Any) -> None:
        """Send one event."""
        line = (self._encode({"event": event, **data}) + "\n").encode()
        with self._lock:
            self._said.update(line)
            self._put(line)

    def end(self) -> None:
        """Say that nothing more comes."""
        with self._lock:
            self._put((self._encode({"event": "end", "said": self._said.hexdigest()}) + "\n").encode())

    def _put(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[self._write(self._descriptor, view) :]

    def stage(self, name: str) -> None:
        """Say what is being done now."""
        self.send("stage", name=name, seconds=round(time.monotonic() - self._start, 3))
