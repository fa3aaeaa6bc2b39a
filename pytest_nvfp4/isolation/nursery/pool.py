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
"""A nursery takes the memory of what it imported. Where there are as many, one that has no child makes way for another
kind of environment, when that is asked for again: to start a nursery for one child takes longer than to start it."""
_REMEMBERED: Final = 32
"""Kinds of environment of which it is known that they were asked for before."""

_log = logging.getLogger(__name__)


class Nurseries:
    """Nurseries by what their children have in common. They end with this process, or with :meth:`close`."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._known: dict[object, Nursery | None] = {}  # the one that was asked last comes last
        self._asked: dict[object, None] = {}
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
            if nursery is None:
                return None
            try:
                return nursery.fork(worker, birth)
            finally:
                nursery.answered()
        except (LostError, OSError, ValueError) as error:
            _log.debug("no nursery: %s", error)
            self._drop(key)
            return None

    @property
    def pids(self) -> list[int]:
        """The processes there are."""
        known = list(self._known.values())  # another thread may be starting one
        return [nursery.pid for nursery in known if nursery is not None]

    def close(self) -> None:
        """End them all, and forget what was asked for. Those asked for later are started anew."""
        self._own()
        with self._turn:
            known, self._known, self._asked = self._known, {}, {}
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
        """The nursery to ask, which stays until it is told that it has answered."""
        with self._turn:
            if key in self._known:
                self._known[key] = nursery = self._known.pop(key)
            elif self._has_room(key):
                self._known[key] = None  # where starting it fails, it stays so
                self._known[key] = nursery = Nursery(worker.launcher, kept)
                if not self._registered:
                    atexit.register(self.close)
                    self._registered = True
            else:
                return None
            if nursery is not None:
                nursery.asked()
            return nursery

    def _has_room(self, key: object) -> bool:
        """Whether there may be one more; one without children is ended for it, if this is not asked for once only."""
        there = [(known, nursery) for known, nursery in self._known.items() if nursery is not None]
        if len(there) < _MOST:
            return True
        if key not in self._asked:
            self._asked[key] = None
            while len(self._asked) > _REMEMBERED:
                del self._asked[next(iter(self._asked))]
            return False
        oldest = next(((known, nursery) for known, nursery in there if nursery.idle), None)
        if oldest is None:
            return False
        known, nursery = oldest
        del self._known[known]
        nursery.close()
        return True

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
