"""The nurseries of this process: one for each kind of environment, from when the first child is asked for."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Final

from pytest_nvfp4.isolation.nursery import likeness
from pytest_nvfp4.isolation.nursery.client import Birth, LostError, Nursery
from pytest_nvfp4.isolation.nursery.forked import Forked
from pytest_nvfp4.isolation.worker import Worker

SWITCH: Final = "NVFP4_NURSERY"
"""Environment variable that does without nurseries where it is 0."""
_MOST: Final = 3
"""A nursery takes the memory of what it imported, so whoever has many environments has most of them without."""

_log = logging.getLogger(__name__)


class Nurseries:
    """Nurseries by what their children have in common. They end with this process, or with :meth:`close`."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._known: dict[object, Nursery | None] = {}
        self._registered = False

    def fork(self, worker: Worker, birth: Birth) -> Forked | None:
        """A process that runs ``worker``, or None where it is to be started from nothing.

        Raises:
            StoppedError: this thread is to stop.
        """
        if not self._fits(worker, birth.environ):
            return None
        self._own()
        kept = likeness.kept(birth.environ)
        key: object = None
        try:
            key = (worker.launcher, frozenset(kept.items()), likeness.inherited())
            nursery = self._find(key, worker, kept)
            return None if nursery is None else nursery.fork(worker, birth)
        except (LostError, OSError, ValueError) as error:
            _log.debug("no nursery: %s", error)
            self._drop(key)
            return None

    @property
    def pids(self) -> list[int]:
        """The processes there are."""
        return [nursery.pid for nursery in self._known.values() if nursery is not None]

    def close(self) -> None:
        """End them all. Those asked for later are started anew."""
        self._own()
        with self._turn:
            known, self._known = self._known, {}
        for nursery in known.values():
            if nursery is not None:
                nursery.close()

    @staticmethod
    def _fits(worker: Worker, environ: Mapping[str, str]) -> bool:
        return bool(
            worker.preload
            and sys.platform == "linux"
            and hasattr(os, "pidfd_open")
            and worker.launcher[:1] == (sys.executable,)
            and os.environ.get(SWITCH) != "0"
            and environ.get(SWITCH) != "0"
        )

    def _find(self, key: object, worker: Worker, kept: Mapping[str, str]) -> Nursery | None:
        with self._turn:
            if key not in self._known and len(self._known) < _MOST:
                self._known[key] = None  # where starting it fails, it stays so
                self._known[key] = Nursery(worker.launcher, kept)
                if not self._registered:
                    atexit.register(self.close)
                    self._registered = True
            return self._known.get(key)

    def _drop(self, key: object) -> None:
        """One that has ended was ended by somebody, and would be again."""
        with self._turn:
            nursery = self._known.get(key)
            if nursery is not None:
                self._known[key] = None
                nursery.close()

    def _own(self) -> None:
        """A process that this one forked has not these: its parent has."""
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._turn = threading.Lock()  # a thread that is not here may have had the other
            self._known = {}


NURSERIES: Final = Nurseries()
"""Those of this process."""
