"""Record what one call runs on the device, by CUPTI through torch's profiler (kineto).

CUPTI records kernels, copies and fills of every stream and thread, however they were launched: by torch, the runtime,
the driver or a graph. It starts with the first recorded call, so it does not slow timed rounds before that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from pytest_nvfp4.device.device_work import MOST_NAME, MOST_WORKS
from pytest_nvfp4.device.worker.clock import GATE_NAME

_KINDS: Final = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
"""Kinds of work by kineto's name; its other activities, such as annotations, are no work."""
_NAMES: Final = {"Memcpy ": "memcpy", "Memset ": "memset"}
_NO_WORK: Final = (" Sync", " Wait Event")
"""Beginnings and ends of the names that CUPTI's activities have in kineto; no kernel's name contains a space."""


_T = TypeVar("_T")


class NotCountedError(Exception):
    """CUPTI cannot record here; the message says why."""


class LaunchCounter:
    """Records the work of calls. Its functions of torch are looked up before a kernel can replace them."""

    fixed: ClassVar = True  # see `isolation.seal.inventory`

    def __init__(self) -> None:
        self._missing: str | None = None
        try:
            from torch import autograd
            from torch.autograd import profiler

            native: Any = autograd
            cuda = native.ProfilerActivity.CUDA
            if cuda not in native._supported_activities():
                self._missing = "this torch was built without CUPTI, or finds none"
                return
            settings: Any = profiler.profile(use_cpu=True)
            self._config, self._cuda = settings.config(), cuda
            self._prepare, self._enable = native._prepare_profiler, native._enable_profiler
            self._disable = native._disable_profiler
        except Exception as error:  # private functions of torch, whose other versions may raise anything
            self._missing = f"the profiler of this torch cannot be used: {error}"

    def record(self, work: Callable[[], _T], *, flushed: bool) -> tuple[_T, list[dict[str, Any]]]:
        """Return what ``work`` returns, and the fields of a ``DeviceWork`` for all that it runs besides the clock's.

        The gate is a launch that is known to have run, so a recording without it shows that CUPTI does not record.

        Args:
            work: Runs the clock's gate first, and waits for the device at its end.
            flushed: Whether the clock flushes L2, by a fill, before it runs the gate.

        Raises:
            NotCountedError: CUPTI cannot record.
        """
        returned, works = self.works(work)
        return returned, _without_the_clock(works, flushed=flushed)

    def works(self, work: Callable[[], _T]) -> tuple[_T, list[dict[str, Any]]]:
        """Return what ``work`` returns, and the fields of a ``DeviceWork`` for all that it runs, ordered by start.

        Raises:
            NotCountedError: CUPTI cannot record; where it records nothing without an error, the list is empty.
        """
        if self._missing is not None:
            raise NotCountedError(self._missing)
        try:
            self._prepare(self._config, {self._cuda})
            self._enable(self._config, {self._cuda})
        except Exception as error:
            raise NotCountedError(f"the profiler does not start: {error}") from error
        try:
            returned = work()
        except BaseException:
            with contextlib.suppress(NotCountedError):
                self._stop()
            raise
        return returned, self._stop()

    def _stop(self) -> list[dict[str, Any]]:
        try:
            made = []
            for event in self._disable().events():
                if (kind := _kind(event)) is not None:
                    start, duration = int(event.start_ns()), max(0, int(event.duration_ns()))
                    name = str(event.name())[:MOST_NAME]
                    made.append({"kind": kind, "name": name, "start_ns": start, "duration_ns": duration})
        except Exception as error:
            raise NotCountedError(f"the profiler's record cannot be read: {error}") from error
        return sorted(made, key=lambda one: one["start_ns"])


def _kind(event: Any) -> str | None:
    """Return the kind of work of an event, or None if it is none."""
    told = getattr(event, "activity_type", None)
    if told is not None:
        return _KINDS.get(told())
    # torch 2.11 and before know only the place and the name.
    name = str(event.name())
    if not str(event.device_type()).endswith("CUDA") or event.is_user_annotation() or name.endswith(_NO_WORK):
        return None
    return next((kind for beginning, kind in _NAMES.items() if name.startswith(beginning)), "kernel")


def _without_the_clock(works: list[dict[str, Any]], *, flushed: bool) -> list[dict[str, Any]]:
    """Return the works without the gate and the flush, one of each: other works of the same name are the kernel's."""
    gate = next((at for at, one in enumerate(works) if one["kind"] == "kernel" and GATE_NAME in one["name"]), None)
    if gate is None:
        raise NotCountedError(
            "CUPTI did not record the clock's own launch: the driver may permit it to administrators only "
            "(NVreg_RestrictProfilingToAdminUsers), another profiler may hold it, or WSL or a container lacks it"
        )
    flush = next((at for at in range(gate) if works[at]["kind"] == "memset"), None) if flushed else None
    left = [one for at, one in enumerate(works) if at not in (gate, flush)]
    if len(left) > MOST_WORKS:
        raise NotCountedError(f"a call runs {len(left)} kernels, copies and fills; at most {MOST_WORKS} are reported")
    first = left[0]["start_ns"] if left else 0
    return [{**one, "start_ns": one["start_ns"] - first} for one in left]
