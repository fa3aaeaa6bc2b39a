"""Record accesses by a kernel's own code to frames, objects and files of its test harness, which no product needs.

Python calls an audit hook for each access to a frame, the heap, a file or a tracing function (PEP 578), and a hook
cannot be removed. Only accesses by the kernel's own files count; torch and the DSL inspect frames all the time. Nothing
is forbidden: an access is recorded, and the verdict names it.

This is no security boundary. Native code is not audited, and code that shares a process can do anything in it. The
audit reveals the simple ways to forge an answer.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_OBJECT_EVENTS = {
    "sys._getframe": "the frames of its callers",
    "sys._current_frames": "the frames of all threads",
    "gc.get_objects": "every object of the process",
    "gc.get_referrers": "the referrers of an object",
    "gc.get_referents": "the referents of an object",
    "sys.settrace": "a trace of every line",
    "sys.setprofile": "a trace of every call",
}
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_FILE_EVENTS = {
    **dict.fromkeys(("open", "os.chmod", "os.listdir", "os.mkdir", "os.remove", "os.rmdir"), 1),
    **dict.fromkeys(("os.scandir", "os.truncate", "os.utime"), 1),
    **dict.fromkeys(("os.link", "os.rename", "os.symlink"), 2),
}
"""Events about files, with the number of leading arguments that are paths."""
_READ_EVENTS = frozenset({"os.listdir", "os.scandir"})
_PROCESS = re.compile(r"/proc/(self|thread-self|\d+)/(task/\d+/)?(fd|fdinfo|mem|environ|cmdline|maps|map_files)(/|$)")
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class KernelAudit:
    """Records accesses by the kernel's own code, from :meth:`start` to the end of the process.

    Args:
        own: Returns whether a source file is the kernel's.
        folder: Folder of the job.
        allowed: Folders below it that the kernel may use.
        read_only: Folders that the kernel must not change: this package and the caches.
    """

    def __init__(
        self, *, own: Callable[[str], bool], folder: Path, allowed: tuple[Path, ...], read_only: tuple[Path, ...]
    ) -> None:
        self._own = own
        self._folder = _prefix(folder)
        self._allowed = tuple(map(_prefix, allowed))
        self._read_only = tuple(map(_prefix, read_only))
        self._messages: dict[str, None] = {}
        self._thread = threading.local()

    def start(self) -> None:
        """Begin to record; the hook cannot be removed."""
        sys.addaudithook(self._hook)

    @property
    def messages(self) -> list[str]:
        """The accesses, each with its line."""
        return list(self._messages)

    def add(self, message: str) -> None:
        """Record an access that was noticed in another way."""
        self._messages.setdefault(message)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OBJECT_EVENTS:
            what = _OBJECT_EVENTS[event]
        elif event in _FILE_EVENTS:
            what = ""
        elif event == "object.__getattr__" and arguments[1] in _FRAME_ATTRIBUTES:
            what = f"a frame ({arguments[1]})"
        else:
            return
        if getattr(self._thread, "busy", False):
            return  # `sys._getframe` below raises an event of its own
        self._thread.busy = True
        try:
            frame = sys._getframe(1)
            if what:
                self._check_object_access(what, _requesting_frame(frame))
            else:
                self._check_file_access(event, arguments, frame)
        finally:
            self._thread.busy = False

    def _check_object_access(self, what: str, frame: FrameType | None) -> None:
        if frame is not None and self._own(frame.f_code.co_filename):
            self.add(f"{_place(frame)} requests {what}")

    def _check_file_access(self, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        paths = [_path(argument) for argument in arguments[: _FILE_EVENTS[event]]]
        reads = event in _READ_EVENTS or (event == "open" and not _writes(arguments))
        foreign = next((path for path in paths if path is not None and self._is_foreign(path, reads=reads)), None)
        if foreign is None:
            return
        while frame is not None and _in_standard_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and self._own(frame.f_code.co_filename):
            self.add(f"{_place(frame)} {'reads' if reads else 'changes'} {foreign}, which is none of its files")

    def _is_foreign(self, path: str, *, reads: bool) -> bool:
        if _PROCESS.match(path):
            return True
        path += os.sep  # a folder lies below itself
        if path.startswith(self._folder):
            return not path.startswith(self._allowed)
        return not reads and path.startswith(self._read_only)


def trap_oracle(audit: KernelAudit) -> None:
    """Record calls of the oracle: only the parent judges, so that a call in the worker comes from the kernel."""
    from pytest_nvfp4.numerics import inputs, oracle

    exact_product = oracle.exact_product

    def trap(**operands: Any) -> oracle.Exact:
        audit.add("the kernel computes its result with the oracle of its test harness")
        return exact_product(**operands)

    for module in (inputs, oracle):
        vars(module)["exact_product"] = trap


def _prefix(folder: Path) -> str:
    return os.path.realpath(folder) + os.sep


def _path(argument: object) -> str | None:
    """Return an absolute path with the links of its folder resolved; its last part may be a link."""
    if not isinstance(argument, str | bytes | os.PathLike):
        return None
    text = os.path.abspath(os.fsdecode(argument))  # noqa: PTH100 - a link as the last part stays what it is
    if text.startswith("/proc/"):
        return text  # its links point to other processes' files
    return f"{os.path.realpath(Path(text).parent)}{os.sep}{Path(text).name}"


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = (*arguments, None, None)[1:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def _in_standard_library(file: str) -> bool:
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and "-packages" not in file)


def _requesting_frame(frame: FrameType | None) -> FrameType | None:
    """Return the code that requests a frame: the caller of ``inspect``, or of a ``traceback`` walk.

    Other code of the standard library that inspects frames (``logging``, ``namedtuple``, printing a traceback) does not
    pass them on.
    """
    while frame is not None:
        name = Path(frame.f_code.co_filename).name
        walks = name == "traceback.py" and frame.f_code.co_name in ("walk_stack", "walk_tb")
        if not (_in_standard_library(frame.f_code.co_filename) and (name == "inspect.py" or walks)):
            return frame
        frame = frame.f_back
    return None


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
