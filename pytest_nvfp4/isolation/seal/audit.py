"""Record accesses by a kernel's own code to frames, objects, code and files around it, which no product needs.

Python calls an audit hook for each access to a frame, the heap, a file or a tracing function (PEP 578), and a hook
cannot be removed. Only accesses by the kernel count (``requester``); torch and the DSL inspect frames all the time.
Nothing is forbidden: an access is recorded, and the verdict names it.

This is no security boundary. Native code is not audited, and code that shares a process can do anything in it. The
audit reveals the simple ways to forge an answer.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pytest_nvfp4.isolation.seal.requester import (
    HANDS_OUT,
    Requester,
    in_standard_library,
    is_foreign_name,
    reads_source,
)

_HEAP_AND_FRAMES = {
    "sys._getframe": "the frames of its callers",
    "sys._getframemodulename": "the modules of its callers",
    "sys._current_frames": "the frames of all threads",
    "sys._current_exceptions": "the exceptions of all threads",
    "gc.get_objects": "every object of the process",
    "gc.get_referrers": "the referrers of an object",
    "gc.get_referents": "the referents of an object",
}
_TRACES = {
    "sys.settrace": "a trace of every line",
    "sys.setprofile": "a trace of every call",
    "threading.settrace": "a trace of every line",
    "threading.setprofile": "a trace of every call",
    "sys.monitoring.register_callback": "a trace of what runs",
    "sys.addaudithook": "a report of every access",
    "cpython.PyInterpreterState_New": "another interpreter, where no access is recorded",
}
_OBJECT_EVENTS = {**_HEAP_AND_FRAMES, **_TRACES}
_HANDING_OUT = frozenset(
    {
        "currentframe",
        "getouterframes",
        "getinnerframes",
        "stack",
        *chain(*(names or () for names in HANDS_OUT.values())),
    }
)
"""Names of the functions of libraries that hand out the frames that they request."""
_WORDS = {event: frozenset({event.rpartition(".")[2]}) for event in _OBJECT_EVENTS}
_WORDS["sys._getframe"] |= _HANDING_OUT
"""Names by which code requests an object of the interpreter, by event."""
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_CODE_ATTRIBUTES = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_NATIVE = re.compile(r"_?Py(Frame|ThreadState|InterpreterState|GC|Eval_|Unstable|Function_Set|Code|Runtime|Sys_|_)")
"""Functions of Python's own library that reach frames, threads, the heap or code."""
_FILE_EVENTS = {
    **dict.fromkeys(("open", "os.chmod", "os.listdir", "os.mkdir", "os.remove", "os.rmdir"), 1),
    **dict.fromkeys(("os.scandir", "os.truncate", "os.utime"), 1),
    **dict.fromkeys(("os.link", "os.rename", "os.symlink"), 2),
}
"""Events about files, with the number of leading arguments that are paths."""
_CODE_EVENTS = frozenset({"compile", "exec", "code.__new__", "function.__new__"})
_EVENTS = frozenset({*_FILE_EVENTS, *_CODE_EVENTS, "ctypes.dlsym"})
_ATTRIBUTE_EVENTS = frozenset({"object.__setattr__", "object.__delattr__"})
_ATTRIBUTE_READ = "object.__getattr__"
_READ_EVENTS = frozenset({"os.listdir", "os.scandir"})
_PROCESS = re.compile(r"/proc/(self|thread-self|\d+)/(task/\d+/)?(fd|fdinfo|mem|environ|cmdline|maps|map_files)(/|$)")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


_Listener = Callable[[str, tuple[Any, ...]], None]


def _filtered(events: frozenset[str], listener: _Listener) -> _Listener:
    """Return an audit hook that passes on some events.

    A compile raises millions of others. The hook is a plain function because Python looks for an attribute of it at
    each event, which makes a bound method three times as slow (measured with CPython 3.11). What it uses are defaults,
    which a seal compares, and no cells. A compile reads the code of each frame below an operation, so the first
    comparison is for reads of attributes, because hashing their names takes longer, and few of them hand out frames.
    """

    def hook(
        event: str,
        arguments: tuple[Any, ...],
        events: frozenset[str] = events,
        listener: _Listener = listener,
        attributes: frozenset[str] = _FRAME_ATTRIBUTES if _ATTRIBUTE_READ in events else frozenset(),
    ) -> None:
        if event == "object.__getattr__":
            if arguments[1] in attributes:
                listener(event, arguments)
        elif event in events:
            listener(event, arguments)

    return hook


class KernelAudit:
    """Records accesses by the kernel's own code, from :meth:`start` to the end of the process.

    Seal it before it starts: the list of what is sealed raises an event for each address.

    Args:
        own: Returns whether a source file is the kernel's.
        folder: Folder of the job.
        allowed: Folders below it that the kernel may use.
        read_only: Folders that the kernel must not change: this package and the caches.
        objects: Whether requests of frames and of the heap count; traces count always.
        opened: Receives the arguments of each event of an opened file.
    """

    fixed = True
    """For the seal: no attribute is bound again."""

    def __init__(
        self,
        *,
        own: Callable[[str], bool],
        folder: Path,
        allowed: tuple[Path, ...],
        read_only: tuple[Path, ...],
        objects: bool = True,
        opened: Callable[[tuple[Any, ...]], None] | None = None,
    ) -> None:
        self._objects = _OBJECT_EVENTS if objects else _TRACES
        self._opened = opened
        self._own = own
        self._folder = _prefix(folder)
        self._allowed = tuple(map(_prefix, allowed))
        self._read_only = tuple(map(_prefix, read_only))
        self._messages: dict[str, None] = {}
        self._requester = Requester(own)
        self._thread = threading.local()
        events = _EVENTS | _ATTRIBUTE_EVENTS | self._objects.keys() | ({_ATTRIBUTE_READ} if objects else set())
        self._filtered = _filtered(events, self._hook)

    def start(self) -> None:
        """Begin to record; the hook cannot be removed."""
        sys.addaudithook(self._filtered)

    @property
    def messages(self) -> list[str]:
        """The accesses, each with its line."""
        return list(self._messages)

    def add(self, message: str) -> None:
        """Record an access that was noticed in another way."""
        self._messages.setdefault(message)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _ATTRIBUTE_EVENTS and arguments[1] not in _CODE_ATTRIBUTES:
            return
        if getattr(self._thread, "busy", False):
            return  # `sys._getframe` below raises an event of its own
        self._thread.busy = True
        try:
            frame = sys._getframe(2)
            if event in _FILE_EVENTS:
                self._check_file_access(event, arguments, frame)
                if event == "open" and self._opened is not None:
                    self._opened(arguments)
            elif event in _CODE_EVENTS:
                self._check_made_code(event, arguments, frame)
            elif event == "ctypes.dlsym":
                self._check_native(arguments, frame)
            elif event in self._objects:
                self._check_object_access(_OBJECT_EVENTS[event], frame, _WORDS[event])
            elif event == _ATTRIBUTE_READ:
                self._check_object_access(f"a frame ({arguments[1]})", frame, _FRAME_ATTRIBUTES)
            else:
                self._check_changed_code(arguments, frame)
        finally:
            self._thread.busy = False

    def _check_object_access(self, what: str, frame: FrameType | None, words: frozenset[str]) -> None:
        if (by := self._requester.of_object(frame, words)) is not None:
            self.add(f"{_place(by)} requests {what}")

    def _check_changed_code(self, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        """Record a change of the code or defaults of a function that is not the kernel's own."""
        code = getattr(arguments[0], "__code__", None)
        file = code.co_filename if type(code) is CodeType else ""
        if is_foreign_name(file, self._own) and (by := self._requester.of_code(frame)) is not None:
            self.add(f"{_place(by)} changes {arguments[1]} of {getattr(arguments[0], '__qualname__', '?')}")

    def _check_made_code(self, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        """Record code that a kernel makes or runs under the name of another file, to pass for it."""
        made = arguments[0]
        name = made.co_filename if type(made) is CodeType else arguments[1] if event != "exec" else None
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if not isinstance(name, str) or not is_foreign_name(name, self._own):
            return
        if (by := self._requester.of_code(frame)) is not None:
            self.add(f"{_place(by)} makes code under the name of {name}, which is none of its files")

    def _check_native(self, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        name = arguments[1]
        if (
            isinstance(name, str)
            and _NATIVE.match(name)
            and (by := self._requester.of_code(_caller(frame))) is not None
        ):
            self.add(f"{_place(by)} requests {name} of Python's own library")

    def _check_file_access(self, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        paths = [_path(argument) for argument in arguments[: _FILE_EVENTS[event]]]
        reads = event in _READ_EVENTS or (event == "open" and not _writes(arguments))
        foreign = next((path for path in paths if path is not None and self._is_foreign(path, reads=reads)), None)
        if foreign is None or (by := self._requester.of_file(frame)) is None:
            return
        # A revision of a kernel lies in the cache while it is compiled.
        if reads and foreign.startswith(self._read_only) and (self._own(foreign) or reads_source(frame)):
            return
        self.add(f"{_place(by)} {'reads' if reads else 'changes'} {foreign}, which is none of its files")

    def _is_foreign(self, path: str, *, reads: bool) -> bool:
        if _PROCESS.match(path):
            return True
        path += os.sep  # a folder lies below itself
        if path.startswith(self._folder):
            return not path.startswith(self._allowed)
        return path.startswith(self._read_only) and (not reads or path.endswith(".py" + os.sep))


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


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame outside the standard library: ``ctypes`` looks its functions up for its caller."""
    while frame is not None and in_standard_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
