"""What a worker says, one JSON object a line on its result pipe, each whole: a crash loses nothing said before it."""

from __future__ import annotations

import json
import os
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

    def send(self, event: str, **data: Any) -> None:
        """Send one event."""
        line = (json.dumps({"event": event, **data}) + "\n").encode()
        with self._lock:
            view = memoryview(line)
            while view:
                view = view[os.write(self._descriptor, view) :]

    def stage(self, name: str) -> None:
        """Say what is being done now."""
        self.send("stage", name=name, seconds=round(time.monotonic() - self._start, 3))
